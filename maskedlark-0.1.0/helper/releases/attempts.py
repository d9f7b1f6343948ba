"""How often a round may be begun and not charged.

A call whose caller leaves is not charged. But each one is a look: the round has the same sample whenever it
is asked for at the same weights, and whether an answer came before the caller left is told by the call
itself. So an ad server that leaves again and again could measure one sample's time as often as it likes, and
pay for none of it. After `MAX_UNCHARGED` of them the next computation of the round is finished and charged
whoever waits; who asks again gets its answer.

>>> attempts = Attempts()
>>> [attempts.begin(b"job", 0) for _ in range(MAX_UNCHARGED + 1)]
[True, True, True, False]
>>> attempts.forget(b"job")
>>> attempts.begin(b"job", 0)
True
"""

from threading import Lock
from typing import Final

MAX_UNCHARGED: Final = 3


class Attempts:
    """Computations of each job's next round that were begun. Safe to call from many threads.

    They are kept in memory, for jobs whose next round was begun: a helper that is started again begins anew.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._begun: dict[bytes, tuple[int, int]] = {}

    def begin(self, job_id: bytes, round_index: int) -> bool:
        """Count a computation of a job's next round that begins now.

        Returns:
            Whether it may end uncharged.
        """
        with self._lock:
            last, begun = self._begun.get(job_id, (round_index, 0))
            begun = begun + 1 if last == round_index else 1
            self._begun[job_id] = (round_index, begun)
        return begun <= MAX_UNCHARGED

    def forget(self, job_id: bytes) -> None:
        """Begin to count anew: the round was charged, or the job is closed."""
        with self._lock:
            self._begun.pop(job_id, None)
