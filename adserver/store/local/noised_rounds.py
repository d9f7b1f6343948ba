"""LINE's rounds without helpers: devices send noised updates, and a round ends when enough have come.

    store = NoisedRounds(engine)
    store.create(connection, job_id, line.start(first_weights))     # with the job, in one transaction
    asked = store.find_round(job_id, line)       # the round that is open; None after the last
    store.add(job_id, line, update)              # the update that fills a round also takes the step

Each update is noised before it leaves its device, so the ad server may hold the running sum in the clear. Its
digest, the sum, the step and the job's row change in one transaction: a process that is killed leaves all or
nothing.
"""

from functools import partial
from threading import Lock
from typing import Any

import numpy as np
from sqlalchemy import Connection, Engine, insert, select, update

from adserver.records.job_state import JobEvent, JobState
from adserver.store.group_commit import GroupCommit
from adserver.store.jobs import change_state
from adserver.store.local.accepted_updates import accepted_before
from adserver.store.schema import jobs, local_updates, noised_rounds
from maskedlark.errors import JobReason, JobRefused, ReportReason, ReportRejected
from maskedlark.federated.local_job import LocalUpdate
from maskedlark.federated.strategies.line import Line
from maskedlark.federated.strategy import Round, ServerState
from maskedlark.numbers.field import SignedVector
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
        """Use a database of `open_store`."""
        self._engine = engine
        self._arrivals: dict[bytes, GroupCommit[_Arrival]] = {}
        self._guard = Lock()

    def create(self, connection: Connection, job_id: bytes, state: ServerState) -> None:
        """Store a job's first round."""
        row = {"job_id": job_id, "state": state.encode(), "total": bytes(8 * len(state.parameters))}
        connection.execute(insert(noised_rounds).values(row))

    def state(self, job_id: bytes) -> ServerState:
        """Return the state before the open round.

        Raises:
            JobRefused(UNKNOWN_JOB): the job does not exist.
        """
        with reading(self._engine) as connection:
            return ServerState.decode(bytes(_row(connection, job_id).state))

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
            job = _row(connection, job_id, is_locked=True)
            total, updates = np.frombuffer(job.total, "<i8").astype(np.int64), job.updates
            state = ServerState.decode(bytes(job.state))
            # Bounds what one device can do to the sum, which nobody can take apart again.
            largest = line.largest_value(len(total))
            seen = accepted_before(connection, job_id, [one.digest for one in batch])
            new = []
            for one in batch:
                # For each anew, since the update before it may have ended the round.
                asked = None if job.life == JobState.CLOSED else line.next_round(state)
                one.refusal = _refusal(one, asked, seen, largest)
                if asked is None or one.refusal is not None:
                    continue
                seen.add(one.digest)
                new.append({"job_id": job_id, "digest": one.digest})
                total, updates = total + one.update.vector, updates + 1
                # Counted over the whole job, as its row counts: a round ends with its last device's update.
                if updates == line.devices * (state.rounds_done + 1):
                    state = line.step(state, asked, total)
                    total = np.zeros_like(total)
            if new:
                connection.execute(insert(local_updates), new)
                _write(connection, job_id, state, total)
                counted = {"rounds_done": state.rounds_done, "updates": updates}
                connection.execute(update(jobs).where(jobs.c.job_id == job_id).values(counted))
                if line.next_round(state) is None:
                    change_state(connection, job_id, JobEvent.FINISH)


def _write(connection: Connection, job_id: bytes, state: ServerState, total: SignedVector) -> None:
    changed = {"state": state.encode(), "total": total.astype("<i8").tobytes()}
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


def _row(connection: Connection, job_id: bytes, *, is_locked: bool = False) -> Any:
    """Return a job's model and sum with its count of updates and where it is in its life."""
    wanted = select(noised_rounds.c.state, noised_rounds.c.total, jobs.c.updates, jobs.c.state.label("life"))
    wanted = wanted.join_from(noised_rounds, jobs).where(jobs.c.job_id == job_id)
    found = connection.execute(wanted.with_for_update() if is_locked else wanted).one_or_none()
    if found is None:
        raise JobRefused(JobReason.UNKNOWN_JOB, "there is no LINE job without helpers with this id")
    return found
