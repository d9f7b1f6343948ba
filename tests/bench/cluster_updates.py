"""Federated rounds whose updates workers add up: equal bytes, workers killed, what is left to the head.

A part of `make cluster`. The shares are those of helper 0, random seeds; each sum is compared with this
machine's. Then one process of a worker ends by SIGKILL while a sum is under way.
"""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Final

import numpy as np
import psutil

from helper.datasets.records import DatasetRecords
from helper.datasets.updates import _shape_of, plan_segments
from helper.executors.clustered import ClusterExecutor
from helper.executors.executor import Adding, SummedUpdates
from helper.executors.local import LocalExecutor
from maskedlark.errors import HelperUnavailable
from maskedlark.interrupt import never
from maskedlark.numbers.field import to_bytes
from maskedlark.randomness import derive_key, system_randomness
from maskedlark.reports.share_seed import SEED_BYTES
from maskedlark.reports.updates import SEED_ROLE, UpdateForm
from tests.bench.cluster_records import CANARIES
from tests.bench.harness import cpu_s, seconds
from tests.helper.executors.ray_machines import Machines
from tests.helper.stored import commit, vault_in

if TYPE_CHECKING:  # it imports ray, before `ray_machines` could say how that authenticates
    from helper.executors.ray_fleet import RayFleet

PARAMETERS: Final = 100_000
DEVICES: Final = 4_000
MOST_TRIES: Final = 4
"""For each kill that is wanted."""
_ROUND: Final = bytes(32)
_DATASET: Final = bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFigures:
    """What sums of updates by workers were; the bars stand behind those that have one.

    Attributes:
        sums_compared: Sums compared with this machine's, those of kills among them.
        bytes_that_differ: Of those. 0
        kills: Of workers, while a sum was under way.
        kill_late_s: By how much the slowest sum that was hit was slower than the usual one. 10
        cancel_s: How long after its caller left a sum has ended and its workers do the next order. 1
        local_cpu_s: Processor time of this machine's sum.
        head_cpu_s: What of it is left to the head.
        workers_cpu_s: What it takes the workers.
    """

    sums_compared: int
    bytes_that_differ: int
    kills: int
    kill_late_s: float
    cancel_s: float
    local_cpu_s: float
    head_cpu_s: float
    workers_cpu_s: float


class UpdateBench:
    """Random seeds of a round, and who adds up what they stand for."""

    def __init__(self, folder: Path, fleet: "RayFleet") -> None:
        self.fleet = fleet
        self.adding = Adding(
            form=UpdateForm(num_parameters=PARAMETERS), role=SEED_ROLE, task_id=system_randomness(32)
        )
        self.local = LocalExecutor(1)
        self.cluster = ClusterExecutor(fleet, self.local)
        self.storage_key, self.seeds = system_randomness(32), system_randomness(SEED_BYTES * DEVICES)
        self.vault = vault_in(folder, self._key_for)
        plan = plan_segments(self.adding.form, SEED_BYTES, _ROUND)
        writer = self.vault.begin(_shape_of(SEED_BYTES), "ads.example", plan)
        rows = _shape_of(SEED_BYTES).empty(DEVICES)
        rows.report_ids[:] = np.arange(2 * DEVICES, dtype=np.uint64).view(np.uint8).reshape(DEVICES, 16)
        rows.shares.features[:] = np.frombuffer(self.seeds, np.uint8).reshape(DEVICES, SEED_BYTES)
        self.vault.add(writer, rows)
        commit(self.vault, writer, _DATASET, np.arange(DEVICES, dtype=np.uint32))
        self.expected = self.sum_by(self.local)
        self.compared, self.differ = 0, 0

    def _key_for(self, context: bytes) -> bytes:
        return derive_key(self.storage_key, b"bench", context)

    def updates(self, most: int = DEVICES) -> DatasetRecords:
        """The round's shares, of which so many segments are sent."""
        return DatasetRecords(
            count=DEVICES,
            pieces=lambda interrupt: self.vault.pieces(_DATASET, interrupt, round_id=_ROUND),
            sealed=lambda interrupt: self.vault.read_sealed(_DATASET, interrupt, round_id=_ROUND)[:most],
        )

    def sum_by(self, executor: LocalExecutor | ClusterExecutor) -> SummedUpdates:
        """The sum of all shares."""
        return executor.add_up(self.adding, self.updates(), never)

    def compare(self) -> None:
        """Let workers sum, and count what differs."""
        found = self.sum_by(self.cluster)
        pairs = zip(self.expected.vector.tobytes(), found.vector.tobytes(), strict=True)
        self.differ += sum(one != other for one, other in pairs) + (self.expected.records != found.records)
        self.compared += 1

    @property
    def secrets(self) -> dict[str, list[bytes]]:
        """What must be nowhere in Ray."""
        places = range(0, len(self.seeds), len(self.seeds) // CANARIES)
        return {
            "seeds of updates": [self.seeds[place : place + SEED_BYTES] for place in places],
            "keys of updates": [self.vault.read_sealed(_DATASET, round_id=_ROUND)[0].key],
            "sums of updates": [to_bytes(self.expected.vector)[:SEED_BYTES]],
        }


def updates_added(bench: UpdateBench, made: Machines, *, workers: int, kills: int) -> UpdateFigures:
    """Everything, one after the other, on so many workers."""
    bench.compare()  # workers that have just started import first
    local_s, began, began_s = (
        seconds(lambda: bench.sum_by(bench.local)),
        _workers_s(made),
        time.perf_counter(),
    )
    head_s = seconds(lambda: bench.sum_by(bench.cluster))
    usual_s, workers_s = time.perf_counter() - began_s, _workers_s(made) - began
    hit, late_s = 0, 0.0
    for attempt in range(MOST_TRIES * kills):
        made.await_workers(bench.fleet, workers)
        pids, draw = made.worker_pids(), np.random.default_rng(attempt)
        is_hit, took_s = _sum_and_kill(bench, pids[attempt % len(pids)], usual_s * draw.random())
        if is_hit:
            hit, late_s = hit + 1, max(late_s, took_s - usual_s)
        if hit == kills:
            break
    made.await_workers(bench.fleet, workers)
    return UpdateFigures(
        sums_compared=bench.compared,
        bytes_that_differ=bench.differ,
        kills=hit,
        kill_late_s=late_s,
        cancel_s=_cancelled(bench),
        local_cpu_s=local_s,
        head_cpu_s=head_s,
        workers_cpu_s=workers_s,
    )


def _workers_s(made: Machines) -> float:
    """Processor time of all workers so far."""
    return cpu_s(*map(psutil.Process, made.worker_pids()))


def _sum_and_kill(bench: UpdateBench, pid: int, after_s: float) -> tuple[bool, float]:
    """One sum, and the end of a worker after some time: whether it was under way, and how long it took."""
    with ThreadPoolExecutor(1) as threads:
        began = time.perf_counter()
        asked = threads.submit(bench.compare)
        Event().wait(after_s)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        is_hit = not asked.done()
        asked.result()
        return is_hit, time.perf_counter() - began


def _cancelled(bench: UpdateBench) -> float:
    """How long after its caller left a sum has ended and its workers do the next order."""
    calls, left = 0, 0.0

    def leaves() -> None:
        nonlocal calls, left
        calls += 1
        if calls > 4:
            left = left or time.perf_counter()
            raise HelperUnavailable("the caller has gone")

    with suppress(HelperUnavailable):
        bench.cluster.add_up(bench.adding, bench.updates(), leaves)
    bench.cluster.add_up(bench.adding, bench.updates(most=2), never)
    return time.perf_counter() - left
