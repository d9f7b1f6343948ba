"""A run without a label measures every row, trains nothing, and is listed with its sums."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adserver.cli.main import app
from adserver.cli.quickstart_output import describe_result
from adserver.quickstart.measuring_recipe import MeasuringRecipe
from adserver.quickstart.project import Project
from adserver.quickstart.project_run import run_project
from adserver.quickstart.run_states import describe_runs
from adserver.quickstart.runs import RunOptions
from maskedlark.errors import InvalidTask
from tests.adserver.quickstart.test_project import change
from tests.adserver.quickstart.test_recipe import ANSWER, SENT, Commands, commands, project

__all__ = ["commands", "project"]

_STEPS = [
    "adserver task create",
    "browser-sim run",
    "adserver dataset list",
    "adserver dataset seal",
    "adserver aggregate --dataset",
]


@pytest.fixture
def shop(project: Project, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project of a table without a label, of whose rows browsers report what they can."""
    lines = "".join(f"{('phone', 'desktop')[row % 2]},{row % 7}.25\n" for row in range(378))
    (project.folder / "shop.csv").write_text("device,paid\n" + lines)
    change(project.folder, 'csv = ""', 'csv = "shop.csv"')
    change(
        project.folder, "values = []\nkeys = []", 'values = [{column = "paid", most = 5}]\nkeys = ["device"]'
    )
    commands.measured = dict(ANSWER)
    for name, value in (("read", 393), ("panel", 0), ("left_out", {})):
        monkeypatch.setitem(SENT, name, value)
    return Project.open(project.folder)


def test_every_row_is_reported_and_no_model_is_made(shop: Project, commands: Commands) -> None:
    told: list[str] = []
    measured = MeasuringRecipe(shop, told.append, options=RunOptions(name="sums")).run()
    assert commands.ran == _STEPS
    task, sent = (" ".join(asked) for asked in commands.asked[:2])
    assert "--num-features 1 --classes 2 --default-label 0 --measurement " in task
    assert "--value paid=paid*100 --key device=device" in sent
    assert not any(option in sent for option in ("--holdout", "--label", "--class"))
    assert not any("held out" in one for one in told)
    summary = json.loads((shop.folder / "runs" / "1" / "summary.json").read_text())
    rows = summary["rows"]
    assert rows["read"] == rows["reported"] + sum(rows["left_out"].values())
    assert (rows["panel"], summary["epsilon"], summary["collusion_epsilon"]) == (0, 0.5, 0.7)
    assert not {"auc", "model", "job_id", "loss"} & summary.keys()
    rows, epsilon, run, results = describe_result(measured, Path("runs/1"))
    assert rows.startswith("rows     393 read, 378 reported, 15 left out (no consent: 6; ")
    assert epsilon == "epsilon  0.5 against the ad server, 0.7 with one helper"
    assert run.startswith("run      1 sums, task ")
    assert results.startswith("results  runs/1; ")


def test_a_run_that_measured_is_listed_with_its_sums(shop: Project, commands: Commands) -> None:
    MeasuringRecipe(shop, lambda _: None).run()
    [run] = describe_runs(shop)
    sums = shop.folder / "runs" / "1" / "measured.csv"
    assert (run["state"], run["dataset_id"], run["epsilon"], run["auc"]) == ("done", "d", 0.5, None)
    assert run["measured_csv"] == str(sums)
    said = CliRunner().invoke(app, ["quickstart", "status", str(shop.folder)], catch_exceptions=False)
    assert f"run 1: sums by groups in {sums}" in said.output


def test_an_interrupted_measurement_is_gone_on_with_and_no_row_is_sent_twice(
    shop: Project, commands: Commands
) -> None:
    commands.failing = {"adserver aggregate --dataset": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        MeasuringRecipe(shop, lambda _: None).run()
    # What is known of the own table is computed before the query is charged
    assert (shop.folder / "runs" / "1" / "own-table-not-private.json").exists()
    commands.failing = {}
    assert MeasuringRecipe(shop, lambda _: None).run().run == "1"
    assert commands.ran == [*_STEPS, _STEPS[-1]]


def test_nothing_is_compared_with_plain_training_where_nothing_is_trained(shop: Project) -> None:
    with pytest.raises(InvalidTask, match="--compare-plain compares a trained model"):
        run_project(shop, lambda _: None, RunOptions(compare_plain=True))
    assert not (shop.folder / "runs").exists()
