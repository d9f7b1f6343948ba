from dataclasses import replace
from pathlib import Path

import pytest

from helper.trust.tasks import LEAST_COUNTED_S
from maskedlark import canonical
from maskedlark.errors import JobReason
from maskedlark.reports.task import Task
from tests.helper.parties import FLOORS, Scene, make_task
from tests.refusals import refused


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Helpers that allow each origin three open tasks; the scene's own is the first."""
    made = Scene(tmp_path)
    made.parties[0].floors = replace(FLOORS, max_tasks_per_origin=3)
    made.restart()
    return made


def register(scene: Scene, task: Task) -> bytes:
    return scene.cores[0].tasks.register(canonical.encode(task), None)


def named(scene: Scene, name: str, **changes: object) -> Task:
    return make_task(scene.parties, name=name, **changes)


def test_an_origin_has_no_more_open_tasks_than_the_operator_allows(scene: Scene) -> None:
    for name in ("second", "third"):
        register(scene, named(scene, name))
    for name in ("fourth", "fifth"):
        with refused(JobReason.TOO_MANY_TASKS, "3 open tasks"):
            register(scene, named(scene, name))
    assert scene.cores[0].counts().tasks == 3
    register(scene, named(scene, "second"))  # again: it is open already
    register(scene, named(scene, "of others", origin="https://other.example"))


def test_origins_of_one_host_share_its_room(scene: Scene) -> None:
    for port in (1, 2):
        register(scene, named(scene, "one", origin=f"{scene.task.origin}:{port}"))
    with refused(JobReason.TOO_MANY_TASKS):
        register(scene, named(scene, "one", origin=f"{scene.task.origin}:3"))


def test_a_task_that_is_over_makes_room(scene: Scene) -> None:
    for name in ("second", "third"):
        register(scene, named(scene, name))
    later = named(scene, "later", starts_at=scene.task.expires_at, expires_at=scene.task.expires_at + 3_600)
    with refused(JobReason.TOO_MANY_TASKS):
        register(scene, later)
    scene.parties[0].now = scene.task.expires_at
    assert register(scene, later)


def test_a_restart_forgets_no_task(scene: Scene) -> None:
    for name in ("second", "third"):
        register(scene, named(scene, name))
    scene.restart()
    with refused(JobReason.TOO_MANY_TASKS):
        register(scene, named(scene, "fourth"))


def test_a_task_that_cannot_be_kept_takes_no_room(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as during:
        during.setattr(scene.cores[0]._ledger, "add_task", fail)
        for number in range(5):
            with pytest.raises(OSError, match="full"):
                register(scene, named(scene, f"number {number}"))
    register(scene, named(scene, "second"))


def test_tasks_of_a_minute_do_not_fill_the_ledger_one_after_the_other(scene: Scene) -> None:
    def register_short(name: str) -> None:
        now = int(scene.parties[0].now)
        register(scene, named(scene, name, starts_at=now, expires_at=now + 3_600))

    for name in ("second", "third"):
        register_short(name)
        scene.parties[0].now += 3_600
    for _ in range(3):
        with refused(JobReason.TOO_MANY_TASKS, r"--max-tasks-per-origin.*at least a day"):
            register_short("fourth")
        scene.parties[0].now += 3_600
    scene.parties[0].now += LEAST_COUNTED_S - 5 * 3_600
    register_short("fourth")
    assert scene.cores[0].counts().tasks == 4
