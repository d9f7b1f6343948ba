"""Queries as the ad server keeps them.

Stored before the helpers are asked, so that what was charged can always be asked for again.
"""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, Double, Engine, ForeignKey, LargeBinary, String, Table, delete, insert, select

from adserver.measuring.evaluator import PlannedEvaluation
from adserver.measuring.request import QUERY_ID_BYTES, PlannedQuery
from adserver.store.database import find_id, metadata
from maskedlark.canonical import decode, encode
from maskedlark.errors import JobReason
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.kinds import AnyQuery
from maskedlark.releases.query import DiscoverySpec, QuerySpec
from maskedlark.runtime.database import reading

_QUERY: Final = "query"
_DISCOVERY: Final = "discovery"
_EVALUATION: Final = "evaluation"

queries = Table(
    "queries",
    metadata,
    Column("query_id", LargeBinary(QUERY_ID_BYTES), primary_key=True),
    Column("task_id", LargeBinary(32), ForeignKey("tasks.task_id"), nullable=False),
    Column("dataset_id", LargeBinary(32), nullable=False),
    Column("asked_at", Double, nullable=False),  # Unix seconds
    Column("kind", String(16), nullable=False),
    Column("spec", LargeBinary, nullable=False),  # canonical
    Column(
        "codes", LargeBinary, nullable=False
    ),  # what is sent beside the query: codes, or an evaluation's model
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredQuery:
    """A query that was asked, or was about to be.

    Attributes:
        planned: The query with its codes; None for any other query than of sums.
        discovery: The discovery; None for any other query.
        asked_at: Unix seconds.
        evaluation: The evaluation with its model; None for any other query.
    """

    planned: PlannedQuery | None
    discovery: DiscoverySpec | None
    asked_at: float
    evaluation: PlannedEvaluation | None = None

    @property
    def spec(self) -> AnyQuery:
        """The query itself, whichever it is."""
        planned = self.planned or self.evaluation
        if planned is not None:
            return planned.spec
        if self.discovery is None:
            raise AssertionError("a stored query is of one kind")
        return self.discovery


class QueryStore:
    """The queries of this ad server. Each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, spec: AnyQuery, codes: bytes, *, asked_at: float) -> None:
        """Keep a query, and what is sent beside it, before the helpers are asked."""
        kind = (
            _DISCOVERY
            if isinstance(spec, DiscoverySpec)
            else _EVALUATION
            if isinstance(spec, EvaluationSpec)
            else _QUERY
        )
        row = {
            "query_id": spec.query_id,
            "task_id": spec.task_id,
            "dataset_id": spec.dataset_id,
            "asked_at": asked_at,
            "kind": kind,
        }
        with self._engine.begin() as connection:
            connection.execute(insert(queries).values(row | {"spec": encode(spec), "codes": codes}))

    def remove(self, query_id: bytes) -> None:
        """Forget a query that both helpers refused, and so did not charge."""
        with self._engine.begin() as connection:
            connection.execute(delete(queries).where(queries.c.query_id == query_id))

    def find(self, prefix: str) -> StoredQuery:
        """The query whose id starts with these hex digits.

        Raises:
            JobRefused(UNKNOWN_QUERY): none does, or several do.
        """
        with reading(self._engine) as connection:
            query_id = find_id(connection, queries.c.query_id, prefix, missing=JobReason.UNKNOWN_QUERY)
            return _stored(connection.execute(select(queries).where(queries.c.query_id == query_id)).one())

    def of_dataset(self, dataset_id: bytes) -> tuple[AnyQuery, ...]:
        """Every query over a dataset that was asked, or was about to be, in the order of asking."""
        asked = (
            select(queries)
            .where(queries.c.dataset_id == dataset_id)
            .order_by(queries.c.asked_at, queries.c.query_id)
        )
        with reading(self._engine) as connection:
            return tuple(_stored(row).spec for row in connection.execute(asked))


def _stored(row: Any) -> StoredQuery:
    if row.kind == _DISCOVERY:
        return StoredQuery(
            planned=None, discovery=decode(DiscoverySpec, bytes(row.spec)), asked_at=row.asked_at
        )
    if row.kind == _EVALUATION:
        evaluation = PlannedEvaluation(spec=decode(EvaluationSpec, bytes(row.spec)), model=bytes(row.codes))
        return StoredQuery(planned=None, discovery=None, asked_at=row.asked_at, evaluation=evaluation)
    planned = PlannedQuery(spec=decode(QuerySpec, bytes(row.spec)), codes=bytes(row.codes))
    return StoredQuery(planned=planned, discovery=None, asked_at=row.asked_at)
