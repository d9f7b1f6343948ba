"""The network over an encoder's columns: its form, its exact path, and what it can tell apart."""

import numpy as np
import onnxruntime
import pytest

from helper.gradient.choose import choose_engine
from maskedlark.encoding.encoder import (
    CategoryColumn,
    Column,
    Encoder,
    HashColumn,
    IdColumn,
    ImageColumn,
    NumberColumn,
)
from maskedlark.errors import ModelReason
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.model.table_network import WIDTH, table_network
from maskedlark.privacy.clip import Clip, Norm
from tests.refusals import refused

WORDS = CategoryColumn(name="device", first=1, missing=0, categories=("phone", "desktop"))
NUMBER = NumberColumn(name="pages", first=0, missing=0, edges=(1.0, 2.0, 3.0))
OTHER = NumberColumn(name="minutes", first=0, missing=0, edges=(5.0,))
IDS = IdColumn(name="item", words=tuple(f"item {index}" for index in range(300)))
IMAGES = ImageColumn(name="shown", height=8, width=8)
HASHED = HashColumn(name="user", rows=70_000)
MIXED = Encoder(columns=(NUMBER, WORDS, OTHER))
CLIP = Clip(norm=Norm.L2, bound=1.0, frac_bits=32)


def outputs_of(onnx: bytes, rows: list[list[int]]) -> np.ndarray:
    session = onnxruntime.InferenceSession(onnx)
    return np.asarray(session.run(None, {"features": np.array(rows, np.float32) / 256})[0])


@pytest.mark.parametrize(
    ("columns", "hidden", "outputs", "with_numbers", "parameters"),
    [
        (MIXED.columns, (), 1, True, WIDTH * (256 + 4 + 256) + (3 * WIDTH + 2) + 1),
        (MIXED.columns, (), 1, False, WIDTH * 4 + (WIDTH + 2) + 1),
        (MIXED.columns, (5,), 3, False, WIDTH * 4 + (WIDTH + 2 + 1) * 5 + 6 * 3),
        ((WORDS,), (), 1, True, WIDTH * 4 + WIDTH + 1),
        ((NUMBER, OTHER), (), 2, False, 2 * 2 + 2),
        ((IMAGES,), (5,), 3, True, 33 * 5 + 6 * 3),
        ((WORDS, IMAGES, NUMBER), (), 1, False, WIDTH * 4 + (WIDTH + 32 + 1) + 1),
        ((IDS, NUMBER, HASHED), (), 1, False, WIDTH * (302 + 70_000) + (2 * WIDTH + 1) + 1),
    ],
)
def test_a_table_network_is_exact_and_has_a_table_for_each_column(
    columns: tuple[Column, ...],
    hidden: tuple[int, ...],
    outputs: int,
    with_numbers: bool,
    parameters: int,
) -> None:
    encoder = Encoder(columns=columns)
    made = table_network(encoder, hidden=hidden, outputs=outputs, seed=3, are_numbers_in_tables=with_numbers)
    model = parse(made, num_features=encoder.num_features)
    loss, classes = (
        (Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, 2) if outputs == 1 else (Loss.CROSS_ENTROPY, outputs)
    )
    assert choose_engine(model, loss, CLIP, classes).path == "exact"
    assert (model.num_parameters, model.output_width) == (parameters, outputs)
    assert made == table_network(
        encoder, hidden=hidden, outputs=outputs, seed=3, are_numbers_in_tables=with_numbers
    )


def test_words_have_no_order_and_a_number_is_a_line_beside_its_table() -> None:
    made = table_network(MIXED, hidden=(), outputs=1, seed=3, are_numbers_in_tables=False)
    words = outputs_of(made, [[0, word, 0] for word in range(4)])[:, 0]
    assert np.abs(np.diff(words, 2)).min() > 1e-3
    numbers = outputs_of(made, [[byte, 1, 0] for byte in (0, 128, 255)])[:, 0]
    assert numbers[1] == pytest.approx(numbers[0] + (numbers[2] - numbers[0]) * 128 / 255, rel=1e-4)
    in_table = table_network(MIXED, hidden=(), outputs=1, seed=3)
    assert np.abs(np.diff(outputs_of(in_table, [[byte, 1, 0] for byte in range(5)])[:, 0], 2)).min() > 1e-3


def test_an_id_reads_the_row_of_all_its_bytes() -> None:
    encoder = Encoder(columns=(NUMBER, IDS))
    made = table_network(encoder, hidden=(), outputs=1, seed=3, are_numbers_in_tables=False)
    cells = [None, "nobody", "item 0", "item 254", "item 299"]
    features = encoder.features({"pages": ["1"] * 5, "item": cells})
    assert features[:, 1:].tolist() == [[0, 0], [1, 0], [2, 0], [0, 1], [45, 1]]
    assert len(set(outputs_of(made, features.tolist())[:, 0].tolist())) == 5


def test_rows_begin_no_longer_than_1_and_leave_the_clip_bound_to_what_they_learn() -> None:
    made = table_network(MIXED, hidden=(), outputs=1, seed=3)
    model = parse(made, num_features=MIXED.num_features)
    named = zip(model.parameters, model.initial_values, strict=True)
    rows = np.concatenate([values for of, values in named if of.name.startswith("table.")])
    lengths = np.linalg.norm(rows, axis=1)
    assert len(lengths) == 256 + 4 + 256
    assert lengths.min() > 0.1
    assert lengths.max() <= 1


@pytest.mark.parametrize(("hidden", "outputs"), [((0,), 1), ((), 0), ((4, -1), 2)])
def test_a_width_below_one_is_refused(hidden: tuple[int, ...], outputs: int) -> None:
    with refused(ModelReason.WRONG_SHAPE):
        table_network(MIXED, hidden=hidden, outputs=outputs, seed=0)


def test_numbers_are_centred_on_given_bytes() -> None:
    middle, given = (
        table_network(MIXED, hidden=(), outputs=1, seed=3, are_numbers_in_tables=False, centres=centres)
        for centres in (None, (28, 7, 228))
    )
    moved = [[byte, word, other] for byte, word, other in ((50, 0, 100), (0, 3, 27), (155, 1, 0))]
    as_seen_from_128 = [[byte + 100, word, other] for byte, word, other in moved]
    as_given = [[byte, word, other + 100] for byte, word, other in moved]
    np.testing.assert_allclose(outputs_of(given, as_given), outputs_of(middle, as_seen_from_128), rtol=1e-5)
    assert (
        choose_engine(parse(given, num_features=3), Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, CLIP, 2).path
        == "exact"
    )
    with refused(ModelReason.WRONG_SHAPE):
        table_network(MIXED, hidden=(), outputs=1, seed=3, centres=(1, 2))


@pytest.mark.parametrize("rate", [-0.1, 0.0, 1.0, 1.5])
def test_a_base_rate_without_a_logit_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="base_rate must be between 0 and 1"):
        table_network(MIXED, hidden=(), outputs=1, seed=3, base_rate=rate)


def test_predictions_begin_at_the_base_rate() -> None:
    made = table_network(MIXED, hidden=(), outputs=1, seed=3, base_rate=0.01)
    rows = [[a, b, c] for a in range(0, 256, 51) for b in range(4) for c in range(0, 256, 85)]
    assert float(np.median(1 / (1 + np.exp(-outputs_of(made, rows))))) == pytest.approx(0.01, rel=0.7)
