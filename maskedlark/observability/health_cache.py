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
    """The last answer to one question.

    Safe to ask from many threads; who asks while another one finds out gets the answer before.
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
        self._asked_at = clock() - FRESH_S
        self._is_well = True

    @property
    def is_well(self) -> bool:
        """True if the check succeeded last time, at most `FRESH_S` ago.

        A change for the worse is logged with its cause.

        While the check takes its time, what was known before; but not well once that has been `STALE_S`, for
        what it looks at hangs.
        """
        if not self._finding_out.acquire(blocking=False):
            return self._is_well and self._clock() - self._asked_at < STALE_S
        try:
            if self._clock() - self._asked_at >= FRESH_S:
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
