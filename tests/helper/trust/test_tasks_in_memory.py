"""Tasks that a helper keeps in memory are bounded in number, and read again from the ledger."""

from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from helper.trust import tasks as tasks_module
from maskedlark import canonical
from tests.helper.parties import Scene, make_task


def test_many_tasks_take_no_more_memory_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks_module, "_MOST_KEPT", 3)
    scene = Scene(tmp_path)
    tasks = scene.cores[0].tasks
    made = [make_task(scene.parties, name=f"task {number}") for number in range(6)]
    for task in made:
        tasks.register(canonical.encode(task), None)
        tasks.serve(task.task_id, None)
    assert len(tasks._known) == len(tasks._pairs) == 3
    for task in made:
        assert tasks.serve(task.task_id, None).task == task


class Watched(dict[Any, Any]):
    """Changes under a lock only."""

    def __init__(self, lock: Lock) -> None:
        super().__init__()
        self._lock = lock

    def __setitem__(self, key: Any, value: Any) -> None:
        assert self._lock.locked()
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        assert self._lock.locked()
        super().__delitem__(key)


def test_what_is_kept_changes_under_its_lock_and_is_read_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two calls that both make room, the second would miss what the first one took away."""
    monkeypatch.setattr(tasks_module, "_MOST_KEPT", 1)
    scene = Scene(tmp_path)
    tasks = scene.cores[0].tasks
    tasks._known, tasks._pairs = Watched(tasks._lock), Watched(tasks._lock)
    for number in range(3):
        task = make_task(scene.parties, name=f"task {number}")
        tasks.register(canonical.encode(task), None)
        for _ in range(2):
            tasks.serve(task.task_id, None)
    assert len(tasks._known) == len(tasks._pairs) == 1


def test_a_task_that_is_kept_is_not_read_from_the_ledger_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path)
    tasks, task = scene.cores[0].tasks, scene.task
    assert tasks.authorize(task.task_id, None) == task
    monkeypatch.setattr(tasks._ledger, "task", None)
    assert tasks.authorize(task.task_id, None) == task
