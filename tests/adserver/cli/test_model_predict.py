"""`adserver model predict`: each row of a table has a prediction or a reason; `show` reads a file's width."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from adserver.cli.main import app
from adserver.training.inference import predict
from adserver.training.pipeline import ENCODER_IS, INPUT_IS, LOSS_IS, describe, from_bytes, from_columns
from adserver.training.scoring import score_table
from maskedlark.canonical import encode
from maskedlark.encoding.dates import DateOrder, with_parts
from maskedlark.encoding.encoder import (
    CategoryColumn,
    ClassLabel,
    DateColumn,
    Encoder,
    IdColumn,
    ImageColumn,
    NumberColumn,
)
from maskedlark.encoding.table import Table, parse_table
from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss
from tests.torch_models import export

ENCODER = Encoder(
    columns=(
        NumberColumn(name="pages", first=1, missing=0, edges=(1.0, 2.5)),
        CategoryColumn(name="device", first=1, categories=("phone", "tablet"), missing=0),
        CategoryColumn(name="seen@weekday", first=1, categories=("Mon", "Tue"), missing=0),
    ),
    label=ClassLabel(name="bought", classes=("no", "yes")),
)
TABLE = """who;pages;device;seen
Zoë;2.5;phone;2026-11-02
;;;
x;many;phone;2026-11-03
y;1;desktop;soon
z;0;tablet;2026-11-03
"""
WHY = {
    3: "column 'pages': it holds a word, or a number that is not finite, where the encoder has numbers",
    4: "column 'seen': it holds no date",
}


def model(outputs: int = 1, notes: Mapping[str, str] = {}) -> bytes:
    return describe(dense_network([3, outputs], "relu", seed=3, final="linear"), **notes)


def run(
    folder: Path, onnx: bytes, *options: str, table: str = TABLE, encoder: Encoder | None = ENCODER
) -> Any:
    (folder / "model.onnx").write_bytes(onnx)
    (folder / "new.csv").write_bytes(table.encode("cp1252"))
    asked = ["model", "predict", "model.onnx", "--csv", "new.csv", "--out", "scored.csv", "--force", *options]
    if encoder is not None:
        (folder / "encoder.json").write_bytes(encode(encoder) + b"\n")
        asked += ["--encoder", "encoder.json"]
    files = [str(folder / one) if "." in one and not one.startswith("-") else one for one in asked]
    return CliRunner().invoke(app, files)


def scored(folder: Path) -> list[dict[str, str]]:
    table = parse_table((folder / "scored.csv").read_bytes(), "scored.csv")
    names, cells = table.columns.keys(), zip(*table.columns.values(), strict=True)
    return [dict(zip(names, (cell or "" for cell in row), strict=True)) for row in cells]


def test_a_line_with_too_few_cells_costs_its_own_row_the_prediction(tmp_path: Path) -> None:
    onnx = model(notes={LOSS_IS: Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, ENCODER_IS: ENCODER.digest.hex()})
    whole = run(tmp_path, onnx, "--json")
    before = scored(tmp_path)
    ended = run(tmp_path, onnx, "--json", table=TABLE.replace("z;0", "short;1;phone\nz;0"))
    assert ended.exit_code == whole.exit_code == 0, ended.output
    rows = scored(tmp_path)
    assert [row["who"] for row in rows] == ["Zoë", "", "x", "y", "short", "z"]
    assert rows[4]["not scored because"] == "its line has 3 cells, expected 4"
    assert rows[:4] + rows[5:] == before
    too_long = run(tmp_path, onnx, table=TABLE + "a;1;phone;2026-11-03;5\n")
    assert "line 7: found 5 cells, expected 4" in str(too_long.exception)


def test_each_row_is_kept_with_its_chance_or_with_the_reason_why_it_has_none(tmp_path: Path) -> None:
    onnx = model(notes={LOSS_IS: Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, ENCODER_IS: ENCODER.digest.hex()})
    ended = run(tmp_path, onnx, "--json")
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout) == {
        "read": 5, "scored": 3, "left_out": dict.fromkeys(WHY.values(), 1), "unknown_words": {}, "gaps": {},
        "units": {}, "columns": ["chance of yes"],
    }  # fmt: skip
    rows = scored(tmp_path)
    assert [row["who"] for row in rows] == ["Zoë", "", "x", "y", "z"]
    assert {
        place: row["not scored because"] for place, row in enumerate(rows, 1) if not row["chance of yes"]
    } == WHY
    table = parse_table(TABLE.encode(), "new.csv").take([0, 1, 4])
    features = ENCODER.features({**table.columns, **with_parts(table.columns, ["seen@weekday"])})
    expected = 1 / (1 + np.exp(-predict(onnx, features)[:, 0].astype(np.float64)))
    np.testing.assert_allclose(
        [float(rows[place]["chance of yes"]) for place in (0, 1, 4)], expected, rtol=1e-12
    )


def test_the_file_is_written_as_the_table_is(tmp_path: Path) -> None:
    table = "who;pages;device;seen\r\nZoë;1.002,5;phone;2026-11-02\r\n?;2,5;tablet;2026-11-03\r\n"
    ended = run(tmp_path, model(), table=table)
    said = "written as new.csv is: Windows-1252, cells parted by semicolons, decimal commas"
    assert said in " ".join(ended.output.split())
    lines = (tmp_path / "scored.csv").read_bytes().decode("cp1252").split("\r\n")
    assert lines[0] == "who;pages;device;seen;output 0;not scored because"
    assert lines[1].startswith("Zoë;1.002,5;phone;2026-11-02;")
    assert "," in lines[2].split(";")[4]


@pytest.mark.parametrize("name", ["new.csv", "model.onnx", "encoder.json", "scored.csv"])
def test_no_file_is_overwritten_that_is_read_or_that_nobody_said_to_replace(
    name: str, tmp_path: Path
) -> None:
    assert run(tmp_path, model()).exit_code == 0
    before = (tmp_path / name).read_bytes()
    asked = ["model", "predict", "model.onnx", "--csv", "new.csv", "--encoder", "encoder.json", "--out", name]
    asked = [str(tmp_path / one) if "." in one else one for one in asked]
    for options in ([], ["--force"]) if name != "scored.csv" else ([],):
        ended = CliRunner().invoke(app, [*asked, *options])
        assert ended.exit_code == 2
        why = "exists already" if name == "scored.csv" else "which this command reads"
        assert why in " ".join(ended.output.replace("│", "").split())
        assert (tmp_path / name).read_bytes() == before


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ({"pages": "€"}, ["column 'pages' is read as amounts in €; the encoder does not know"]),
        ({"a": "€", "b": "$"}, ["column 'a' is read as amounts in € and 'b' is read as amounts in $; the"]),
        ({"Umsatz 2025 (€)": "€", "price_eur": "€", "rate": "%", "share %": "%"}, []),
        ({"Umsatz (€)": "$"}, ["column 'Umsatz (€)' is named in €, and its amounts are in $, read as if"]),
        ({"paid (US$)": "USD", "in $": "£"}, ["column 'in $' is named in $, and its amounts are in £"]),
    ],
)
def test_units_are_told_once_unless_the_name_of_the_column_has_them(
    units: dict[str, str], expected: list[str]
) -> None:
    told = replace(score_table(model(), ENCODER, parse_table(TABLE.encode(), "a.csv")), units=units)
    before = replace(told, units={}).remarks()
    remarks = told.remarks()[len(before) :]
    assert [one[: len(said)] for one, said in zip(remarks, expected, strict=True)] == expected


def test_one_odd_amount_costs_its_own_row_alone_and_the_unit_is_printed(tmp_path: Path) -> None:
    rows = [f"{page},50 €;phone;2026-11-02\n" for page in range(30)]
    table = "pages;device;seen\n" + "".join(rows)
    ended = run(tmp_path, model(), table=table)
    assert "30 of 30 rows are scored" in ended.output
    before = [row["output 0"] for row in scored(tmp_path)]
    unit = "column 'pages' is read as amounts in €; the encoder does not know the unit that it was fitted on"
    assert unit in ended.output
    for odd, expected in (("7,50", before[7]), ("7.5", before[7]), ("7,50 USD", ""), ("seven", "")):
        ended = run(tmp_path, model(), table=table.replace("\n7,50 €", f"\n{odd}"))
        assert ended.exit_code == 0
        found = scored(tmp_path)
        assert [row["output 0"] for row in found] == [*before[:7], expected, *before[8:]]
        assert {row["not scored because"] for row in found[:7] + found[8:]} == {""}
        # The decimal sign stays the table's
        assert "," in (tmp_path / "scored.csv").read_text(encoding="cp1252").splitlines()[1].split(";")[3]
    ended = run(tmp_path, model(), "--json", table=table.replace("\n7,50 €", "\n7,50 USD"))
    why = "column 'pages': it is an amount in USD, where the others are in €"
    assert scored(tmp_path)[7]["not scored because"] == why
    assert json.loads(ended.stdout)["left_out"] == {why: 1}
    assert json.loads(ended.stdout)["units"] == {"pages": "€"}
    ended = run(tmp_path, model(), table=table.replace("€", "USD"))
    assert unit.replace("€", "USD") in ended.output


@pytest.mark.parametrize(("cells", "status"), [(("x", "x"), 1), (("x", "1,5", "2,5"), 0)])
def test_a_table_of_which_no_row_could_be_scored_is_a_failure(
    cells: tuple[str, ...], status: int, tmp_path: Path
) -> None:
    table = "pages;device;seen\n" + "".join(f"{cell};phone;2026-11-02\n" for cell in cells)
    for options in ((), ("--json",)):
        assert run(tmp_path, model(), *options, table=table).exit_code == status
        assert len(scored(tmp_path)) == len(cells)


@pytest.mark.parametrize("form", ["columns", "bytes"])
def test_a_file_that_takes_columns_or_bytes_is_scored_as_the_one_that_was_trained(
    form: str, tmp_path: Path
) -> None:
    plain = model(notes={LOSS_IS: Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, ENCODER_IS: ENCODER.digest.hex()})
    assert run(tmp_path, plain).exit_code == 0
    expected = scored(tmp_path)
    is_of_columns = form == "columns"
    graph = from_columns(plain, ENCODER) if is_of_columns else from_bytes(plain, 3)
    ended = run(tmp_path, graph, encoder=None if is_of_columns else ENCODER)
    assert ended.exit_code == 0, ended.output
    for row, other in zip(scored(tmp_path), expected, strict=True):
        assert row["not scored because"] == other["not scored because"]
        if not row["not scored because"]:
            assert float(row["chance of yes"]) == pytest.approx(float(other["chance of yes"]), abs=1e-6)


def test_words_that_the_encoder_does_not_name_are_counted_by_column_of_the_rows_that_are_scored(
    tmp_path: Path,
) -> None:
    rows = ["pages;device;seen", "1;watch;2026-11-02", "1;watch;2026-11-04", "2;car;2026-11-03"]
    table = "\n".join([*rows, "many;bike;2026-11-03\n"])
    ended = run(tmp_path, model(), "--json", table=table)
    found = json.loads(ended.stdout)
    assert (found["scored"], found["unknown_words"]) == (3, {"device": 3, "seen@weekday": 1})
    said = run(tmp_path, model(), table=table).output
    assert "column 'device': the encoder does not name 2 of the words there, most often 'watch'" in said
    assert "1 row is scored as `other` in column 'seen@weekday': the encoder does not name 'Wed'" in said


@pytest.mark.parametrize(
    ("column", "word", "meant"),
    [
        (CategoryColumn(name="w", first=0, missing=0, categories=("berlin", "paris")), "Berlin", "berlin"),
        (CategoryColumn(name="w", first=0, missing=0, categories=("São Paulo",)), "sao  paulo", "São Paulo"),
        (CategoryColumn(name="w", first=0, missing=0, categories=("Berlin", "Paris")), "Berlim", "Berlin"),
        (CategoryColumn(name="w", first=0, missing=0, categories=("1", "10")), "1.0", "1"),
        (CategoryColumn(name="w", first=0, missing=0, categories=("site 12",)), "SITE 12", "site 12"),
        (CategoryColumn(name="w", first=0, missing=0, categories=("site 12", "2")), "site 13", None),
        (CategoryColumn(name="w", first=0, missing=0, categories=("1", "10")), "11", None),
        (CategoryColumn(name="w", first=0, missing=0, categories=("berlin",)), "watch", None),
        (CategoryColumn(name="w@weekday", first=0, missing=0, categories=("Tue",)), "Thu", None),
        (IdColumn(name="w", words=tuple(map(chr, range(300, 700)))), chr(9999), None),
    ],
)
def test_an_unknown_word_is_told_with_the_known_one_that_was_probably_meant(
    column: CategoryColumn | IdColumn, word: str, meant: str | None
) -> None:
    encoder = Encoder(columns=(column,))
    onnx = dense_network([encoder.num_features, 1], "relu", seed=3, final="linear")
    table = Table(name="new.csv", columns={column.name: [word, word, column.words[0]]}, lines=[2, 3, 4])
    expected = f"does not name {word!r}" + (f" (did you mean {meant!r}?)" if meant else "")
    (remark,) = score_table(onnx, encoder, table).remarks()
    assert remark == f"2 rows are scored as `other` in column {column.name!r}: the encoder {expected}"


@pytest.mark.parametrize(
    ("outputs", "loss", "columns"),
    [
        (1, Loss.BINARY_CROSS_ENTROPY, ["chance of yes"]),
        (2, Loss.CROSS_ENTROPY, ["chance of no", "chance of yes"]),
        (1, Loss.MSE, ["prediction"]),
        (1, Loss.POISSON, ["prediction"]),
        (2, None, ["output 0", "output 1"]),
    ],
)
def test_what_a_number_is_follows_from_the_loss(
    outputs: int, loss: Loss | None, columns: list[str], tmp_path: Path
) -> None:
    ended = run(tmp_path, model(outputs), *(() if loss is None else ("--loss", loss.value)))
    assert ended.exit_code == 0, ended.output
    assert "3 of 5 rows are scored" in ended.output
    assert list(scored(tmp_path)[0])[4:-1] == columns
    if loss is Loss.CROSS_ENTROPY:
        assert sum(float(scored(tmp_path)[0][name]) for name in columns) == pytest.approx(1)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"onnx": model(notes={INPUT_IS: "pictures"})}, "takes pictures: give a file that"),
        ({"encoder": None}, "holds no encoder"),
        ({"onnx": model(notes={ENCODER_IS: "ab" * 32})}, "was trained with encoder abababababab"),
        (
            {"table": "pages;device\n1;phone\n"},
            "reads a column that is not there: new.csv has no column 'seen'; it has",
        ),
        ({"table": "pages,device,seen,prediction,output 0\n1,phone,,2,3\n"}, "'output 0' already"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(changed: dict[str, Any], why: str, tmp_path: Path) -> None:
    ended = run(tmp_path, **{"onnx": model(), **changed})
    assert ended.exit_code != 0
    assert why in " ".join(f"{ended.output} {ended.exception}".split())
    assert not (tmp_path / "scored.csv").exists()


def test_a_row_without_its_image_is_counted(tmp_path: Path) -> None:
    encoder = Encoder(columns=(ImageColumn(name="photo", height=8, width=8),))
    onnx = dense_network([encoder.num_features, 1], "relu", seed=1, final="linear")
    table = f"photo,id\n{'0a' * 64},1\n,2\n{'0a' * 63},3\n"
    ended = run(tmp_path, onnx, "--json", table=table, encoder=encoder)
    assert ended.exit_code == 0, ended.output
    assert sorted(json.loads(ended.stdout)["left_out"].values()) == [1, 1]


@pytest.mark.parametrize(
    ("seen", "read"),
    [
        (["2026-11-02", "1793577600", "03/04/2026", "soon"], [0]),
        (["03/04/2026", "13/04/2026", "2026-11-02", "1793577600"], [0, 1, 2]),
        (["soon", "never"], []),
    ],
)
def test_one_odd_date_leaves_the_other_rows_their_chances(
    seen: list[str], read: list[int], tmp_path: Path
) -> None:
    table = "".join(f"{one};1;phone\n" for one in seen)
    ended = run(tmp_path, model(), "--json", table=f"seen;pages;device\n{table}")
    assert ended.exit_code == (0 if read else 1), ended.output
    assert [place for place, row in enumerate(scored(tmp_path)) if row["output 0"]] == read
    told = json.loads(ended.stdout)
    assert (told["scored"], sum(told["left_out"].values())) == (len(read), len(seen) - len(read))


def test_a_row_that_is_wrong_elsewhere_still_shows_the_order_of_days_and_months(tmp_path: Path) -> None:
    table = "seen;pages;device\n13/04/2026;many;phone\n03/04/2026;1;phone\n"
    ended = run(tmp_path, model(), table=table)
    assert "1 of 2 rows are scored" in ended.output


@pytest.mark.parametrize("takes_columns", [False, True])
def test_dates_are_read_in_the_order_of_the_encoder_and_others_are_counted(
    takes_columns: bool, tmp_path: Path
) -> None:
    """2 November 2026 is a Monday, 11 February a Wednesday, which the encoder does not name."""
    dated = replace(ENCODER, dates=(DateColumn(name="seen", order=DateOrder.DAY_FIRST),))
    onnx = model(notes={LOSS_IS: Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, ENCODER_IS: dated.digest.hex()})
    if takes_columns:
        onnx = from_columns(onnx, dated)
    table = "seen;pages;device\n02/11/2026;1;phone\n2026-11-02;1;phone\n"
    ended = run(tmp_path, onnx, "--json", table=table, encoder=None if takes_columns else dated)
    assert (ended.exit_code, json.loads(ended.stdout)["unknown_words"]) == (0, {}), ended.output
    first, second = (row["chance of yes"] for row in scored(tmp_path))
    assert first == second
    ended = run(
        tmp_path, onnx, table=f"{table}11/28/2026;1;phone\n", encoder=None if takes_columns else dated
    )
    assert (
        "2 rows are not scored: column 'seen': its dates with slashes have the month first, and"
        in " ".join(ended.output.split())
    )
    assert [row["chance of yes"] for row in scored(tmp_path)] == ["", first, ""]
    assert ended.exit_code == 0


def test_show_takes_the_width_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(model())
    shown = CliRunner().invoke(app, ["model", "show", str(tmp_path / "model.onnx"), "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["parameters"] == 4


def test_show_says_of_a_file_for_one_record_a_run_whether_its_layers_fix_that(tmp_path: Path) -> None:
    class Joined(torch.nn.Module):
        """One row of numbers of its own is put next to the one record."""

        def __init__(self) -> None:
            super().__init__()
            self.own, self.last = torch.nn.Parameter(torch.rand(1, 2)), torch.nn.Linear(6, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.last(torch.cat([x, self.own], 1))
            return found

    for module, is_told in ((Joined(), True), (torch.nn.Linear(4, 1), False)):
        (tmp_path / "model.onnx").write_bytes(export(module, 4, 1, dynamo=False))
        shown = CliRunner().invoke(app, ["model", "show", str(tmp_path / "model.onnx")])
        assert shown.exit_code == 0, shown.output
        assert ("takes one record a run" in shown.output) == is_told


def test_show_asks_for_a_width_that_the_file_leaves_open(tmp_path: Path) -> None:
    import onnx

    proto = onnx.ModelProto.FromString(model())
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "features"
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    shown = CliRunner().invoke(app, ["model", "show", str(tmp_path / "model.onnx")])
    assert shown.exit_code == 2
    assert "give --num-features" in " ".join(shown.output.split())
    second = proto.graph.input.add()
    second.CopyFrom(proto.graph.input[0])
    second.name = "more"
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    # No width makes it a model that can be trained
    with pytest.raises(InvalidModel, match="the graph has 2 inputs"):
        CliRunner().invoke(app, ["model", "show", str(tmp_path / "model.onnx")], catch_exceptions=False)


@pytest.mark.parametrize(
    ("outputs", "loss"), [(2, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS), (1, Loss.CROSS_ENTROPY), (3, Loss.MSE)]
)
def test_a_loss_of_other_outputs_is_refused_before_a_file_is_written(
    outputs: int, loss: Loss, tmp_path: Path
) -> None:
    ended = run(tmp_path, model(outputs), "--loss", loss.value)
    assert isinstance(ended.exception, InvalidModel)
    assert ended.exception.reason is ModelReason.WRONG_LOSS
    assert not (tmp_path / "scored.csv").exists()


@pytest.mark.parametrize("notes", [{}, {LOSS_IS: Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS.value}])
def test_evaluate_takes_the_loss_that_the_file_says(notes: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(model(notes=notes))
    with (tmp_path / "panel.npz").open("wb") as file:
        np.savez(file, features=np.arange(24, dtype=np.uint8).reshape(8, 3), labels=np.arange(8) % 2)
    asked = ["model", "evaluate", str(tmp_path / "model.onnx"), "--eval-set", str(tmp_path / "panel.npz")]
    found, told = (
        CliRunner().invoke(app, [*asked, *given])
        for given in ((), ("--loss", Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS.value))
    )
    assert told.exit_code == 0
    assert (found.output == told.output) == bool(notes)
    assert "99 %:" in told.output
    if not notes:
        assert "give exactly one of --loss and --heads" in " ".join(found.output.split())


def test_evaluate_refuses_records_of_another_encoder_than_the_models(tmp_path: Path) -> None:
    features, labels = np.arange(24, dtype=np.uint8).reshape(8, 3), np.arange(8) % 2
    loss = {LOSS_IS: Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS.value}
    (tmp_path / "model.onnx").write_bytes(model(notes={**loss, ENCODER_IS: bytes(32).hex()}))
    asked = ["model", "evaluate", str(tmp_path / "model.onnx"), "--eval-set", str(tmp_path / "panel.npz")]
    for first, ended in ((0, 0), (1, 1)):
        digest = np.array([first, *bytes(31)], np.uint8)
        np.savez(tmp_path / "panel.npz", features=features, labels=labels, encoder=digest)
        found = CliRunner().invoke(app, asked)
        assert found.exit_code == ended
    assert "encoder 010000000000, but the model's is 000000000000" in str(found.exception)


def test_a_column_that_is_empty_in_every_row_is_printed_with_their_count(tmp_path: Path) -> None:
    table = "pages;device;seen\n" + ";phone;2026-11-02\n" * 20
    assert "mostly empty: column 'pages' (20 of 20 rows)" in run(tmp_path, model(), table=table).output
    assert json.loads(run(tmp_path, model(), "--json", table=table).stdout)["gaps"] == {"pages": 20}
