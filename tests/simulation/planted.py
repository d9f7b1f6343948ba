"""Planted bugs of a helper's ledger, which the simulations must catch."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import delete, insert

from helper.ledger.ledger import Ledger
from helper.ledger.records import StoredQuery
from helper.ledger.schema import QUERIES
from maskedlark.audit_log import THIS_SERVICE, AuditAct
from maskedlark.canonical import encode

_add_query = Ledger.add_query


def answers_queries_for_nothing(*_: Any) -> bool:
    return True


def charges_queries_twice(
    ledger: Ledger, stored: StoredQuery, check: Callable[..., None], *actor: Any
) -> bool:
    """Under two ids, both logged; the second charge escapes the check of the budget."""
    is_new = _add_query(ledger, stored, check, *actor)
    if is_new:
        spec = stored.spec
        row = {"task_id": spec.task_id, "query_id": spec.query_id[::-1], "dataset_id": spec.dataset_id}
        with ledger._engine.begin() as connection:
            # Without its entry the ledger would not open again, and the charge be found by that.
            entry = ledger._log(connection, THIS_SERVICE, AuditAct.ANSWER_QUERY).sequence
            connection.execute(
                insert(QUERIES).values(
                    row | {"kind": spec.kind, "spec": encode(spec), "answer": stored.answer, "entry": entry}
                )
            )
    return is_new


def answers_queries_anew(
    ledger: Ledger, stored: StoredQuery, check: Callable[..., None], *actor: Any
) -> bool:
    """Each time with fresh noise, in place of what was stored."""
    with ledger._engine.begin() as connection:
        connection.execute(delete(QUERIES).where(QUERIES.c.query_id == stored.spec.query_id))
    return _add_query(ledger, stored, check, *actor)


def never(*_: Any, **__: Any) -> None:
    return None
