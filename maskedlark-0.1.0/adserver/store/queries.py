"""Queries as the ad server keeps them.

Stored before the helpers are asked, so that what was charged can always be asked for again.
"""

from sqlalchemy import Engine, delete, insert, select

from adserver.records.asked_query import PlannedQuery, S
from adserver.store.database import find_id
from adserver.store.schema import queries
from maskedlark.canonical import encode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.releases.kinds import AnyQuery, decode_query
from maskedlark.runtime.database import reading


class QueryStore:
    """The queries of this ad server. Each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, spec: AnyQuery, codes: bytes, *, asked_at: float) -> None:
        """Keep a query, and what is sent beside it, before the helpers are asked."""
        row = {
            "query_id": spec.query_id,
            "task_id": spec.task_id,
            "dataset_id": spec.dataset_id,
            "asked_at": asked_at,
            "kind": spec.kind,
        }
        with self._engine.begin() as connection:
            connection.execute(insert(queries).values(row | {"spec": encode(spec), "codes": codes}))

    def remove(self, query_id: bytes) -> None:
        """Forget a query that both helpers refused, and so did not charge."""
        with self._engine.begin() as connection:
            connection.execute(delete(queries).where(queries.c.query_id == query_id))

    def find(self, prefix: str, kind: type[S]) -> PlannedQuery[S]:
        """The query of a kind whose id starts with these hex digits.

        Raises:
            JobRefused(UNKNOWN_QUERY): no query has such an id, several do, or the one that does is of another
                kind.
        """
        with reading(self._engine) as connection:
            query_id = find_id(connection, queries.c.query_id, prefix, missing=JobReason.UNKNOWN_QUERY)
            row = connection.execute(select(queries).where(queries.c.query_id == query_id)).one()
        spec = decode_query(row.kind, row.spec)
        if not isinstance(spec, kind):
            raise JobRefused(
                JobReason.UNKNOWN_QUERY,
                f"this id is not of a release of kind {kind.kind}, but of {spec.kind}",
            )
        return PlannedQuery(spec=spec, beside=bytes(row.codes))

    def of_dataset(self, dataset_id: bytes) -> tuple[AnyQuery, ...]:
        """Every query over a dataset that was asked, or was about to be, in the order of asking."""
        asked = (
            select(queries)
            .where(queries.c.dataset_id == dataset_id)
            .order_by(queries.c.asked_at, queries.c.query_id)
        )
        with reading(self._engine) as connection:
            return tuple(decode_query(row.kind, row.spec) for row in connection.execute(asked))
