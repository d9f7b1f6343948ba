"""Ctrl-C says what the next run does, and the next run does that."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from adserver.quickstart import project_run
from adserver.quickstart.check import check
from adserver.quickstart.measurement_forecast import GroupForecast, warn_of_forecasts
from adserver.quickstart.project import Project, new_project
from adserver.quickstart.project_run import _how_to_go_on, run_project
from adserver.quickstart.recipe import Recipe
from adserver.quickstart.running import RunningFleet, Server
from adserver.quickstart.runs import NOTHING_ASKED, RunOptions, Steps
from adserver.records.defaults import MOST_JOB_NAME, MOST_JOB_NOTE
from adserver.records.job_state import JobState
from adserver.store.schema import jobs
from maskedlark.errors import InvalidTask
from maskedlark.terminal import exit_status
from tests.adserver.job_world import Site, plan_for, sealed
from tests.adserver.quickstart.test_project import SETTINGS


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return new_project(tmp_path / "play", SETTINGS)


@pytest.mark.parametrize(
    ("asked", "what", "most"),
    [
        (RunOptions(name="a" * (MOST_JOB_NAME + 1)), "name", MOST_JOB_NAME),
        (RunOptions(note="a" * (MOST_JOB_NOTE + 1)), "note", MOST_JOB_NOTE),
    ],
)
def test_a_name_or_note_that_no_job_takes_is_refused_before_anything_is_started(
    project: Project, asked: RunOptions, what: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_run, "check", lambda _: interrupt())
    said = f"the job's {what} has {most + 1} characters: at most {most} are kept"
    with pytest.raises(InvalidTask, match=said):
        run_project(project, pytest.fail, asked)


@pytest.mark.parametrize("extra", ["helper", "adserver", "browser"])
def test_a_missing_extra_is_told_before_anything_is_started(
    extra: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [("lark-part-that-nobody-has", extra, ""), ("lark-part-that-nobody-has", "quickstart", "")]
    monkeypatch.setattr(exit_status, "_extras", lambda: parts)
    told = r"lark-part-that-nobody-has is not installed, .*: pip install 'masked-lark\[quickstart\]'"
    with pytest.raises(InvalidTask, match=told):
        run_project(project, pytest.fail)
    assert not project.parties.exists()


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("step", "says", "next_run"),
    [
        ("task", "`adserver quickstart run FOLDER` goes on with it", "1"),
        (
            "reports",
            "it was cut off while reports were being sent, and how many arrived is not known: `adserver "
            "quickstart run FOLDER` begins a new run",
            "2",
        ),
    ],
)
def test_a_run_that_is_interrupted_says_what_the_next_one_does(
    step: str, says: str, next_run: str, project: Project
) -> None:
    recipe = Recipe(project, lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        recipe.steps.do(step, interrupt)
    told = _how_to_go_on(project, recipe, is_up=False)
    assert told == f"interrupted in run 1: {says.replace('FOLDER', str(project.folder))}"
    assert Steps.open(project).folder.name == next_run


def test_a_job_that_goes_on_without_its_run_can_be_stopped(project: Project) -> None:
    recipe = Recipe(project, lambda _: None)
    recipe.steps.do("job", lambda: "ab" * 16)
    again = f"`adserver quickstart run {project.folder}` goes on with it"
    assert f"job {'ab' * 6} goes on at the servers: {again}; " in _how_to_go_on(project, recipe, is_up=True)
    assert f"job {'ab' * 6} waits until the servers run again: {again}" in _how_to_go_on(
        project, recipe, is_up=False
    )


class _Fleet(RunningFleet):
    """Servers that are said to run."""

    has_dashboard = True
    runs = False

    def _start(self, server: Server) -> None:
        self.runs = True

    def _await(self, server: Server) -> None:
        pass

    def _end(self, servers: Sequence[Server]) -> list[str]:
        self.runs = False
        return [one.name for one in servers]


@pytest.mark.parametrize("is_asked", [True, False])
def test_servers_that_were_asked_for_during_a_run_stay(
    project: Project, monkeypatch: pytest.MonkeyPatch, *, is_asked: bool
) -> None:
    fleet, told = _Fleet(project, lambda _: None), list[str]()
    # From an earlier start, whose servers have ended by themselves
    fleet.up(is_held=True)

    class Asked:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def run(self) -> None:
            if is_asked:
                fleet.up(is_held=True)

    monkeypatch.setattr(project_run, "RunningFleet", lambda *_: fleet)
    monkeypatch.setattr(project_run, "_recipe_of", lambda _: Asked)
    project_run._run(project, told.append, NOTHING_ASKED, check(project))
    assert fleet.runs is is_asked
    assert any(one.startswith("the servers stay") for one in told) is is_asked
    assert f"to watch in a browser: adserver quickstart up {project.folder} --dashboard" in told
    fleet.down()
    assert not fleet.is_held


def test_a_run_is_given_each_warning_that_the_check_prints(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = GroupForecast(name="paid", reported=80, half_width=9.0, typical=1.0)
    checked = replace(check(project), table_warnings=("a column has codes",), forecasts=(wide,))
    told, given = list[str](), list[tuple[str, ...]]()

    class Run:
        def __init__(self, *_: object, warnings: tuple[str, ...], **__: object) -> None:
            given.append(warnings)

        def run(self) -> None:
            pass

    monkeypatch.setattr(project_run, "RunningFleet", _Fleet)
    monkeypatch.setattr(project_run, "_recipe_of", lambda _: Run)
    monkeypatch.setattr(project_run, "check", lambda _: checked)
    run_project(project, told.append)
    assert told[0].startswith("2 warnings of the table: see `adserver quickstart check ")
    [warnings] = given
    assert warnings == ("a column has codes", *warn_of_forecasts((wide,), project.settings.measure))


def test_a_job_that_is_done_is_not_said_to_wait(project: Project) -> None:
    recipe = Recipe(project, lambda _: None)
    of = sealed()
    site = Site(project.parties / "adserver", of)
    job_id = site.submit(plan_for(of))
    recipe.steps.do("job", job_id.hex)
    for state, says in ((JobState.RUNNING, "waits until"), (JobState.DONE, "is done: `adserver quickstart")):
        with site.engine.begin() as connection:
            connection.execute(update(jobs).values(state=state))
        told = _how_to_go_on(project, recipe, is_up=False)
        assert f"job {job_id.hex()[:12]} {says}" in told
        assert ("job cancel" in told) is (state is JobState.RUNNING)
    site.engine.dispose()


def test_before_there_is_a_run_nothing_is_promised_about_one(project: Project) -> None:
    told = _how_to_go_on(project, None, is_up=False)
    assert told.startswith("interrupted before the run, ")
    assert "goes on" not in told
