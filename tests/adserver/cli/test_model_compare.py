"""`adserver model compare`: two files on a table of labelled rows, as `adserver.compare` has them."""

import json
import warnings
from dataclasses import asdict
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from adserver import compare
from adserver.cli.main import app
from adserver.training.pipeline import ENCODER_IS, LOSS_IS, describe, from_columns
from maskedlark.canonical import encode
from maskedlark.encoding.encoder import ClassLabel, Encoder, NumberColumn
from maskedlark.errors import InvalidTask
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss

COUNT = 200


def encoder_of(*classes: str) -> Encoder:
    columns = tuple(NumberColumn(name=name, first=1, missing=0, edges=(-1.0, 0.0, 1.0)) for name in "abc")
    return Encoder(columns=columns, label=ClassLabel(name="bought", classes=classes))


def make_files(
    folder: Path, classes: tuple[str, ...] = ("no", "yes"), *, are_of_columns: bool = True
) -> tuple[str, ...]:
    """Write two models and a table of which a row has no label and another no number; return the command."""
    encoder = encoder_of(*classes)
    for seed, name in ((1, "first"), (2, "second")):
        network = dense_network([3, 6, 1], "relu", seed=seed, final="linear")
        notes = {ENCODER_IS: encoder.digest.hex(), LOSS_IS: Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS.value}
        made = describe(network, **notes)
        (folder / f"{name}.onnx").write_bytes(from_columns(made, encoder) if are_of_columns else made)
    (folder / "encoder.json").write_bytes(encode(encoder))
    drawn = np.random.default_rng(4).normal(0, 1.5, (COUNT, 3))
    rows = [[f"{value:.3f}".replace(".", ",") for value in row] for row in drawn]
    rows[7][1] = "many"
    labels = [classes[int(value)] for value in drawn[:, 0] > 0]
    labels[3] = ""
    lines = [";".join((*row, label)) for row, label in zip(rows, labels, strict=True)]
    (folder / "rows.csv").write_text("\n".join(("a;b;c;sold", *lines)) + "\n")
    files = [str(folder / one) for one in ("first.onnx", "second.onnx")]
    return ("model", "compare", *files, "--csv", str(folder / "rows.csv"), "--label", "sold")


def expected_of(folder: Path, labels: list[str | None]) -> dict[str, object]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = compare(folder / "first.onnx", folder / "second.onnx", folder / "rows.csv", labels)
    return {**asdict(found), "names": list(found.names), "verdict": found.verdict}


def read_labels(folder: Path) -> list[str | None]:
    lines = (folder / "rows.csv").read_text().splitlines()[1:]
    return [line.rpartition(";")[2] or None for line in lines]


def test_a_table_is_read_as_predict_reads_it_and_compared_as_in_python(tmp_path: Path) -> None:
    asked = make_files(tmp_path)
    ended = CliRunner().invoke(app, [*asked, "--json"])
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.stdout)
    remarks = found.pop("warnings")
    assert found == expected_of(tmp_path, read_labels(tmp_path))
    assert found["examples"] == COUNT - 2
    # Once, though both files say it
    [unread, left_out] = remarks
    assert unread.startswith("1 row is not scored: column 'b'")
    assert left_out.startswith("2 rows are left out for both models")
    shown = CliRunner().invoke(app, asked)
    assert f"verdict: {found['verdict']}" in shown.stdout
    assert f"warning: {left_out}" in shown.stderr


def test_files_without_an_encoder_need_it_and_labels_are_spelled_as_encoders_spell_them(
    tmp_path: Path,
) -> None:
    asked = make_files(tmp_path, ("0", "1"), are_of_columns=False)
    table = tmp_path / "rows.csv"
    table.write_text(table.read_text().replace(";1\n", ";1,0\n"))
    ended = CliRunner().invoke(app, [*asked, "--encoder", str(tmp_path / "encoder.json"), "--json"])
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout)["examples"] == COUNT - 2
    without = CliRunner().invoke(app, asked)
    assert isinstance(without.exception, InvalidTask)
    assert "holds no encoder" in str(without.exception)


def test_a_label_that_is_no_column_is_answered_with_those_that_there_are(tmp_path: Path) -> None:
    asked = [*make_files(tmp_path)[:-1], "bought"]
    refused = CliRunner().invoke(app, asked)
    assert str(refused.exception) == "rows.csv has no column 'bought'; it has a, b, c, sold"
