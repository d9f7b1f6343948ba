"""`adserver local`: jobs without helpers from the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from adserver.cli.main import app
from adserver.store.local.jobs import LocalJobs, LocalState
from adserver.store.local.schema import default_local_url, open_local
from adserver.views.local import watch
from maskedlark.errors import InvalidTask, JobRefused
from maskedlark.federated.local_job import LocalUpdate, read_local_job
from maskedlark.federated.strategies.line import Line

LINE: dict[str, object] = {"devices": 3, "rounds": 2, "bound": {"clip_norm": 1.0}, "epsilon": 4.0}
DRAWS: dict[str, object] = {"instances": 4, "learning_rate": 0.01, "epsilon": 0.5}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADSERVER_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def local(command: str, *, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["local", *command.split()], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.stdout


def submitted(folder: Path, strategy: str, settings: dict[str, object]) -> dict[str, object]:
    (folder / "settings.json").write_text(json.dumps(settings))
    options = f"--strategy {strategy} --settings settings.json --layers 4,2 --json"
    told: dict[str, object] = json.loads(local(f"submit {options}"))
    return told


def test_jobs_of_both_strategies_are_submitted_shown_listed_closed_and_exported(folder: Path) -> None:
    first = submitted(folder, "line", LINE)
    second = submitted(folder, "draw-and-discard", DRAWS)
    assert (first["epsilon_of_a_whole_update"], second["epsilon_of_a_whole_update"]) == (4.0, 5.0)
    assert [one["strategy"] for one in json.loads(local("list --json"))] == ["line", "draw-and-discard"]
    assert "coordinate" in local("list") or "feature" in local("list")
    job = str(second["job_id"])
    assert json.loads(local(f"show {job[:6]} --json"))["updates"] == 0
    assert "closed after 0 updates" in local(f"cancel {job}")
    assert json.loads(local(f"show {job} --json"))["state"] == "closed"
    local(f"export model.npz --job {job}")
    with np.load(folder / "model.npz") as found:
        assert found["parameters"].shape == (10,)
        assert found["widths"].tolist() == [4, 2]


@pytest.mark.parametrize(
    ("strategy", "settings", "told"),
    [
        ("dp-fedavg", LINE, "line, draw-and-discard"),
        ("line", {**LINE, "sampling_rate": 0.5}, "sampling_rate"),
        ("line", {**LINE, "epsilon": -1.0}, "epsilon"),
        ("draw-and-discard", {**DRAWS, "instances": 0}, "instances"),
        ("draw-and-discard", {**DRAWS, "nonsense": 1}, "nonsense"),
    ],
)
def test_settings_out_of_range_are_refused_and_nothing_is_stored(
    folder: Path, strategy: str, settings: dict[str, object], told: str
) -> None:
    with pytest.raises(InvalidTask, match=told):
        submitted(folder, strategy, settings)
    assert json.loads(local("list --json")) == []


def test_a_job_that_is_not_there_is_refused(folder: Path) -> None:
    assert folder.exists()
    with pytest.raises(JobRefused, match="no job"):
        local("show")


def test_a_closed_job_is_resumed_and_takes_updates_where_it_stopped(folder: Path) -> None:
    job = bytes.fromhex(str(submitted(folder, "line", {**LINE, "devices": 1})["job_id"]))
    jobs = LocalJobs(open_local(default_local_url(folder / "data")), lambda: 0.0)
    settings, _ = read_local_job(jobs.get(job).job)
    assert isinstance(settings, Line)
    vector = np.zeros(10, np.int64)
    jobs.rounds.add(job, settings, LocalUpdate(update_id=bytes(16), position=0, vector=vector))
    with pytest.raises(JobRefused, match="open, not closed"):
        local("resume")
    local("cancel")
    assert not jobs.get(job).is_open
    assert "after 1 updates" in local("resume")
    assert jobs.get(job).is_open
    jobs.rounds.add(job, settings, LocalUpdate(update_id=b"2" * 16, position=1, vector=vector))
    with pytest.raises(JobRefused, match="done, not closed"):
        local("resume")


def test_watch_follows_a_job_until_it_is_done_or_closed(folder: Path) -> None:
    job = bytes.fromhex(str(submitted(folder, "line", {**LINE, "devices": 1})["job_id"]))
    jobs = LocalJobs(open_local(default_local_url(folder / "data")), lambda: 0.0)
    settings, _ = read_local_job(jobs.get(job).job)
    assert isinstance(settings, Line)
    line, looks = settings, iter(range(2))

    def device(_seconds: float) -> None:
        """While the watcher sleeps, a device answers the next round."""
        index = next(looks)
        vector = np.zeros(10, np.int64)
        jobs.rounds.add(job, line, LocalUpdate(update_id=bytes([index]) * 16, position=index, vector=vector))

    assert watch(jobs, job, is_shown=False, sleep=device) is LocalState.DONE
    assert json.loads(local(f"watch {job.hex()} --json"))["rounds_done"] == 2
    draws = str(submitted(folder, "draw-and-discard", DRAWS)["job_id"])
    closing = watch(
        jobs, bytes.fromhex(draws), is_shown=False, sleep=lambda _: jobs.close(bytes.fromhex(draws))
    )
    assert closing is LocalState.CLOSED
    assert json.loads(local(f"watch {draws} --json", status=1))["state"] == "closed"


@pytest.mark.parametrize(("strategy", "settings"), [("line", LINE), ("draw-and-discard", DRAWS)])
def test_plan_says_what_a_job_costs_and_stores_nothing(
    folder: Path, strategy: str, settings: dict[str, object]
) -> None:
    (folder / "settings.json").write_text(json.dumps(settings))
    asked = f"plan --strategy {strategy} --settings settings.json --layers 4,2 --updates-each 3"
    told = json.loads(local(f"{asked} --json"))
    assert told["epsilon"] == settings["epsilon"]
    assert told["person_epsilon"] > told["epsilon_of_a_whole_update"]
    assert told["upload_bytes"] == 24 + 8 * 10
    assert "a person who sends 3" in local(asked)
    assert json.loads(local("list --json")) == []


def test_a_line_job_is_done_after_its_last_round(folder: Path) -> None:
    job = bytes.fromhex(str(submitted(folder, "line", {**LINE, "devices": 1, "rounds": 1})["job_id"]))
    jobs = LocalJobs(open_local(default_local_url(folder / "data")), lambda: 0.0)
    settings, _ = read_local_job(jobs.get(job).job)
    assert isinstance(settings, Line)
    assert json.loads(local("show --json"))["state"] == "open"
    vector = np.zeros(10, np.int64)
    jobs.rounds.add(job, settings, LocalUpdate(update_id=bytes(16), position=0, vector=vector))
    assert json.loads(local("show --json"))["state"] == "done"
