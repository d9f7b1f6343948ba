"""What a helper's own operator does, for its audit log: starts, other floors, other keys.

Floors and keys come with the process and in a file, so that no transaction holds them: a helper compares them
with the newest entry at its start, and its keys every minute, and logs what differs. So a change is there
before the first task is signed under it, whoever made it; `lark-helper keys rotate` also names its user.
"""

from dataclasses import asdict
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from helper.core import VERSION, HelperCore
from helper.trust.floors import Floors
from helper.trust.key_ring import Ring
from helper.trust.keys import log_keys
from maskedlark.audit_log import THIS_SERVICE, AuditAct, Deed
from maskedlark.errors import JobRefused
from maskedlark.runtime.periodic import Periodic

EVERY_S: Final = 60.0


class OwnActs:
    """The acts of a serving helper's operator."""

    def __init__(self, core: HelperCore, floors: Floors) -> None:
        """Log to the core's ledger."""
        self._core = core
        self._floors = floors
        self._logged = Ring()

    def log_start(self) -> None:
        """Log that the helper starts, and what its operator changed since it last did.

        Nothing is written to a ledger that was rolled back.
        """
        try:
            self._core.witness.check(None)
        except JobRefused:
            return
        started = Deed(act=AuditAct.START_SERVICE, actor=THIS_SERVICE, subject=(("version", VERSION),))
        self._core.ledger.log(started)
        self._core.ledger.log_change(AuditAct.SET_FLOORS, _describe(self._floors))
        self._log_keys()

    def periodic(self) -> Periodic:
        """Return the task that logs keys that changed, and refusals that were counted."""
        return Periodic(
            lambda _: self._look(), name="audit log", every_s=EVERY_S, survives=(OSError, SQLAlchemyError)
        )

    def _look(self) -> None:
        try:
            self._core.witness.check(None)
        except JobRefused:
            return
        self._core.refused.flush()
        self._log_keys()

    def _log_keys(self) -> None:
        ring = self._core.ring
        # `log_keys` compares too, but takes a transaction each minute for it.
        if ring != self._logged:
            log_keys(self._core.ledger, ring, THIS_SERVICE)
            self._logged = ring


def _describe(floors: Floors) -> dict[str, str]:
    return {
        name: " ".join(sorted(value)) if isinstance(value, frozenset) else str(value)
        for name, value in asdict(floors).items()
    }
