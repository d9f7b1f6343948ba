"""What this machine's second core brings to rounds, without workers, Ray or anything that processes share.

    with TwoProcesses(records=250_000, features=30, hidden=64) as two:
        two.one_after_the_other(rounds=3)
        two.at_once(rounds=3)         # takes half as long on a machine with two cores to itself
    two.cpu_ratio

Two processes sum records of their own, half of a round's each. Two workers gain about as much at best: cores
share caches, memory, and on a machine that is lent a part of more than that.
"""

import statistics
import time
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from typing import Self

import numpy as np

from helper.executors.executor import Gradient
from helper.gradient.engine import Batch
from maskedlark.interrupt import never
from maskedlark.numbers.field import MODULUS
from tests.bench.drawn_records import CHUNK, gradient


class TwoProcesses:
    """Two processes, each with so many drawn records in its memory."""

    def __init__(self, *, records: int, features: int, hidden: int) -> None:
        """Start them, and let them compile."""
        self._alone: list[float] = []
        self._together: list[float] = []
        with ExitStack() as stack:
            self._processes = [
                stack.enter_context(
                    ProcessPoolExecutor(
                        1,
                        mp_context=get_context("spawn"),
                        initializer=_draw,
                        initargs=(records, features, hidden),
                    )
                )
                for _ in range(2)
            ]
            for one in self._processes:
                one.submit(_sum_s).result()
            self._stack = stack.pop_all()

    def one_after_the_other(self, rounds: int) -> None:
        """Let each sum its records so often while the other one does nothing."""
        self._alone.append(sum(one.submit(_sum_s).result() for _ in range(rounds) for one in self._processes))

    def at_once(self, rounds: int) -> None:
        """Let both sum their records so often; as in a round, each waits for the other one."""
        self._together.append(sum(self._both_s() for _ in range(rounds)))

    def _both_s(self) -> float:
        begun: list[Future[float]] = [one.submit(_sum_s) for one in self._processes]
        return sum(one.result() for one in begun)

    @property
    def cpu_ratio(self) -> float:
        """Processor time at once over that of one after the other: a median of the turns."""
        return statistics.median(
            together / alone for together, alone in zip(self._together, self._alone, strict=True)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


_drawn: list[tuple[Gradient, list[Batch]]] = []


def _draw(records: int, features: int, hidden: int) -> None:
    """What one of the processes has in its memory."""
    draw = np.random.default_rng(1)
    batches = [
        Batch(
            features=draw.integers(0, 256, (count, features), np.uint8),
            labels=np.tile(np.array([0, 1], np.uint32), (count, 1)),
            mask_shares=draw.integers(0, MODULUS, (count, 2), np.uint64),
        )
        for count in (min(CHUNK, records - start) for start in range(0, records, CHUNK))
    ]
    _drawn.append((gradient(features, hidden), batches))


def _sum_s() -> float:
    """The processor time of one sum over a process's records."""
    ((summing, batches),) = _drawn
    began = time.process_time()
    for batch in batches:
        summing.engine.masked_sum(summing.weights, batch, never)
    return time.process_time() - began
