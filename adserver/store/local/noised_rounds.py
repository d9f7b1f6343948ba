"""LINE's rounds without helpers: devices send noised updates, and a round ends when enough have come.

    store = NoisedRounds(engine)
    store.create(job_id, line, model, seed=0)
    asked = store.find_round(job_id)             # the round that is open; None after the last
    store.add(job_id, update)                    # the update that fills a round also takes the step

Each update is noised before it leaves its device, so the ad server may hold the running sum in the clear. Its
digest, the sum and the step change in one transaction: a process that is killed leaves all or nothing.
"""

from functools import partial
from threading import Lock
from typing import Any

import numpy as np
from sqlalchemy import Connection, Engine, bindparam, insert, select, update

from adserver.store.database import insert_or_ignore
from adserver.store.group_commit import GroupCommit
from adserver.store.local.schema import noised_rounds, noised_updates
from maskedlark.errors import JobReason, JobRefused, ReportReason, ReportRejected
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.local_job import LocalUpdate, largest_value
from maskedlark.federated.strategies.line import Line
from maskedlark.federated.strategy import Round, ServerState
from maskedlark.numbers.field import SignedVector
from maskedlark.randomness import seeded
from maskedlark.runtime.database import reading


class _Arrival:
    """An update in the queue, and why it is not taken in."""

    __slots__ = ("digest", "refusal", "update")

    def __init__(self, update: LocalUpdate) -> None:
        self.update, self.digest = update, update.digest
        self.refusal: ReportRejected | None = None


class NoisedRounds:
    """The rounds of LINE jobs. Safe to share between threads; threads share transactions."""

    def __init__(self, engine: Engine) -> None:
        """Use a database of `open_local`."""
        self._engine = engine
        self._arrivals: dict[bytes, GroupCommit[_Arrival]] = {}
        self._guard = Lock()

    def create(self, job_id: bytes, line: Line, model: DenseModel, *, seed: int) -> None:
        """Store a job's first round.

        Raises:
            JobRefused(JOB_CHANGED): the id is taken.
        """
        state = line.start(model.initial(seeded(seed, "first weights")))
        row = {
            "job_id": job_id, "round_index": 0, "state": state.encode(), "received": 0,
            "total": np.zeros(model.size, "<i8").tobytes(),
        }  # fmt: skip
        with self._engine.begin() as connection:
            made = insert_or_ignore(self._engine, noised_rounds, ["job_id"]).values(row)
            if connection.execute(made.returning(noised_rounds.c.job_id)).first() is None:
                raise JobRefused(JobReason.JOB_CHANGED, "a job with this id already exists: use a new id")

    def state(self, job_id: bytes) -> ServerState:
        """Return the state before the open round.

        Raises:
            JobRefused(UNKNOWN_JOB): the job does not exist.
        """
        with reading(self._engine) as connection:
            return ServerState.decode(bytes(_row(connection, job_id).state))

    def count_received(self, job_id: bytes) -> int:
        """Count the updates in the open round's sum.

        Raises:
            JobRefused(UNKNOWN_JOB): the job does not exist.
        """
        with reading(self._engine) as connection:
            return int(_row(connection, job_id).received)

    def find_round(self, job_id: bytes, line: Line) -> Round | None:
        """Return the round that devices should answer; None after the last.

        Raises:
            JobRefused(UNKNOWN_JOB): the job does not exist.
        """
        return line.next_round(self.state(job_id))

    def add(self, job_id: bytes, line: Line, arrived: LocalUpdate) -> None:
        """Take one update into the sum of the open round.

        Raises:
            JobRefused(UNKNOWN_JOB): there is no such job.
            InvalidModel(DIVERGED): the step left the finite numbers; the update is not taken.
            ReportRejected(DUPLICATE_ID): the update was accepted before.
            ReportRejected(ROUND_OVER, UNKNOWN_ROUND): the update is of another round than the open one.
            ReportRejected(IMPLAUSIBLE): a value is beyond what an honest update and its noise reach.
        """
        with self._guard:
            together = self._arrivals.setdefault(job_id, GroupCommit(partial(self._take_in, job_id, line)))
        call = _Arrival(arrived)
        together.call(call)
        if call.refusal is not None:
            raise call.refusal

    def _take_in(self, job_id: bytes, line: Line, batch: list[_Arrival]) -> None:
        """Decide on each update in turn; the one that fills a round takes the step."""
        with self._engine.begin() as connection:
            row = _row(connection, job_id, is_locked=True)
            total, received = np.frombuffer(row.total, "<i8").astype(np.int64), row.received
            state = ServerState.decode(bytes(row.state))
            largest = largest_value(line, len(total))
            seen = _seen(connection, job_id, batch)
            new = []
            for one in batch:
                asked = line.next_round(state)
                one.refusal = _refusal(one, asked, seen, largest)
                if asked is None or one.refusal is not None:
                    continue
                seen.add(one.digest)
                new.append({"job_id": job_id, "digest": one.digest})
                total, received = total + one.update.vector, received + 1
                if received == line.devices:
                    state = line.step(state, asked, total)
                    total, received = np.zeros_like(total), 0
            if new:
                connection.execute(insert(noised_updates), new)
                _write(connection, job_id, state, received, total)


def _write(
    connection: Connection, job_id: bytes, state: ServerState, received: int, total: SignedVector
) -> None:
    changed = {
        "round_index": state.rounds_done, "state": state.encode(), "received": received,
        "total": total.astype("<i8").tobytes(),
    }  # fmt: skip
    connection.execute(update(noised_rounds).where(noised_rounds.c.job_id == job_id).values(changed))


def _refusal(one: _Arrival, asked: Round | None, seen: set[bytes], largest: int) -> ReportRejected | None:
    """Return why an update is rejected, or None."""
    arrived = one.update
    if one.digest in seen:
        return ReportRejected(ReportReason.DUPLICATE_ID, "the update was already accepted")
    if asked is None or arrived.position < asked.terms.index:
        return ReportRejected(ReportReason.ROUND_OVER, "the round of the update has ended")
    if arrived.position > asked.terms.index:
        return ReportRejected(ReportReason.UNKNOWN_ROUND, "the round of the update has not been opened yet")
    if len(arrived.vector) != len(asked.parameters):
        return ReportRejected(
            ReportReason.WRONG_LENGTH,
            f"the update has {len(arrived.vector)} parameters, but the model has {len(asked.parameters)}",
        )
    if max(int(arrived.vector.max()), -int(arrived.vector.min())) > largest:
        return ReportRejected(
            ReportReason.IMPLAUSIBLE, "a value is larger than an honest update with its noise can be"
        )
    return None


def _seen(connection: Connection, job_id: bytes, batch: list[_Arrival]) -> set[bytes]:
    known = select(noised_updates.c.digest).where(
        noised_updates.c.job_id == bindparam("job"),
        noised_updates.c.digest.in_(bindparam("offered", expanding=True)),
    )
    offered = {"job": job_id, "offered": [one.digest for one in batch]}
    return {bytes(found) for found in connection.execute(known, offered).scalars()}


def _row(connection: Connection, job_id: bytes, *, is_locked: bool = False) -> Any:
    wanted = select(noised_rounds).where(noised_rounds.c.job_id == job_id)
    found = connection.execute(wanted.with_for_update() if is_locked else wanted).one_or_none()
    if found is None:
        raise JobRefused(JobReason.UNKNOWN_JOB, "there is no such job without helpers")
    return found
