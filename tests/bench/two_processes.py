"""What this machine's second core brings to rounds, without workers, Ray or anything that processes share.

    over_alone(records=250_000, features=30, hidden=64, turns=5)

Two processes sum records of their own, first one after the other and then at once. Two workers cannot take
less processor time above one than these do: cores share caches, memory and what else the machine computes.
"""

import statistics
import time
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context

import numpy as np

from helper.gradient.engine import Batch
from maskedlark.interrupt import never
from maskedlark.numbers.field import MODULUS
from tests.bench.drawn_records import CHUNK, gradient


def over_alone(*, records: int, features: int, hidden: int, turns: int) -> float:
    """Processor time of two sums at once over that of the same two one after the other, a median."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn"))) for _ in range(2)
        ]
        begun = partial(_begun, records, features, hidden)
        for one in processes:
            begun(one).result()  # starts it, and compiles
        ratios = []
        for _ in range(turns):
            alone = [begun(one).result() for one in processes]
            together = [answer.result() for answer in [begun(one) for one in processes]]
            ratios.append(sum(together) / sum(alone))
    return statistics.median(ratios)


def _begun(records: int, features: int, hidden: int, process: ProcessPoolExecutor) -> "Future[float]":
    return process.submit(_sum_s, records, features, hidden)


def _sum_s(records: int, features: int, hidden: int) -> float:
    """The processor time of one sum over drawn records."""
    draw, summing = np.random.default_rng(1), gradient(features, hidden)
    batches = [
        Batch(
            features=draw.integers(0, 256, (count, features), np.uint8),
            labels=np.tile(np.array([0, 1], np.uint32), (count, 1)),
            mask_shares=draw.integers(0, MODULUS, (count, 2), np.uint64),
        )
        for count in (min(CHUNK, records - start) for start in range(0, records, CHUNK))
    ]
    began = time.process_time()
    for batch in batches:
        summing.engine.masked_sum(summing.weights, batch, never)
    return time.process_time() - began
