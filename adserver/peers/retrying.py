"""Ask again, later each time: the one policy for a helper that does not answer."""

import logging
from collections.abc import Callable
from threading import Event
from typing import Final, TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_delay,
    stop_never,
    wait_exponential_jitter,
)
from tenacity.wait import wait_base

from maskedlark.errors import HelperUnavailable, JobReason, JobRefused
from maskedlark.frozen import frozen

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


@frozen
class Backoff:
    """How long to wait between attempts: exponential with jitter.

    Attributes:
        first_s: Before the second attempt.
        longest_s: Between any two.
        give_up_after_s: Raise the last error once this much has passed; None: never.
        tell: Called with each cause that is another than the one before; by default every attempt is logged.
    """

    first_s: float = 0.2
    longest_s: float = 15.0
    give_up_after_s: float | None = None
    tell: Callable[[HelperUnavailable], None] | None = None


BRIEF: Final = Backoff(give_up_after_s=30.0)
"""For people who wait: a helper that is restarting is given half a minute."""
LONG: Final = Backoff(give_up_after_s=600.0)
"""For scripts that have just started the helpers: the first start of one compiles for a while."""
ONCE: Final = Backoff(give_up_after_s=0.0)
"""For callers that ask again by themselves."""


def with_retries(call: Callable[[], _T], backoff: Backoff, *, cancelled: Event | None = None) -> _T:
    """Run a call until it does not raise `HelperUnavailable`; every other error is final.

    Args:
        call: Something that may be repeated.
        backoff: How long to wait, and whether to give up.
        cancelled: When it is set, a wait ends at once.

    Raises:
        HelperUnavailable: the backoff gave up.
        JobRefused(CANCELLED): `cancelled` was set while waiting.
        MaskedLarkError: what the call raised.
    """
    event = cancelled or Event()

    def wait(seconds: float) -> None:
        if event.wait(seconds):
            raise JobRefused(JobReason.CANCELLED, "cancelled while waiting for a helper")

    attempts = Retrying(
        retry=retry_if_exception_type(HelperUnavailable),
        wait=_Wait(backoff),
        stop=stop_never if backoff.give_up_after_s is None else stop_after_delay(backoff.give_up_after_s),
        sleep=wait,
        before_sleep=_log_attempt if backoff.tell is None else _Telling(backoff.tell),
        reraise=True,
    )
    return attempts(call)


class _Wait(wait_base):
    """Exponential with jitter, and never less than what the peer asked for."""

    def __init__(self, backoff: Backoff) -> None:
        # With jitter, or all callers of a helper that comes back would come at the same moment
        self._jittered = wait_exponential_jitter(
            multiplier=backoff.first_s, max=backoff.longest_s, jitter=backoff.first_s
        )

    def __call__(self, retry_state: RetryCallState) -> float:
        error = retry_state.outcome.exception() if retry_state.outcome else None
        asked_s = error.retry_after_s if isinstance(error, HelperUnavailable) else None
        return max(self._jittered(retry_state), asked_s or 0.0)


class _Telling:
    """Tells each cause once, however often it comes in a row."""

    def __init__(self, tell: Callable[[HelperUnavailable], None]) -> None:
        self._tell = tell
        self._told = ""

    def __call__(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, HelperUnavailable) and str(error) != self._told:
            self._told = str(error)
            self._tell(error)


def _log_attempt(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    wait_s = state.next_action.sleep if state.next_action else 0.0
    _LOG.warning("attempt %d failed (%s); the next in %.1f s", state.attempt_number, error, wait_s)
