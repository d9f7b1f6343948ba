"""A device's logs under LINE's rule: each is in at most one update, and is deleted before the update leaves.

    logs = OneUseLogs(fresh=(b"log 1", b"log 2"))
    taken = logs.take(2)                                # the logs to train on, and the state to store first
    taken.rest.used_events, taken.rest.user_epsilon(sigma, delta)

A log is *fresh*, then *taken*, and there is no way back: a device that dies between taking and sending has
lost the log, which costs utility and no privacy. The device stores the state after `take` before it trains.
"""

import math
from dataclasses import replace

from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.privacy.composing.analytic_gaussian import gaussian_epsilon


@frozen
class OneUseLogs:
    """What a device remembers of its logs.

    Attributes:
        fresh: Logs that no update used yet, oldest first.
        used_events: How many updates were made: each had an event's epsilon.
    """

    fresh: tuple[bytes, ...] = ()
    used_events: int = 0

    def take(self, count: int) -> "_Taken":
        """Take the oldest logs for one update.

        Raises:
            JobRefused(WRONG_STATE): fewer fresh logs than asked.
        """
        if not 1 <= count <= len(self.fresh):
            raise JobRefused(
                JobReason.WRONG_STATE,
                f"an update of {count} logs was asked, and {len(self.fresh)} are fresh: wait for new ones",
            )
        rest = replace(self, fresh=self.fresh[count:], used_events=self.used_events + 1)
        return _Taken(logs=self.fresh[:count], rest=rest)

    def user_epsilon(self, sigma: float, delta: float) -> float:
        """Return the *user's* epsilon, all of whose events may change: updates compose, unlike for one event.

        Args:
            sigma: Each update's analytic sigma, at sensitivity 1.
            delta: Of the whole.
        """
        if not self.used_events:
            return 0.0
        # Exact: n Gaussian updates together are as private as one with sigma / sqrt n.
        return gaussian_epsilon(sigma / math.sqrt(self.used_events), delta)


@frozen
class _Taken:
    """Logs for one update, and the state without them."""

    logs: tuple[bytes, ...]
    rest: OneUseLogs
