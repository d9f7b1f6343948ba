"""One simulated run: people and browsers act on a fleet while things go wrong.

Then everything is repaired, and settles.

A run can be given the names of the steps and faults that may happen; all others are left out. That is what
`tests.simulation.shrinking` works with.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from adserver.records.job_record import JobRecord
from adserver.records.job_state import FINAL, STOPPED
from adserver.store.jobs import JobStore
from helper.trust.keys import HelperKeys
from tests.builders import NOW
from tests.simulation.browsers import Browsers
from tests.simulation.desk import Desk
from tests.simulation.faults import Faults
from tests.simulation.fleet import Fleet
from tests.simulation.journal import Journal
from tests.simulation.kernel import Kernel
from tests.simulation.observer import Observer
from tests.simulation.operators import Operators
from tests.simulation.participation import Participation
from tests.simulation.parties import Bundles, bundles
from tests.simulation.patches import patched
from tests.simulation.steps import Cast, Scale, Step, steps

_REPAIRED_S: Final = 45.0
"""After which everything that was down is up, and every late message has arrived."""
_SETTLE_S: Final = 900.0


class World:
    """A fleet, and what is done to it.

    Attributes:
        seed: Decides everything.
        scale: How much happens.
        faults: What goes wrong.
        only: If given, the names of the steps that are taken.
        taken: The names of those that were.
    """

    def __init__(
        self,
        *,
        seed: int,
        folder: Path,
        faults: Faults,
        only: frozenset[str] | None = None,
        scale: Scale,
        make_bundles: Callable[[Mapping[str, HelperKeys]], Bundles] = bundles,
    ) -> None:
        self.seed, self.faults, self.only, self.scale = seed, faults, only, scale
        self.taken: list[str] = []
        self.kernel = Kernel(float(NOW))
        self.journal = Journal(kernel=self.kernel)
        self.fleet = Fleet(kernel=self.kernel, faults=faults, folder=folder, make_bundles=make_bundles)
        self.browsers = Browsers(fleet=self.fleet, journal=self.journal)
        self.desk = Desk(fleet=self.fleet, journal=self.journal)
        self.operators = Operators(fleet=self.fleet, journal=self.journal)
        self.observer = Observer(self.fleet, self.operators, self.journal.note)
        self.participation = Participation()

    @property
    def operations(self) -> int:
        """Messages delivered, processes started, things that people and browsers did."""
        return self.journal.operations + self.fleet.network.delivered + self.fleet.starts

    def run(self, check: "Callable[[Any], Iterable[str]]") -> list[str]:
        """Let it all happen, and look at what came of it.

        Args:
            check: Looks at the settled world, while it is still there.

        Returns:
            What must never happen, but did.
        """
        with ErrorsNoted(self.kernel), patched(self.fleet), self.participation.counted():
            self.fleet.start_all()
            for step in self.steps():
                if self.only is None or step.name in self.only:
                    self.taken.append(step.name)
                    self.kernel.at(step.at_s, partial(self._take, step))
            self.kernel.run(NOW + self.scale.spread_s)
            self.faults.is_on = False
            self.kernel.run(self.kernel.now_s + _REPAIRED_S)
            self.settle()
            found = [*self.kernel.complaints, *self.observer.violations]
            found += [*self.participation.violations(), *check(self)]
            self.fleet.stop_all()
        return found

    def steps(self) -> Iterable[Step]:
        """What people and browsers do."""
        return steps(
            Cast(browsers=self.browsers, desk=self.desk, operators=self.operators), self.seed, self.scale
        )

    def figures(self) -> dict[str, Any]:
        """What is counted of such a run only, by its name in the verdict."""
        return {
            "queries_read": len(self.desk.results),
            "refused_for_budget": len(self.desk.over_budget),
            "ledgers_rolled_back": len(self.operators.restored),
            "participations": len(self.participation.rounds),
            "computed_again": len(self.participation.computed) - len(set(self.participation.computed)),
        }

    def _take(self, step: Step) -> None:
        self.journal.operations += 1
        self.journal.note(step.name)
        step.act()

    def settle(self) -> None:
        """With no more faults and everything up, commits that were begun are finished; jobs end; refused ones
        are given up.

        Queries come last: what does not fit into a budget then, never will.
        """
        for bundle in self.fleet.bundles.all:
            self.desk.type(partial(self.desk.finish_commits, bundle.task))
        self.until_settled()
        self.desk.type(self.desk.give_up_refused)
        self.until_settled()
        self.desk.type(self.desk.ask_again)
        self.kernel.run(self.kernel.now_s + _REPAIRED_S)

    def until_settled(self) -> None:
        """Wait until all jobs have ended; complain if they do not."""
        deadline_s = self.kernel.now_s + _SETTLE_S
        self.kernel.run(self.kernel.now_s + 5.0)
        while (unsettled := self._unsettled()) and self.kernel.now_s < deadline_s:
            self.kernel.run(self.kernel.now_s + 5.0)
        if unsettled:
            self.kernel.complain(f"not settled {_SETTLE_S:.0f} s after the last fault: {unsettled}")

    def jobs(self) -> tuple[JobRecord, ...]:
        """All of them, as the ad server has them."""
        desk = self.fleet.desk()
        return JobStore(desk.engine, desk.process.clock).all()

    def _unsettled(self) -> list[str]:
        """Jobs that are not at their end. At a helper whose past was brought back no job is ever closed."""
        is_closing = not self.operators.restored
        return [
            f"job {job.job_id.hex()[:6]} {job.state} after {job.rounds_done} rounds"
            for job in self.jobs()
            if job.state not in STOPPED or (is_closing and job.state in FINAL and not job.is_closed)
        ]


class _ErrorsNoted(logging.Handler):
    """A logged traceback is a bug that some `except` survived."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(logging.ERROR)
        self._kernel = kernel

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            error = record.exc_info[1]
            self._kernel.complain(f"logged by {record.name}: {type(error).__name__}: {error}")


class ErrorsNoted:
    """Complains of each traceback that the product logs meanwhile."""

    def __init__(self, kernel: Kernel) -> None:
        self._handler = _ErrorsNoted(kernel)

    def __enter__(self) -> None:
        logging.getLogger().addHandler(self._handler)

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self._handler)
