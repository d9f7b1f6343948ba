"""Noise drawn in advance, so that a request waits for none and the time to draw it reveals no value.

A job's mechanism, scale and length are known when it starts. The next round's noise is drawn in the
background then, and again after each round; it is kept in memory only. Taking a vector removes it, whatever
happens to the round afterwards: a vector is in at most one answer, and after a failure, a refusal or a
restart the next attempt gets a fresh one. (A retry of an answered round gets the stored answer.)
"""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from helper.datasets.fair_cache import FairCache
from helper.ledger.records import ReleaseKey
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt, interruptible, never
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import noise_vector
from maskedlark.randomness import STREAM_KEY_BYTES, Randomness, Stream

CAPACITY_BYTES: Final = 1 << 28
"""What all vectors on the shelf may take.

Past it the oldest of the ad server that has most are forgotten, and drawn when they are asked for.
"""
_INTERRUPTED_EVERY_S: Final = 0.1

NoiseVector = NDArray[np.int64]


@frozen
class NoiseOrder:
    """What a round's noise must be."""

    mechanism: Mechanism
    scale: int
    count: int


@frozen
class _Ahead:
    order: NoiseOrder
    vector: "Future[NoiseVector]" = field(repr=False)


class NoiseCache:
    """At most one vector ahead for each job. Safe to call from many threads.

    Guarantees: every vector handed out was drawn for this call or drawn ahead and never handed out before;
        each comes from a separate stream, whose key is 32 fresh bytes of `randomness`.
    """

    def __init__(self, randomness: Randomness, *, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self._randomness = randomness
        self._ahead: FairCache[ReleaseKey, _Ahead] = FairCache(capacity_bytes)
        self._drawing = ThreadPoolExecutor(1, thread_name_prefix="noise")

    def prepare(self, job: ReleaseKey, order: NoiseOrder, owner: str) -> None:
        """Begin to draw a job's next noise, unless it lies ready, or has no room on the shelf.

        Args:
            job: The job.
            order: What its noise must be.
            owner: The host of its ad server.
        """
        num_bytes = 8 * order.count
        if num_bytes > self._ahead.capacity_bytes:
            return
        present = self._ahead.get(job)
        if present is not None and present.order == order:
            return
        ahead = _Ahead(order=order, vector=self._drawing.submit(self._draw, order))
        # What made room is drawn when it is asked for: there is no use in drawing it now.
        for gone in self._ahead.put(job, ahead, num_bytes=num_bytes, owner=owner):
            gone.vector.cancel()

    def take(self, job: ReleaseKey, order: NoiseOrder, interrupt: Interrupt = never) -> NoiseVector:
        """Return the noise of one answer.

        What was drawn ahead if it is what was ordered, else drawn now; `interrupt` may end either.
        """
        # Popped before anything is returned: two calls of one job never get the same noise.
        ahead = self._ahead.pop(job)
        if (
            ahead is not None and ahead.order == order and not ahead.vector.cancel()
        ):  # cancelled: not yet begun, behind other jobs'
            while not wait((ahead.vector,), timeout=_INTERRUPTED_EVERY_S).done:
                interrupt()
            return ahead.vector.result()
        return self._draw(order, interrupt)

    def drop(self, job: ReleaseKey) -> None:
        """Discard the noise that was drawn for a job."""
        self._ahead.pop(job)

    def _draw(self, order: NoiseOrder, interrupt: Interrupt = never) -> NoiseVector:
        stream = Stream(self._randomness(STREAM_KEY_BYTES))
        return noise_vector(order.mechanism, order.scale, order.count, interruptible(stream, interrupt))
