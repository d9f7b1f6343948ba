"""Federated rounds and the sealed updates that devices sent for them.

    open      devices download the round's content and upload            an update of it is stored once
    sealing   its window is over: later updates are refused as late      both helpers prepare and commit
    released  both helpers answered; the sealed updates are deleted

What a round is (its bytes) never changes; each method is one transaction.
"""

from collections.abc import Iterator
from dataclasses import field
from enum import StrEnum, unique
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, delete, func, select, update

from adserver.records.job_state import FINAL
from adserver.store.database import insert_or_ignore
from adserver.store.schema import jobs, update_reports, update_rounds
from adserver.store.share_pages import report_row, share_pages
from maskedlark.canonical import decode, encode
from maskedlark.errors import JobReason, JobRefused, ReportReason, ReportRejected
from maskedlark.frozen import frozen
from maskedlark.releases.update import UpdateRound
from maskedlark.reports.dataset import ShareColumns
from maskedlark.reports.task import REPORT_ID_BYTES
from maskedlark.reports.upload import Report
from maskedlark.runtime.database import reading

PAGE_BYTES: Final = 2 << 20
"""Of sealed shares in one message to a helper, at most; or one share."""


@unique
class DeviceRoundState(StrEnum):
    """Where a round is in its life."""

    OPEN = "open"
    SEALING = "sealing"
    RELEASED = "released"


@frozen
class DeviceRound:
    """A round as stored.

    Attributes:
        round: What devices and helpers bind.
        content: What devices download.
        state: Where it is.
        opened_at: Unix seconds.
        handle: Of its preparation at the helpers, once its window is over.
        chosen: bool (n,): which of its updates both helpers admit, once they have said so.
        dataset_id: Of these.
    """

    round: UpdateRound
    content: bytes = field(repr=False)
    state: DeviceRoundState
    opened_at: float
    handle: bytes | None
    chosen: NDArray[np.bool_] | None = field(repr=False)
    dataset_id: bytes | None


class RoundStore:
    """The federated rounds of this ad server. Safe to share between threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        key = ["round_id", "digest"]
        self._insert = insert_or_ignore(engine, update_reports, key).returning(update_reports.c.sequence)

    def open(self, one: UpdateRound, content: bytes, *, now_s: float) -> DeviceRound:
        """Open a round for devices; one of the job and index that is there stays as it is, and is given."""
        row = {
            "round_id": one.round_id,
            "task_id": one.job.task_id,
            "job_id": one.job.job_id,
            "round_index": one.round_index,
            "round": encode(one),
            "content": content,
            "state": DeviceRoundState.OPEN,
            "opened_at": now_s,
        }
        with self._engine.begin() as connection:
            key = ["job_id", "round_index"]
            connection.execute(insert_or_ignore(self._engine, update_rounds, key).values(row))
            found = select(update_rounds).where(
                update_rounds.c.job_id == one.job.job_id, update_rounds.c.round_index == one.round_index
            )
            return self._read_row(connection.execute(found).one(), connection)

    def newest_open(self, task_id: bytes) -> DeviceRound | None:
        """Return the round of a task that devices should answer now, or None."""
        query = select(update_rounds).where(
            update_rounds.c.task_id == task_id, update_rounds.c.state == DeviceRoundState.OPEN
        )
        with reading(self._engine) as connection:
            row = connection.execute(query.order_by(update_rounds.c.opened_at.desc()).limit(1)).one_or_none()
            return None if row is None else self._read_row(row, connection)

    def add(self, report: Report) -> bool:
        """Store one checked update report durably; whether it is new.

        Raises:
            ReportRejected(UNKNOWN_ROUND, ROUND_OVER)
        """
        row = {"round_id": report.round_id, **report_row(report)}
        query = select(update_rounds.c.state, update_rounds.c.task_id).where(
            update_rounds.c.round_id == report.round_id
        )
        with self._engine.begin() as connection:
            # A shared lock: uploads do not wait for each other, and closing the round waits for all of them.
            found = connection.execute(query.with_for_update(read=True)).one_or_none()
            if found is None or bytes(found.task_id) != report.task_id:
                raise ReportRejected(
                    ReportReason.UNKNOWN_ROUND,
                    "the update belongs to no round of this task: fetch the open round",
                )
            if found.state != DeviceRoundState.OPEN:
                raise ReportRejected(
                    ReportReason.ROUND_OVER, "the round's window has ended: the update arrived too late"
                )
            return bool(connection.execute(self._insert, [row]).all())

    def count(self, round_id: bytes) -> int:
        """Count the stored updates of a round."""
        query = select(func.count()).where(update_reports.c.round_id == round_id)
        with reading(self._engine) as connection:
            return int(connection.execute(query).scalar_one())

    def close(self, round_id: bytes, handle: bytes, *, most: int) -> None:
        """End a round's window: no update is stored from here on. Idempotent; the first handle stays.

        Of more updates than a dataset holds the first ones count, and the others are deleted: however many
        devices, or senders of many, come in the last moment, the round goes on.
        """
        closing = update(update_rounds).where(
            update_rounds.c.round_id == round_id, update_rounds.c.state == DeviceRoundState.OPEN
        )
        of_round = update_reports.c.round_id == round_id
        first_left_out = (
            select(update_reports.c.sequence)
            .where(of_round)
            .order_by(update_reports.c.sequence)
            .offset(most)
            .limit(1)
        )
        with self._engine.begin() as connection:
            if (
                connection.execute(closing.values(state=DeviceRoundState.SEALING, handle=handle)).rowcount
                != 1
            ):
                return
            surplus = connection.execute(first_left_out).scalar()
            if surplus is not None:
                connection.execute(
                    delete(update_reports).where(of_round, update_reports.c.sequence >= surplus)
                )

    def begin_again(self, round_id: bytes, *, now_s: float) -> None:
        """Give a round a new window and delete its updates: both helpers admitted none of them."""
        sealing = update(update_rounds).where(
            update_rounds.c.round_id == round_id,
            update_rounds.c.state == DeviceRoundState.SEALING,
            update_rounds.c.dataset_id.is_(None),
        )
        with self._engine.begin() as connection:
            # Only if nobody chose meanwhile: what is chosen may be charged.
            again = sealing.values(state=DeviceRoundState.OPEN, handle=None, opened_at=now_s)
            if connection.execute(again).rowcount == 1:
                connection.execute(delete(update_reports).where(update_reports.c.round_id == round_id))

    def choose(self, round_id: bytes, chosen: NDArray[np.bool_], dataset_id: bytes) -> None:
        """Fix what both helpers admit, before it is committed.

        Raises:
            JobRefused(CANCELLED): the job is over, and is closed with the rounds that were chosen before.
        """
        bits = np.packbits(chosen, bitorder="little").tobytes()
        of_round = update_rounds.c.round_id == round_id
        is_jobs = jobs.c.job_id == update_rounds.c.job_id
        state = select(jobs.c.state).join(update_rounds, is_jobs).where(of_round)
        with self._engine.begin() as connection:
            # Locked until the choice is there: a job that ends afterwards counts this round as charged.
            if connection.execute(state.with_for_update(read=True, of=jobs)).scalar() in FINAL:
                raise JobRefused(JobReason.CANCELLED, "the job ended while its round was prepared")
            connection.execute(
                update(update_rounds).where(of_round).values(chosen=bits, dataset_id=dataset_id)
            )

    def release_before(self, job_id: bytes, round_index: int) -> None:
        """Delete the sealed updates of rounds before one, which both helpers have answered.

        Idempotent.
        """
        used = (
            update_rounds.c.job_id == job_id,
            update_rounds.c.round_index < round_index,
            update_rounds.c.state != DeviceRoundState.RELEASED,
        )
        with self._engine.begin() as connection:
            ids = connection.execute(select(update_rounds.c.round_id).where(*used)).scalars().all()
            connection.execute(delete(update_reports).where(update_reports.c.round_id.in_(ids)))
            connection.execute(
                update(update_rounds)
                .where(update_rounds.c.round_id.in_(ids))
                # The content is as large as the model; the row stays, so that late updates are known as late.
                .values(state=DeviceRoundState.RELEASED, content=b"")
            )

    def may_be_charged(self, job_id: bytes, round_index: int) -> bool:
        """Return whether helpers may have been asked for a round's sum: its dataset is chosen."""
        query = select(update_rounds.c.dataset_id).where(
            update_rounds.c.job_id == job_id, update_rounds.c.round_index == round_index
        )
        with reading(self._engine) as connection:
            return connection.execute(query).scalar() is not None

    def end_of_job(self, job_id: bytes) -> None:
        """Close the rounds that a finished job has left open, so that devices learn that they are over."""
        with self._engine.begin() as connection:
            connection.execute(
                update(update_rounds)
                .where(update_rounds.c.job_id == job_id, update_rounds.c.state == DeviceRoundState.OPEN)
                .values(state=DeviceRoundState.RELEASED)
            )

    def report_ids(self, round_id: bytes) -> NDArray[np.uint8]:
        """Return the ids of a round's updates, u8 (n, 16), in order of arrival."""
        query = select(update_reports.c.report_id).where(update_reports.c.round_id == round_id)
        with reading(self._engine) as connection:
            found = connection.execute(query.order_by(update_reports.c.sequence)).scalars().all()
        return np.frombuffer(b"".join(found), np.uint8).reshape(-1, REPORT_ID_BYTES)

    def share_pages(self, round_id: bytes, role: int, share_bytes: int) -> Iterator[ShareColumns]:
        """Yield one helper's shares of a round, by arrival, in pages well under a gRPC message."""
        chosen, page_rows = update_reports.c.round_id == round_id, PAGE_BYTES // share_bytes
        sequence = update_reports.c.sequence
        return share_pages(self._engine, update_reports, chosen, sequence, role=role, page_rows=page_rows)

    def _read_row(self, row: Any, connection: Connection) -> DeviceRound:
        chosen = None
        if row.chosen is not None:
            count = connection.execute(
                select(func.count()).where(update_reports.c.round_id == row.round_id)
            ).scalar_one()
            bits = np.frombuffer(bytes(row.chosen), np.uint8)
            # The updates of a released round are deleted: nothing says any more how many bits there are.
            if row.state != DeviceRoundState.RELEASED:
                chosen = np.unpackbits(bits, count=count, bitorder="little").astype(np.bool_)
        return DeviceRound(
            round=decode(UpdateRound, bytes(row.round)),
            content=bytes(row.content),
            state=DeviceRoundState(row.state),
            opened_at=row.opened_at,
            handle=None if row.handle is None else bytes(row.handle),
            chosen=chosen,
            dataset_id=None if row.dataset_id is None else bytes(row.dataset_id),
        )
