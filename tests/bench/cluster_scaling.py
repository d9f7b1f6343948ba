"""What workers on Ray cost and bring.

Rounds, and opening of reports, by this machine alone, by one worker and by
two, side by side.

`make cluster-scaling`, or with ARGS="--records 1048576 --features 784 --json". Two cores, a few minutes.

Each turn sums the same sampled records with one thread of this process, the dataset in its memory; with one
worker; with two workers, a core each, which hold the dataset. Figures are medians of ratios within a turn, so
that what else the machine does touches both sides. Processor time is that of the head's process and of all
workers; what Ray's own daemons took meanwhile stands beside it, and the part of each. `round_scaling` is of
elapsed time, and needs two idle cores; `round_scaling_cpu` is what it comes to by processor time alone: the
head's, and then that of the worker which takes longest. `machine_scaling` is what two processes of this
machine gain in the same turns by summing at once, half of the records each, and no cluster gains much more;
`two_processes_cpu` is what more processor time they take at it than one after the other. Opening is of chunks
of reports as an ad server sends them, the next ones opened while the head has one, as in a preparation.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from helper.datasets.segments import SEGMENT_RECORDS
from helper.executors.clustered import ClusterExecutor
from helper.executors.executor import Executor
from helper.executors.fleet import Fleet, Worker
from helper.executors.local import LocalExecutor
from maskedlark.interrupt import never
from maskedlark.releases.round import MaskedSum
from maskedlark.reports.dataset import ShareColumns
from maskedlark.runtime.prefetch import ahead
from tests.bench.drawn_records import Drawn, differing, gradient
from tests.bench.harness import bench_parser, show
from tests.bench.parties import Compared, Parties, daemon_pids
from tests.bench.processor import processor
from tests.bench.two_processes import TwoProcesses
from tests.builders import examples, shares_for, world
from tests.builders import reports as sealed
from tests.helper.executors.ray_machines import machines

WORKER_BYTES = 1 << 30
RECORDS = 16 * SEGMENT_RECORDS
"""As many segments for each of two workers: of 1,000,000 records one has a tenth more than the other."""
CHUNK = 825
"""Reports of 30 features that an ad server sends at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The bench's keys; the bars stand behind those that have one."""

    records: int
    features: int
    evaluated: int
    reports: int
    processor: str
    bytes_that_differ: int  # 0
    round_s_local: float
    round_s_one_worker: float
    round_s_two_workers: float
    round_scaling: float  # at least 1.7
    round_scaling_cpu: float
    cpu_over_local: float  # at most 1.1
    cpu_over_local_two_workers: float  # at most 1.1
    opened_per_s_local: float
    opened_per_s_one_worker: float
    opened_per_s_two_workers: float
    opening_scaling: float  # at least 1.6
    opening_scaling_cpu: float
    opening_cpu_over_local: float
    threads_scaling: float  # what two threads of this process bring on this machine
    machine_scaling: float  # what two processes that share nothing gain at once; 2 where cores share nothing
    two_processes_cpu: float  # the processor time that they take at once, over one after the other
    ray_cpu_s: float  # of a second: what Ray's daemons take beside it
    round_cpu_s: dict[str, Parties]  # of each side: who takes how much of it
    opening_cpu_s: dict[str, Parties]  # of each side, for all reports


class FirstOf:
    """The first workers of a fleet, as if there were no others."""

    def __init__(self, fleet: Fleet, count: int) -> None:
        self._fleet, self._count = fleet, count

    def workers(self) -> Mapping[bytes, Worker]:
        return dict(sorted(self._fleet.workers().items())[: self._count])

    def drop(self, name: bytes) -> None:
        self._fleet.drop(name)

    def refuse(self, name: bytes) -> None:
        self._fleet.refuse(name)

    def close(self) -> None:
        """The fleet's owner closes it."""


def measured(
    *,
    records: int,
    features: int,
    hidden: int,
    rate: float,
    reports: int,
    chunk: int,
    turns: int,
    rounds: int,
) -> Results:
    """Rounds over a dataset of so many records, and so many reports opened, in so many turns."""
    with tempfile.TemporaryDirectory() as name, machines(Path(name)) as made:
        drawn = Drawn.write(Path(name) / "vault", records, features)
        for _ in range(2):
            made.add()
        with made.fleet(2, worker_bytes=WORKER_BYTES) as fleet, LocalExecutor(1) as local:
            executors: dict[str, Executor] = {
                "local": local,
                "one": ClusterExecutor(FirstOf(fleet, 1), local, opens_shares=True),
                "two": ClusterExecutor(FirstOf(fleet, 2), local, opens_shares=True),
            }
            workers, daemons = made.worker_pids(), daemon_pids()
            opening = _opening(
                executors, workers, daemons, features=features, reports=reports, chunk=chunk, turns=turns
            )
            in_memory = drawn.in_memory()
            here, threaded = gradient(features, hidden), gradient(features, hidden, threads=2)

            def one_sum(side: str, seed: int) -> MaskedSum:
                evaluated = drawn.sampled(rate, seed)
                if side == "threads":
                    return local.masked_sum(threaded, in_memory, evaluated, never)
                return executors[side].masked_sum(here, in_memory, evaluated, never)

            def some_rounds(side: str) -> Callable[[], object]:
                return lambda: [one_sum(side, seed) for seed in range(rounds)]

            sides = (*executors, "threads")
            sums = {side: one_sum(side, 0) for side in sides}  # workers take their segments
            half = int(rate * records) // 2
            with TwoProcesses(records=half, features=features, hidden=hidden) as two:
                summing = Compared.measure(
                    {side: some_rounds(side) for side in sides}
                    | {
                        "alone": partial(two.one_after_the_other, rounds),
                        "at once": partial(two.at_once, rounds),
                    },
                    workers,
                    daemons,
                    turns,
                    "rounds",
                )
            ray_cpu_s = _daemons_s(opening, summing)
        return Results(
            records=records,
            features=features,
            evaluated=int(drawn.sampled(rate, 0).is_evaluated.sum()),
            reports=reports,
            processor=processor(),
            bytes_that_differ=sum(differing(sums["local"], other) for other in sums.values()),
            round_s_local=summing.wall_s("local") / rounds,
            round_s_one_worker=summing.wall_s("one") / rounds,
            round_s_two_workers=summing.wall_s("two") / rounds,
            round_scaling=summing.ratio("one", "two", "wall_s"),
            round_scaling_cpu=summing.ratio("one", "two", "longest_s"),
            cpu_over_local=summing.ratio("one", "local", "cpu_s"),
            cpu_over_local_two_workers=summing.ratio("two", "local", "cpu_s"),
            opened_per_s_local=reports / opening.wall_s("local"),
            opened_per_s_one_worker=reports / opening.wall_s("one"),
            opened_per_s_two_workers=reports / opening.wall_s("two"),
            opening_scaling=opening.ratio("one", "two", "wall_s"),
            opening_scaling_cpu=opening.ratio("one", "two", "longest_s"),
            opening_cpu_over_local=opening.ratio("one", "local", "cpu_s"),
            threads_scaling=summing.ratio("local", "threads", "wall_s"),
            machine_scaling=summing.ratio("alone", "at once", "wall_s"),
            two_processes_cpu=two.cpu_ratio,
            ray_cpu_s=ray_cpu_s,
            round_cpu_s={side: one for side, one in summing.parties(rounds).items() if side in sides},
            opening_cpu_s=opening.parties(1),
        )


def _daemons_s(*compared: Compared) -> float:
    """Processor time of Ray's daemons in a second in which workers work."""
    taken = [one for some in compared for side in ("one", "two") for one in some.taken[side]]
    return sum(one.ray_s for one in taken) / sum(one.wall_s for one in taken)


def _opening(
    executors: Mapping[str, Executor],
    workers: list[int],
    daemons: list[int],
    *,
    features: int,
    reports: int,
    chunk: int,
    turns: int,
) -> Compared:
    """Shares of so many reports opened on each side; the same of each, which is checked."""
    of = world(num_features=features)
    opener = of.opener(0)
    chunk = min(chunk, reports)
    kinds = ShareColumns.of(shares_for(sealed(of, examples(of.task, chunk)), 0))  # as a request is read
    sizes = [min(chunk, reports - start) for start in range(0, reports, chunk)]
    tags = {executor.open(opener, kinds).admitted.view_tags.tobytes() for executor in executors.values()}
    if len(tags) != 1:
        raise AssertionError("workers tag shares as this machine does")

    def opened(executor: Executor) -> Callable[[], object]:
        """As `Preparation` has chunks opened."""
        return lambda: list(
            ahead(sizes, lambda size: executor.open(opener, kinds[:size]).admitted, executor.opens_at_once())
        )

    sides = {side: opened(executor) for side, executor in executors.items()}
    return Compared.measure(sides, workers, daemons, turns, "reports")


def main() -> None:
    """Measure, and print."""
    parser = bench_parser("What workers on Ray cost and bring.")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--features", type=int, default=30)
    parser.add_argument("--hidden", type=int, default=64, help="units of the model's one hidden layer")
    parser.add_argument("--rate", type=float, default=0.5, help="of the records that a round samples")
    parser.add_argument("--reports", type=int, default=50_000, help="to open in a turn, on each side")
    parser.add_argument("--chunk", type=int, default=CHUNK, help="reports that come at once")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3, help="of each side in a turn")
    arguments = vars(parser.parse_args())
    is_json = arguments.pop("json")
    show(measured(**arguments), is_json=is_json)


if __name__ == "__main__":
    main()
