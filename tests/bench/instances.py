"""Draw and discard's instance store under devices that draw and return at the same time.

Part of `make bench-updates`. A device here is a thread: it draws, and returns a model whose weights are all
the same number of its own, so that a torn instance would be seen.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.local_job import LocalUpdate, local_job
from maskedlark.randomness import system_randomness
from tests.local_jobs import LocalJobs, opened

DEVICES: Final = 8
_JOB: Final = b"b" * 16
_SETTINGS: Final = DrawAndDiscard(instances=20, learning_rate=0.001, epsilon=2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What devices reached.

    Attributes:
        weights: Of the model.
        per_s: Instances drawn and replaced a second, by all devices together.
        cpu_ms: Processor time of one, devices' own among it.
        lost: Accepted updates that are not counted, or have no id stored.
        torn: Instances that are no device's model and none of the first ones.
    """

    weights: int
    per_s: float
    cpu_ms: float
    lost: int
    torn: int


def measure_instances(folder: Path, weights: int, turns: int) -> Rate:
    """Let 8 devices draw and return `turns` times each, on SQLite."""
    jobs = LocalJobs(opened(f"sqlite:///{folder / f'instances-{weights}.sqlite3'}"))
    jobs.submit(local_job(_JOB, _SETTINGS, (weights - 1, 1)))
    store = jobs.instances
    first = store.instances(_JOB)

    def live(device: int) -> int:
        torn = 0
        for turn in range(turns):
            drawn = store.draw(_JOB, system_randomness)
            torn += not _is_whole(drawn.instance, first)
            model = np.full(weights, 1 + device * turns + turn, np.int64)
            update = LocalUpdate(update_id=os.urandom(16), position=drawn.returns, vector=model)
            store.replace(_JOB, update, system_randomness)
        return torn

    began, used = time.monotonic(), time.process_time()
    with ThreadPoolExecutor(DEVICES) as pool:
        torn = sum(pool.map(live, range(DEVICES)))
    took, used = time.monotonic() - began, time.process_time() - used
    count = DEVICES * turns
    return Rate(
        weights=weights,
        per_s=count / took,
        cpu_ms=1e3 * used / count,
        lost=count - jobs.accepted(_JOB),
        torn=torn + sum(not _is_whole(instance, first) for instance in store.instances(_JOB)),
    )


def _is_whole(instance: np.ndarray, first: np.ndarray) -> bool:
    """Whether an instance is one device's, or one of the first; its ends tell which it must be."""
    if instance[0] == instance[-1]:
        return bool((instance == instance[0]).all())
    return bool((first == instance).all(axis=1).any())
