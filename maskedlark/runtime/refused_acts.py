"""Entries of an audit log for refused acts, bounded, so that a caller cannot fill the disk with refusals.

The first refusal of an act to an actor for a reason is an entry at once. Those like it are counted, and their
number is one entry when the hour is over. An hour has room for `MOST_AN_HOUR` different ones, a quarter of
them for one actor; all others of the hour are one entry together. So refusals make at most
2 * MOST_AN_HOUR + 1 entries an hour, however many calls come. Numbers of the hour that have not been written
when a process is killed are lost; acts that were done never are.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from threading import Lock
from typing import Final, TypeAlias

from sqlalchemy.exc import SQLAlchemyError

from maskedlark.audit_log import THIS_SERVICE, Actor, AuditAct, Deed
from maskedlark.errors import HelperUnavailable, JobReason, MaskedLarkError

MOST_AN_HOUR: Final = 64
MOST_OF_ONE: Final = MOST_AN_HOUR // 4
_HOUR_S: Final = 3_600.0
# The outcome of the entry that stands for refusals without one of their own
_MANY: Final = "many"

# The outcome where the error has no reason: `InvalidTask`
_INVALID: Final = "invalid_task"
# Of a caller that has gone, a bug, and a database that must not be written any more
_NO_DECISION: Final = frozenset({JobReason.CANCELLED, JobReason.PEER_FAILED, JobReason.LEDGER_ROLLED_BACK})
_LOG: Final = logging.getLogger(__name__)

_Key: TypeAlias = tuple[AuditAct, Actor, str]


class RefusedActs:
    """The refused acts of one process. Safe to share between threads."""

    def __init__(self, write: Callable[[Deed], None], elapsed: Callable[[], float] = time.monotonic) -> None:
        """Log refusals by `write`, each in a separate transaction; `elapsed` counts seconds."""
        self._write = write
        self._elapsed = elapsed
        self._lock = Lock()
        self._since_s = elapsed()
        self._again: dict[_Key, int] = {}
        self._others = 0

    def add(self, act: AuditAct, actor: Actor, error: MaskedLarkError | str) -> None:
        """Log that an act was refused, if the error says so: not if its caller may try again, or has gone.

        `error` may be the code of a refusal that has no error.
        """
        reason = error if isinstance(error, str) else _reason_of(error)
        if reason is None:
            return
        key = (act, actor, reason)
        with self._lock:
            overdue = self._take() if self._elapsed() - self._since_s >= _HOUR_S else []
            is_new = key not in self._again
            if not is_new:
                self._again[key] += 1
            elif self._has_room(actor):
                self._again[key] = 0
                overdue.append(_deed(key, 1))
            else:
                self._others += 1
        self._write_all(overdue)

    def flush(self, *, is_over: bool = False) -> None:
        """Write what the hour has counted, if it is over, or the process ends."""
        with self._lock:
            overdue = self._take() if is_over or self._elapsed() - self._since_s >= _HOUR_S else []
        self._write_all(overdue)

    def _has_room(self, actor: Actor) -> bool:
        of_whom = Counter(_whose(other) for _, other, _ in self._again)
        return len(self._again) < MOST_AN_HOUR and of_whom[_whose(actor)] < MOST_OF_ONE

    def _take(self) -> list[Deed]:
        """Begin a new hour, and return the entries of the last one."""
        taken = [_deed(key, count) for key, count in self._again.items() if count]
        if self._others:
            other = Deed(act=AuditAct.OTHER_REFUSALS, actor=THIS_SERVICE, outcome=_MANY, count=self._others)
            taken.append(other)
        self._again, self._others, self._since_s = {}, 0, self._elapsed()
        return taken

    def _write_all(self, deeds: list[Deed]) -> None:
        for deed in deeds:
            try:
                self._write(deed)
            except SQLAlchemyError as error:  # the caller is refused all the same
                _LOG.warning("a refusal is missing in the audit log: %s", type(error).__name__)


def _reason_of(error: MaskedLarkError) -> str | None:
    """Return the code of a refusal; None for an error that is no decision about the caller."""
    if isinstance(error, HelperUnavailable):
        return None
    reason = getattr(error, "reason", None)
    if reason is None:
        return _INVALID
    return None if reason in _NO_DECISION else str(reason.value)


def _whose(actor: Actor) -> tuple[str, str]:
    """Return what counts as one actor: its names, however many certificates hold them, or its address."""
    return actor.name, "" if actor.name else actor.address


def _deed(key: _Key, count: int) -> Deed:
    act, actor, reason = key
    return Deed(act=act, actor=actor, outcome=reason, count=count)
