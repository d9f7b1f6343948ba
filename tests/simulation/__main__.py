"""`make simulate`: seeds until so many operations are simulated. Ends with one JSON object.

Every fourth seed is one of federated rounds (`tests.simulation.crowd_world`), the others are of reports.

Fails if an invariant was broken, and after many operations also if there is a persistence boundary that
nothing ever died at.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count
from typing import Any, Final

from tests.progress import shown
from tests.simulation.crowd_world import run_crowd_seed
from tests.simulation.failpoints import expected, of_updates
from tests.simulation.running import Verdict, run_seed, shrunk

_ALL_COVERED: Final = 500_000
"""Operations after which something has died at every persistence boundary."""

_CROWD_EVERY: Final = 4


def run_any(seed: int, *, only: frozenset[str] | None = None) -> Verdict:
    """A seed of reports, or of federated rounds."""
    is_crowd = seed % _CROWD_EVERY == _CROWD_EVERY - 1
    return run_crowd_seed(seed, only=only) if is_crowd else run_seed(seed, only=only)


def main() -> int:
    """Simulate, report, and make the first failure small."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seed", type=int, help="run this seed alone, and print what happens in it")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    started = time.monotonic()
    if arguments.seed is not None:
        verdicts = [run_any(arguments.seed)]
    else:
        verdicts = list(
            _shown(
                _verdicts(arguments.operations, arguments.first_seed, arguments.processes),
                arguments.operations,
            )
        )
    failing = sorted(
        (verdict for verdict in verdicts if verdict.violations), key=lambda verdict: verdict.seed
    )
    for verdict in failing:
        print(f"seed {verdict.seed}: {'; '.join(verdict.violations)}", file=sys.stderr)
    if failing:
        _print_small(failing[0])
    told = summary(verdicts, time.monotonic() - started)
    print(json.dumps(told))
    is_missed = told["operations"] >= _ALL_COVERED and told["failpoints_missed"]
    return 1 if failing or is_missed else 0


def summary(verdicts: Sequence[Verdict], seconds: float) -> dict[str, Any]:
    """What the run ends with.

    `failpoints`: the persistence boundaries that something died at; `failpoints_missed`: the others, by name.
    """
    operations = sum(verdict.operations for verdict in verdicts)
    happened = [name for verdict in verdicts for name in verdict.happened]
    points = expected() | of_updates()
    crashed_at = {point for verdict in verdicts for point in verdict.crashed_at}
    return {
        "operations": operations,
        "violations": sum(len(verdict.violations) for verdict in verdicts),
        "seeds": len(verdicts),
        "first_seed": min(verdict.seed for verdict in verdicts),
        "failing_seeds": sorted(verdict.seed for verdict in verdicts if verdict.violations),
        "faults": sum("=" in name for name in happened),
        "crashes": sum(name.endswith("=crash") for name in happened),
        "failpoints": len(crashed_at & points),
        "failpoints_missed": sorted(points - crashed_at),
        "rounds_summed": sum(verdict.rounds_summed for verdict in verdicts),
        "queries_read": sum(verdict.queries_read for verdict in verdicts),
        "refused_for_budget": sum(verdict.refused_for_budget for verdict in verdicts),
        "ledgers_rolled_back": sum(verdict.ledgers_rolled_back for verdict in verdicts),
        "seconds": round(seconds, 1),
        "operations_per_second": round(operations / seconds, 1),
    }


def _verdicts(operations: int, first_seed: int, processes: int) -> Iterator[Verdict]:
    """Seeds in order, several at a time, until there are enough operations."""
    seeds, done = count(first_seed), 0
    with ProcessPoolExecutor(processes) as pool:
        running: set[Future[Verdict]] = {pool.submit(run_any, next(seeds)) for _ in range(2 * processes)}
        while running:
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for one in finished:
                verdict = one.result()
                done += verdict.operations
                yield verdict
                if done < operations:
                    running.add(pool.submit(run_any, next(seeds)))


def _shown(verdicts: Iterator[Verdict], operations: int) -> Iterator[Verdict]:
    """The same, while standard error tells how far they are."""
    done = seeds = violations = 0
    with shown("simulating", operations) as show:
        for verdict in verdicts:
            done, seeds, violations = (
                done + verdict.operations,
                seeds + 1,
                violations + len(verdict.violations),
            )
            show(done, f"{done:,} operations, {seeds} seeds, {violations} violations")
            yield verdict


def _print_small(failing: Verdict) -> None:
    small = shrunk(failing, run=run_any)
    print(
        f"the smallest run of seed {small.seed} that breaks something: {'; '.join(small.violations)}",
        file=sys.stderr,
    )
    for name in small.happened:
        print(f"  {name}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
