"""What a query says, with how far to trust it and what it cost.

And the statistics that follow from its sums at no further cost.
"""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from adserver.records.frames import frame
from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.measurement import COUNT

if TYPE_CHECKING:
    import pandas as pd

CONFIDENCE: Final = 0.99
ALL: Final = "(all)"
REST: Final = "(rest)"


@frozen
class Estimate:
    """One number.

    Attributes:
        value: The estimate.
        standard_error: Of the noise.
        low: Where the 99 % interval begins.
        high: Where it ends.
    """

    value: float
    standard_error: float
    low: float
    high: float

    def named(self, name: str) -> dict[str, float]:
        """Return the four numbers as columns of a table."""
        return {
            name: self.value,
            f"{name}_standard_error": self.standard_error,
            f"{name}_low": self.low,
            f"{name}_high": self.high,
        }


NOT_KNOWN: Final = Estimate(value=math.nan, standard_error=math.inf, low=-math.inf, high=math.inf)
"""Of what an answer says nothing about."""


@frozen
class Column:
    """What one number of every row is.

    Attributes:
        name: For people.
        value: The value that is summed, or counted by bucket.
        bucket: For a histogram, the least and the largest value of the bucket.
        noise_scale: Each helper's noise, in the column's own unit.
    """

    name: str
    value: str
    bucket: tuple[int, int] | None
    noise_scale: float


@frozen
class ResultRow:
    """One cell.

    Attributes:
        group: A category or code for each key of the grouping; `ALL` where the cell is of a coarser level,
            `REST` for the reports outside the domain or in cells that are too small to be shown.
        estimates: One for each column.
    """

    group: tuple[str, ...]
    estimates: tuple[Estimate, ...]


@frozen
class ReleasedResult:
    """What every answer says of itself.

    Attributes:
        query_id: Hex; the same query or evaluation may be asked again for nothing.
        task_id: Hex.
        dataset_id: Hex.
        mechanism: The noise.
        records: Reports in the dataset, fake ones included.
        delta: What all epsilons are read at.
        cost: Of this release, with what it took to discover a query's groups.
        dataset_spent: Of the dataset, by the helpers' ledgers.
    """

    query_id: str
    task_id: str
    dataset_id: str
    mechanism: Mechanism
    records: int
    delta: float
    cost: Epsilons
    dataset_spent: Epsilons


@frozen
class AggregateResult(ReleasedResult):
    """The answer to a query.

    A cell of fewer than min_cell_count reports shows noise around zero; its reports are in the rest of its
    group.

    Attributes:
        group_by: The keys, the coarsest first.
        columns: What the numbers are.
        rows: The cells, the coarsest level first.
        min_cell_count: The k of each cell.
    """

    group_by: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[ResultRow, ...]
    min_cell_count: int

    def to_pandas(self) -> "pd.DataFrame":
        """Return a row for each cell: its keys, then each column's estimate, standard error and interval."""
        return frame(
            {
                **dict(zip(self.group_by, row.group, strict=True)),
                **{
                    name: number
                    for column, estimate in zip(self.columns, row.estimates, strict=True)
                    for name, number in estimate.named(column.name).items()
                },
            }
            for row in self.rows
        )

    def estimate(self, column: str, *group: str) -> Estimate:
        """Return one number: a column of a group's cell; without a group, of the total or the only cell.

        Raises:
            KeyError: there is no such column or cell.
        """
        wanted = group or (ALL,) * len(self.group_by)
        place = (
            [known.name for known in self.columns].index(column)
            if any(known.name == column for known in self.columns)
            else None
        )
        for row in self.rows:
            if place is not None and row.group == wanted:
                return row.estimates[place]
        raise KeyError(f"the result has no {column!r} for {wanted}")

    def means(self, value: str) -> Iterator[tuple[ResultRow, Estimate]]:
        """Yield, for each row, the mean of a value over its reports: sum over count, both of this query.

        The interval is every ratio of numbers within the two 99.5 % intervals, so it covers with 99 % at
        least; where the count may be zero it is unbounded.

        Raises:
            JobRefused(MALFORMED): the query did not sum both.
        """
        at = {column.value: place for place, column in enumerate(self.columns) if column.bucket is None}
        if value not in at or COUNT not in at:
            raise JobRefused(
                JobReason.MALFORMED,
                f"the mean of {value!r} is not available: query both {value!r} and {COUNT}",
            )
        wider = half_width(self.mechanism, (1 + CONFIDENCE) / 2)
        for row in self.rows:
            yield row, _ratio(row.estimates[at[value]], row.estimates[at[COUNT]], wider)

    def quantiles(self, value: str, share: float) -> Iterator[tuple[ResultRow, Estimate]]:
        """Yield, for each row, the value that a given share of the row's reports do not exceed.

        Read from its histogram, as if reports were spread evenly in each bucket.

        The interval begins and ends at bucket bounds and covers with 99 % at least. Its standard error is not
        known, hence NaN.

        Raises:
            JobRefused(MALFORMED): no histogram of the value was asked for, or the share is not within 0 and
            1.
        """
        places = [
            place
            for place, column in enumerate(self.columns)
            if column.value == value and column.bucket is not None
        ]
        if not places or not 0 <= share <= 1:
            raise JobRefused(
                JobReason.MALFORMED,
                f"the quantile of {value!r} is not available: expected a share from 0 to 1 and a "
                "query with the value's histogram",
            )
        buckets = [bucket for place in places if (bucket := self.columns[place].bucket) is not None]
        wider = half_width(self.mechanism, 1 - (1 - CONFIDENCE) / len(places))
        for row in self.rows:
            yield row, _quantile([row.estimates[place] for place in places], buckets, share, wider)


def half_width(mechanism: Mechanism, confidence: float = CONFIDENCE) -> float:
    """Return half of an interval's width, in standard errors of one cell's noise, the sum of both helpers'.

    For Laplace, P(|x| > t b) = (1 + t / 2) e^(-t) of the sum of two of scale b, whose standard deviation is 2
    b; a weighted sum of more of them, as in consistent roll-ups, is closer to a Gaussian and its interval is
    no wider.
    """
    match mechanism:
        case Mechanism.NONE:
            return 0.0
        case Mechanism.GAUSSIAN:
            from statistics import NormalDist

            return NormalDist().inv_cdf((1 + confidence) / 2)
        case Mechanism.LAPLACE:
            return _half_width_of_two_laplace(confidence)


def _half_width_of_two_laplace(confidence: float) -> float:
    low, high = 0.0, 100.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        if (1 + middle / 2) * math.exp(-middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high / 2


def _ratio(total: Estimate, count: Estimate, wider: float) -> Estimate:
    least, most = count.value - wider * count.standard_error, count.value + wider * count.standard_error
    if count.value <= 0 or least <= 0:
        return NOT_KNOWN
    mean = total.value / count.value
    ends = [
        (total.value + sign * wider * total.standard_error) / at for sign in (-1, 1) for at in (least, most)
    ]
    error = math.hypot(total.standard_error, mean * count.standard_error) / count.value
    return Estimate(value=mean, standard_error=error, low=min(ends), high=max(ends))


def _quantile(
    cells: Sequence[Estimate], buckets: Sequence[tuple[int, int]], share: float, wider: float
) -> Estimate:
    """Find the bucket j after which the reports up to it exceed the given share of all.

    The quantile is in the first bucket where that is not negative.
    """
    counts = np.array([cell.value for cell in cells])
    variances = np.array([cell.standard_error for cell in cells]) ** 2
    excess = np.cumsum(counts) - share * counts.sum()
    # excess j is the sum of counts times (1 - share) up to j and times -share after it
    below = np.cumsum(variances)
    errors = wider * np.sqrt((1 - share) ** 2 * below + share**2 * (below[-1] - below))
    first = int(np.argmax(excess >= 0)) if (excess >= 0).any() else len(cells) - 1
    surely_before = np.flatnonzero(excess < -errors)
    surely_after = np.flatnonzero(excess > errors)
    begin = int(surely_before[-1]) + 1 if len(surely_before) else 0
    end = int(surely_after[0]) if len(surely_after) else len(cells) - 1
    low, high = buckets[first]
    inside = 0.0 if counts[first] <= 0 else min(1.0, max(0.0, 1 - excess[first] / counts[first]))
    return Estimate(
        value=low + inside * (high - low),
        standard_error=math.nan,
        low=float(buckets[min(begin, len(cells) - 1, first)][0]),
        high=float(buckets[max(end, first)][1]),
    )
