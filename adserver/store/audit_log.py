"""The audit log of this ad server: its entries are written in the transactions of the acts.

with acting_as(actor):
    JobStore(engine, clock).cancel(job_id)     # one transaction: the job's state and the entry

An act without an actor is of the user of the operating system: at a command line, and in a program that uses
`Client` over a data folder. `adserver.admin` names the holder of the grant.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from sqlalchemy import Connection, Engine

from adserver.store.schema import audit_log
from maskedlark.audit_log import Actor, AuditAct, Deed
from maskedlark.runtime.audit_table import AuditTable, local_user

LOG: Final = AuditTable(audit_log)
_ACTOR: Final[ContextVar[Actor | None]] = ContextVar("actor", default=None)


@contextmanager
def acting_as(actor: Actor) -> Iterator[None]:
    """Name the actor of what this thread does in the block."""
    before = _ACTOR.set(actor)
    try:
        yield
    finally:
        _ACTOR.reset(before)


def log_act(connection: Connection, act: AuditAct, **subject: str) -> None:
    """Log an act that a transaction has done, as its last statement."""
    # Last in its transaction, because entries are chained: others that log wait for it until the commit.
    actor = _ACTOR.get() or local_user()
    LOG.append(connection, Deed(act=act, actor=actor, subject=tuple(subject.items())), at=time.time())


def log_refusal(engine: Engine, deed: Deed) -> None:
    """Log an act that was refused, in a separate transaction."""
    with engine.begin() as connection:
        LOG.append(connection, deed, at=time.time())
