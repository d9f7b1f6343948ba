"""Ends long work early when its caller no longer waits for the result.

It calls an `Interrupt` often, and lets through what that raises.
"""

from collections.abc import Callable
from typing import TypeAlias

from maskedlark.randomness import Randomness

Interrupt: TypeAlias = Callable[[], None]
"""Called many times a second while a helper computes.

What it raises ends the computation, because the caller has gone.
"""


def never() -> None:
    """Do nothing: an `Interrupt` that never interrupts."""


def interruptible(randomness: Randomness, interrupt: Interrupt) -> Randomness:
    """Return the same bytes, calling `interrupt` before each draw.

    Samplers draw in batches, so long noise can be interrupted too.
    """

    def draw(count: int) -> bytes:
        interrupt()
        return randomness(count)

    return draw
