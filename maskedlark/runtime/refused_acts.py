"""Entries of an audit log for refused acts, bounded, so that a caller cannot fill the disk with refusals.

The first refusal of an act to an actor for a reason is an entry at once, with the ids that the call named and
the refusal's text, and a line of the process's log. Those like it are counted, and their number is one entry
when the hour is over. Refusals that differ in an id or the text alone have entries of their own up to
`MOST_ALIKE`; the next ones are one entry that says so. An hour has room for `MOST_AN_HOUR` different ones,
a quarter of them for one actor; all others of the hour are one entry together. So refusals make at most
2 * MOST_AN_HOUR + 1 entries an hour, however many calls come. Numbers of the hour that have not been written
when a process is killed are lost; acts that were done never are.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Final, TypeAlias

from sqlalchemy.exc import SQLAlchemyError

from maskedlark.audit_log import THIS_SERVICE, Actor, AuditAct, Deed, clean_name
from maskedlark.errors import HelperUnavailable, JobReason, MaskedLarkError

MOST_AN_HOUR: Final = 64
MOST_OF_ONE: Final = MOST_AN_HOUR // 4
MOST_ALIKE: Final = 8
"""Entries an hour of one act, actor and reason that differ in ids and text."""
WHY: Final = "why"
"""The name of the refusal's text in an entry's subject."""
_HOUR_S: Final = 3_600.0
# Instead of ids and texts of refusals that are too many
_MORE: Final = (
    (WHY, "further refusals of this hour, for this and other causes: their texts went to the callers"),
)
# The outcome of the entry that stands for refusals without one of their own
_MANY: Final = "many"

# The outcome where the error has no reason: `InvalidTask`
_INVALID: Final = "invalid_task"
# Of a caller that has gone, a bug, and a database that must not be written any more
_NO_DECISION: Final = frozenset({JobReason.CANCELLED, JobReason.PEER_FAILED, JobReason.LEDGER_ROLLED_BACK})
_LOG: Final = logging.getLogger(__name__)

_Subject: TypeAlias = tuple[tuple[str, str], ...]
_Key: TypeAlias = tuple[AuditAct, Actor, str, _Subject]


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

    def add(
        self,
        act: AuditAct,
        actor: Actor,
        error: MaskedLarkError | str,
        subject: Mapping[str, str] | None = None,
    ) -> None:
        """Log that an act was refused, if the error says so: not if its caller may try again, or has gone.

        Args:
            act: The act.
            actor: The caller.
            error: The refusal, or the code of one that has no error.
            subject: The public ids that the call named.
        """
        reason = error if isinstance(error, str) else _reason_of(error)
        if reason is None:
            return
        named = dict(subject or {})
        if not isinstance(error, str) and str(error):
            named[WHY] = clean_name(str(error))
        with self._lock:
            overdue = self._take() if self._elapsed() - self._since_s >= _HOUR_S else []
            key = self._key(act, actor, reason, tuple(named.items()))
            is_logged = key not in self._again and self._has_room(actor)
            if key in self._again:
                self._again[key] += 1
            elif is_logged:
                self._again[key] = 0
                overdue.append(_deed(key, 1))
            else:
                self._others += 1
        # As seldom as an entry, so that no caller fills the log either
        if is_logged and WHY in named:
            whose = actor.name or actor.kind.value
            ids = "".join(f", {name} {value}" for name, value in named.items() if name != WHY)
            _LOG.warning("refused %s of %s%s: %s: %s", act.value, whose, ids, reason, named[WHY])
        self._write_all(overdue)

    def _key(self, act: AuditAct, actor: Actor, reason: str, subject: _Subject) -> _Key:
        """Return what a refusal is counted by: without its subject if there are too many that are alike."""
        key = (act, actor, reason, subject)
        alike = sum(other[:3] == key[:3] for other in self._again)
        return key if key in self._again or alike < MOST_ALIKE else (act, actor, reason, _MORE)

    def flush(self, *, is_over: bool = False) -> None:
        """Write what the hour has counted, if it is over, or the process ends."""
        with self._lock:
            overdue = self._take() if is_over or self._elapsed() - self._since_s >= _HOUR_S else []
        self._write_all(overdue)

    def _has_room(self, actor: Actor) -> bool:
        of_whom = Counter(_whose(other) for _, other, _, _ in self._again)
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
    act, actor, reason, subject = key
    return Deed(act=act, actor=actor, subject=subject, outcome=reason, count=count)
