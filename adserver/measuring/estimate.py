"""One number with its 99 % interval, and how people read it.

>>> print(Estimate(value=40.0, standard_error=1.0, low=37.0, high=43.0))
40.0 ± 3.0
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum, unique
from typing import Final, assert_never

from maskedlark.frozen import frozen
from maskedlark.privacy.mechanism import Mechanism

UNKNOWN: Final = "unknown"
"""Of a figure that an answer says nothing about, such as the mean over a group that may be empty."""
FIGURES: Final = ("value", "standard_error", "low", "high")
"""The numbers of an estimate, as attributes and at the end of the names of columns."""
# Of half an interval: an estimate is so far from its middle where both ends are printed
_UNEVEN: Final = 0.05


@unique
class NoInterval(StrEnum):
    """Why a number has no interval that would cover as it says."""

    NOISE = "noise"
    """At this noise too few records are left to divide by."""
    RECORDS = "records"
    """Without noise, there are too few records to divide by."""

    @property
    def said(self) -> str:
        """What people read instead of an interval."""
        match self:
            case NoInterval.NOISE:
                return "no interval at this noise"
            case NoInterval.RECORDS:
                return "no interval: too few records"
            case _:
                assert_never(self)


@frozen
class Estimate:
    """One number.

    Attributes:
        value: The estimate.
        standard_error: Of the noise; in an evaluation, of the sampling of records too.
        low: Where the 99 % interval begins.
        high: Where it ends.
        no_interval: Why the interval is missing; then it is without bounds.
    """

    value: float
    standard_error: float
    low: float
    high: float
    no_interval: NoInterval | None = None

    def __str__(self) -> str:
        """Show the value with half of its interval, with both ends if they are not even, or with why none is.

        Such as of a noisy count near 0: "5 ± 14" would reach below.
        """
        if not math.isfinite(self.value):
            return UNKNOWN
        if self.no_interval is NoInterval.NOISE:
            return f"{UNKNOWN} ({self.no_interval.said})"
        if self.no_interval is not None:
            return f"{self.value:,.3g} ({self.no_interval.said})"
        # Without noise and sampling the figure is exact
        if self.low == self.value == self.high:
            return f"{self.value:,.6g}" if self.value % 1 else f"{self.value:,.0f}"
        half = (self.high - self.low) / 2
        # Two significant digits of the half, and the estimate to the same place
        digits = max(0, 1 - math.floor(math.log10(half))) if 0 < half < math.inf else 2

        def told(number: float) -> str:
            # What rounds to 0 has no sign
            return f"{round(number, digits) + 0.0:,.{digits}f}"

        if self._is_uneven(half):
            return f"{told(self.value)} ({told(self.low)} to {told(self.high)})"
        return f"{told(self.value)} ± {told(half)}"

    def _is_uneven(self, half: float) -> bool:
        """Return whether ± half an interval is not the interval."""
        if abs(self.value - self.low - half) > _UNEVEN * half:
            return True
        # An interval ends at what is possible: a sum at 0, a share at 0 or 1. No number beyond may be read
        return any(
            self.low == end > self.value - half or self.high == end < self.value + half for end in (0, 1)
        )

    def within(self, least: float, most: float) -> "Estimate":
        """Return the estimate with an interval of possible numbers only, from `least` to `most`.

        The estimate stays as noise left it, and may lie outside. Its interval is then moved with
        it to the nearer end: a few numbers next to that end would look like certainty.

        Guarantees: the interval covers at least as often as before if the true number is possible.
        """
        # Without an interval its ends are infinite, and stay so
        if self.no_interval is not None:
            return self
        moved = min(max(self.value, least), most) - self.value
        low, high = self.low + min(moved, 0.0), self.high + max(moved, 0.0)
        return replace(self, low=min(max(low, least), most), high=max(min(high, most), least))

    @classmethod
    def or_none(
        cls, value: float, standard_error: float, low: float, high: float, mechanism: Mechanism
    ) -> "Estimate":
        """Return an estimate; where an end of the interval is NaN, one that says why there is no interval."""
        if not math.isnan(low + high):
            return cls(value=value, standard_error=standard_error, low=low, high=high)
        reason = NoInterval.RECORDS if mechanism is Mechanism.NONE else NoInterval.NOISE
        return replace(NOT_KNOWN, value=value, no_interval=reason)


def figure_columns(names: Iterable[str]) -> list[str]:
    """Return the names of columns, in files, frames and Arrow streams, of estimates with these names."""
    return [f"{name} {figure}" for name in names for figure in FIGURES]


NOT_KNOWN: Final = Estimate(
    value=math.nan, standard_error=math.inf, low=-math.inf, high=math.inf, no_interval=NoInterval.NOISE
)
"""Of what an answer says nothing about."""


def spell(number: float, digits: int = 6) -> str:
    """Format a number to some digits; a larger one to the unit, for people do not read exponents."""
    # What rounds to one digit more would have an exponent, too
    return f"{number:,.0f}" if abs(number) >= 10**digits - 0.5 else f"{number:,.{digits}g}"


def format_cell(estimate: Estimate, *, may_be_hidden: bool) -> str:
    """Format an estimate of a row; of one that may be hidden, what such a cell may have."""
    # If it is hidden, the estimate is noise around zero: only the interval holds either way
    if may_be_hidden and estimate.no_interval is None:
        return f"{estimate.low:,.0f} to {estimate.high:,.0f} (may be hidden)"
    return str(estimate)


def format_mean(estimate: Estimate, *, may_be_hidden: bool) -> str:
    """Format a mean or another statistic of a row, of which numbers near noise say nothing."""
    return UNKNOWN if may_be_hidden or estimate.no_interval else str(estimate)
