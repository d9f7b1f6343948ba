"""`lark-helper budget`: what the ledger holds, for the operator, beside a running helper."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from helper.cli.main import app
from helper.ledger.budget_report import BudgetReport, open_ledger
from helper.ledger.ledger import sqlite_url
from maskedlark import canonical
from maskedlark.errors import JobReason, JobRefused
from tests.helper.parties import Scene
from tests.refusals import refused


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    made = Scene(
        tmp_path_factory.mktemp("helpers"), mechanism="gaussian", epsilon=8.0, collusion_epsilon=80.0
    )
    dataset = made.seal(20)
    done = made.job(dataset, job_id=b"a" * 16, rounds=3, noise_multiplier=5.0)
    made.start(done)
    for round_index in range(2):
        made.run(done, round_index)
    for core in made.cores:
        core.jobs.close(canonical.encode(done), None)
    made.start(made.job(dataset, job_id=b"b" * 16, rounds=4, noise_multiplier=6.0))
    return made


def shown(scene: Scene, role: int, *options: str) -> Any:
    result = CliRunner().invoke(
        app, ["budget", "--data", str(scene.parties[role].data), *options], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return json.loads(result.output) if "--json" in options else result.output


def test_closed_jobs_are_spent_and_open_ones_reserved(scene: Scene) -> None:
    (budget,) = shown(scene, 0, "--json")
    closed, opened = budget["uses"]
    assert (closed["state"], closed["rounds_answered"], closed["rounds_held"]) == ("closed", 2, 2)
    assert (opened["state"], opened["rounds_answered"], opened["rounds_held"]) == ("open", 0, 4)
    assert budget["ad_server"]["reserved"] > 0


def test_what_is_held_is_what_the_helper_itself_compares_with_the_budget(scene: Scene) -> None:
    (budget,) = shown(scene, 0, "--json")
    dataset = bytes.fromhex(budget["dataset_id"])
    with pytest.raises(JobRefused) as refusal:
        scene.start(scene.job(dataset, job_id=b"c" * 16, rounds=1_000, noise_multiplier=7.0))
    assert f"of which {budget['ad_server']['left']:.4g} is left" in str(refusal.value)
    (asked,) = shown(scene, 0, "--json", "--rounds", "1000", "--noise-multiplier", "7")
    assert not asked["planned"]["fits"]
    assert f"epsilon would be {asked['planned']['ad_server']['held']:.4g} of" in str(refusal.value)


def test_both_helpers_hold_the_same(scene: Scene) -> None:
    assert shown(scene, 0, "--json") == shown(scene, 1, "--json")


def test_people_see_bars(scene: Scene) -> None:
    table = shown(scene, 0)
    assert "█" in table
    assert "▒" in table
    assert "20 reports" in table


def test_a_folder_that_never_served_and_a_dataset_that_is_not_there_are_refused(
    scene: Scene, tmp_path: Path
) -> None:
    for data, options in ((tmp_path, []), (scene.parties[0].data, ["--dataset", "zz"])):
        result = CliRunner().invoke(app, ["budget", "--data", str(data), *options])
        assert isinstance(result.exception, JobRefused)
        assert result.exception.reason is JobReason.UNKNOWN_DATASET
    assert not list(tmp_path.iterdir())


def test_a_folder_without_a_ledger_and_a_database_that_is_none_are_told_so(tmp_path: Path) -> None:
    with refused(JobReason.UNKNOWN_DATASET, match="contains no ledger: no helper has served from it yet"):
        open_ledger(tmp_path, None)
    report = BudgetReport(open_ledger(tmp_path, sqlite_url(tmp_path / "other.sqlite3")))
    with refused(JobReason.UNKNOWN_DATASET, match="this database is not a helper's ledger: OperationalError"):
        report.datasets()


def test_datasets_are_found_by_the_beginnings_of_their_ids(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    ids = sorted(scene.seal(6, seed=seed) for seed in range(3))
    report = BudgetReport(open_ledger(scene.parties[0].data, None))
    assert [one.dataset_id for one in report.datasets()] == ids
    assert {one.size for one in report.datasets()} == {6}
    for one in ids:
        assert [found.dataset_id for found in report.datasets(one.hex()[:20].upper())] == [one]
    with refused(
        JobReason.UNKNOWN_DATASET, match="no dataset of this helper has an id that starts with 'zz'"
    ):
        report.datasets("zz")
    assert report.find_charged(9) == ()
    job = scene.job(ids[1])
    scene.start(job)
    scene.start(scene.job(ids[0], job_id=b"c" * 16))
    assert [one.dataset_id for one in report.find_charged(9)] == ids[:2]
    assert [one.dataset_id for one in report.find_charged(1)] == ids[:1]
    scene.answer(0, job, 0)
    for core in scene.cores:
        core.jobs.close(canonical.encode(job), None)
    assert [one.dataset_id for one in report.find_charged(9)] == ids[:2]
    scene.start(scene.job(ids[2], job_id=b"d" * 16))
    assert [one.dataset_id for one in report.find_charged(9)] == [ids[0], ids[2], ids[1]]
