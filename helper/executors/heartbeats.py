"""Whether a worker that has an order still goes on, or stands still without having ended.

    pulses.is_silent(worker)     # often, while an order of its is out

A worker that is stopped, swaps, or whose machine is cut off ends no order and raises no error. So the head
asks it, beside the order, and a worker's process answers at once, however long its order takes. How much work
an order is does not matter: an order may take hours, silence may not take long.
"""

import time
from collections.abc import Callable, Container
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from typing import Final, Protocol

from helper.executors.handshake import NONCE_BYTES, NotSealed, Session

ASK_EVERY_S: Final = 2.0
"""How long after the last word of a worker it is asked."""
SILENT_S: Final = 20.0
"""How long a worker may leave a question open; a hundred times what the busiest machine takes."""
_MOST_A_LOOK_S: Final = 5.0
"""The most that the time between two looks counts: in a longer one the head stood still, or had no order."""
ALIVE: Final = b"alive"

Clock = Callable[[], float]


class HeartbeatTarget(Protocol):
    """The part of a worker that tells whether it goes on."""

    @property
    def name(self) -> bytes:
        """Unique among all workers that ever joined."""

    @property
    def session(self) -> Session:
        """Seals and opens what passes between head and worker."""

    def alive(self, sealed: bytes) -> "Future[bytes]":
        """See `Holder.alive`; the future may raise anything."""


@dataclass(slots=True, kw_only=True)
class _Pulse:
    """What is known of one worker.

    Attributes:
        since_s: When it last said something, or was last asked.
        looked_s: When the head last looked whether it had answered.
        silent_s: How long questions have been open while the head looked, or None if none is.
        question: The sealed one that is out, or empty.
        answer: Its answer to be.
    """

    since_s: float
    looked_s: float
    silent_s: float | None = None
    question: bytes = b""
    answer: "Future[bytes] | None" = None


class Heartbeats:
    """The workers of a fleet, each asked from time to time. Safe to call from many threads."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock, self._lock = clock, Lock()
        self._pulses: dict[bytes, _Pulse] = {}

    def heard(self, worker: HeartbeatTarget) -> None:
        """Record that a worker has answered something."""
        with self._lock:
            now = self._clock()
            self._pulses[worker.name] = _Pulse(since_s=now, looked_s=now)

    def forget_all_but(self, names: Container[bytes]) -> None:
        """Forget the workers that are gone."""
        with self._lock:
            self._pulses = {name: pulse for name, pulse in self._pulses.items() if name in names}

    def is_silent(self, worker: HeartbeatTarget) -> bool:
        """Return whether a worker has left questions open too long; ask it if it was not asked lately."""
        with self._lock:
            now = self._clock()
            pulse = self._pulses.setdefault(worker.name, _Pulse(since_s=now, looked_s=now))
            passed, pulse.looked_s = min(now - pulse.looked_s, _MOST_A_LOOK_S), now
            if pulse.silent_s is not None:
                pulse.silent_s += passed
            if pulse.answer is not None and pulse.answer.done():
                is_heard = _is_answer(worker.session, pulse.question, pulse.answer)
                pulse.answer, pulse.silent_s = None, None if is_heard else pulse.silent_s
            if pulse.silent_s is not None and pulse.silent_s >= SILENT_S:
                return True
            if pulse.answer is None and now - pulse.since_s >= ASK_EVERY_S:
                pulse.question = worker.session.seal(b"", ALIVE)
                pulse.answer = worker.alive(pulse.question)
                pulse.since_s, pulse.silent_s = now, pulse.silent_s or 0.0
            return False


def _is_answer(session: Session, question: bytes, answer: "Future[bytes]") -> bool:
    """Return whether this worker has answered this question."""
    if answer.exception() is not None:
        return False
    try:
        session.open(answer.result(), question[:NONCE_BYTES])
    except NotSealed:
        return False
    return True
