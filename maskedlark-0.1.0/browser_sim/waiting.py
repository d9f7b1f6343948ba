"""Asks an ad server again that is starting or away, and says what for."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from maskedlark.errors import HelperUnavailable

BRIEF_S: Final = 30.0
"""For an ad server that is restarting."""
LONG_S: Final = 600.0
"""For scripts that have just started one."""
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 4.0
_T = TypeVar("_T")


def patiently(
    call: Callable[[], _T],
    *,
    give_up_after_s: float,
    tell: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> _T:
    """Run a call until it does not raise `HelperUnavailable`, or so many seconds of pauses have passed.

    Args:
        call: Something that may be repeated.
        give_up_after_s: The last error is raised then.
        tell: Called with each cause that is another than the one before.
        pause: Waits for so many seconds.
    """
    waited_s, next_s, told = 0.0, _FIRST_PAUSE_S, ""
    while True:
        try:
            return call()
        except HelperUnavailable as error:
            if waited_s >= give_up_after_s:
                raise
            if str(error) != told:
                told = str(error)
                tell(told)
            pause(next_s)
            waited_s += next_s
            next_s = min(2 * next_s, _LONGEST_PAUSE_S)
