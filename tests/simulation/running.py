"""One seed, from an empty folder to a verdict; and a failing one, made small."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.simulation.failpoints import aimed_at
from tests.simulation.faults import Faults, Rates
from tests.simulation.invariants import violations
from tests.simulation.shrinking import shrink
from tests.simulation.steps import Scale
from tests.simulation.world import World

_MEMORY: Final = Path("/dev/shm")  # noqa: S108  a folder of its own in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of a seed.

    Attributes:
        seed: The seed.
        operations: Messages delivered, processes started, things that people did.
        violations: What must never happen, but did.
        happened: The names of the steps that were taken and of the faults that struck.
        crashed_at: The points at which some process died (`tests.simulation.failpoints`).
        queries_read: Queries whose result a person has read.
        refused_for_budget: Jobs that a helper refused because they did not fit the budget.
        ledgers_rolled_back: Helpers whose past was brought back.
        participations: Records that took part in an epoch of random allocation, at either helper.
        computed_again: Rounds of random allocation that a helper computed more than once.
        rounds_summed: Federated rounds that a helper has released.
        updates_refused: Updates that were refused, by reason.
        updates_forged: Updates that a helper could not open.
        digest: Of everything that was observed, in order: two runs of a seed have the same.
    """

    seed: int
    operations: int
    violations: tuple[str, ...]
    happened: tuple[str, ...]
    crashed_at: frozenset[str]
    digest: str
    queries_read: int = 0
    refused_for_budget: int = 0
    ledgers_rolled_back: int = 0
    participations: int = 0
    computed_again: int = 0
    rounds_summed: int = 0
    updates_refused: Mapping[str, int] = field(default_factory=dict)
    updates_forged: int = 0


def run_seed(
    seed: int, *, only: frozenset[str] | None = None, rates: Rates | None = None, scale: Scale | None = None
) -> Verdict:
    """Simulate a seed.

    Args:
        seed: Decides everything.
        only: If given, no other steps and faults than these.
        rates: How often things go wrong.
        scale: How much happens.
    """
    make = partial(World, scale=scale or Scale())
    return run_world(seed, make, violations, only=only, rates=rates, aim=aimed_at(seed))


def run_world(
    seed: int,
    make: Callable[..., World],
    check: Callable[[Any], Iterable[str]],
    *,
    only: frozenset[str] | None,
    rates: Rates | None,
    aim: frozenset[str],
) -> Verdict:
    """Simulate a world: `make` builds it in an empty folder, and `check` looks at it once it has settled."""
    folder = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with errors_only("adserver"), TemporaryDirectory(prefix="maskedlark-simulation-", dir=folder) as path:
        faults = Faults(seed=seed, rates=rates or Rates(), aimed_at=aim, allowed=only)
        world = make(seed=seed, folder=Path(path), faults=faults, only=only)
        found = world.run(check)
    return Verdict(
        seed=seed,
        operations=world.operations,
        violations=tuple(found),
        happened=(*world.taken, *faults.happened),
        crashed_at=frozenset(faults.crashed_at),
        digest=world.journal.digest(),
        **world.figures(),
    )


@contextmanager
def errors_only(name: str) -> Iterator[None]:
    """Log only errors of a package meanwhile: the retries of a run would drown its findings."""
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def shrunk(
    failing: Verdict,
    *,
    most_runs: int = 200,
    scale: Scale | None = None,
    run: Callable[..., Verdict] | None = None,
) -> Verdict:
    """The smallest run that still breaks an invariant, among those that leaving out steps and faults leads
    to.
    """
    again = run or partial(run_seed, scale=scale)
    kept = shrink(
        failing.happened, lambda only: bool(again(failing.seed, only=only).violations), most_runs=most_runs
    )
    return again(failing.seed, only=frozenset(kept))
