"""`quickstart status` says of each run that is not done what became of its job, why, and what helps."""

import json
import os
from pathlib import Path

import pytest
from sqlalchemy import update
from typer.testing import CliRunner

from adserver.cli.main import app
from adserver.quickstart.project import Project, new_project
from adserver.quickstart.run_lock import only_run
from adserver.quickstart.run_states import describe_runs, warn_of_panels
from adserver.quickstart.runs import NOTHING_ASKED, SUMMARY, RunOptions, Steps
from adserver.records.job_state import JobState
from adserver.store.schema import jobs
from tests.adserver.job_world import Site, plan_for, sealed
from tests.adserver.quickstart.test_project import SETTINGS, change

OF = sealed()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return new_project(tmp_path / "play", SETTINGS)


def test_runs_that_were_tested_on_other_rows_are_warned_of(project: Project) -> None:
    site = Site(project.parties / "adserver", OF)
    for run, digest in enumerate((b"a", b"a", b"b")):
        job_id = site.submit(plan_for(OF, job_id=bytes([run]) * 16))
        with site.engine.begin() as connection:
            which = update(jobs).where(jobs.c.job_id == job_id)
            connection.execute(which.values(eval_set_digest=digest * 32))
        Steps.open(project).finish({"job_id": job_id.hex(), "loss": 0.5})
        told = CliRunner().invoke(app, ["quickstart", "status", str(project.folder)])
        assert ("compare only on one panel (runs 1, 2; run 3)" in told.output) == (digest == b"b")
    site.engine.dispose()
    runs = describe_runs(project)
    assert [one["panel"] for one in runs] == [b"a".hex() * 32, b"a".hex() * 32, b"b".hex() * 32]
    said = json.loads(CliRunner().invoke(app, ["quickstart", "status", str(project.folder), "--json"]).stdout)
    assert said["warning"] == warn_of_panels(runs)
    assert warn_of_panels(runs[:2]) == ""


def interrupt() -> None:
    raise KeyboardInterrupt


def run_with_job(project: Project, state: JobState, **columns: object) -> str:
    """A run that has submitted a job, which is in such a state at the ad server; the job's short id."""
    site = Site(project.parties / "adserver", OF)
    job_id = site.submit(plan_for(OF))
    with site.engine.begin() as connection:
        connection.execute(update(jobs).values(state=state, **columns))
    site.engine.dispose()
    Steps.open(project).do("job", job_id.hex)
    return job_id.hex()[:12]


@pytest.mark.parametrize(
    ("reason", "state", "says", "not_said"),
    [
        ("budget_exhausted", JobState.REFUSED, "with other settings in lark.toml", "job resume"),
        ("diverged", JobState.FAILED, "with other settings in lark.toml", "job resume"),
        ("unknown_dataset", JobState.REFUSED, "goes on with it", "lark.toml"),
        ("helper_unavailable", JobState.FAILED, "goes on with it", "lark.toml"),
    ],
)
def test_a_job_that_stopped_has_its_cause_and_only_what_helps(
    reason: str, state: JobState, says: str, not_said: str, project: Project
) -> None:
    job = run_with_job(project, state, reason=reason, cause="that is why")
    [told] = describe_runs(project)
    assert told["state"] == state
    assert told["why"].startswith(f"job {job} is {state.value} ({reason}): that is why; ")
    assert says in told["why"]
    assert not_said not in told["why"]
    assert f"adserver job cancel {job}" in told["why"]


@pytest.mark.parametrize(
    ("state", "named", "says"),
    [
        (JobState.RUNNING, "interrupted", "is running, after 0 of"),
        (JobState.CANCELLED, "cancelled", "begins a new run"),
        (JobState.DONE, "interrupted", "is done, its model not tested; `adserver quickstart run"),
    ],
)
def test_a_run_whose_job_is_elsewhere_in_its_life_says_what_goes_on_with_it(
    state: JobState, named: str, says: str, project: Project
) -> None:
    run_with_job(project, state)
    [told] = describe_runs(project)
    assert told["state"] == named
    assert says in told["why"]


def test_a_run_that_an_error_ended_before_its_job_has_the_error(project: Project) -> None:
    steps = Steps.open(project)
    steps.do("task", lambda: "ab")
    steps.stop("adserver dataset seal: 3 reports are too few")
    [told] = describe_runs(project)
    assert told["state"] == "stopped"
    again = f"`adserver quickstart run {project.folder}`"
    assert told["why"] == f"adserver dataset seal: 3 reports are too few; {again} goes on with it"
    assert not (project.parties / "adserver").exists()
    # The error is forgotten once the run goes on
    Steps.open(project).do("dataset", dict)
    assert describe_runs(project)[0]["state"] == "interrupted"


@pytest.mark.parametrize(("signed", "is_replaced"), [((), True), (("task",), False)])
def test_a_run_that_ended_before_its_task_is_replaced_by_the_next_one(
    signed: tuple[str, ...], project: Project, *, is_replaced: bool
) -> None:
    steps = Steps.open(project)
    for step in ("table", *signed):
        steps.do(step, dict)
    (steps.folder / "devices.csv").write_text("rows in clear")
    steps.stop("browser-sim encode --fit: error: visits.csv: no column 'Name'")
    change(project.folder, "# rounds = 120", "rounds = 61")
    changed = Project.open(project.folder)
    [told] = describe_runs(changed)
    again = f"lark.toml or the table has changed: `adserver quickstart run {project.folder}`"
    assert told["why"].endswith(f"{again} {'replaces it' if is_replaced else 'begins a new run'}")
    assert Steps.open(changed).folder.name == ("1" if is_replaced else "2")
    assert len(describe_runs(changed)) == (1 if is_replaced else 2)
    assert (steps.folder / "devices.csv").exists() is not is_replaced


def next_of_changed(project: Project, options: RunOptions = NOTHING_ASKED) -> Steps:
    """Change the settings and begin the next run, which does what was said of the last one."""
    change(project.folder, "# rounds = 120", "rounds = 61")
    changed = Project.open(project.folder)
    last = describe_runs(changed)[-1]
    steps = Steps.open(changed, options)
    assert last["why"].endswith("replaces it" if steps.folder.name == last["run"] else "begins a new run")
    return steps


def test_a_run_that_was_cut_off_while_helpers_signed_its_task_is_not_replaced(project: Project) -> None:
    steps = Steps.open(project)
    steps.do("table", dict)
    with pytest.raises(KeyboardInterrupt):
        steps.do("task", interrupt)
    # With the same settings it goes on
    assert Steps.open(project).folder == steps.folder
    assert next_of_changed(project).folder.name == "2"
    assert steps.folder.exists()


def test_a_run_whose_folder_holds_its_owners_files_is_not_replaced(project: Project) -> None:
    steps = Steps.open(project)
    steps.do("table", dict)
    (steps.folder / "notes.txt").write_text("mine")
    assert next_of_changed(project).folder.name == "2"
    assert (steps.folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["", "encoder.json"])
def test_a_run_with_a_link_in_place_of_its_folder_or_of_a_file_is_not_replaced(
    name: str, project: Project, tmp_path: Path
) -> None:
    steps = Steps.open(project)
    steps.do("table", dict)
    if name:
        (steps.folder / name).write_text("{}")
    link, elsewhere = steps.folder / name, tmp_path / "elsewhere"
    link.rename(elsewhere)
    link.symlink_to(elsewhere)
    assert next_of_changed(project).folder.name == "2"
    assert link.is_symlink()


@pytest.mark.parametrize("given", ["", "narrow"])
def test_a_run_that_replaces_another_keeps_its_name_and_note_unless_it_has_others(
    given: str, project: Project
) -> None:
    begun = RunOptions(name="wide", note="a wider network", compare_plain=True)
    Steps.open(project, begun).do("table", dict)
    steps = next_of_changed(project, RunOptions(name=given))
    assert steps.folder.name == "1"
    assert steps.options == RunOptions(name=given or "wide", note="a wider network")


@pytest.mark.parametrize("done", [(), ("table", "job")])
def test_a_name_is_kept_though_the_run_is_interrupted_before_it_begins_a_step(
    done: tuple[str, ...], project: Project
) -> None:
    for step in done:
        Steps.open(project).do(step, dict)
    Steps.open(project, RunOptions(name="wide"))
    steps = Steps.open(project)
    assert (steps.folder.name, steps.options.name) == ("1", "wide")


def test_the_error_of_a_run_is_short_in_the_list_and_whole_as_json(project: Project) -> None:
    error = f"browser-sim encode --fit: error: {'very ' * 60}long. Another sentence."
    Steps.open(project).stop(error)
    runner, words = CliRunner(), ["quickstart", "status", str(project.folder)]
    shown = runner.invoke(app, words).output.splitlines()[-1]
    assert shown.startswith("run 1: browser-sim encode --fit: error: very very")
    assert "...; `adserver quickstart run" in shown
    assert len(shown) < 120 + 2 * len(str(project.folder))
    [told] = json.loads(runner.invoke(app, [*words, "--json"]).stdout)["runs"]
    assert told["why"].startswith(f"{error}; ")


def test_a_run_is_running_while_a_process_holds_it(project: Project) -> None:
    Steps.open(project).do("task", lambda: "ab")
    project.new_run()
    with only_run(project):
        first, last = describe_runs(project)
    assert first["state"] == "interrupted"
    assert (last["state"], last["why"]) == ("running", f"process {os.getpid()} runs it")
    assert describe_runs(project)[1]["state"] == "interrupted"


def test_a_run_whose_settings_changed_is_not_promised_to_go_on(project: Project) -> None:
    Steps.open(project).do("task", lambda: "ab")
    change(project.folder, "# rounds = 120", "rounds = 61")
    [told] = describe_runs(Project.open(project.folder))
    assert told["why"].endswith("begins a new run")


def test_a_run_that_was_cut_off_while_reports_were_sent_begins_anew_and_says_why(project: Project) -> None:
    steps = Steps.open(project)
    steps.do("task", lambda: "ab")

    with pytest.raises(KeyboardInterrupt):
        steps.do("reports", interrupt)
    [told] = describe_runs(project)
    why = "it was cut off while reports were being sent, and how many arrived is not known"
    assert (told["state"], told["why"]) == (
        "interrupted",
        f"{why}: `adserver quickstart run {project.folder}` begins a new run",
    )
    # What was said is what happens
    assert Steps.open(project).folder.name == "2"


@pytest.mark.parametrize(
    ("state", "columns"),
    [
        (JobState.RUNNING, {}),
        (JobState.CANCELLED, {}),
        (JobState.REFUSED, {"reason": "budget_exhausted", "cause": "nothing is left"}),
    ],
)
def test_a_run_before_the_last_one_is_not_promised_to_go_on(
    state: JobState, columns: dict[str, str], project: Project
) -> None:
    run_with_job(project, state, **columns)
    project.new_run()
    first, last = describe_runs(project)
    assert first["why"].endswith("; a later run was begun: this one stays as it is")
    assert "adserver quickstart run" not in first["why"]
    assert last["why"] == f"`adserver quickstart run {project.folder}` begins a new run"


def test_a_run_has_its_dataset_once_there_is_one(project: Project) -> None:
    steps = Steps.open(project)
    steps.do("task", lambda: "ab")
    assert describe_runs(project)[0]["dataset_id"] is None
    dataset = "0123456789abcdef" * 4
    steps.do("dataset", lambda: {"dataset_id": dataset, "admitted": 3})
    assert describe_runs(project)[0]["dataset_id"] == dataset
    said = CliRunner().invoke(app, ["quickstart", "status", str(project.folder)], env={"COLUMNS": "200"})
    assert dataset[:12] in said.output
    assert dataset[:13] not in said.output


def test_the_command_prints_a_line_of_each_run_that_is_not_done(project: Project) -> None:
    job = run_with_job(project, JobState.REFUSED, reason="budget_exhausted", cause="nothing is left")
    runner, words = CliRunner(), ["quickstart", "status", str(project.folder)]
    said = runner.invoke(app, words, env={"COLUMNS": "200"}).output
    assert f"run 1: job {job} is refused (budget_exhausted): nothing is left; " in said
    [told] = json.loads(runner.invoke(app, [*words, "--json"]).stdout)["runs"]
    assert told["why"] in said


def test_the_epsilon_of_a_run_that_measured_is_shown_with_and_without_it(project: Project) -> None:
    spent = {"epsilon": 0.9979, "epsilon_with_measurement": 3.224}
    for figures in (spent, {"epsilon": 0.5}):
        (project.new_run() / SUMMARY).write_text(json.dumps(figures))
    runner, words = CliRunner(), ["quickstart", "status", str(project.folder)]
    measured, trained = runner.invoke(app, words, env={"COLUMNS": "300"}).output.splitlines()[-2:]
    assert "0.9979, with measurement 3.224" in measured
    assert "0.5" in trained
    assert "measurement" not in trained
    first, second = json.loads(runner.invoke(app, [*words, "--json"]).stdout)["runs"]
    assert {name: first[name] for name in spent} == spent
    assert second["epsilon_with_measurement"] is None
