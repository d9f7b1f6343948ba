"""Queries as the ad server keeps them.

Stored before the helpers are asked, so that what was charged can always be asked for again.
"""

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from sqlalchemy import ColumnElement, Engine, delete, func, select

from adserver.records.asked_query import AskedWords, ChosenId, PlannedQuery, S, StoredAnswer, discovery_id
from adserver.store.audit_log import log_act
from adserver.store.change_token import TIMES_ASKED
from adserver.store.database import find_id, insert_or_ignore
from adserver.store.paging import PageMarker, newest_first
from adserver.store.schema import datasets, queries, query_answers
from maskedlark.audit_log import AuditAct
from maskedlark.canonical import encode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.privacy.accounting import Epsilons
from maskedlark.runtime.database import reading

if TYPE_CHECKING:
    from maskedlark.releases.discovery import DiscoverySpec
    from maskedlark.releases.kinds import AnyQuery

_NUMBERS: Final = np.dtype("<i8")


@frozen
class AskedQuery:
    """A query as stored.

    Attributes:
        spec: What was asked.
        asked_at: Unix seconds.
        is_answered: Whether its answer is stored too.
        words: What it was asked in.
    """

    spec: "AnyQuery"
    asked_at: float
    is_answered: bool
    words: AskedWords = field(default_factory=AskedWords)


class QueryStore:
    """The queries of this ad server. Each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, planned: PlannedQuery[S], *, asked_at: float, request: bytes | None = None) -> bool:
        """Store a query, and what is sent with it, before the helpers are asked.

        Args:
            planned: The query.
            asked_at: Unix seconds.
            request: `ChosenId.request`; without it nothing may be asked under the id again.

        Returns:
            Whether there was none of its id; what is there stays.
        """
        spec = planned.spec
        row = {
            "query_id": spec.query_id,
            "task_id": spec.task_id,
            "dataset_id": spec.dataset_id,
            "asked_at": asked_at,
            "kind": spec.kind,
            "spec": encode(spec),
            "codes": planned.beside,
            "words": planned.words.to_json(),
            "request": request,
        }
        added = insert_or_ignore(self._engine, queries, ["query_id"]).returning(queries.c.query_id)
        with self._engine.begin() as connection:
            # Returned only where it was inserted, which says in one statement whether it was asked before.
            rows = connection.execute(added.values(row))
            is_new = rows.one_or_none() is not None
            if is_new:
                log_act(
                    connection,
                    AuditAct.ASK_QUERY,
                    task=spec.task_id.hex(),
                    dataset=spec.dataset_id.hex(),
                    query=spec.query_id.hex(),
                    kind=spec.kind,
                )
            return is_new

    def before(self, chosen: ChosenId, kind: type[S]) -> PlannedQuery[S] | None:
        """Return the earlier query, evaluation or discovery under a request's id.

        None: it was not asked yet.

        Raises:
            JobRefused(QUERY_CHANGED): something else was asked under the id.
        """
        ids = (chosen.query_id, chosen.of_discovery)
        with reading(self._engine) as connection:
            rows = connection.execute(select(queries).where(queries.c.query_id.in_(ids))).all()
        # The whole request counts, its discovery's too: the answer to another one would be a wrong answer.
        if any(row.request != chosen.request for row in rows):
            raise JobRefused(
                JobReason.QUERY_CHANGED,
                "a different request was made with this query id: repeat the first request, or use a new id",
            )
        for row in rows:
            spec = _decode(row.kind, row.spec)
            if isinstance(spec, kind):
                return _planned(spec, row)
        return None

    def discovery_before(self, query_id: bytes) -> "DiscoverySpec | None":
        """Return the discovery that found the groups of a query; None of a query with none."""
        from maskedlark.releases.discovery import DiscoverySpec

        with reading(self._engine) as connection:
            of = select(queries).where(queries.c.query_id == discovery_id(query_id))
            row = connection.execute(of).one_or_none()
        spec = None if row is None else _decode(row.kind, row.spec)
        return spec if isinstance(spec, DiscoverySpec) else None

    def remove(self, query_id: bytes) -> None:
        """Forget a query that both helpers refused, and so did not charge; an answered one stays."""
        with self._engine.begin() as connection:
            connection.execute(delete(queries).where(queries.c.query_id == query_id, ~_IS_ANSWERED))

    def keep_answer(self, query_id: bytes, answer: StoredAnswer) -> None:
        """Keep what both helpers answered together; an answer that is there stays: it is the same."""
        row = {
            "query_id": query_id,
            "total": answer.total.astype(_NUMBERS).tobytes(),
            "epsilon": answer.dataset_spent.ad_server,
            "collusion_epsilon": answer.dataset_spent.colluding,
        }
        with self._engine.begin() as connection:
            connection.execute(insert_or_ignore(self._engine, query_answers, ["query_id"]).values(row))

    def answer(self, query_id: bytes) -> StoredAnswer | None:
        """Return both helpers' stored answer to a query, or None."""
        asked = select(query_answers).where(query_answers.c.query_id == query_id)
        with reading(self._engine) as connection:
            row = connection.execute(asked).one_or_none()
        if row is None:
            return None
        return StoredAnswer(
            total=np.frombuffer(row.total, _NUMBERS).astype(np.int64),
            dataset_spent=Epsilons(ad_server=row.epsilon, colluding=row.collusion_epsilon),
        )

    def page(
        self, *, limit: int, before: PageMarker | None = None, kinds: Sequence[str] = ()
    ) -> tuple[AskedQuery, ...]:
        """Return up to `limit` queries, newest first; optionally before a place, and of some kinds."""
        asked = newest_first(_STORED, queries.c.asked_at, queries.c.query_id, before=before, limit=limit)
        with reading(self._engine) as connection:
            rows = connection.execute(asked.where(queries.c.kind.in_(kinds)) if kinds else asked)
            return tuple(_read_row(row) for row in rows)

    def all(self) -> tuple[AskedQuery, ...]:
        """Return every query of any kind, oldest first."""
        with reading(self._engine) as connection:
            rows = connection.execute(_STORED.order_by(queries.c.asked_at, queries.c.query_id))
            return tuple(_read_row(row) for row in rows)

    def some(self, query_ids: Sequence[bytes]) -> tuple[AskedQuery, ...]:
        """Return those of some queries that there are, of any kind."""
        with reading(self._engine) as connection:
            rows = connection.execute(_STORED.where(queries.c.query_id.in_(query_ids)))
            return tuple(_read_row(row) for row in rows)

    def stamps(self, task_ids: Sequence[bytes]) -> dict[tuple[bytes, bytes], tuple[int, int]]:
        """Return, by task and dataset, a value that changes whenever a query comes or is removed."""
        asked = (
            select(datasets.c.task_id, queries.c.dataset_id, func.count(), TIMES_ASKED)
            .join(datasets, datasets.c.dataset_id == queries.c.dataset_id)
            .where(datasets.c.task_id.in_(task_ids))
            .group_by(datasets.c.task_id, queries.c.dataset_id)
        )
        with reading(self._engine) as connection:
            return {
                (bytes(task), bytes(dataset)): (int(count), int(times))
                for task, dataset, count, times in connection.execute(asked)
            }

    def find_any(self, prefix: str) -> AskedQuery:
        """Return the query of any kind whose id starts with these hex digits.

        Raises:
            JobRefused(UNKNOWN_QUERY): no query has such an id, or several do.
        """
        with reading(self._engine) as connection:
            query_id = find_id(connection, queries.c.query_id, prefix, missing=JobReason.UNKNOWN_QUERY)
            return _read_row(connection.execute(_STORED.where(queries.c.query_id == query_id)).one())

    def find(self, prefix: str, kind: type[S]) -> PlannedQuery[S]:
        """Return the query of a kind whose id starts with these hex digits.

        Raises:
            JobRefused(UNKNOWN_QUERY): no query has such an id, several do, or the one that does is of another
                kind.
        """
        with reading(self._engine) as connection:
            query_id = find_id(connection, queries.c.query_id, prefix, missing=JobReason.UNKNOWN_QUERY)
            row = connection.execute(select(queries).where(queries.c.query_id == query_id)).one()
        spec = _decode(row.kind, row.spec)
        if not isinstance(spec, kind):
            raise JobRefused(
                JobReason.UNKNOWN_QUERY,
                f"this id belongs to a release of kind {spec.kind}, not {kind.kind}",
            )
        return _planned(spec, row)

    def of_dataset(self, dataset_id: bytes) -> "tuple[AnyQuery, ...]":
        """Return every query over a dataset, sent or about to be, in order."""
        asked = (
            select(queries)
            .where(queries.c.dataset_id == dataset_id)
            .order_by(queries.c.asked_at, queries.c.query_id)
        )
        with reading(self._engine) as connection:
            return tuple(_decode(row.kind, row.spec) for row in connection.execute(asked))


_IS_ANSWERED: Final[ColumnElement[Any]] = (
    select(query_answers.c.query_id).where(query_answers.c.query_id == queries.c.query_id).exists()
)
_STORED: Final = select(
    queries.c.kind, queries.c.spec, queries.c.asked_at, queries.c.words, _IS_ANSWERED.label("is_answered")
)


def _read_row(row: Any) -> AskedQuery:
    return AskedQuery(
        spec=_decode(row.kind, row.spec),
        asked_at=row.asked_at,
        is_answered=bool(row.is_answered),
        words=AskedWords.from_json(row.words),
    )


def _planned(spec: S, row: Any) -> PlannedQuery[S]:
    return PlannedQuery(spec=spec, beside=bytes(row.codes), words=AskedWords.from_json(row.words))


def _decode(kind: str, encoded: bytes) -> "AnyQuery":
    """Decode a stored query, importing the modules of all kinds only here."""
    from maskedlark.releases.kinds import decode_query

    return decode_query(kind, encoded)
