"""What work takes at a helper's head, its workers and Ray's daemons, several sides in turns.

compared = Compared.measure({"old": work, "new": other_work}, workers, daemons, 5, "rounds")
compared.ratio("old", "new", "wall_s")
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil

from tests.bench.harness import cpu_s
from tests.progress import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Parties:
    """Processor time, a median for each party."""

    head: float
    workers: float
    ray: float

    def __str__(self) -> str:
        return f"head {self.head:.3f}, workers {self.workers:.3f}, ray {self.ray:.3f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What some work took: elapsed time, and processor time of head, workers and daemons."""

    wall_s: float
    head_s: float
    workers_s: tuple[float, ...]
    ray_s: float

    @property
    def cpu_s(self) -> float:
        """Of all together."""
        return self.head_s + sum(self.workers_s)

    @property
    def longest_s(self) -> float:
        """Of the head, and of the worker for which it waits longest."""
        return self.head_s + max(self.workers_s)


def processor_s(pids: list[int]) -> list[float]:
    """Of each of these processes, since it began."""
    try:
        return [cpu_s(psutil.Process(pid)) for pid in pids]
    except psutil.NoSuchProcess:
        raise SystemExit("a worker was lost: this machine is too busy to measure on") from None


def daemon_pids() -> list[int]:
    """The processes of this run's Ray cluster."""
    children = psutil.Process().children(recursive=True)
    return [one.pid for one in children if one.name() in ("raylet", "gcs_server")]


def taken(work: Callable[[], object], workers: list[int], daemons: list[int]) -> Taken:
    """The time of some work, and the processor time of this process, the workers' and the daemons'."""
    before = time.perf_counter(), sum(processor_s(daemons)), time.process_time(), *processor_s(workers)
    work()
    after = time.perf_counter(), sum(processor_s(daemons)), time.process_time(), *processor_s(workers)
    wall_s, ray_s, head_s, *workers_s = (end - start for start, end in zip(before, after, strict=True))
    return Taken(wall_s=wall_s, head_s=head_s, workers_s=tuple(workers_s), ray_s=ray_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What the same work took on each side, turn by turn."""

    taken: dict[str, list[Taken]]

    @classmethod
    def measure(
        cls,
        sides: Mapping[str, Callable[[], object]],
        workers: list[int],
        daemons: list[int],
        turns: int,
        what: str,
    ) -> "Compared":
        """Do the work of each side in turns."""
        found: dict[str, list[Taken]] = {side: [] for side in sides}
        with shown(what, turns) as show:
            for turn in range(turns):
                for side, work in sides.items():
                    found[side].append(taken(work, workers, daemons))
                show(turn + 1, "")
        return cls(taken=found)

    def wall_s(self, side: str) -> float:
        """The median of a side."""
        return statistics.median(one.wall_s for one in self.taken[side])

    def parties(self, pieces: int) -> dict[str, Parties]:
        """The medians of each side, of one of so many equal pieces of the work."""
        return {
            side: Parties(
                head=statistics.median(one.head_s for one in found) / pieces,
                workers=statistics.median(sum(one.workers_s) for one in found) / pieces,
                ray=statistics.median(one.ray_s for one in found) / pieces,
            )
            for side, found in self.taken.items()
        }

    def ratio(self, above: str, below: str, of: str) -> float:
        """The median of the turns' ratios."""
        pairs = zip(self.taken[above], self.taken[below], strict=True)
        return float(statistics.median(getattr(one, of) / getattr(other, of) for one, other in pairs))
