"""The executor of several machines: workers hold segments and sum them, the head adds.

The head alone has the pair's key, the noise, the ledger and what decides about a release. It gives each
worker sealed segments and the key of their dataset, takes partial sums, and checks that each segment was
summed once and each record counted. What no worker can do is done here: the general engine sums, old files
are read, shares are opened unless the operator lets workers do it, and everything is done as without a
cluster while there is no worker.
"""

from collections.abc import Sequence
from threading import BoundedSemaphore
from typing import Final, Self

from helper.datasets.records import DatasetRecords
from helper.executors.adding import AddingWork
from helper.executors.dispatch import Dispatcher
from helper.executors.executor import Adding, Executor, Gradient, Scoring, SummedUpdates
from helper.executors.fleet import Fleet
from helper.executors.opening import OpeningWork, divide
from helper.executors.processes import MIN_CHUNK
from helper.executors.segment_work import ScanningWork, SummingWork
from helper.gradient.engine import Interrupt, MaskedSum, OrderFree
from helper.gradient.scoring import Scores, check_scored
from maskedlark.interrupt import never
from maskedlark.releases.round import Evaluated
from maskedlark.reports.dataset import PreparedShares, ShareForHelper, ShareOpener, join_prepared
from maskedlark.reports.updates import SEED_ROLE

_CHUNKS_AT_A_WORKER: Final = 2


class ClusterExecutor:
    """An `Executor` over a fleet of workers, and over this machine for the rest."""

    def __init__(self, fleet: Fleet, local: Executor, *, opens_shares: bool = False) -> None:
        """Compute at the workers of `fleet`, and by `local` what they do not.

        Args:
            fleet: The workers.
            local: This machine.
            opens_shares: Whether workers open shares, and so get the keys for it.
        """
        self._fleet, self._local, self._opens_shares = fleet, local, opens_shares
        self._dispatcher = Dispatcher(fleet)
        self._opens_here = BoundedSemaphore(local.opens_at_once())

    def opens_at_once(self) -> int:
        """See `Executor`: a worker opens one chunk while its next one is on the way."""
        workers = len(self._fleet.workers()) if self._opens_shares else 0
        return max(self._local.opens_at_once(), _CHUNKS_AT_A_WORKER * workers)

    def open(self, opener: ShareOpener, incoming: Sequence[ShareForHelper]) -> PreparedShares:
        """See `Executor`; by this machine, which alone has the keys, unless workers were given them."""
        is_small = len(incoming) < 2 * MIN_CHUNK
        if is_small or not self._opens_shares or not self._fleet.workers():
            return self._local.open(opener, incoming)
        work = OpeningWork(opener=opener, parts=divide(incoming), opened={})
        for part in self._dispatcher.run(work, never):
            with self._opens_here:  # callers bring as many chunks at once as workers open
                work.opened[part] = self._local.open(opener, work.parts[part])
        return join_prepared([work.opened[part] for part in range(work.count)])

    def masked_sum(
        self, gradient: Gradient, records: DatasetRecords, evaluated: Evaluated, interrupt: Interrupt
    ) -> MaskedSum:
        """See `Executor`."""
        engine = gradient.engine
        if isinstance(engine, OrderFree) and self._fleet.workers():
            work = SummingWork(gradient, records.sealed(interrupt), evaluated)
            if not self._dispatcher.run(work, interrupt):
                return engine.whole_sum(work.partial_sums)
        return self._local.masked_sum(gradient, records, evaluated, interrupt)

    def scan(self, scoring: Scoring, records: DatasetRecords, interrupt: Interrupt) -> Scores:
        """See `Executor`."""
        if self._fleet.workers():
            segments = records.sealed(interrupt)
            check_scored(scoring.model, scoring.loss)  # here, for no worker is at fault
            work = ScanningWork(scoring, records.count, segments)
            if not self._dispatcher.run(work, interrupt):
                return work.scores()
        return self._local.scan(scoring, records, interrupt)

    def add_up(self, adding: Adding, updates: DatasetRecords, interrupt: Interrupt) -> SummedUpdates:
        """See `Executor`."""
        is_shared = adding.role == SEED_ROLE and self._fleet.workers()
        sealed = updates.sealed(interrupt) if is_shared else ()
        if len(sealed) < 2:
            return self._local.add_up(adding, updates, interrupt)
        work = AddingWork(adding, sealed, interrupt)
        for part in self._dispatcher.run(work, interrupt):
            work.do_here(part)
        return work.total()

    def close(self) -> None:
        """See `Executor`."""
        self._fleet.close()
        self._local.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
