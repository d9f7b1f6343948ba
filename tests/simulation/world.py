"""One simulated run: people and browsers act on a fleet while things go wrong.

Then everything is repaired, and settles.

A run can be given the names of the steps and faults that may happen; all others are left out. That is what
`tests.simulation.shrinking` works with.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from adserver.records.job_state import FINAL, STOPPED
from adserver.store.jobs import JobStore
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
from tests.simulation.patches import patched
from tests.simulation.steps import Cast, Scale, Step, steps

_REPAIRED_S: Final = 45.0
"""After which everything that was down is up, and every late message has arrived."""
_SETTLE_S: Final = 900.0


@dataclass(kw_only=True)
class World:
    """A fleet, and what is done to it.

    Attributes:
        seed: Decides everything.
        folder: Empty.
        scale: How much happens.
        faults: What goes wrong.
        only: If given, the names of the steps that are taken.
        taken: The names of those that were.
    """

    seed: int
    folder: Path
    scale: Scale = field(default_factory=Scale)
    faults: Faults
    only: frozenset[str] | None = None
    taken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kernel = Kernel(float(NOW))
        self.journal = Journal(kernel=self.kernel)
        self.fleet = Fleet(kernel=self.kernel, faults=self.faults, folder=self.folder)
        self.browsers = Browsers(fleet=self.fleet, journal=self.journal)
        self.desk = Desk(fleet=self.fleet, journal=self.journal)
        self.operators = Operators(fleet=self.fleet, journal=self.journal)
        self.observer = Observer(self.fleet, self.operators, self.journal.note)
        self.participation = Participation()

    @property
    def operations(self) -> int:
        """Messages delivered, processes started, things that people and browsers did."""
        return self.journal.operations + self.fleet.network.delivered + self.fleet.starts

    def run(self, check: "Callable[[World], list[str]]") -> list[str]:
        """Let it all happen, and look at what came of it.

        Args:
            check: Looks at the settled world, while it is still there.

        Returns:
            What must never happen, but did.
        """
        with ErrorsNoted(self.kernel), patched(self.fleet), self.participation.counted():
            self.fleet.start_all()
            cast = Cast(browsers=self.browsers, desk=self.desk, operators=self.operators)
            for step in steps(cast, self.seed, self.scale):
                if self.only is None or step.name in self.only:
                    self.taken.append(step.name)
                    self.kernel.at(step.at_s, partial(self._take, step))
            self.kernel.run(NOW + self.scale.spread_s)
            self._settle()
            found = [*self.kernel.complaints, *self.observer.violations]
            found += [*self.participation.violations(), *check(self)]
            self.fleet.stop_all()
        return found

    def _take(self, step: Step) -> None:
        self.journal.operations += 1
        self.journal.note(step.name)
        step.act()

    def _settle(self) -> None:
        """No more faults; whoever is down comes back.

        Commits that were begun are finished; jobs end; refused ones are given up.

        Queries come last: what does not fit into a budget then, never will.
        """
        self.faults.is_on = False
        self.kernel.run(self.kernel.now_s + _REPAIRED_S)
        for bundle in self.fleet.bundles.all:
            self.desk.type(partial(self.desk.finish_commits, bundle.task))
        self._until_settled()
        self.desk.type(self.desk.give_up_refused)
        self._until_settled()
        self.desk.type(self.desk.ask_again)
        self.kernel.run(self.kernel.now_s + _REPAIRED_S)

    def _until_settled(self) -> None:
        deadline_s = self.kernel.now_s + _SETTLE_S
        self.kernel.run(self.kernel.now_s + 5.0)
        while (unsettled := self._unsettled()) and self.kernel.now_s < deadline_s:
            self.kernel.run(self.kernel.now_s + 5.0)
        if unsettled:
            self.kernel.complain(f"not settled {_SETTLE_S:.0f} s after the last fault: {unsettled}")

    def _unsettled(self) -> list[str]:
        """Jobs that are not at their end. At a helper whose past was brought back no job is ever closed."""
        desk = self.fleet.desk()
        jobs = JobStore(desk.engine, desk.process.clock).all()
        is_closing = not self.operators.restored
        return [
            f"job {job.job_id.hex()[:6]} {job.state}"
            for job in jobs
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
