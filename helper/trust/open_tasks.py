"""How many tasks each ad server has open at this helper.

The limit keeps one ad server from filling the ledger, or the room of others, with tasks.
"""

from collections import defaultdict
from collections.abc import Callable
from threading import Lock
from typing import Final

from helper.ledger.ledger import Ledger
from maskedlark.canonical import decode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.reports.task import Task
from maskedlark.rpc.trust import host_of

LEAST_COUNTED_S: Final = 86_400.0
"""A task counts so long after it was registered, however soon it expires: its row in the ledger stays."""


class OpenTasks:
    """The tasks of each host that have not expired, or were registered a day ago at most.

    Safe to call from many threads.

    The ledger is read once, when the first task is registered. Tasks that another process on the same
    database registers later are counted after a restart, and those that had expired by then no longer.
    """

    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        """Read nothing yet.

        Args:
            ledger: Where tasks are kept.
            clock: Unix seconds.
        """
        self._ledger = ledger
        self._clock = clock
        self._lock = Lock()
        self._ends: defaultdict[str, dict[bytes, float]] | None = None

    def add(self, task: Task, most: int, keep: Callable[[], None]) -> None:
        """Keep a task if its host has room for it, or has it already.

        Args:
            task: The task.
            most: How many open tasks one host may have.
            keep: Keeps the task durably; called under the lock, so that two at once cannot both be the last.

        Raises:
            JobRefused(TOO_MANY_TASKS)
        """
        with self._lock:
            of_host = self._read()[host_of(task.origin)]
            for task_id in [one for one, end in of_host.items() if end <= self._clock()]:
                del of_host[task_id]
            if task.task_id not in of_host and len(of_host) >= most:
                raise JobRefused(
                    JobReason.TOO_MANY_TASKS,
                    f"{host_of(task.origin)} has {most} open tasks, this helper's limit for one "
                    "origin (--max-tasks-per-origin): wait until tasks expire; a task counts for "
                    "at least a day",
                )
            keep()
            of_host.setdefault(task.task_id, max(task.expires_at, self._clock() + LEAST_COUNTED_S))

    def _read(self) -> defaultdict[str, dict[bytes, float]]:
        """Read the tasks by host, with the lock held."""
        if self._ends is None:
            self._ends = defaultdict(dict)
            for task in (decode(Task, encoded) for encoded in self._ledger.encode_tasks()):
                self._ends[host_of(task.origin)][task.task_id] = task.expires_at
        return self._ends
