"""Queries as the ad server keeps them.

Stored before the helpers are asked, so that what was charged can always be asked for again.
"""

from typing import Any, Final

from sqlalchemy import Engine, delete, insert, select

from adserver.records.asked_query import AskedQuery, PlannedEvaluation, PlannedQuery
from adserver.store.database import find_id
from adserver.store.schema import queries
from maskedlark.canonical import decode, encode
from maskedlark.errors import JobReason
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.kinds import AnyQuery
from maskedlark.releases.query import QuerySpec
from maskedlark.runtime.database import reading

_QUERY: Final = "query"
_DISCOVERY: Final = "discovery"
_EVALUATION: Final = "evaluation"


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

    def find(self, prefix: str) -> AskedQuery:
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


def _stored(row: Any) -> AskedQuery:
    if row.kind == _DISCOVERY:
        return AskedQuery(
            planned=None, discovery=decode(DiscoverySpec, bytes(row.spec)), asked_at=row.asked_at
        )
    if row.kind == _EVALUATION:
        evaluation = PlannedEvaluation(spec=decode(EvaluationSpec, bytes(row.spec)), model=bytes(row.codes))
        return AskedQuery(planned=None, discovery=None, asked_at=row.asked_at, evaluation=evaluation)
    planned = PlannedQuery(spec=decode(QuerySpec, bytes(row.spec)), codes=bytes(row.codes))
    return AskedQuery(planned=planned, discovery=None, asked_at=row.asked_at)
