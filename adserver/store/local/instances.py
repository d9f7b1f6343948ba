"""Draw and discard's instances in a database: drawn and replaced by many devices at once.

    store = InstanceStore(engine)
    store.create(connection, job_id, instances)      # with the job, in one transaction
    drawn = store.draw(job_id, randomness)           # one instance, and the number of returns so far
    store.replace(job_id, LocalUpdate(update_id=..., position=drawn.returns, vector=...), randomness)

A row is one instance, written whole: a reader sees the old or the new one, never a mixture, and a process
that is killed leaves one of them. An update's digest and the job's count of updates are stored in the same
transaction as what it replaced, so an update that is sent again counts once. Which instance was drawn is not
stored.
"""

from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import Final

import numpy as np
from sqlalchemy import Connection, Engine, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError

from adserver.records.job_state import JobState
from adserver.records.local_plan import LocalPlan
from adserver.store.group_commit import GroupCommit
from adserver.store.jobs import read_job
from adserver.store.local.accepted_updates import accepted_before
from adserver.store.local.instances_at_hand import Changed, DrawnInstances, InstancesAtHand
from adserver.store.schema import jobs, local_updates, model_instances
from maskedlark.errors import JobReason, JobRefused, ReportReason, ReportRejected
from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.local_job import LocalUpdate
from maskedlark.federated.spam import SpamTest
from maskedlark.numbers.field import SignedVector
from maskedlark.randomness import Randomness
from maskedlark.runtime.database import reading

# The weight of the newest update in the live measure of how many are in flight.
_SMOOTHING: Final = 0.01

_OF_JOB: Final = jobs.c.job_id == bindparam("job")
_LOCKED: Final = select(jobs.c.state, jobs.c.updates, jobs.c.in_flight).where(_OF_JOB).with_for_update()
_RETURNS: Final = select(jobs.c.updates).where(_OF_JOB)
_DRAWN: Final = select(model_instances.c.encoded).where(
    model_instances.c.job_id == bindparam("job"), model_instances.c.place == bindparam("place")
)
_NEW: Final = insert(local_updates)
_WRITTEN: Final = (
    update(model_instances)
    .where(model_instances.c.job_id == bindparam("job"), model_instances.c.place == bindparam("at"))
    .values(encoded=bindparam("by"))
)
# Statements are built once: building one takes as long as running it.
_COUNTED: Final = (
    update(jobs).where(_OF_JOB).values(updates=bindparam("returned"), in_flight=bindparam("flying"))
)


@dataclass(kw_only=True, eq=False, slots=True)
class _Draw:
    """A draw in the queue: which instance, and the answer."""

    place: int
    drawn: DrawnInstances | None = None


@dataclass(kw_only=True, eq=False, slots=True)
class _Return:
    """A return in the queue: what it replaces if it is accepted, and why it is not."""

    returned: LocalUpdate
    digest: bytes
    place: int
    test: SpamTest | None
    refusal: ReportRejected | None = None


class InstanceStore:
    """The instances of draw-and-discard jobs.

    Threads that draw and return at the same time share one transaction: see `GroupCommit`.
    """

    def __init__(self, engine: Engine) -> None:
        """Use a database of `open_store`."""
        self._engine = engine
        self._opened: dict[bytes, _Instances] = {}
        self._guard = Lock()

    def create(self, connection: Connection, job_id: bytes, instances: SignedVector) -> None:
        """Store a new job's first instances."""
        rows = [
            {"job_id": job_id, "place": place, "encoded": _encode(instance)}
            for place, instance in enumerate(instances)
        ]
        connection.execute(insert(model_instances), rows)

    def draw(self, job_id: bytes, randomness: Randomness) -> DrawnInstances:
        """Draw a uniformly random instance, as it is now or was `OLDEST_S` ago.

        Raises:
            JobRefused(UNKNOWN_JOB): no draw-and-discard job has this id.
        """
        job = self._open(job_id)
        # Drawn before it is looked for: the draw is uniform whatever is at hand.
        place = int(job.settings.pick(1, randomness)[0])
        lately = job.at_hand.lately(place, now_s=monotonic())
        if lately is not None:
            return lately
        call = _Draw(place=place)
        job.draws.call(call)
        if call.drawn is None:
            raise AssertionError("a draw that was served has an instance")
        return call.drawn

    def replace(
        self, job_id: bytes, returned: LocalUpdate, randomness: Randomness, *, test: SpamTest | None = None
    ) -> None:
        """Put a returned model in the place of a uniformly random instance.

        Args:
            job_id: The job.
            returned: What the device sent.
            randomness: Chooses the place.
            test: What refuses spam, if anything does.

        Guarantees: the instance, the update's digest and the counters change together or not at all, and stay
            changed.

        Raises:
            JobRefused(UNKNOWN_JOB): there is no such job.
            ReportRejected(ROUND_OVER): the job is closed.
            ReportRejected(WRONG_LENGTH): another number of weights.
            ReportRejected(DUPLICATE_ID): the update was accepted before.
            ReportRejected(IMPLAUSIBLE): the spam test refused it.
        """
        job = self._open(job_id)
        place = int(job.settings.pick(1, randomness)[0])
        call = _Return(returned=returned, digest=returned.digest, place=place, test=test)
        job.returns.call(call)
        if call.refusal is not None:
            raise call.refusal

    def _open(self, job_id: bytes) -> "_Instances":
        """Return a job's queues, which are created when it is first asked for."""
        if job_id not in self._opened:
            with reading(self._engine) as connection:
                plan = read_job(connection, job_id).plan
            settings, model = plan.read_instructions() if isinstance(plan, LocalPlan) else (None, None)
            if model is None or not isinstance(settings, DrawAndDiscard):
                raise JobRefused(JobReason.UNKNOWN_JOB, "there is no draw-and-discard job with this id")
            # Threads that get here together must share one queue, for its turn is what orders them.
            with self._guard:
                self._opened.setdefault(job_id, _Instances(self._engine, job_id, settings, model.size))
        return self._opened[job_id]

    def instances(self, job_id: bytes) -> SignedVector:
        """Return all instances, (k, weights), of one moment."""
        with reading(self._engine) as connection:
            return _all(connection, job_id)


class _Instances:
    """One job: its settings, what is at hand of its instances, and the queues of its draws and returns."""

    def __init__(self, engine: Engine, job_id: bytes, settings: DrawAndDiscard, weights: int) -> None:
        self._engine = engine
        self._job_id = job_id
        self._weights = weights
        self.settings = settings
        self.at_hand = InstancesAtHand(weights=weights)
        self.draws: GroupCommit[_Draw] = GroupCommit(self._give_out)
        self.returns: GroupCommit[_Return] = GroupCommit(self._take_in)

    def _give_out(self, draws: list[_Draw]) -> None:
        """Answer draws: all are of one moment. What this process has at hand of that moment is not read."""
        at_s = monotonic()
        with reading(self._engine) as connection:
            returns = connection.execute(_RETURNS, {"job": self._job_id}).scalar_one()
            for one in draws:
                instance = self.at_hand.get(returns, one.place)
                if instance is None:
                    wanted = {"job": self._job_id, "place": one.place}
                    instance = _decode(bytes(connection.execute(_DRAWN, wanted).scalar_one()))
                self.at_hand.put(returns, one.place, instance, at_s=at_s)
                one.drawn = DrawnInstances(instance=instance, returns=returns)

    def _take_in(self, returns: list[_Return]) -> None:
        """Take in what came back, in one transaction.

        Updates that were accepted before are rare: they are looked up only if one cannot be inserted.
        """
        job_id, weights = self._job_id, self._weights
        try:
            with self._engine.begin() as connection:
                changed = _take_in(connection, job_id, weights, returns, set())
        except IntegrityError:
            with self._engine.begin() as connection:
                seen = accepted_before(connection, job_id, [one.digest for one in returns])
                changed = _take_in(connection, job_id, weights, returns, seen)
        self.at_hand.move(changed)


def _take_in(
    connection: Connection, job_id: bytes, weights: int, batch: list[_Return], seen: set[bytes]
) -> Changed:
    """Decide on each update in turn, as if each had a separate transaction, then write what changed.

    Raises:
        IntegrityError: an update outside `seen` was accepted before; nothing is written.
    """
    job = connection.execute(_LOCKED, {"job": job_id}).one()
    is_tested = any(one.test is not None for one in batch)
    # All instances are megabytes, and only the spam test compares with them.
    instances = _all(connection, job_id) if is_tested else None
    changed: dict[int, SignedVector] = {}
    new: list[dict[str, bytes]] = []
    returns, in_flight, is_open = job.updates, job.in_flight, job.state == JobState.OPEN
    for one in batch:
        returned = one.returned
        one.refusal = _refusal(one, weights, seen, instances, is_open=is_open)
        if one.refusal is not None:
            continue
        # An update that is sent twice at the same time is twice in one batch.
        seen.add(one.digest)
        new.append({"job_id": job_id, "digest": one.digest})
        changed[one.place] = returned.vector
        if instances is not None:
            instances[one.place] = returned.vector
        # A device says how many returns it saw; a number that cannot be counts as the nearest that can.
        late = returns - min(max(returned.position, 0), returns)
        in_flight += (late - in_flight) * _SMOOTHING
        returns += 1
    if new:
        connection.execute(_NEW, new)
        encoded = {place: _encode(one) for place, one in changed.items()}
        # At hand is what was written, and no array that a caller may still change.
        changed = {place: _decode(one) for place, one in encoded.items()}
        connection.execute(_WRITTEN, [{"job": job_id, "at": at, "by": one} for at, one in encoded.items()])
        connection.execute(_COUNTED, {"job": job_id, "returned": returns, "flying": in_flight})
    return Changed(before=job.updates, after=returns, instances=changed, at_s=monotonic())


def _refusal(
    one: _Return, weights: int, seen: set[bytes], instances: SignedVector | None, *, is_open: bool
) -> ReportRejected | None:
    """Return why an update is rejected, or None."""
    returned, test = one.returned, one.test
    if not is_open:
        return ReportRejected(ReportReason.ROUND_OVER, "the job accepts no more updates")
    if returned.vector.shape != (weights,):
        return ReportRejected(
            ReportReason.WRONG_LENGTH,
            f"the update has {returned.vector.size} weights, but the model has {weights}",
        )
    if one.digest in seen:
        return ReportRejected(ReportReason.DUPLICATE_ID, "the update was already accepted")
    if test is not None and instances is not None and test.is_spam(returned.vector, instances):
        return ReportRejected(ReportReason.IMPLAUSIBLE, "the model is too far from the instances")
    return None


def _all(connection: Connection, job_id: bytes) -> SignedVector:
    wanted = select(model_instances.c.encoded).where(model_instances.c.job_id == job_id)
    rows = connection.execute(wanted.order_by(model_instances.c.place)).scalars()
    return np.stack([_decode(bytes(row)) for row in rows])


def _encode(instance: SignedVector) -> bytes:
    return instance.astype("<i8").tobytes()


def _decode(encoded: bytes) -> SignedVector:
    return np.frombuffer(encoded, "<i8").astype(np.int64, copy=False)
