"""Jobs without helpers from the command line: those of `adserver job`, with `--no-helpers`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from typer.testing import CliRunner

from adserver.cli.main import app
from adserver.client.local import LocalAdServer
from adserver.records.job_state import JobState
from adserver.records.local_plan import LocalPlan
from adserver.store.database import default_url
from adserver.views.job import watch
from maskedlark.errors import InvalidTask, JobRefused
from maskedlark.federated.local_job import LocalUpdate
from tests.local_jobs import LocalJobs, opened

LINE: dict[str, object] = {"devices": 3, "rounds": 2, "bound": {"clip_norm": 1.0}, "epsilon": 4.0}
DRAWS: dict[str, object] = {"instances": 4, "learning_rate": 0.01, "epsilon": 0.5}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data").mkdir(mode=0o700)
    monkeypatch.setenv("ADSERVER_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def jobs(folder: Path) -> LocalJobs:
    return LocalJobs(opened(default_url(folder / "data")))


def run(command: str, *, status: int = 0) -> str:
    result = CliRunner().invoke(app, command.split(), catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.stdout


def options(folder: Path, strategy: str, settings: dict[str, object]) -> str:
    (folder / "settings.json").write_text(json.dumps(settings))
    return f"--no-helpers --strategy {strategy} --settings settings.json --layers 4,2"


def submitted(folder: Path, strategy: str, settings: dict[str, object], more: str = "") -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run(f"job submit {options(folder, strategy, settings)} --json {more}"))
    return told


def send(jobs: LocalJobs, job: str, index: int) -> None:
    """A device answers a round of LINE."""
    vector = np.zeros(10, np.int64)
    body = LocalUpdate(update_id=bytes([index]) * 16, position=index, vector=vector).encode()
    assert jobs.intake().take(bytes.fromhex(job), body)


def test_jobs_of_both_strategies_are_submitted_shown_listed_closed_and_exported(folder: Path) -> None:
    first = submitted(folder, "line", LINE, "--name ours --model-seed 3")
    second = submitted(folder, "draw-and-discard", DRAWS, "--note mine --spam-test")
    assert (first["epsilon_of_a_whole_update"], second["epsilon_of_a_whole_update"]) == (4.0, 5.0)
    listed = json.loads(run("job list --json"))
    assert [(one["strategy"], one["name"], one["rounds"]) for one in listed] == [
        ("line", "ours", 2),
        ("draw-and-discard", "", None),
    ]
    assert [line.split()[-1] for line in run("job list").splitlines()[-2:]] == ["0/2", "0"]
    assert "4 instances" in run(f"job show {second['job_id'][:6]}")
    assert "3 devices in a round" in run(f"job show {first['job_id'][:6]}")
    assert len(json.loads(run("job compare --json"))) == 2
    job = str(second["job_id"])
    assert json.loads(run(f"job show {job[:6]} --json"))["updates"] == 0
    assert "closed after 0 updates" in run(f"job cancel {job}")
    assert json.loads(run(f"job show {job} --json"))["state"] == "closed"
    assert "after 0 updates" in run(f"model export model.onnx --job {job}")
    for refused in ("--weights best", f"--job {job} --weights best", f"--job {job} --with-encoder"):
        with pytest.raises((InvalidTask, JobRefused)):
            run(f"model export model.onnx {refused}")
    np.savez(folder / "panel.npz", features=np.zeros((2, 4), np.uint8), labels=np.array([0, 1]))
    with pytest.raises(InvalidTask, match="without helpers"):
        run(f"model calibrate model.onnx --job {job} --panel panel.npz")


@pytest.mark.parametrize(("strategy", "settings"), [("line", LINE), ("draw-and-discard", DRAWS)])
@pytest.mark.parametrize("form", ["", "--with-bytes"])
def test_the_model_of_a_job_without_helpers_is_an_onnx_file_of_its_weights(
    folder: Path, jobs: LocalJobs, strategy: str, settings: dict[str, object], form: str
) -> None:
    job = str(submitted(folder, strategy, settings, "--model-seed 3")["job_id"])
    run(f"model export model.onnx --job {job} {form}")
    plan = jobs.get(bytes.fromhex(job)).plan
    assert isinstance(plan, LocalPlan)
    parameters = jobs.models.parameters(plan)
    features = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    values = features if form else features.astype(np.float32) / 256
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    found = session.run(None, {session.get_inputs()[0].name: values})[0]
    expected = features / 255 @ parameters[:8].reshape(4, 2) + parameters[8:]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("strategy", "settings", "more", "told"),
    [
        ("dp-fedavg", LINE, "", "line, draw-and-discard"),
        ("line", {**LINE, "sampling_rate": 0.5}, "", "sampling_rate"),
        ("line", {**LINE, "epsilon": -1.0}, "", "epsilon"),
        ("line", LINE, "--epsilon 2", "no epsilon"),
        ("line", LINE, "--least-devices 2", "no least devices"),
        ("line", LINE, "--spam-test", "spam test"),
        ("draw-and-discard", {**DRAWS, "instances": 0}, "", "instances"),
        ("draw-and-discard", {**DRAWS, "nonsense": 1}, "", "nonsense"),
        ("draw-and-discard", {**DRAWS, "instances": 1}, "--spam-test", "spam test"),
        ("draw-and-discard", {**DRAWS, "epsilon": None}, "--spam-test", "spam test"),
    ],
)
def test_settings_out_of_range_are_refused_and_nothing_is_stored(
    folder: Path, strategy: str, settings: dict[str, object], more: str, told: str
) -> None:
    with pytest.raises(InvalidTask, match=told):
        submitted(folder, strategy, settings, more)
    assert json.loads(run("job list --json")) == []


def test_without_helpers_a_strategy_is_named(folder: Path) -> None:
    for asked in ("--no-helpers", "--spam-test", "--strategy line --spam-test --layers 4,2"):
        with pytest.raises(InvalidTask, match="--no-helpers"):
            run(f"job submit {asked}")


def test_a_closed_job_is_resumed_and_takes_updates_where_it_stopped(folder: Path, jobs: LocalJobs) -> None:
    settings = {**LINE, "devices": 1}
    job = str(submitted(folder, "line", settings)["job_id"])
    send(jobs, job, 0)
    with pytest.raises(JobRefused, match="open cannot be resumed: expected one of refused, failed, closed"):
        run("job resume")
    run("job cancel")
    assert "after 1 of 2 rounds" in run("job resume")
    send(jobs, job, 1)
    assert json.loads(run("job show --json"))["state"] == "done"
    with pytest.raises(JobRefused, match="done cannot be resumed"):
        run("job resume")


def test_watch_follows_a_job_until_it_is_done_or_closed(folder: Path, jobs: LocalJobs) -> None:
    settings = {**LINE, "devices": 1}
    job = str(submitted(folder, "line", settings)["job_id"])
    looks = iter(range(2))
    with LocalAdServer(data=folder / "data") as server:
        ended = watch(
            server,
            bytes.fromhex(job),
            is_shown=False,
            sleep=lambda _: send(jobs, job, next(looks)),
        )
    assert (ended.state, ended.updates) == (JobState.DONE, 2)
    assert json.loads(run(f"job watch {job} --json"))["rounds_done"] == 2
    draws = str(submitted(folder, "draw-and-discard", DRAWS)["job_id"])
    run(f"job cancel {draws}")
    assert json.loads(run(f"job watch {draws} --json", status=1))["state"] == "closed"


@pytest.mark.parametrize(("strategy", "settings"), [("line", LINE), ("draw-and-discard", DRAWS)])
def test_plan_says_what_a_job_costs_and_stores_nothing(
    folder: Path, strategy: str, settings: dict[str, object]
) -> None:
    asked = f"job plan {options(folder, strategy, settings)} --updates-each 3"
    told = json.loads(run(f"{asked} --json"))
    assert told["epsilon"] == settings["epsilon"]
    assert told["person_epsilon"] > told["epsilon_of_a_whole_update"]
    assert told["upload_bytes"] == 24 + 8 * 10
    assert "a person who sends 3" in run(asked)
    assert json.loads(run("job list --json")) == []


def test_a_job_without_helpers_has_no_curves(folder: Path) -> None:
    submitted(folder, "line", LINE)
    with pytest.raises(InvalidTask, match="no curves"):
        run("job show --plot curves.png")
