"""Tells whether a service is well. Any caller may ask, as often as it likes.

Asked at most once a second, by one of them at a time.
"""

import logging
from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import Final

FRESH_S: Final = 1.0
STALE_S: Final = 10.0
_LOG: Final = logging.getLogger(__name__)


class Wellness:
    """The last result of a health check.

    Safe to call from many threads: while one of them runs the check, the others get the previous result.
    """

    def __init__(self, check: Callable[[], object], clock: Callable[[], float] = monotonic) -> None:
        """Start healthy.

        Args:
            check: Returns if the service is well, and raises if not; it may take its time.
            clock: Seconds, never set back.
        """
        self._check = check
        self._clock = clock
        self._finding_out = Lock()
        self._asked_at = clock() - FRESH_S  # so that the first question runs the check
        self._is_well = True

    @property
    def is_well(self) -> bool:
        """True if the check succeeded last time, at most `FRESH_S` ago.

        A change for the worse is logged with its cause.

        While a check runs, the previous result counts. After `STALE_S` without a new one the service is not
        well, because what the check looks at does not answer.
        """
        if not self._finding_out.acquire(blocking=False):
            return self._is_well and self._clock() - self._asked_at < STALE_S
        try:
            if self._clock() - self._asked_at >= FRESH_S:
                # Before the check: one that never returns makes this result stale.
                self._asked_at = self._clock()
                self._find_out()
        finally:
            self._finding_out.release()
        return self._is_well

    def _find_out(self) -> None:
        try:
            self._check()
        except Exception:  # noqa: BLE001  whatever it is: the service is not well
            if self._is_well:
                _LOG.exception("not well")
            self._is_well = False
        else:
            self._is_well = True
