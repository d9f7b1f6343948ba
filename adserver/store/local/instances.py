"""Draw and discard's instances in a database: drawn and replaced by many devices at once.

    store = InstanceStore(open_local(url))
    store.create(job_id, settings, instances)
    drawn = store.draw(job_id, randomness)           # one instance, and the number of returns so far
    store.replace(job_id, LocalUpdate(update_id=..., position=drawn.returns, vector=...), randomness)

A row is one instance, written whole: a reader sees the old or the new one, never a mixture, and a process
that is killed leaves one of them. An update's digest is stored in the same transaction as what it replaced,
so an update that is sent again counts once. Which instance was drawn is not stored.
"""

from dataclasses import dataclass
from functools import partial
from threading import Lock
from time import monotonic
from typing import Final

import numpy as np
from sqlalchemy import Connection, Engine, bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from adserver.store.database import insert_or_ignore
from adserver.store.group_commit import GroupCommit
from adserver.store.local.instances_at_hand import Changed, DrawnInstances, InstancesAtHand
from adserver.store.local.schema import instance_jobs, instance_updates, model_instances
from maskedlark.canonical import decode, encode
from maskedlark.errors import JobReason, JobRefused, ReportReason, ReportRejected
from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.local_job import LocalUpdate
from maskedlark.federated.spam import SpamTest
from maskedlark.frozen import frozen
from maskedlark.numbers.field import SignedVector
from maskedlark.randomness import Randomness
from maskedlark.runtime.database import reading

_SMOOTHING: Final = 0.01
"""The weight of the newest update in the live measure of how many are in flight."""

_OF_JOB: Final = instance_jobs.c.job_id == bindparam("job")
_LOCKED: Final = (
    select(instance_jobs.c.weights, instance_jobs.c.returns, instance_jobs.c.in_flight)
    .where(_OF_JOB)
    .with_for_update()
)
_RETURNS: Final = select(instance_jobs.c.returns).where(_OF_JOB)
_DRAWN: Final = select(model_instances.c.encoded).where(
    model_instances.c.job_id == bindparam("job"), model_instances.c.place == bindparam("place")
)
_SEEN: Final = select(instance_updates.c.digest).where(
    instance_updates.c.job_id == bindparam("job"),
    instance_updates.c.digest.in_(bindparam("offered", expanding=True)),
)
_NEW: Final = insert(instance_updates)
_WRITTEN: Final = (
    update(model_instances)
    .where(model_instances.c.job_id == bindparam("job"), model_instances.c.place == bindparam("at"))
    .values(encoded=bindparam("by"))
)
_COUNTED: Final = (
    update(instance_jobs).where(_OF_JOB).values(returns=bindparam("returned"), in_flight=bindparam("flying"))
)
"""Statements are built once: building one takes as long as running it."""


@frozen
class InstanceJob:
    """A job's public state.

    Attributes:
        settings: Of the job.
        weights: How many the model has.
        returns: How many updates were accepted.
        in_flight: L: how many updates return between a draw and its return, by a running mean.
    """

    settings: DrawAndDiscard
    weights: int
    returns: int
    in_flight: float


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
        """Use a database of `open_local`."""
        self._engine = engine
        self._settings: dict[bytes, DrawAndDiscard] = {}
        self._draws: dict[bytes, GroupCommit[_Draw]] = {}
        self._returns: dict[bytes, GroupCommit[_Return]] = {}
        self._at_hand: dict[bytes, InstancesAtHand] = {}
        self._guard = Lock()

    def create(self, job_id: bytes, settings: DrawAndDiscard, instances: SignedVector) -> None:
        """Store a new job's first instances.

        Raises:
            JobRefused(JOB_CHANGED): the id is taken.
        """
        row = {
            "job_id": job_id, "settings": encode(settings), "weights": instances.shape[1], "returns": 0,
            "in_flight": 0.0,
        }  # fmt: skip
        with self._engine.begin() as connection:
            made = insert_or_ignore(self._engine, instance_jobs, ["job_id"]).values(row)
            if connection.execute(made.returning(instance_jobs.c.job_id)).first() is None:
                raise JobRefused(JobReason.JOB_CHANGED, "a job with this id already exists: use a new id")
            rows = [
                {"job_id": job_id, "place": place, "encoded": _encode(instance)}
                for place, instance in enumerate(instances)
            ]
            connection.execute(insert(model_instances), rows)

    def job(self, job_id: bytes) -> InstanceJob:
        """Return a job's state.

        Raises:
            JobRefused(UNKNOWN_JOB): the job does not exist.
        """
        with reading(self._engine) as connection:
            return _job(connection, job_id)

    def draw(self, job_id: bytes, randomness: Randomness) -> DrawnInstances:
        """Draw a uniformly random instance, as it is now or was `OLDEST_S` ago.

        Raises:
            JobRefused(UNKNOWN_JOB): the job does not exist.
        """
        place = int(self._settings_of(job_id).pick(1, randomness)[0])
        lately = self._at_hand[job_id].lately(place, now_s=monotonic())
        if lately is not None:
            return lately
        call = _Draw(place=place)
        self._draws[job_id].call(call)
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
            changed as the database promises it: see `open_local`.

        Raises:
            JobRefused(UNKNOWN_JOB): there is no such job.
            ReportRejected(WRONG_LENGTH): another number of weights.
            ReportRejected(DUPLICATE_ID): the update was accepted before.
            ReportRejected(IMPLAUSIBLE): the spam test refused it.
        """
        settings = self._settings_of(job_id)
        place = int(settings.pick(1, randomness)[0])
        call = _Return(returned=returned, digest=returned.digest, place=place, test=test)
        self._returns[job_id].call(call)
        if call.refusal is not None:
            raise call.refusal

    def _settings_of(self, job_id: bytes) -> DrawAndDiscard:
        """Return a job's settings, which never change; its queues are created with them."""
        if job_id not in self._settings:
            job = self.job(job_id)
            settings = job.settings
            with self._guard:
                self._at_hand.setdefault(job_id, InstancesAtHand(weights=job.weights))
                self._draws.setdefault(job_id, GroupCommit(partial(self._give_out, job_id)))
                self._returns.setdefault(job_id, GroupCommit(partial(self._take_in, job_id)))
                self._settings[job_id] = settings
        return self._settings[job_id]

    def _give_out(self, job_id: bytes, draws: list["_Draw"]) -> None:
        """Answer draws: all are of one moment. What this process has at hand of that moment is not read."""
        at_hand, at_s = self._at_hand[job_id], monotonic()
        with reading(self._engine) as connection:
            returns = connection.execute(_RETURNS, {"job": job_id}).scalar_one()
            for one in draws:
                instance = at_hand.get(returns, one.place)
                if instance is None:
                    found = connection.execute(_DRAWN, {"job": job_id, "place": one.place}).scalar_one()
                    instance = _decode(bytes(found))
                at_hand.put(returns, one.place, instance, at_s=at_s)
                one.drawn = DrawnInstances(instance=instance, returns=returns)

    def _take_in(self, job_id: bytes, returns: list["_Return"]) -> None:
        """Take in what came back, in one transaction.

        Updates that were accepted before are rare: they are looked up only if one cannot be inserted.
        """
        try:
            with self._engine.begin() as connection:
                changed = _take_in(connection, job_id, returns, set())
        except IntegrityError:
            with self._engine.begin() as connection:
                changed = _take_in(connection, job_id, returns, _seen(connection, job_id, returns))
        self._at_hand[job_id].move(changed)

    def instances(self, job_id: bytes) -> SignedVector:
        """Return all instances, (k, weights), of one moment.

        Raises:
            JobRefused(UNKNOWN_JOB): there is no such job.
        """
        with reading(self._engine) as connection:
            _job(connection, job_id)
            return _all(connection, job_id)

    def accepted(self, job_id: bytes) -> int:
        """Count stored digests of updates: as many as `InstanceJob.returns`, or something was lost."""
        with reading(self._engine) as connection:
            wanted = select(func.count()).where(instance_updates.c.job_id == job_id)
            return int(connection.execute(wanted).scalar_one())


def _seen(connection: Connection, job_id: bytes, batch: list[_Return]) -> set[bytes]:
    """Return the digests of a batch that were accepted before."""
    offered = {"job": job_id, "offered": [one.digest for one in batch]}
    return {bytes(found) for found in connection.execute(_SEEN, offered).scalars()}


def _take_in(connection: Connection, job_id: bytes, batch: list[_Return], seen: set[bytes]) -> Changed:
    """Decide on each update in turn, as if each had a separate transaction, then write what changed.

    Raises:
        IntegrityError: an update outside `seen` was accepted before; nothing is written.
    """
    job = connection.execute(_LOCKED, {"job": job_id}).one()
    is_tested = any(one.test is not None for one in batch)
    instances = _all(connection, job_id) if is_tested else None
    changed: dict[int, SignedVector] = {}
    new: list[dict[str, bytes]] = []
    returns, in_flight = job.returns, job.in_flight
    for one in batch:
        returned = one.returned
        one.refusal = _refusal(one, job.weights, seen, instances)
        if one.refusal is not None:
            continue
        seen.add(one.digest)
        new.append({"job_id": job_id, "digest": one.digest})
        changed[one.place] = returned.vector
        if instances is not None:
            instances[one.place] = returned.vector
        late = returns - min(max(returned.position, 0), returns)
        in_flight += (late - in_flight) * _SMOOTHING
        returns += 1
    if new:
        connection.execute(_NEW, new)
        encoded = {place: _encode(one) for place, one in changed.items()}
        changed = {place: _decode(one) for place, one in encoded.items()}
        connection.execute(_WRITTEN, [{"job": job_id, "at": at, "by": one} for at, one in encoded.items()])
        connection.execute(_COUNTED, {"job": job_id, "returned": returns, "flying": in_flight})
    return Changed(before=job.returns, after=returns, instances=changed, at_s=monotonic())


def _refusal(
    one: _Return, weights: int, seen: set[bytes], instances: SignedVector | None
) -> ReportRejected | None:
    """Return why an update is rejected, or None."""
    returned, test = one.returned, one.test
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


def _job(connection: Connection, job_id: bytes) -> InstanceJob:
    found = connection.execute(select(instance_jobs).where(_OF_JOB), {"job": job_id}).one_or_none()
    if found is None:
        raise JobRefused(JobReason.UNKNOWN_JOB, "there is no draw-and-discard job with this id")
    return InstanceJob(
        settings=decode(DrawAndDiscard, bytes(found.settings)),
        weights=found.weights,
        returns=found.returns,
        in_flight=found.in_flight,
    )


def _all(connection: Connection, job_id: bytes) -> SignedVector:
    wanted = select(model_instances.c.encoded).where(model_instances.c.job_id == job_id)
    rows = connection.execute(wanted.order_by(model_instances.c.place)).scalars()
    return np.stack([_decode(bytes(row)) for row in rows])


def _encode(instance: SignedVector) -> bytes:
    return instance.astype("<i8").tobytes()


def _decode(encoded: bytes) -> SignedVector:
    return np.frombuffer(encoded, "<i8").astype(np.int64, copy=False)
