"""How often a round may be begun and not charged.

A call whose caller leaves is not charged. But each one is a look: the round has the same sample whenever it
is asked for at the same weights, and whether an answer came before the caller left is told by the call
itself. So an ad server that leaves again and again could measure one sample's time as often as it likes, and
pay for none of it. After `MAX_UNCHARGED` of them the next computation of the round is finished and charged
whoever waits, and a call that closes the job waits for it; who asks again gets its answer.

That is so within one process. A helper that is started again counts anew, and ends what it computes. Queries
and evaluations, whose records are all of a dataset, may be left as often as one likes.

>>> attempts = Attempts()
>>> [attempts.begin(b"job", 0) for _ in range(MAX_UNCHARGED + 1)]
[True, True, True, False]
>>> attempts.forget(b"job")
>>> attempts.begin(b"job", 0)
True
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Final

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
        self._begun: dict[bytes, tuple[int, int]] = {}
        self._due: dict[bytes, int] = {}
        self._closing: dict[bytes, int] = {}

    def begin(self, job_id: bytes, round_index: int) -> bool:
        """Count a computation of a job's next round that begins now.

        Returns:
            Whether it may end uncharged. If not, `end` must be called when it is over.

        Raises:
            JobRefused(JOB_CLOSED): the job is being closed.
        """
        with self._changed:
            if job_id in self._closing:
                raise JobRefused(JobReason.JOB_CLOSED, "the job is being closed: start another one")
            last, begun = self._begun.get(job_id, (round_index, 0))
            begun = begun + 1 if last == round_index else 1
            self._begun[job_id] = (round_index, begun)
            if begun > MAX_UNCHARGED:
                self._due[job_id] = self._due.get(job_id, 0) + 1
        return begun <= MAX_UNCHARGED

    def end(self, job_id: bytes) -> None:
        """A computation that might not end uncharged is over: it was charged, or failed."""
        with self._changed:
            _less(self._due, job_id)
            self._changed.notify_all()

    @contextmanager
    def closing(self, job_id: bytes, interrupt: Interrupt) -> Iterator[None]:
        """Close a job within: no computation begins, and those that are to be charged were.

        `interrupt` is called while it waits for them; what it raises leaves the job open.
        """
        with self._changed:
            self._closing[job_id] = self._closing.get(job_id, 0) + 1
        try:
            with self._changed:
                while job_id in self._due:
                    interrupt()
                    self._changed.wait(_INTERRUPTED_EVERY_S)
            yield
        finally:
            with self._changed:
                _less(self._closing, job_id)

    def forget(self, job_id: bytes) -> None:
        """Begin to count anew: the round was charged, or the job is closed."""
        with self._changed:
            self._begun.pop(job_id, None)


def _less(counts: dict[bytes, int], job_id: bytes) -> None:
    """One less, and nothing is kept of none."""
    counts[job_id] -= 1
    if not counts[job_id]:
        del counts[job_id]
