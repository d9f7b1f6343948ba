"""A limit on how often a round may be begun without being charged.

A call whose caller cancels is not charged, but it is a measurement: at the same weights a round has the same
sample, and the caller learns whether the answer was ready before it cancelled. So an ad server that cancels
repeatedly could time one sample as often as it likes without paying. After `MAX_UNCHARGED` cancelled attempts
the next computation of the round is finished and charged even if the caller cancels. A call that closes the
job waits for it, and a repeated request receives its answer.

The count is kept by one process. A restarted helper counts from zero, and a shutdown ends its computations.
Queries and evaluations have no such limit: they read all records of a dataset, so they have no secret sample.

>>> attempts, job = Attempts(), ReleaseKey(b"task", b"job")
>>> [attempts.begin(job, 0) for _ in range(MAX_UNCHARGED + 1)]
[True, True, True, False]
>>> attempts.forget(job)
>>> attempts.begin(job, 0)
True
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Final

from helper.ledger.records import ReleaseKey
from maskedlark.errors import JobReason, JobRefused
from maskedlark.interrupt import Interrupt

MAX_UNCHARGED: Final = 3
_INTERRUPTED_EVERY_S: Final = 0.1


class Attempts:
    """Computations of each job's next round that were begun. Safe to call from many threads.

    They are kept in memory, for jobs whose next round was begun: a helper that is started again begins anew.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._begun: dict[ReleaseKey, tuple[int, int]] = {}
        # Counts, not flags: several calls may compute a round, or close a job, at the same time.
        self._due: dict[ReleaseKey, int] = {}
        self._closing: dict[ReleaseKey, int] = {}

    def begin(self, job: ReleaseKey, round_index: int) -> bool:
        """Count a computation of a job's next round that begins now.

        Returns:
            Whether it may end uncharged. If not, `end` must be called when it is over.

        Raises:
            JobRefused(JOB_CLOSED): the job is being closed.
        """
        with self._changed:
            # Before anything is counted, or a close could wait for computations that keep beginning.
            if job in self._closing:
                raise JobRefused(JobReason.JOB_CLOSED, "the job is being closed: start another one")
            last, begun = self._begun.get(job, (round_index, 0))
            begun = begun + 1 if last == round_index else 1
            self._begun[job] = (round_index, begun)
            if begun > MAX_UNCHARGED:
                self._due[job] = self._due.get(job, 0) + 1
        return begun <= MAX_UNCHARGED

    def end(self, job: ReleaseKey) -> None:
        """Record that a computation was charged or failed, and cannot end uncharged any more."""
        with self._changed:
            _less(self._due, job)
            self._changed.notify_all()

    @contextmanager
    def closing(self, job: ReleaseKey, interrupt: Interrupt) -> Iterator[None]:
        """Close a job within: no computation begins, and those that are to be charged were.

        `interrupt` is called while it waits for them; what it raises leaves the job open.
        """
        with self._changed:
            self._closing[job] = self._closing.get(job, 0) + 1
        try:
            with self._changed:
                while job in self._due:
                    interrupt()
                    self._changed.wait(_INTERRUPTED_EVERY_S)
            yield
        finally:
            with self._changed:
                _less(self._closing, job)

    def forget(self, job: ReleaseKey) -> None:
        """Begin to count anew: the round was charged, or the job is closed."""
        with self._changed:
            self._begun.pop(job, None)


def _less(counts: dict[ReleaseKey, int], job: ReleaseKey) -> None:
    """Decrement a job's count and drop the entry at zero."""
    counts[job] -= 1
    if not counts[job]:
        del counts[job]
