"""Raw rows in Python get what the command and the graph in plain onnxruntime give them."""

import csv
import warnings
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from adserver import predict
from adserver.cli.main import app
from adserver.client import prediction
from adserver.client.prediction import _cells
from adserver.records.exported_model import ExportedModel
from adserver.training.calibration import calibrate_by_panel
from adserver.training.pipeline import ENCODER_IS, LOSS_IS, describe, from_columns
from maskedlark.canonical import encode
from maskedlark.encoding.encoder import CategoryColumn, ClassLabel, Encoder, IdColumn, NumberColumn
from maskedlark.errors import InvalidModel, InvalidTask
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss

LOGITS = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
ENCODER = Encoder(
    columns=(
        NumberColumn(name="pages", first=1, missing=0, edges=(1.0, 2.5, 4.0)),
        CategoryColumn(name="city", first=1, categories=("Köln", "東京", "Zürich"), missing=0),
        CategoryColumn(name="plan", first=1, categories=("1", "2", "3"), missing=0),
        IdColumn(name="site", words=tuple(f"s{number}" for number in range(300))),
        CategoryColumn(name="seen@weekday", first=1, categories=("Mon", "Tue", "Wed"), missing=0),
        NumberColumn(name="seen@day", first=1, missing=0, edges=(20_759.0, 20_760.0)),
        NumberColumn(name="seen@hour", first=1, missing=0, edges=(6.0, 12.0, 18.0)),
    ),
    label=ClassLabel(name="bought", classes=("no", "yes")),
)
ROWS: list[dict[str, Any]] = [
    {"pages": 2.5, "city": "Köln", "plan": 1, "site": "s7", "seen": "2026-11-02 07:30", "extra": "x"},
    {"pages": None, "city": "東京", "plan": 3, "site": "s299", "seen": "2026-11-03 18:00", "extra": None},
    {"pages": 0, "city": None, "plan": None, "site": None, "seen": None, "extra": ""},
    {"pages": 9, "city": "Zürich", "plan": 2, "site": "s0", "seen": "2026-11-04 23:59", "extra": "ü"},
]
FIELDS = list(ROWS[0])


def table(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in FIELDS}


def write(rows: list[dict[str, Any]], path: Path) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def network(outputs: int = 1) -> bytes:
    return dense_network([ENCODER.num_features, 6, outputs], "relu", seed=5, final="linear")


def model(outputs: int = 1, loss: Loss | None = LOGITS) -> bytes:
    notes = {ENCODER_IS: ENCODER.digest.hex(), **({} if loss is None else {LOSS_IS: loss.value})}
    return describe(network(outputs), **notes)


def calibrated() -> bytes:
    random = np.random.default_rng(2)
    features = random.integers(0, 256, (400, ENCODER.num_features), np.uint8)
    labels = (features[:, 0] + random.normal(0, 60, 400) > 128).astype(np.int64)
    panel = BytesIO()
    np.savez(panel, features=features, labels=labels)
    made = calibrate_by_panel(ExportedModel(encoded=model(), rounds_done=1), panel.getvalue(), LOGITS)
    assert abs(made.shift) > 0.01
    return made.exported.encoded


def run_graph(encoded: bytes, rows: list[dict[str, Any]]) -> NDArray[np.float64]:
    """The graph over columns in plain onnxruntime, with a feed that was made by hand."""
    moments = [None if row["seen"] is None else datetime.fromisoformat(row["seen"]) for row in rows]
    epoch = date(1970, 1, 1)
    held: dict[str, list[Any]] = {
        **table(rows),
        "seen@weekday": [None if one is None else f"{one:%a}" for one in moments],
        "seen@day": [None if one is None else (one.date() - epoch).days for one in moments],
        "seen@hour": [None if one is None else one.hour for one in moments],
    }
    session = onnxruntime.InferenceSession(encoded)
    feed = {}
    for column in session.get_inputs():
        cells = held[column.name]
        if column.type == "tensor(double)":
            numbers = [np.nan if cell is None else cell for cell in cells]
            feed[column.name] = np.array(numbers, np.float64).reshape(-1, 1)
        else:
            words = ["" if cell is None else str(cell) for cell in cells]
            feed[column.name] = np.array(words, object).reshape(-1, 1)
    (logits,) = session.run(None, feed)
    chances: NDArray[np.float64] = 1 / (1 + np.exp(-logits[:, 0].astype(np.float64)))
    return chances


def test_python_the_command_and_the_graph_in_plain_onnxruntime_agree(tmp_path: Path) -> None:
    scaled = calibrated()
    graph = from_columns(scaled, ENCODER)
    (tmp_path / "columns.onnx").write_bytes(graph)
    (tmp_path / "encoder.json").write_bytes(encode(ENCODER) + b"\n")
    written = write(ROWS, tmp_path / "new.csv")
    expected = run_graph(graph, ROWS)
    assert len(set(expected)) == len(ROWS)
    asked = ["model", "predict", tmp_path / "columns.onnx", "--csv", written, "--out", tmp_path / "out.csv"]
    ended = CliRunner().invoke(app, list(map(str, asked)))
    assert ended.exit_code == 0, ended.output
    with (tmp_path / "out.csv").open(encoding="utf-8") as file:
        by_command = [float(row["chance of yes"]) for row in csv.DictReader(file)]
    np.testing.assert_allclose(by_command, expected, rtol=0, atol=1e-7)
    frame = pd.DataFrame(ROWS)
    assert frame["plan"].dtype == np.float64  # as pandas holds whole numbers with a gap
    for rows in (ROWS, frame, written, str(written), pd.read_csv(written), iter(ROWS)):
        found = predict(tmp_path / "columns.onnx", rows)
        assert found.shape == (4,)
        np.testing.assert_array_equal(found, by_command)
    for encoder in (ENCODER, tmp_path / "encoder.json", str(tmp_path / "encoder.json")):
        np.testing.assert_allclose(predict(scaled, ROWS, encoder=encoder), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "as_moment",
    [
        datetime.fromisoformat,
        pd.Timestamp,
        np.datetime64,
        lambda text: datetime.fromisoformat(text).replace(tzinfo=UTC),
        lambda text: int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()),
    ],
)
def test_dates_may_be_dates(as_moment: Callable[[str], Any]) -> None:
    changed = [{**row, "seen": None if row["seen"] is None else as_moment(row["seen"])} for row in ROWS]
    graph = from_columns(model(), ENCODER)
    np.testing.assert_array_equal(predict(graph, changed), predict(graph, ROWS))


def test_a_polars_frame_is_read_by_its_columns() -> None:
    """polars is no dependency: its frames are known by what they share with those of pandas."""

    class Series:
        def __init__(self, values: list[Any]) -> None:
            self.to_list = lambda: values

    class Frame:
        columns = FIELDS

        def __getitem__(self, name: str) -> Series:
            return Series(table(ROWS)[name])

        def __len__(self) -> int:
            return len(ROWS)

    graph = from_columns(model(), ENCODER)
    np.testing.assert_array_equal(predict(graph, Frame()), predict(graph, ROWS))


@pytest.mark.parametrize(
    "gap", [None, np.nan, "", "N/A", "-", "<NA>", "nat", pd.NA, pd.NaT, np.datetime64("NaT"), Decimal("NaN")]
)
def test_every_gap_is_a_gap(gap: object) -> None:
    assert _cells([gap, "s7"], ("s7",)) == [None, "s7"]


@pytest.mark.parametrize(
    ("values", "words", "cells"),
    [
        ([3.0, 3, np.int64(3), np.float32(3), Decimal(3)], ("1", "3"), ["3"] * 5),
        ([3, 3.0], ("3.0",), ["3.0"] * 2),
        ([7, 7.0, "7"], ("007",), ["007", "007", "7"]),
        ([7], ("007", "7"), ["7"]),
        ([True, np.False_, "true"], ("false", "true"), ["true", "false", "true"]),
        ([True, False], ("False", "True"), ["True", "False"]),
        ([True, False], ("0", "1"), ["1", "0"]),
        ([2.5, Decimal("2.50"), 1e300, float("inf")], (), ["2.5", "2.50", "1e+300", "inf"]),
        ([4.0], ("1", "3"), ["4"]),
        ([2**70], (), [str(2**70)]),
    ],
)
def test_a_number_has_the_spelling_of_the_encoders_words(
    values: list[Any], words: tuple[str, ...], cells: list[str]
) -> None:
    assert _cells(values, words) == cells


def test_a_row_that_cannot_be_read_is_nan_and_the_warning_says_why() -> None:
    graph = from_columns(model(), ENCODER)
    with pytest.warns(UserWarning, match="not scored") as caught:
        found = predict(graph, [{**ROWS[0], "pages": "many"}, ROWS[1], {**ROWS[0], "seen": "soon"}])
    assert np.isnan(found).tolist() == [True, False, True]
    (said,) = (str(one.message) for one in caught)
    assert "1 row is not scored: column 'pages': it holds a word" in said
    assert "1 row is not scored: column 'seen': it holds no date" in said
    assert caught[0].filename == __file__


def test_a_column_that_only_some_dicts_have_is_counted_in_one_warning() -> None:
    lacking = [
        {name: value for name, value in row.items() if name not in absent}
        for row, absent in zip(ROWS, [(), ("city", "extra"), ("city", "seen"), ("extra",)], strict=True)
    ]
    encoded = model()
    said = r"some dicts have are gaps in the others: 'city' \(2 rows\), 'seen' \(1 row\)"
    with pytest.warns(UserWarning, match=said) as caught:
        scored = predict(encoded, lacking, encoder=ENCODER)
    assert len(caught) == 1
    assert "extra" not in str(caught[0].message)  # of which the encoder reads nothing
    gaps = [row | {name: None for name in FIELDS if name not in row} for row in lacking]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(scored, predict(encoded, gaps, encoder=ENCODER))
    with pytest.raises(InvalidTask, match="city"):
        predict(encoded, [{"pages": 1}, {"pages": 2}], encoder=ENCODER)


@pytest.fixture(autouse=True)
def told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin each test as a process that has predicted nothing."""
    monkeypatch.setattr(prediction, "_TOLD", set())


def test_unknown_words_are_warned_of_again_only_where_their_share_changes() -> None:
    graph = from_columns(model(), ENCODER)
    rows = [{**ROWS[0], "city": "Bonn"}, *ROWS[1:]]
    with pytest.warns(UserWarning, match="1 row is scored as `other` in column 'city'"):
        predict(graph, rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict(graph, rows)
        predict(graph, [*rows, *rows])
    with pytest.warns(UserWarning, match="2 rows are scored as `other` in column 'city'"):
        predict(graph, [rows[0], *rows])


def test_words_that_the_encoder_does_not_name_are_counted_in_a_warning() -> None:
    graph = from_columns(model(), ENCODER)
    with pytest.warns(UserWarning, match="1 row is scored as `other` in column 'city'.*not name 'Bonn'"):
        assert not np.isnan(predict(graph, [{**ROWS[0], "city": "Bonn"}])).any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict(graph, ROWS)


@pytest.mark.parametrize(
    ("outputs", "loss", "shape"),
    [
        (3, Loss.CROSS_ENTROPY, (4, 3)),
        (1, Loss.MSE, (4,)),
        (1, Loss.POISSON, (4,)),
        (2, None, (4, 2)),
    ],
)
def test_classes_have_a_column_each_and_numbers_none(
    outputs: int, loss: Loss | None, shape: tuple[int, ...]
) -> None:
    found = predict(from_columns(model(outputs, loss), ENCODER), ROWS)
    assert found.shape == shape
    if loss is Loss.CROSS_ENTROPY:
        np.testing.assert_allclose(found.sum(1), 1)
    named = predict(from_columns(model(outputs, None), ENCODER), ROWS, loss=loss and loss.value)
    np.testing.assert_array_equal(found, named)
    assert predict(from_columns(model(outputs, loss), ENCODER), []).shape == (0, *shape[1:])


def test_a_table_that_lacks_columns_has_all_of_them_named_with_the_close_ones_that_it_has(
    tmp_path: Path,
) -> None:
    renamed = [
        {"City": row["city"], **{name: row[name] for name in ("pages", "plan", "site")}} for row in ROWS
    ]
    why = r"no columns 'city' \(did you mean 'City'\?\), 'seen'; it has City, pages, plan, site"
    path = tmp_path / "new.csv"
    pd.DataFrame(renamed).to_csv(path, index=False)
    for rows, name in ((renamed, "rows"), (pd.DataFrame(renamed), "rows"), (path, "new.csv")):
        with pytest.raises(InvalidTask, match=f"{name} has {why}"):
            predict(from_columns(model(), ENCODER), rows)


@pytest.mark.parametrize("gaps", [12, 7, 6])
def test_a_column_that_is_mostly_empty_is_warned_of_once(gaps: int) -> None:
    graph = from_columns(model(), ENCODER)
    frame = pd.DataFrame([ROWS[row % 2] | {"pages": 3.0} for row in range(12)])
    frame.loc[: gaps - 1, "pages"] = pd.to_numeric("47,13", errors="coerce")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            predict(graph, frame)
    told = (
        f"mostly empty: column 'pages' ({gaps} of 12 rows); check that the cells were read as they were meant"
    )
    # Up to half may be as the encoder was fitted to it, which has a byte for gaps
    assert [str(one.message) for one in caught] == ([told] if gaps > 6 else [])


def test_a_gap_where_the_encoder_was_fitted_to_none_is_warned_of_at_the_first_one() -> None:
    encoder = Encoder(columns=(NumberColumn(name="pages", first=0, missing=130, edges=(1.0, 2.5)),))
    encoded = describe(dense_network([1, 1], "relu", seed=5, final="linear"), **{LOSS_IS: LOGITS.value})
    with pytest.warns(
        UserWarning,
        match=r"empty where the encoder was fitted to no gap: column 'pages' \(1 of 2 rows\); check",
    ):
        predict(encoded, [{"pages": 1}, {"pages": None}], encoder=encoder)


def test_dates_that_are_mostly_empty_are_warned_of_by_their_own_name_alone() -> None:
    with pytest.warns(UserWarning, match="mostly empty: column 'seen'") as caught:
        predict(from_columns(model(), ENCODER), [ROWS[0] | {"seen": None}] * 12)
    assert [str(one.message).partition(";")[0] for one in caught] == [
        "mostly empty: column 'seen' (12 of 12 rows)"
    ]


def test_dates_of_which_none_can_be_read_have_the_forms_that_are_read_in_the_warning() -> None:
    with pytest.warns(
        UserWarning, match="2 rows are not scored: .*'seen': it holds no date: write dates as 2026"
    ):
        predict(from_columns(model(), ENCODER), [ROWS[0] | {"seen": "18042025"}] * 2)


@pytest.mark.parametrize(
    ("rows", "asked", "why"),
    [
        ({"pages": [1]}, {}, "a dict with several cells of 'pages': a dict is one row"),
        (7, {}, "rows are of type int: expected a pandas or polars frame, a list of dicts"),
        ([ROWS[0], [1]], {}, "row 1 is of type list"),
        (pd.DataFrame([[1, 2]], columns=["pages", "pages "]), {}, "two columns of the frame have one name"),
        (
            [{"pages": 1}],
            {},
            "reads columns that are not there: rows has no columns 'city', 'plan', .*it has pages",
        ),
        (ROWS, {"encoder": Encoder(columns=ENCODER.columns[:2])}, "was trained with encoder"),
        (ROWS, {"loss": "hinge"}, "loss must be"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(rows: Any, asked: Mapping[str, Any], why: str) -> None:
    with pytest.raises(InvalidTask, match=why):
        predict(from_columns(model(), ENCODER), rows, **asked)


def test_one_dict_is_one_row() -> None:
    scored = predict(from_columns(model(), ENCODER), ROWS[0])
    np.testing.assert_array_equal(scored, predict(from_columns(model(), ENCODER), ROWS)[:1])


def test_a_file_of_features_needs_its_encoder_and_a_loss_its_outputs() -> None:
    with pytest.raises(InvalidTask, match=r"holds no encoder.*give the encoder file"):
        predict(model(), ROWS)
    with pytest.raises(InvalidModel, match="needs an output for each class: the model has 1"):
        predict(model(), ROWS, encoder=ENCODER, loss="cross_entropy")


UNIT = "column 'pages' is read as amounts in €; the encoder does not know the unit that it was fitted on"


def test_numbers_that_are_text_may_have_decimal_commas_and_a_currency() -> None:
    graph = from_columns(model(), ENCODER)
    rows = [row | {"pages": cell} for row, cell in zip(ROWS, ["2,5", "", "0", "9"], strict=True)]
    assert predict(graph, rows).tolist() == predict(graph, ROWS).tolist()
    rows = [row | {"pages": cell} for row, cell in zip(ROWS, ["€ 2,50", "", "€ 0", "9,00"], strict=True)]
    for one in (rows, pd.DataFrame(rows)):
        with pytest.warns(UserWarning, match=UNIT):
            found = predict(graph, one)
        assert found.tolist() == predict(graph, ROWS).tolist()


@pytest.mark.parametrize("pages", [["1,234"], ["2,5", "1.234 €"], ["1,234", 7.5]])
def test_a_comma_that_could_part_thousands_costs_its_row_the_prediction(pages: list[Any]) -> None:
    rows = [row | {"pages": cell} for row, cell in zip(ROWS, pages, strict=False)]
    with pytest.warns(UserWarning, match="1 row is not scored: column 'pages': its points or commas may"):
        chances = predict(from_columns(model(), ENCODER), rows)
    assert np.isnan(chances).tolist() == ["234" in str(cell) for cell in pages]


def test_an_amount_in_another_currency_costs_its_row_the_prediction(tmp_path: Path) -> None:
    graph = from_columns(model(), ENCODER)
    pages = ["2,50 €", "7 USD", "0 €", "9"]
    rows = [row | {"pages": cell} for row, cell in zip(ROWS, pages, strict=True)]
    expected = predict(graph, ROWS)
    expected[1] = np.nan
    for one in (rows, pd.DataFrame(rows), write(rows, tmp_path / "new.csv")):
        with pytest.warns(UserWarning, match=UNIT) as caught:
            np.testing.assert_array_equal(predict(graph, one), expected)
        why = "1 row is not scored: column 'pages': it is an amount in USD, where the others are in €; "
        assert why in str(caught[0].message)


def test_a_short_line_of_a_file_costs_its_own_row_the_prediction(tmp_path: Path) -> None:
    graph, path = from_columns(model(), ENCODER), write(ROWS, tmp_path / "new.csv")
    expected = predict(graph, path)
    path.write_text(path.read_text(encoding="utf-8") + "1,phone\n", encoding="utf-8")
    with pytest.warns(UserWarning, match=r"1 row is not scored: its line has 2 cells, expected \d"):
        np.testing.assert_array_equal(predict(graph, path), [*expected, np.nan])


def test_a_number_that_is_text_does_not_depend_on_the_other_rows() -> None:
    graph = from_columns(model(), ENCODER)
    rows = [ROWS[0] | {"pages": cell} for cell in ("1.500", "2,5", "2.5", "1 000", "1.000,5")]
    together = predict(graph, rows)
    assert together.tolist() == [predict(graph, [row]).item() for row in rows]
    numbers = [ROWS[0] | {"pages": number} for number in (1.5, 2.5, 2.5, 1000, 1000.5)]
    assert together.tolist() == predict(graph, numbers).tolist()


def test_words_that_are_amounts_are_scored_as_the_encoder_names_them(tmp_path: Path) -> None:
    encoder = Encoder(columns=(CategoryColumn(name="a", first=0, categories=("10 %", "20 %"), missing=2),))
    graph = from_columns(dense_network([1, 1], "relu", seed=1, final="linear"), encoder)
    path = tmp_path / "a.csv"
    path.write_text("a\n10 %\n20 %\n", encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = predict(graph, path)
        assert found.tolist() == predict(graph, [{"a": "10 %"}, {"a": "20 %"}]).tolist()
    assert found[0] != found[1]
