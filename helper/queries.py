"""Queries: checked, answered, paid for and only then released; the same query again gets the same bytes."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from helper.budget import check_fits, cost
from helper.datasets import Datasets
from helper.ledger import Ledger, Reservation, StoredQuery
from helper.tasks import Caller, ServedTask, Tasks
from maskedlark.accounting import Epsilons
from maskedlark.canonical import decode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.grouping import answer_discovery, answer_query, decode_domains
from maskedlark.noise import noise_vector
from maskedlark.query import AnyQuery, DiscoverySpec, QuerySpec, check_query
from maskedlark.randomness import STREAM_KEY_BYTES, Randomness, Stream
from maskedlark.round import AggregateShare

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredQuery:
    """What the ad server gets of a query.

    Attributes:
        answer: The encoded aggregate share.
        spent: Of the dataset, all its jobs and queries.
    """

    answer: bytes = field(repr=False)
    spent: Epsilons


class Queries:
    """The queries of one helper. Safe to call from many threads; the ledger decides between them."""

    def __init__(self, *, tasks: Tasks, datasets: Datasets, ledger: Ledger, randomness: Randomness) -> None:
        self._tasks = tasks
        self._datasets = datasets
        self._ledger = ledger
        self._randomness = randomness

    def query(self, encoded: bytes, codes: Callable[[int], bytes], caller: Caller) -> AnsweredQuery:
        """Sums over groups. Called by the ad server; idempotent.

        Args:
            encoded: A `QuerySpec`.
            codes: Reads the codes of the axes that name a digest, refusing more than so many bytes.
            caller: Who asks.

        Guarantees: when it returns, the charge and the answer are durable; when it raises, neither was made and nothing left.

        Raises:
            InvalidTask: the query is not canonical.
            JobRefused(UNKNOWN_TASK, UNAUTHORIZED, TASK_REFUSED, TASK_EXPIRED, UNKNOWN_DATASET, MALFORMED, TOO_LARGE, UNDECLARED,
                DOMAIN_TOO_LARGE, NOISE_OUT_OF_RANGE, OVERFLOW, BUDGET_EXHAUSTED, QUERY_CHANGED)
        """
        spec = decode(QuerySpec, encoded)
        limit = 4 * sum(axis.size for axis in spec.group_by if axis.codes_digest is not None)

        def compute(served: ServedTask) -> AggregateShare:
            domains = decode_domains(spec, codes(limit))
            shares = self._datasets.opened(spec.dataset_id).shares
            noise = partial(noise_vector, randomness=Stream(self._randomness(STREAM_KEY_BYTES)))
            return answer_query(task=served.task, spec=spec, pair=served.pair, shares=shares, domains=domains, noise=noise)

        return self._answer(spec, compute, caller)

    def discovery(self, encoded: bytes, caller: Caller) -> AnsweredQuery:
        """Which codes occur. Called by the ad server; idempotent; guarantees and errors as of `query`."""
        spec = decode(DiscoverySpec, encoded)

        def compute(served: ServedTask) -> AggregateShare:
            shares = self._datasets.opened(spec.dataset_id).shares
            return answer_discovery(task=served.task, spec=spec, pair=served.pair, role=served.role, shares=shares)

        return self._answer(spec, compute, caller)

    def _answer(self, spec: AnyQuery, compute: Callable[[ServedTask], AggregateShare], caller: Caller) -> AnsweredQuery:
        served = self._tasks.served(spec.task_id, caller)
        stored = self._stored(spec)
        if stored is None:
            self._check(served, spec)
            stored = StoredQuery(spec=spec, answer=compute(served).encode())
            new = Reservation(spec=spec, rounds=1)
            if self._ledger.add_query(stored, lambda before: check_fits(served.task, before, new)):
                _LOG.info("query answered: %d bytes", len(stored.answer))
            else:  # another thread or process was faster: what it stored counts, and what was computed here is forgotten
                stored = self._stored(spec)
                if stored is None:
                    raise JobRefused(JobReason.QUERY_CHANGED, "the id is of another query: take a new one")
        return AnsweredQuery(answer=stored.answer, spent=cost(served.task, self._ledger.reservations(spec.dataset_id)))

    def _stored(self, spec: AnyQuery) -> StoredQuery | None:
        """The query as it was answered before; refused if it was another one."""
        stored = self._ledger.query(spec.query_id)
        if stored is not None and stored.spec != spec:
            raise JobRefused(
                JobReason.QUERY_CHANGED,
                "a query of this id was charged with other values, groups or levels: what was not charged together is not released "
                "together; take a new id",
            )
        return stored

    def _check(self, served: ServedTask, spec: AnyQuery) -> None:
        """Every check that a new query must pass; the budget once before the work, and again when it is charged."""
        task = served.task
        self._tasks.check_not_expired(task)
        size = self._datasets.stored(spec.dataset_id, served.task_id).size
        check_query(task, spec, records=size)
        check_fits(task, self._ledger.reservations(spec.dataset_id), Reservation(spec=spec, rounds=1))
