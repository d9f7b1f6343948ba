"""When an answer is charged and leaves.

A whole number of steps after its request, so that how long it took tells next to nothing.

It is charged then and not before, because a charge can be seen: in a status, in the receipt of another call,
by cancelling.

>>> slept = []
>>> ReleaseGrid(step_s=0.01, now=lambda: 5.004, sleep=slept.append).wait(since=5.0)
>>> [round(seconds, 3) for seconds in slept]
[0.006]
"""

import time
from collections.abc import Callable
from math import ceil
from typing import Final, TypeAlias

from maskedlark.frozen import frozen

DEFAULT_STEP_MS: Final = 10

Hold: TypeAlias = Callable[[], None]
"""Called with a finished answer at hand, before it is charged: returns when it may leave."""


@frozen
class ReleaseGrid:
    """A schedule of releases.

    Attributes:
        step_s: The distance of two release times, in seconds, above 0.
        now: A clock that never goes back.
        sleep: Waits for some seconds, or less once no caller is left to be answered.
    """

    step_s: float = DEFAULT_STEP_MS / 1000
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep

    def __post_init__(self) -> None:
        if not 0 < self.step_s <= 60:
            raise ValueError(f"a release grid's step is above 0 and at most 60 s, not {self.step_s}")

    def wait(self, since: float) -> None:
        """Return at the next whole number of steps, at least one, after `since`.

        Used on the finished answer, before it is charged.
        """
        steps = max(1, ceil((self.now() - since) / self.step_s))
        left = since + steps * self.step_s - self.now()
        if left > 0:
            self.sleep(left)
