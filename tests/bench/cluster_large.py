"""Ten million records at a helper whose workers on Ray keep a quarter of a gibibyte each.

`make cluster-large`, or with ARGS="--records 1000000 --json". Two cores, some minutes, 2 GB of disk.

A helper takes the records as shares (drawn ones: opening them would take hours on two cores), writes them as
segments and commits them, with a Ray cluster of two machines beside it. Then rounds run over a sample: the
first one sends all segments to the workers, later ones what they had no room for. Every sum is compared with
this machine's own. Peaks are the most memory that a process ever had (VmHWM), with what it loads: of the head
from its start to its last round, and of the worker that took most.
"""

import tempfile
import time
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np

from helper.datasets.records import DatasetRecords
from helper.executors.clustered import ClusterExecutor
from helper.executors.executor import Executor
from helper.executors.local import LocalExecutor
from maskedlark.interrupt import never
from maskedlark.releases.round import Evaluated, MaskedSum
from tests.bench.drawn_records import differing, gradient
from tests.bench.harness import bench_parser, peak_mib, show
from tests.bench.processor import processor
from tests.bench.segments import FEATURES, Large
from tests.helper.executors.ray_machines import machines
from tests.progress import shown

HIDDEN = 64
WORKERS = 2
RATE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The bench's keys; the bars stand behind those that have one."""

    records: int
    features: int
    processor: str
    workers: int
    worker_cache_mb: int
    rounds: int
    bytes_that_differ: int  # 0
    holder_base_mb: int
    holder_peak_mb: int  # 768
    head_base_mb: int
    head_prepared_peak_mb: int
    head_peak_mb: int  # 1536
    prepare_s: float
    commit_s: float
    round_s_first: float
    round_s_later: float
    round_s_local: float


def peak_mb(pid: int | str = "self") -> int:
    """Rounded up."""
    return ceil(peak_mib(pid))


def measured(*, records: int, worker_bytes: int, rounds: int) -> Results:
    """Prepare, commit and sum so many records."""
    steps = records * (1 + 2 * rounds)
    with (
        tempfile.TemporaryDirectory() as name,
        machines(Path(name)) as made,
        shown("records taken and summed", steps) as tell,
    ):
        for _ in range(WORKERS):
            made.add()
        with made.fleet(WORKERS, worker_bytes=worker_bytes) as fleet, LocalExecutor(1) as local:
            large, cluster = Large(Path(name) / "helper", records), ClusterExecutor(fleet, local)
            base, workers_base = peak_mb(), max(map(peak_mb, made.worker_pids()))
            began = time.perf_counter()
            dataset = large.prepare(lambda finish: finish(), lambda count: tell(count, "taken"))
            prepared_at = time.perf_counter()
            large.commit(dataset)
            committed_at = time.perf_counter()
            prepared_peak = peak_mb()
            datasets = large.core.datasets
            stored = DatasetRecords(
                count=records,
                pieces=lambda interrupt: datasets.pieces(dataset, interrupt),
                sealed=lambda interrupt: datasets.vault.read_sealed(dataset, interrupt),
            )
            asked = gradient(FEATURES, HIDDEN)

            def timed_sum(executor: Executor, seed: int) -> tuple[MaskedSum, float]:
                chosen = np.random.default_rng(seed).random(records, np.float32) < RATE
                evaluated = Evaluated(is_evaluated=chosen, counts=chosen)
                start = time.perf_counter()
                found = executor.masked_sum(asked, stored, evaluated, never)
                return found, time.perf_counter() - start

            unequal, round_s, local_s = 0, [], []
            for seed in range(rounds):
                clustered, took = timed_sum(cluster, seed)
                round_s.append(took)
                tell(records * (2 + 2 * seed), "summed by workers")
                alone, took = timed_sum(local, seed)
                local_s.append(took)
                tell(records * (3 + 2 * seed), "summed here")
                unequal += differing(clustered, alone)
            return Results(
                records=records,
                features=FEATURES,
                processor=processor(),
                workers=len(fleet.workers()),
                worker_cache_mb=worker_bytes >> 20,
                rounds=rounds,
                bytes_that_differ=unequal,
                holder_base_mb=workers_base,
                holder_peak_mb=max(map(peak_mb, made.worker_pids())),
                head_base_mb=base,
                head_prepared_peak_mb=prepared_peak,
                head_peak_mb=peak_mb(),
                prepare_s=prepared_at - began,
                commit_s=committed_at - prepared_at,
                round_s_first=round_s[0],
                round_s_later=min(round_s[1:], default=round_s[0]),
                round_s_local=min(local_s),
            )


def main() -> None:
    """Measure, and print."""
    parser = bench_parser("A large dataset at a helper with workers on Ray.")
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--worker-bytes", type=int, default=256 << 20, help="of segments, at each worker")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    results = measured(
        records=arguments.records, worker_bytes=arguments.worker_bytes, rounds=arguments.rounds
    )
    show(results, is_json=arguments.json)


if __name__ == "__main__":
    main()
