"""What `make bench-models` measures in one process, once through real ones: tables, ids, heads, images.

Bounds are wider than the bench's, for these are single runs, and of fewer records where a run takes minutes.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adserver.training.as_onnx import as_onnx
from adserver.training.inference import evaluate_heads
from docs.tutorial.fleet import CommandFailed, Fleet
from maskedlark.encoding.encoder import CategoryColumn, Encoder, read_encoder
from maskedlark.model.heads import Heads
from maskedlark.model.onnx_file import parse
from maskedlark.model.table_network import table_network
from tests.bench.examples import frappe, rare_rows, table_of_adult
from tests.bench.mnist import FOLDER
from tests.bench.models_heads import EARNS, WORKS, Logistic, table_of_codes
from tests.e2e.test_tables_nobody_prepared import quickstart
from tests.fleet_commands import create_task, seal, send_reports, submit

pytestmark = [pytest.mark.slow, pytest.mark.long]
Cells = Mapping[str, Sequence[str | None]]
BINARY = "binary_cross_entropy_with_logits"


def write(path: Path, cells: Cells) -> Path:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(cells)
        rows.writerows([cell or "" for cell in row] for row in zip(*cells.values(), strict=True))
    return path


def part(cells: Cells, rows: NDArray[np.int64]) -> Cells:
    return {name: [column[row] for row in rows] for name, column in cells.items()}


def trained_by_quickstart(folder: Path, seen: Cells, test: Cells, label: str) -> Any:
    """What `adserver model evaluate` says, on a table's test rows, of the model that quickstart trains."""
    table, tested = write(folder / "seen.csv", seen), write(folder / "test.csv", test)
    made = quickstart("new", folder / "play", "--csv", table, "--label", label)
    assert made.returncode == 0, made.stderr
    ran = quickstart("run", folder / "play", "--json")
    assert ran.returncode == 0, ran.stderr
    done = folder / "play" / "runs" / "1"
    rows, encoder = folder / "test.npz", done / "encoder.json"
    run = Fleet(folder=folder).run
    run("browser-sim", "encode", "--encoder", str(encoder), "--csv", str(tested), "-o", str(rows))
    model = str(done / "trained.onnx")
    asked = ("--eval-set", str(rows), "--loss", BINARY, "--json")
    return json.loads(run("adserver", "model", "evaluate", model, *asked))


def test_adult_by_quickstart(tmp_path: Path) -> None:
    found = trained_by_quickstart(tmp_path, table_of_adult("data"), table_of_adult("test"), "income")
    assert found["auc"] > 0.912
    assert found["loss"] < 0.32
    assert 0.9 < found["mean_over_rate"] < 1.1


def test_one_positive_in_a_hundred_by_quickstart(tmp_path: Path) -> None:
    seen, test = (
        part(cells, rare_rows(np.array([cell == ">50K" for cell in cells["income"]], np.int64), 1))
        for cells in map(table_of_adult, ("data", "test"))
    )
    assert 0.8 < trained_by_quickstart(tmp_path, seen, test, "income")["mean_over_rate"] < 1.2


def test_ids_of_many_words_by_quickstart(tmp_path: Path) -> None:
    seen, test = (
        {
            **{name: [f"w{cell}" for cell in column] for name, column in table.cells.items()},
            "used": [str(label) for label in table.labels],
        }
        for table in map(frappe, ("validation", "test"))
    )
    assert trained_by_quickstart(tmp_path, seen, test, "used")["auc"] > 0.88
    assert '"field 1=planned"' in (tmp_path / "play" / "lark.toml").read_text()


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded:
    """A fleet with a dataset of Adult's codes, of which each tells of two heads."""

    fleet: Fleet
    dataset: str
    encoder: Encoder

    def network(self, outputs: int, encoder: Encoder | None = None) -> bytes:
        return table_network(encoder or self.encoder, hidden=(), outputs=outputs, seed=1)

    def submit(self, model: bytes, heads: list[dict[str, Any]]) -> str:
        """Submit a job of 60 rounds of secret samples, and wait until it is done; its id."""
        folder = self.fleet.folder
        (folder / "model.onnx").write_bytes(model)
        (folder / "heads.json").write_text(json.dumps(heads))
        job: str = submit(
            self.fleet,
            f"--dataset {self.dataset} --model {folder}/model.onnx --heads {folder}/heads.json --rounds 60"
            " --batch-size 4000 --optimizer momentum --schedule cosine --learning-rate 5 --epsilon 2",
        )["job_id"]
        self.fleet.adserver("job", "watch", job, options=False)
        return job

    def spent(self) -> Any:
        return self.fleet.adserver_json("budget", options=False)


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coded]:
    folder = tmp_path_factory.mktemp("coded")
    cells, codes = table_of_codes("data")
    rows = np.arange(10_000)
    table = write(folder / "seen.csv", {**part(cells, rows), "code": [str(codes[row]) for row in rows]})
    with Fleet(folder=folder / "fleet") as fleet:
        encoder = folder / "encoder.json"
        fleet.run("browser-sim", "encode", "--fit", str(table), "--label", "code", "-o", str(encoder))
        task = create_task(
            fleet,
            "codes",
            f"--encoder {encoder} --default-label 0 --min-batch-size 100 --clip-norm 10 --epsilon 8"
            " --collusion-epsilon 16",
        )
        send_reports(fleet, task, f"--source csv --csv {table} --seed 1")
        dataset = seal(fleet, task)["dataset_id"]
        yield Coded(fleet=fleet, dataset=dataset, encoder=read_encoder(encoder.read_bytes().rstrip(b"\n")))


def outputs_of(model: bytes, heads: list[Mapping[str, Any]], width: int) -> list[dict[str, Any]]:
    (output, _), *_ = parse(model, num_features=width).outputs
    return [{**head, "output": f"{output}[{place}]"} for place, head in enumerate(heads)]


def test_two_heads_are_trained_together(coded: Coded) -> None:
    model = coded.network(2)
    heads = outputs_of(model, [EARNS, WORKS], coded.encoder.num_features)
    job = coded.submit(model, heads)
    trained = coded.fleet.folder / "trained.onnx"
    coded.fleet.adserver("model", "export", "--job", job, str(trained), options=False)
    cells, codes = table_of_codes("test")
    found = evaluate_heads(trained.read_bytes(), coded.encoder.features(cells), codes, Heads.of(heads))
    assert (found["earns"].auc or 0) > 0.87
    assert (found["works"].auc or 0) > 0.68


@pytest.mark.parametrize("is_zero", [False, True])
def test_a_logistic_regression_as_torch_exports_it_trains_on_secret_samples(
    is_zero: bool, coded: Coded
) -> None:
    model = as_onnx(Logistic(is_zero=is_zero), coded.encoder.num_features)
    job = coded.submit(model, outputs_of(model, [EARNS], coded.encoder.num_features))
    shown = coded.fleet.adserver_json("job", "show", job, options=False)
    assert (shown["state"], shown["rounds_done"]) == ("done", 60)


def test_bad_input_is_refused_before_anything_is_spent(coded: Coded) -> None:
    width, model, before = coded.encoder.num_features, coded.network(2), coded.spent()
    heads = outputs_of(model, [EARNS, WORKS], width)
    first = coded.encoder.columns[1]
    assert isinstance(first, CategoryColumn)
    fewer = replace(first, categories=first.categories[:2], missing=0)
    short = replace(coded.encoder, columns=(coded.encoder.columns[0], fewer, *coded.encoder.columns[2:]))
    for refused, asked, why in (
        (coded.network(2, short), heads, "the encoder's columns name rows up to"),
        (model, [heads[0], {**heads[1], "targets": [0, 0, 1]}], "the task has 4"),
        (model, [heads[0], {**heads[1], "output": heads[0]["output"]}], "is given twice"),
        (coded.network(1), heads, "reads the output"),
    ):
        with pytest.raises(CommandFailed) as failed:
            coded.submit(refused, asked)
        assert why in " ".join(str(failed.value).replace("│", " ").split())
    assert coded.spent() == before


def test_digits_from_features_that_browsers_compute(tmp_path: Path) -> None:
    seen, test = (
        ("--images", f"{FOLDER}/{of}-images-idx3-ubyte.gz", "--labels", f"{FOLDER}/{of}-labels-idx1-ubyte.gz")
        for of in ("train", "t10k")
    )
    with Fleet(folder=tmp_path) as fleet:
        encoder, rows, trained = (tmp_path / name for name in ("encoder.json", "test.npz", "trained.onnx"))
        fleet.run("browser-sim", "encode", *seen, "-o", str(encoder))
        fleet.run("browser-sim", "encode", *test, "--encoder", str(encoder), "-o", str(rows))
        task = create_task(
            fleet,
            "digits",
            f"--encoder {encoder} --min-batch-size 100 --clip-norm 1 --epsilon 3 --collusion-epsilon 6",
        )
        send_reports(fleet, task, f"--source mnist --mnist-dir {FOLDER} --limit 12000 --seed 1")
        dataset = seal(fleet, task)["dataset_id"]
        model = tmp_path / "model.onnx"
        layers = "--layers 392,64,10 --activation tanh --seed 1"
        fleet.run("adserver", "model", "create", str(model), *layers.split())
        job = submit(
            fleet,
            f"--dataset {dataset} --model {model} --loss cross_entropy --rounds 120 --batch-size 2000"
            " --optimizer momentum --schedule cosine --learning-rate 2 --clip-norm 1 --epsilon 3",
        )["job_id"]
        fleet.adserver("job", "watch", job, options=False)
        fleet.adserver("model", "export", "--job", job, str(trained), options=False)
        asked = f"--eval-set {rows} --loss cross_entropy --json"
        said = fleet.run("adserver", "model", "evaluate", str(trained), *asked.split())
    assert json.loads(said)["accuracy"] > 0.8
