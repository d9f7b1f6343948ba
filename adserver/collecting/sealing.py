"""Step 5 at the ad server: make the waiting reports of a task a dataset that both helpers hold.

    take reports -> both helpers prepare -> keep what both admit with equal views -> both helpers commit

Every step can be repeated. A run that dies while preparing leaves nothing behind but reports that the next
run takes; one that dies while committing leaves a dataset that the next run finishes before anything else.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import Event
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Engine

from adserver.peers.client import HelperClient
from adserver.peers.pair import at_both
from adserver.peers.retrying import ONCE, Backoff, with_retries
from adserver.store.database import Clock
from adserver.store.datasets import ChosenReports, Dataset, DatasetStore, taken_over
from adserver.store.reports import ReportStore
from adserver.store.schema import HANDLE_BYTES
from maskedlark.errors import JobReason, JobRefused, ReportReason
from maskedlark.frozen import frozen
from maskedlark.randomness import Randomness
from maskedlark.reports.dataset import AdmittedSet, ShareColumns, canonical_order, dataset_id
from maskedlark.reports.task import Task

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

SealingProgress = Callable[[int, int, int], None]
"""Called with a helper's role, how many more reports it has answered for, and how many there are in all.

From two threads.
"""


@frozen
class DatasetSealer:
    """Seals datasets of one task.

    Attributes:
        engine: The ad server's database.
        helpers: By role.
        task: The task.
        clock: Dates the dataset.
        randomness: Draws the handle.
        progress: Called with the helpers' progress, which restarts when a request is repeated.
        backoff: For how long requests to an unavailable helper are repeated.
    """

    engine: Engine
    helpers: tuple[HelperClient, HelperClient]
    task: Task
    clock: Clock
    randomness: Randomness
    progress: SealingProgress = lambda _role, _count, _total: None
    backoff: Backoff = ONCE

    def seal(self, *, max_reports: int | None = None, is_small_allowed: bool = False) -> Dataset:
        """Finish the dataset that an earlier run began to commit, or else seal a new one.

        Args:
            max_reports: Take at most so many reports, and never more than the task's max_dataset_size.
            is_small_allowed: Also seal fewer reports than the task's min_batch_size, of which every round
                will be noise.

        Raises:
            JobRefused(DATASET_EMPTY): too few reports wait or are admitted; they keep waiting.
            JobRefused(DATASET_CHANGED): another run took the same reports.
            JobRefused, InvalidTask: a helper refused.
            HelperUnavailable: a helper did not answer; run it again.
        """
        store = DatasetStore(self.engine)
        # One helper may have committed it already, and then the other must.
        dataset = store.committing(self.task.task_id)
        if dataset is None:
            limit = (
                self.task.max_dataset_size
                if max_reports is None
                else min(max_reports, self.task.max_dataset_size)
            )
            dataset = self._prepare(store, limit, 1 if is_small_allowed else self.task.min_batch_size)
        return self._commit(store, dataset)

    def _prepare(self, store: DatasetStore, limit: int, least: int) -> Dataset:
        """Take reports and fix which of them both helpers admit; on any failure they wait again."""
        dataset = store.begin(
            self.task.task_id, self.randomness(HANDLE_BYTES), limit=limit, created_at=self.clock()
        )
        try:
            # Before the helpers open anything, and again after: those that they do not admit add nothing.
            _check_enough(dataset.received, least, "wait")
            admitted = self._at_both(lambda role, cancelled: self._prepare_at(dataset, role, cancelled))
            choice = _choice(self.task, self.task.task_id, store.report_ids(dataset), admitted)
            _check_enough(int(choice.is_chosen.sum()), least, "are admitted by both helpers", choice.dropped)
            return store.choose(dataset, choice)
        # Also when the run is interrupted: its reports would wait for the next run to release them.
        except BaseException:
            store.give_back(dataset)
            raise

    def _prepare_at(self, dataset: Dataset, role: int, cancelled: Event) -> AdmittedSet:
        admitted = self.helpers[role].prepare_dataset(
            self.task.task_id,
            dataset.handle,
            self._pages(dataset, role, cancelled),
            num_reports=dataset.received,
            cancelled=cancelled,
            progress=lambda count: self.progress(role, count, dataset.received),
        )
        # The helper saw another number than was stored: another run has changed the dataset meanwhile.
        if len(admitted.is_admitted) != dataset.received:
            raise taken_over()
        return admitted

    def _pages(self, dataset: Dataset, role: int, cancelled: Event) -> Iterator[ShareColumns]:
        """Yield the shares for one helper; objects deleted with the dataset's reports are not lost."""
        try:
            for page in ReportStore(self.engine).share_pages(self.task, dataset.handle, role):
                # Stops the upload to this helper: what the other one refused needs no more of it.
                if cancelled.is_set():
                    raise JobRefused(JobReason.CANCELLED, "the other helper did not prepare the dataset")
                yield page
        except JobRefused as refusal:
            if refusal.reason is JobReason.REPORTS_LOST:
                DatasetStore(self.engine).check_there(dataset)
            raise

    def _commit(self, store: DatasetStore, dataset: Dataset) -> Dataset:
        """Have both helpers commit the chosen reports."""
        # As it was stored and not as it was computed, for this may be another run.
        is_chosen = store.is_chosen(dataset)
        self._at_both(lambda role, cancelled: self._commit_at(dataset, is_chosen, role, cancelled))
        return store.finish(dataset)

    def _at_both(self, call: Callable[[int, Event], _T]) -> tuple[_T, _T]:
        """Run a call for both roles, repeating each until it is answered or the backoff gives up."""
        cancelled = Event()
        return at_both(
            lambda role: with_retries(partial(call, role, cancelled), self.backoff, cancelled=cancelled),
            cancelled,
        )

    def _commit_at(self, dataset: Dataset, is_chosen: NDArray[np.bool_], role: int, cancelled: Event) -> None:
        """Commit at one helper.

        If it has forgotten the preparation (it was restarted), prepare the same reports again.
        """
        if dataset.dataset_id is None:
            raise AssertionError("a dataset that is committed has an id")
        helper = self.helpers[role]
        try:
            helper.commit_dataset(dataset.task_id, dataset.handle, is_chosen, dataset.dataset_id)
        except JobRefused as refusal:
            if refusal.reason is not JobReason.UNKNOWN_DATASET:
                raise
            _LOG.info("helper %d no longer has the preparation; preparing again", role)
            admitted = self._prepare_at(dataset, role, cancelled)
            # The other helper may have committed these reports: with fewer, the two datasets would differ.
            if not admitted.is_admitted[is_chosen].all():
                raise JobRefused(
                    JobReason.DATASET_CHANGED,
                    f"helper {role} no longer admits reports that it admitted before: abandon the "
                    "dataset with `adserver dataset abandon`",
                ) from None
            helper.commit_dataset(dataset.task_id, dataset.handle, is_chosen, dataset.dataset_id)


def _choice(
    task: Task, task_id: bytes, report_ids: NDArray[np.uint8], admitted: tuple[AdmittedSet, AdmittedSet]
) -> ChosenReports:
    """Return the reports that both helpers admit with equal tags, and why the others are dropped.

    Where reports prove their form, unequal tags are a failed proof: a reason of both helpers, since neither
    sees it alone.
    """
    first, second = admitted
    is_chosen = first.intersect(second)
    # An order that both helpers find by themselves, so that the id binds the same rows at both.
    order = canonical_order(report_ids, np.flatnonzero(is_chosen))
    differing = int((first.is_admitted & second.is_admitted & ~is_chosen).sum())
    not_proven = Counter({ReportReason.NOT_PROVEN: differing} if task.proof and differing else {})
    return ChosenReports(
        is_chosen=is_chosen,
        dataset_id=dataset_id(task_id, report_ids, first.view_tags, rows=order),
        view_mismatch=0 if task.proof else differing,
        dropped=(first.dropped + not_proven, second.dropped + not_proven),
    )


def _check_enough(found: int, least: int, what: str, dropped: Sequence[Counter[ReportReason]] = ()) -> None:
    if found < least:
        told = [
            f"helper {role} dropped "
            + ", ".join(f"{count} ({reason.value})" for reason, count in sorted(reasons.items()))
            for role, reasons in enumerate(dropped)
            if reasons
        ]
        raise JobRefused(
            JobReason.DATASET_EMPTY,
            f"{found} reports {what}, fewer than the task's min_batch_size of {least}, so every "
            "round would be only noise: they keep waiting; seal again after more reports have "
            f"arrived{''.join(f'; {one}' for one in told)}",
        )
