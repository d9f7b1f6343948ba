"""Queries as the ad server keeps them: stored before the helpers are asked, so that what was charged can always be asked for again."""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, Double, Engine, ForeignKey, LargeBinary, String, Table, insert, select

from adserver.database import find_id, metadata, reading
from adserver.query_request import QUERY_ID_BYTES, PlannedQuery
from maskedlark.canonical import decode, encode
from maskedlark.errors import JobReason
from maskedlark.query import AnyQuery, DiscoverySpec, QuerySpec

_QUERY: Final = "query"
_DISCOVERY: Final = "discovery"

queries = Table(
    "queries",
    metadata,
    Column("query_id", LargeBinary(QUERY_ID_BYTES), primary_key=True),
    Column("task_id", LargeBinary(32), ForeignKey("tasks.task_id"), nullable=False),
    Column("dataset_id", LargeBinary(32), nullable=False),
    Column("asked_at", Double, nullable=False),  # Unix seconds
    Column("kind", String(16), nullable=False),
    Column("spec", LargeBinary, nullable=False),  # canonical
    Column("codes", LargeBinary, nullable=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredQuery:
    """A query that was asked, or was about to be.

    Attributes:
        planned: The query with its codes; None for a discovery.
        discovery: The discovery; None for a query of sums.
        asked_at: Unix seconds.
    """

    planned: PlannedQuery | None
    discovery: DiscoverySpec | None
    asked_at: float


class QueryStore:
    """The queries of this ad server. Each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, spec: AnyQuery, codes: bytes, *, asked_at: float) -> None:
        """Keep a query before the helpers are asked."""
        kind = _DISCOVERY if isinstance(spec, DiscoverySpec) else _QUERY
        row = {"query_id": spec.query_id, "task_id": spec.task_id, "dataset_id": spec.dataset_id, "asked_at": asked_at, "kind": kind}
        with self._engine.begin() as connection:
            connection.execute(insert(queries).values(row | {"spec": encode(spec), "codes": codes}))

    def find(self, prefix: str) -> StoredQuery:
        """The query whose id starts with these hex digits.

        Raises:
            JobRefused(UNKNOWN_QUERY): none does, or several do.
        """
        with reading(self._engine) as connection:
            query_id = find_id(connection, queries.c.query_id, prefix, missing=JobReason.UNKNOWN_QUERY)
            return _stored(connection.execute(select(queries).where(queries.c.query_id == query_id)).one())


def _stored(row: Any) -> StoredQuery:
    if row.kind == _DISCOVERY:
        return StoredQuery(planned=None, discovery=decode(DiscoverySpec, bytes(row.spec)), asked_at=row.asked_at)
    planned = PlannedQuery(spec=decode(QuerySpec, bytes(row.spec)), codes=bytes(row.codes))
    return StoredQuery(planned=planned, discovery=None, asked_at=row.asked_at)
