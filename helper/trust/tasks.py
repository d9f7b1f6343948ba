"""The tasks that this helper serves, and the certificates that may use each.

Every call about a task passes through `Tasks.serve` first.
"""

import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import field
from threading import Lock
from typing import Final, TypeAlias, TypeVar

from helper.ledger.ledger import Ledger
from helper.ledger.records import SignedTask
from helper.trust.floors import Floors, WorkEstimate
from helper.trust.keys import HelperKeys
from maskedlark.audit_log import THIS_SERVICE, Actor
from maskedlark.canonical import decode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.model.limits import Limits
from maskedlark.reports.helper_pair_key import PairKey
from maskedlark.reports.task import Task
from maskedlark.rpc.trust import host_of
from maskedlark.utc import format_utc

Clock: TypeAlias = Callable[[], float]
"""The time now, in Unix seconds."""

Caller: TypeAlias = frozenset[str] | None
"""The names in the caller's certificate; None on plaintext, which only a loopback server speaks."""

LEAST_COUNTED_S: Final = 86_400.0
"""A task counts so long after it was registered, however soon it expires: its row in the ledger stays."""
_LOG: Final = logging.getLogger(__name__)
# Tasks in memory; any other is read from the ledger again.
_MOST_KEPT: Final = 4_096
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@frozen
class ServedTask:
    """A task that this helper serves to the caller at hand, and what the helper needs to act in it."""

    task: Task
    task_id: bytes
    role: int
    pair: PairKey = field(repr=False)


class Tasks:
    """Accepts tasks, and lets callers act in those that were accepted."""

    def __init__(self, *, keys: HelperKeys, floors: Floors, ledger: Ledger, clock: Clock) -> None:
        self._keys = keys
        self._floors = floors
        self._ledger = ledger
        self._clock = clock
        self._open = _OpenTasks(ledger, clock)
        # By task and name of its origin, so that another origin's task is not found here either: it takes as
        # long to refuse as one that does not exist. A task never changes.
        self._known: dict[tuple[bytes, str | None], Task] = {}
        self._pairs: dict[bytes, PairKey] = {}
        self._lock = Lock()

    def register(self, encoded: bytes, caller: Caller, actor: Actor = THIS_SERVICE) -> bytes:
        """Check a task against the floors, sign it and keep it. Called by the ad server; idempotent.

        Args:
            encoded: A `Task`.
            caller: The peer that asks.
            actor: How the audit log names the caller.

        Returns:
            The Ed25519 signature.

        Raises:
            InvalidTask: not canonical, or the keys of the two helpers cannot work together.
            JobRefused(UNAUTHORIZED, TASK_REFUSED, TASK_EXPIRED, TOO_MANY_TASKS)
        """
        task = decode(Task, encoded)
        if caller is not None and caller.isdisjoint(_names_of(task)):
            raise JobRefused(
                JobReason.UNAUTHORIZED, "the client's certificate does not name the task's origin"
            )
        self._floors.check(task)
        self.check_not_expired(task)
        role = self._check_role(task)
        # Keys that cannot work together are refused before anything is signed.
        self._keys.pair(task, role)
        stored = SignedTask(
            encoded=encoded, origin=task.origin, role=role, signature=self._keys.sign_task(task)
        )
        self._open.add(
            task,
            self._floors.max_tasks_per_origin,
            lambda: self._ledger.add_task(task.task_id, stored, actor),
        )
        _LOG.info(
            "task registered: role %d, %d features, mechanism %s", role, task.num_features, task.mechanism
        )
        return stored.signature

    def serve(self, task_id: bytes, caller: Caller) -> ServedTask:
        """Return a task if the caller may use it and it still respects the floors.

        Raises:
            JobRefused(UNKNOWN_TASK, TASK_REFUSED)
        """
        task = self.authorize(task_id, caller)
        self._floors.check(task)
        role = self._check_role(task)
        pair = self._pairs.get(task_id)
        if pair is None:
            pair = self._keys.pair(task, role)
            self._keep(self._pairs, task_id, pair)
        return ServedTask(task=task, task_id=task_id, role=role, pair=pair)

    def authorize(self, task_id: bytes, caller: Caller) -> Task:
        """Return a task if the caller may use it, whatever the floors are by now.

        Enough to give budget back.

        Guarantees: the task of an origin that the caller's certificate does not name is refused as one that
            does not exist, after the same steps.

        Raises:
            JobRefused(UNKNOWN_TASK)
        """
        names = (None,) if caller is None else caller
        for name in names:
            # Without the lock: a dictionary gives one value or none, and a task never changes.
            known = self._known.get((task_id, name))
            if known is not None:
                return known
        stored = self._ledger.task(task_id, caller)
        if stored is None:
            raise JobRefused(
                JobReason.UNKNOWN_TASK,
                "this helper knows no such task for an origin in the client's certificate: register it first",
            )
        task = decode(Task, stored.encoded)
        # Under both names of the origin, whichever of them this caller shows.
        for name in names if caller is None else _names_of(task):
            self._keep(self._known, (task_id, name), task)
        return task

    @property
    def model_limits(self) -> Limits:
        """The limits on reading, holding and computing one model."""
        return Limits.admitting(self._floors.max_parameters)

    def check_affordable(self, cost: WorkEstimate, what: str) -> None:
        """Refuse work that takes longer, or more memory, by estimate than this operator gives one round.

        Raises:
            JobRefused(TOO_LARGE)
        """
        self._floors.check_cost(cost, what)

    def check_not_expired(self, task: Task) -> None:
        """Refuse to begin anything in a task that has expired.

        Raises:
            JobRefused(TASK_EXPIRED)
        """
        if self._clock() >= task.expires_at:
            raise JobRefused(JobReason.TASK_EXPIRED, f"the task expired at {format_utc(task.expires_at)}")

    def _keep(self, kept: dict[_Key, _Value], key: _Key, value: _Value) -> None:
        """Keep what was read of a task, in place of what was kept first if there is too much."""
        with self._lock:
            kept[key] = value
            if len(kept) > _MOST_KEPT:
                del kept[next(iter(kept))]

    def _check_role(self, task: Task) -> int:
        """Return this helper's role in the task, if it accepts the other role's helper."""
        verify_key = self._keys.identity.verify_key
        for role, helper in enumerate(task.helpers):
            if helper.verify_key == verify_key:
                self._floors.check_peer(task.helpers[1 - role])
                return role
        raise JobRefused(
            JobReason.TASK_REFUSED,
            "the task names no helper with this helper's verify_key: create the task with this helper's key",
        )


class _OpenTasks:
    """The tasks of each host that have not expired, or were registered a day ago at most.

    Their limit keeps one ad server from filling the ledger, or the room of others, with tasks. Safe to call
    from many threads.

    The ledger is read once, when the first task is registered. Tasks that another process on the same
    database registers later are counted after a restart, and those that had expired by then no longer.
    """

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
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


def _names_of(task: Task) -> tuple[str, str]:
    """Return the names of a task's origin in certificates: only their holder is served the task."""
    return task.origin, host_of(task.origin)
