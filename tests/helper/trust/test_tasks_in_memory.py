"""Tasks that a helper keeps in memory are bounded in number, and read again from the ledger."""

from pathlib import Path

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
