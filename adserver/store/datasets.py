"""Datasets as the ad server keeps them: from taking reports to the id that both helpers know.

`adserver.records.dataset_state` decides what can happen to one. A dataset is known by its handle until both
helpers have admitted its reports, and by its dataset id from then on. Once it is committing, what was chosen
is durable, and the same commit is sent until both helpers have it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, Select, delete, select, update

from adserver.records.dataset_state import DatasetEvent, DatasetState
from adserver.records.html_table import html_table
from adserver.store.audit_log import log_act
from adserver.store.database import find_id
from adserver.store.paging import PageMarker, newest_first
from adserver.store.reports import DatasetReports
from adserver.store.schema import datasets, dropped_reports
from maskedlark.audit_log import AuditAct
from maskedlark.errors import JobReason, JobRefused, ReportReason
from maskedlark.frozen import frozen, pick_attributes
from maskedlark.runtime.database import reading


@frozen
class Dataset:
    """A dataset and what became of the reports that it took.

    Attributes:
        handle: 16 random bytes: the name of its preparation.
        task_id: 32 bytes.
        state: How far it is.
        created_at: When its sealing began, in Unix seconds; the audit log says when it was committed.
        received: Reports taken.
        size: Reports admitted by both helpers with equal views; 0 while preparing.
        view_mismatch: Reports that both helpers admit, but read differently; in a task with proofs they are
            dropped as `not_proven`, and this is 0.
        dataset_id: 32 bytes, or None while preparing.
        dropped: How many each helper dropped, by reason.
    """

    handle: bytes
    task_id: bytes
    state: DatasetState
    created_at: float
    received: int
    size: int
    view_mismatch: int
    dataset_id: bytes | None
    dropped: tuple[Counter[ReportReason], Counter[ReportReason]]

    def __repr__(self) -> str:
        """Show its id as commands take it, how far it is and its reports."""
        named = (self.dataset_id or b"").hex()[:12] or "(no id yet)"
        return f"Dataset({named} {self.state.value}: {self.size} of {self.received} reports)"

    def _repr_html_(self) -> str:
        """Return its reports and what became of them as a table, for a notebook."""
        dropped = [
            (f"dropped by helper {role}: {reason.value}", count)
            for role, counts in enumerate(self.dropped)
            for reason, count in sorted(counts.items())
        ]
        rows = [("dataset", (self.dataset_id or b"").hex()), ("task", self.task_id.hex())]
        rows += [("state", self.state.value)]
        counted = [("received", self.received), ("admitted by both helpers", self.size)]
        return html_table((), [*rows, *counted, *dropped])

    def check_usable(self, task_id: bytes) -> None:
        """Refuse a dataset that is not of the task, or not committed.

        Raises:
            JobRefused(UNKNOWN_DATASET)
        """
        if self.task_id != task_id:
            raise JobRefused(JobReason.UNKNOWN_DATASET, "the dataset belongs to another task")
        if self.state is not DatasetState.COMMITTED:
            raise JobRefused(
                JobReason.UNKNOWN_DATASET,
                f"the dataset is {self.state}: finish it with `adserver dataset seal`",
            )


@frozen
class ChosenReports:
    """What comes of a preparation at both helpers.

    Attributes:
        is_chosen: bool (received,), in order of arrival.
        dataset_id: Of the chosen reports.
        view_mismatch: See `Dataset`.
        dropped: See `Dataset`.
    """

    is_chosen: NDArray[np.bool_]
    dataset_id: bytes
    view_mismatch: int
    dropped: tuple[Counter[ReportReason], Counter[ReportReason]]


class DatasetStore:
    """The datasets of this ad server. Each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def begin(self, task_id: bytes, handle: bytes, *, limit: int, created_at: float) -> Dataset:
        """Begin a dataset with up to `limit` waiting reports.

        What an earlier run was preparing is released first.

        Raises:
            JobRefused(DATASET_EMPTY): no report waits.
        """
        with self._engine.begin() as connection:
            _abort_preparing(connection, task_id)
            row = {
                "handle": handle,
                "task_id": task_id,
                "state": DatasetState.PREPARING,
                "created_at": created_at,
                "received": 0,
            }
            connection.execute(datasets.insert().values(row))
            received = DatasetReports(connection, task_id, handle).take(limit)
            if not received:
                raise JobRefused(JobReason.DATASET_EMPTY, "no report of this task is waiting to be sealed")
            connection.execute(update(datasets).where(datasets.c.handle == handle).values(received=received))
            return _one(connection, select(datasets).where(datasets.c.handle == handle))

    def choose(self, dataset: Dataset, choice: ChosenReports) -> Dataset:
        """Fix what the dataset holds; from here on it can only be committed, or abandoned by a person.

        Raises:
            JobRefused(DATASET_CHANGED): another run has released it meanwhile.
        """
        values = {
            "size": int(choice.is_chosen.sum()),
            "view_mismatch": choice.view_mismatch,
            "dataset_id": choice.dataset_id,
            "chosen": np.packbits(choice.is_chosen, bitorder="little").tobytes(),
        }
        with self._engine.begin() as connection:
            _change_state(connection, dataset.handle, DatasetEvent.CHOOSE, **values)
            DatasetReports(connection, dataset.task_id, dataset.handle).drop(choice.is_chosen)
            rows = [
                {"handle": dataset.handle, "role": role, "reason": reason, "reports": count}
                for role, dropped in enumerate(choice.dropped)
                for reason, count in dropped.items()
            ]
            if rows:
                connection.execute(dropped_reports.insert(), rows)
            return _one(connection, select(datasets).where(datasets.c.handle == dataset.handle))

    def finish(self, dataset: Dataset) -> Dataset:
        """Record that both helpers have committed it. Idempotent.

        Raises:
            JobRefused(DATASET_CHANGED): a person has given it up meanwhile.
        """
        with self._engine.begin() as connection:
            # A run that is told late finishes a second time, which is not to be logged again.
            was = _lock_state(connection, dataset.handle)
            _change_state(connection, dataset.handle, DatasetEvent.FINISH)
            found = _one(connection, select(datasets).where(datasets.c.handle == dataset.handle))
            if was is not DatasetState.COMMITTED:
                log_act(connection, AuditAct.SEAL_DATASET, **_about(found))
            return found

    def give_back(self, dataset: Dataset) -> None:
        """Forget a dataset that is not committed, and release its reports.

        One that is committed stays.
        """
        with self._engine.begin() as connection:
            if _lock_state(connection, dataset.handle) not in (None, DatasetState.COMMITTED):
                _abort(connection, dataset.task_id, dataset.handle)

    def abandon(self, dataset: Dataset) -> None:
        """Do as `give_back`, because a person says so."""
        with self._engine.begin() as connection:
            if _lock_state(connection, dataset.handle) not in (None, DatasetState.COMMITTED):
                _abort(connection, dataset.task_id, dataset.handle)
                log_act(connection, AuditAct.ABANDON_DATASET, **_about(dataset))

    def give_back_preparing(self, task_id: bytes) -> None:
        """Forget a dataset that a run was preparing, and release its reports; a committing one stays."""
        with self._engine.begin() as connection:
            _abort_preparing(connection, task_id)

    def committing(self, task_id: bytes) -> Dataset | None:
        """Return the task's oldest dataset that waits for its commits, if any."""
        query = (
            select(datasets)
            .where(*_is(task_id, DatasetState.COMMITTING))
            .order_by(datasets.c.created_at)
            .limit(1)
        )
        with reading(self._engine) as connection:
            found = _all(connection, query)
        return found[0] if found else None

    def find(self, prefix: str) -> Dataset:
        """Return the dataset whose id starts with these hex digits.

        Raises:
            JobRefused(UNKNOWN_DATASET): none does, or several do.
        """
        with reading(self._engine) as connection:
            found = find_id(connection, datasets.c.dataset_id, prefix, missing=JobReason.UNKNOWN_DATASET)
            return _one(connection, select(datasets).where(datasets.c.dataset_id == found))

    def check_there(self, dataset: Dataset) -> None:
        """Refuse to go on with a dataset that is given up.

        Raises:
            JobRefused(DATASET_CHANGED): another run has released its reports, or they have expired.
        """
        asked = select(datasets.c.handle).where(datasets.c.handle == dataset.handle)
        with reading(self._engine) as connection:
            if connection.execute(asked).first() is None:
                raise taken_over()

    def all(self) -> list[Dataset]:
        """Return every dataset, oldest first."""
        with reading(self._engine) as connection:
            return _all(connection, select(datasets).order_by(datasets.c.created_at, datasets.c.handle))

    def page(self, *, limit: int, before: PageMarker | None = None) -> list[Dataset]:
        """Return up to `limit` datasets, newest first; those before a place, if one is given."""
        asked = newest_first(
            select(datasets), datasets.c.created_at, datasets.c.handle, before=before, limit=limit
        )
        with reading(self._engine) as connection:
            return _all(connection, asked)

    def of_task(self, task_id: bytes) -> list[Dataset]:
        """Return the datasets of a task, oldest first."""
        asked = select(datasets).where(datasets.c.task_id == task_id)
        with reading(self._engine) as connection:
            return _all(connection, asked.order_by(datasets.c.created_at, datasets.c.handle))

    def is_chosen(self, dataset: Dataset) -> NDArray[np.bool_]:
        """Return which of the reports taken are in the dataset: bool (received,), by arrival."""
        with reading(self._engine) as connection:
            bits = connection.execute(
                select(datasets.c.chosen).where(datasets.c.handle == dataset.handle)
            ).scalar_one()
        return np.unpackbits(np.frombuffer(bits, np.uint8), count=dataset.received, bitorder="little").astype(
            np.bool_
        )

    def report_ids(self, dataset: Dataset) -> NDArray[np.uint8]:
        """Return the ids of the reports that a dataset took: u8 (received, 16), by arrival.

        Raises:
            JobRefused(DATASET_CHANGED): another run has released them meanwhile.
        """
        with reading(self._engine) as connection:
            found = DatasetReports(connection, dataset.task_id, dataset.handle).ids()
        if len(found) != dataset.received:
            raise taken_over()
        return found


def taken_over() -> JobRefused:
    """Build the error of a run whose reports another run has taken, or that have expired."""
    return JobRefused(
        JobReason.DATASET_CHANGED,
        "another run has taken these reports, or their task has ended: see `adserver dataset list`",
    )


def _is(task_id: bytes, state: DatasetState) -> Sequence[Any]:
    return datasets.c.task_id == task_id, datasets.c.state == state


def _lock_state(connection: Connection, handle: bytes) -> DatasetState | None:
    """Return a dataset's state, locked until the transaction ends; None if it is gone."""
    state = connection.execute(
        select(datasets.c.state).where(datasets.c.handle == handle).with_for_update()
    ).scalar()
    return None if state is None else DatasetState(state)


def _change_state(connection: Connection, handle: bytes, event: DatasetEvent, **columns: Any) -> None:
    """Let an event happen to a dataset, and set other columns with it.

    JobRefused(DATASET_CHANGED) if it is not possible.
    """
    state = _lock_state(connection, handle)
    if state is None:
        raise taken_over()
    connection.execute(
        update(datasets).where(datasets.c.handle == handle).values(state=state.after(event), **columns)
    )


def _abort_preparing(connection: Connection, task_id: bytes) -> None:
    """Release the task's datasets of which no helper has committed anything."""
    # Locked, so that a run that fixes its choice at this moment either comes first or is refused.
    preparing = select(datasets.c.handle).where(*_is(task_id, DatasetState.PREPARING)).with_for_update()
    for (left,) in connection.execute(preparing).all():
        _abort(connection, task_id, left)


def _abort(connection: Connection, task_id: bytes, handle: bytes) -> None:
    """Forget a dataset, and release its reports."""
    # Refused of a committed dataset, whose reports are used for good, and of one that is gone already.
    (_lock_state(connection, handle) or DatasetState.ABORTED).after(DatasetEvent.RELEASE)
    DatasetReports(connection, task_id, handle).give_back()
    connection.execute(delete(dropped_reports).where(dropped_reports.c.handle == handle))
    connection.execute(delete(datasets).where(datasets.c.handle == handle))


def _about(dataset: Dataset) -> dict[str, str]:
    """Return what the audit log says of a dataset."""
    return {
        "task": dataset.task_id.hex(),
        "dataset": (dataset.dataset_id or b"").hex(),
        "handle": dataset.handle.hex(),
        "reports": str(dataset.size),
    }


_AS_STORED: Final = tuple(one.name for one in fields(Dataset) if one.name not in ("state", "dropped"))


def _one(connection: Connection, query: Select[Any]) -> Dataset:
    return _all(connection, query)[0]


def _all(connection: Connection, query: Select[Any]) -> list[Dataset]:
    """Return the datasets that a query finds, each with the counts of dropped reports."""
    rows = connection.execute(query).all()
    counters: dict[tuple[bytes, int], Counter[ReportReason]] = {}
    # One statement for all rows, however many datasets a page shows.
    dropped = select(dropped_reports).where(dropped_reports.c.handle.in_([row.handle for row in rows]))
    for handle, role, reason, count in connection.execute(dropped):
        counters.setdefault((handle, role), Counter())[ReportReason(reason)] = count
    return [
        Dataset(
            **pick_attributes(row, _AS_STORED),
            state=DatasetState(row.state),
            dropped=(counters.get((row.handle, 0), Counter()), counters.get((row.handle, 1), Counter())),
        )
        for row in rows
    ]
