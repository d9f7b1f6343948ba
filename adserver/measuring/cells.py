"""The columns and rows of an answer."""

import math
from typing import Final, Protocol

from adserver.measuring.estimate import Estimate
from maskedlark.frozen import frozen
from maskedlark.privacy.mechanism import Mechanism

ANY: Final = (-math.inf, math.inf)
"""A range without ends."""


@frozen
class Column:
    """What one number of every row is.

    Attributes:
        name: For people: of a sum the value's title.
        value: The declared name of the value that is summed, or counted by bucket.
        bucket: For a histogram, the least and the largest value of the bucket, in the value's unit.
        noise_scale: Each helper's noise, in the column's unit.
        clipped_to: The least and the most that a report counts in the sum, where browsers move a number
            outside of them to the nearer one; None where they do not. No interval has that bias.
        report_range: The least and the most that a report holds, as the task declares it and browsers keep
            to it; None if it is not known. No interval goes beyond what such reports can add up to.
        counted_by: The value that counts the reports with this one, which the others hold as 0; empty if
            none is declared.
        title: What results call the value; empty: its declared name.
        parts_per_unit: How many of the integers that reports hold make one of the column's unit. An estimate
            times this is the sum of the integers, as helpers release it.
    """

    name: str
    value: str
    bucket: tuple[int, int] | tuple[float, float] | None
    noise_scale: float
    clipped_to: tuple[float, float] | None = None
    report_range: tuple[float, float] | None = None
    counted_by: str = ""
    title: str = ""
    parts_per_unit: int = 1

    @property
    def shown_value(self) -> str:
        """What results call the value."""
        return self.title or self.value

    @property
    def sum_range(self) -> tuple[float, float]:
        """The least and the most that any number of reports can add up to: 0, or infinite."""
        low, high = self.report_range or ANY
        return -math.inf if low < 0 else 0.0, math.inf if high > 0 else 0.0


@frozen
class ResultRow:
    """One cell.

    Attributes:
        group: A category or code for each key of the grouping; `(all)` where the cell is of a coarser level,
            `(rest)` for the reports outside the domain or in cells that are too small to be shown.
        estimates: One for each column.
        may_be_hidden: Whether these may be the numbers of a cell that is too small to be shown. Then the
            intervals hold what such a cell may have.
    """

    group: tuple[str, ...]
    estimates: tuple[Estimate, ...]
    may_be_hidden: bool = False


class CellTable(Protocol):
    """What the table of an answer is made of: `AggregateResult` has it."""

    @property
    def group_by(self) -> tuple[str, ...]:
        """The keys, the coarsest first."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """What the numbers are."""

    @property
    def rows(self) -> tuple[ResultRow, ...]:
        """The cells, the coarsest level first."""

    @property
    def mechanism(self) -> Mechanism:
        """The noise."""
