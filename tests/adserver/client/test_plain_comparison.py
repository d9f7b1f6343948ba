"""A private model's file is compared with training in the clear as the files on disk say."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from adserver import compare_plain
from adserver.training import plain_twin
from adserver.training.pipeline import ENCODER_IS, LOSS_IS, describe, from_bytes, from_columns
from maskedlark.canonical import encode
from maskedlark.encoding.encoder import ClassLabel, Encoder, NumberColumn
from maskedlark.errors import InvalidTask, JobRefused
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss

LOGITS = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
NETWORK = dense_network([3, 6, 1], "relu", seed=1, final="linear")
ENCODER = Encoder(
    columns=tuple(NumberColumn(name=name, first=1, missing=0, edges=(-1.0, 0.0, 1.0)) for name in "abc"),
    label=ClassLabel(name="bought", classes=("no", "yes")),
)


@pytest.fixture(autouse=True)
def few_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_twin, "RATES", (0.03,))


def written(path: Path, seed: int, encoder: Encoder = ENCODER) -> Path:
    features = np.random.default_rng(seed).integers(0, 256, (150, 3), np.uint8)
    labels: NDArray[np.int64] = (features[:, 0] < 100).astype(np.int64)
    digest = np.frombuffer(encoder.digest, np.uint8)
    np.savez(path, features=features, labels=labels, encoder=digest)
    return path


@pytest.fixture
def people(tmp_path: Path) -> Path:
    return written(tmp_path / "people.npz", 1)


@pytest.fixture
def panel(tmp_path: Path) -> Path:
    return written(tmp_path / "panel.npz", 2)


def test_a_file_of_any_form_is_compared_and_says_its_loss(people: Path, panel: Path, tmp_path: Path) -> None:
    named = describe(NETWORK, **{ENCODER_IS: ENCODER.digest.hex(), LOSS_IS: LOGITS.value})
    found = compare_plain(named, NETWORK, people, panel=panel)
    assert found.by_plain is not None
    assert found.by_plain.high < 0
    path, columns = tmp_path / "private.onnx", tmp_path / "encoder.json"
    path.write_bytes(from_bytes(named, 3))
    columns.write_bytes(encode(ENCODER))
    of_file = compare_plain(path, NETWORK, str(people), panel=str(panel), encoder=columns, progress=False)
    assert of_file.private == found.private
    assert compare_plain(NETWORK, NETWORK, people, panel=panel, loss=LOGITS.value).private == found.private


def test_an_encoder_in_the_file_is_that_of_the_linear_model(people: Path, panel: Path) -> None:
    named = describe(NETWORK, **{ENCODER_IS: ENCODER.digest.hex(), LOSS_IS: LOGITS.value})
    given = compare_plain(named, NETWORK, people, panel=panel, encoder=ENCODER)
    assert compare_plain(from_columns(named, ENCODER), NETWORK, people, panel=panel) == given
    assert compare_plain(named, NETWORK, people, panel=panel).linear != given.linear


def test_rows_of_four_people_leave_the_panel_alone_out(people: Path, panel: Path) -> None:
    arrays = dict(np.load(panel))
    np.savez(panel, people=np.arange(len(arrays["labels"])) % 4, **arrays)
    found = compare_plain(NETWORK, NETWORK, people, panel=panel, loss=LOGITS.value)
    assert found.alone is None
    assert found.are_people


def test_wrong_files_are_refused_before_anything_is_trained(
    people: Path, panel: Path, tmp_path: Path
) -> None:
    with pytest.raises(InvalidTask, match="give loss="):
        compare_plain(NETWORK, NETWORK, people, panel=panel)
    with pytest.raises(InvalidTask, match="nobody"):
        compare_plain(NETWORK, NETWORK, tmp_path / "nobody.npz", panel=panel)
    wide = dense_network([3, 6, 3], "relu", seed=1, final="linear")
    with pytest.raises(InvalidTask, match="has 1 output, and the network 3"):
        compare_plain(NETWORK, wide, people, panel=panel, loss=LOGITS.value)
    other = Encoder(columns=ENCODER.columns, label=ClassLabel(name="bought", classes=("yes", "no")))
    of_another = written(tmp_path / "other.npz", 1, other)
    for given in ((of_another, panel), (people, of_another)):
        with pytest.raises(JobRefused, match="was made by the encoder"):
            compare_plain(NETWORK, NETWORK, given[0], panel=given[1], encoder=ENCODER, loss=LOGITS.value)
