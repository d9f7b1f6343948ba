"""What a ledger holds, as plain values: what its methods take and give."""

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import NamedTuple, TypeAlias

from helper.ledger.round_state import Progress
from maskedlark.frozen import frozen
from maskedlark.releases.job import JobSpec
from maskedlark.releases.kinds import AnyQuery, AnySpec
from maskedlark.runtime.audit_table import Link


class ReleaseKey(NamedTuple):
    """The name of a job or a query: its id within its task, for another task may use the same id."""

    task_id: bytes
    release_id: bytes


def key_of(spec: AnySpec) -> ReleaseKey:
    """Return the name under which a job or a query is kept, charged and found."""
    return ReleaseKey(spec.task_id, spec.release_id)


@frozen
class SignedTask:
    """A task that this helper signed.

    Attributes:
        encoded: Its canonical bytes.
        origin: Whose it is.
        role: This helper's in it.
        signature: This helper's.
    """

    encoded: bytes
    origin: str
    role: int
    signature: bytes


@frozen
class StoredDataset:
    """A committed dataset."""

    task_id: bytes
    size: int


@frozen
class SealedObject:
    """An object of one segment at rest: its sealed records, or their sealed ranks.

    Attributes:
        number: The segment's place in its dataset.
        holds_ranks: Whether it is the ranks.
        name: The object's.
        digest: SHA-256 of its bytes.
        num_bytes: How many these are.
        records: How many records the segment has, chosen or not.
    """

    number: int
    holds_ranks: bool
    name: str
    digest: bytes
    num_bytes: int
    records: int


Manifest: TypeAlias = tuple[SealedObject, ...]
"""All objects of a dataset, by number, records before ranks."""


@frozen
class StoredJob:
    """A job, and how far it is."""

    spec: JobSpec
    progress: Progress


@frozen
class Reservation:
    """What one job or query takes of its dataset's budget: what is charged, and what is only reserved.

    Attributes:
        spec: The job, or the query.
        rounds: Of a job all planned ones while it is open and the answered ones once it is closed; 1 of a
            query, which is never reserved: its row is its charge.
    """

    spec: AnySpec
    rounds: int

    @property
    def key(self) -> ReleaseKey:
        """The job's or the query's."""
        return key_of(self.spec)


@frozen
class StoredRound:
    """An answered, and so charged, round.

    Attributes:
        weights_digest: Of the weights that it was answered for.
        answer: None once the job has moved on.
        sealed_seed: What its correlated noise was made from, for the next round; None like the answer, and
            where noise is independent.
    """

    weights_digest: bytes
    answer: bytes | None = field(repr=False)
    sealed_seed: bytes | None = field(default=None, repr=False)


@frozen
class StoredQuery:
    """An answered, and so charged, query."""

    spec: AnyQuery
    answer: bytes = field(repr=False)


Position: TypeAlias = Link
"""Where a ledger stands: the newest entry of its audit log, whose digest names all entries before it too."""


@frozen
class LedgerCounts:
    """How much the ledger holds."""

    tasks: int
    datasets: int
    open_jobs: int
    rounds_answered: int


CheckBudget: TypeAlias = Callable[[Sequence[Reservation]], None]
"""Raises if what a dataset's jobs and queries take leaves no room for one more."""
