"""What a query says, with how far to trust it and what it cost.

And the statistics that follow from its sums at no further cost.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from adserver.measuring.cells import ANY, Column, ResultRow
from adserver.measuring.estimate import FIGURES, Estimate, figure_columns
from adserver.measuring.group_table import align_estimates, result_tables
from adserver.measuring.intervals import CLEAR, CONFIDENCE, NEAR, Numbers, Ratio, divide, reach
from adserver.records.defaults import ALL, MAY_BE_HIDDEN
from adserver.records.frames import ColumnTypes, arrow_stream, frame
from adserver.records.html_table import html_note, html_table, text_table
from adserver.records.plain_names import declared_name, distinct_names
from maskedlark.encoding.close_names import list_known
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.escape import escape
from maskedlark.frozen import frozen
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.measurement import COUNT
from maskedlark.reports.task_kinds import PrivacyUnit
from maskedlark.terminal.plural import plural

if TYPE_CHECKING:
    import pandas as pd

_NO_STATISTICS: Final[Mapping[str, Sequence[Estimate]]] = MappingProxyType({})
_ALL_ROWS: Final = "to_pandas() has all"


def describe_unit(unit: PrivacyUnit) -> str:
    """Return what is said behind an epsilon: what it protects."""
    return " of a person" if unit is PrivacyUnit.USER else " of a report"


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
        dataset_spent: Of the dataset, by the helpers' ledgers; of open jobs also what is only reserved. Where
            budgets are of a person, of all of the task's datasets.
        unit: What epsilons protect: a report, or a person with all of their reports in the task.
        reports_per_user: The most reports of a person in the dataset; None where it is not known, as of an
            older ad server.
    """

    query_id: str
    task_id: str
    dataset_id: str
    mechanism: Mechanism
    records: int
    delta: float
    cost: Epsilons
    dataset_spent: Epsilons
    unit: PrivacyUnit = PrivacyUnit.REPORT
    reports_per_user: int | None = None

    @property
    def conditions(self) -> str:
        """What the reports meet that were read, in words; empty if all were."""
        return ""

    @property
    def clipping(self) -> str:
        """The bounds to which the numbers of reports are clipped, in words; empty if none are."""
        return ""

    @property
    def caption(self) -> str:
        """What the intervals, the epsilon and the numbers are of, in one line: each face and file has it."""
        cost, conditions, most = self.cost, self.conditions, self.reports_per_user
        unit = describe_unit(self.unit)
        if self.unit is PrivacyUnit.USER and most is not None:
            unit += f" with up to {plural(most, 'report')}"
        price = (
            "no noise: no privacy"
            if self.mechanism is Mechanism.NONE
            else f"epsilon {cost.ad_server:.4g}{unit} ({cost.colluding:.4g} against the "
            f"ad server with one helper) at delta {self.delta:.2g}"
        )
        reports = f"the {self.records:,} reports of the dataset"
        over = f"over those of {reports} where {conditions}" if conditions else f"over {reports} only"
        said = (f"{CONFIDENCE * 100:.0f} % intervals", price, over, self.clipping)
        return escape("; ".join(filter(None, said)))

    def titled(self, table: str) -> str:
        """Return a table below a line that says what it is, and above its caption."""
        return f"{type(self).__name__} {self.query_id[:12]}\n{table}\n{self.caption}"


@frozen
class AggregateResult(ReleasedResult):
    """The answer to a query.

    A cell of fewer than about min_cell_count reports shows noise around zero; its reports are in the rest of
    its group.

    Attributes:
        group_by: The keys, the coarsest first.
        columns: What the numbers are.
        rows: The cells, the coarsest level first.
        min_cell_count: The k of each cell.
        threshold_noise: The standard deviation of the noise on the counts that are compared with k.
        threshold_margin: How far above k a noisy count must be for its cell to be shown, in a task that
            hides small cells strictly; otherwise 0.
        discovery_margin: The same of the counts by which a discovery found groups; 0 without one.
        where: The key and word of each condition that the reports meet.
    """

    group_by: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[ResultRow, ...]
    min_cell_count: int
    threshold_noise: float = 0.0
    threshold_margin: float = 0.0
    discovery_margin: float = 0.0
    where: tuple[tuple[str, str], ...] = ()

    @property
    def threshold_notes(self) -> tuple[str, ...]:
        """From how many reports a cell is shown and a group is found, where that is more than k."""
        margins = {
            "cells are shown": self.threshold_margin,
            "groups are found": self.discovery_margin,
        }
        return tuple(
            f"{what} from about {self.min_cell_count + margin:,.0f} reports (k = {self.min_cell_count} plus "
            f"{margin:,.0f} for the noise)"
            for what, margin in margins.items()
            if margin
        )

    @property
    def conditions(self) -> str:
        """What the reports meet, in words; empty without conditions."""
        return " and ".join(f"{key} = {word}" for key, word in self.where)

    @property
    def clipping(self) -> str:
        """The bounds to which the numbers of reports are clipped, in words; empty if none are."""
        bounds = [
            f"{low:,.10g} to {high:,.10g} of {column.name}"
            for column in self.columns
            if column.clipped_to
            for low, high in [column.clipped_to]
        ]
        return (
            f"sums are clipped: a report counts {', '.join(bounds)}; intervals do not cover what is beyond"
            if bounds
            else ""
        )

    def to_pandas(self, **statistics: Iterable[tuple[ResultRow, Estimate]]) -> "pd.DataFrame":
        """Return a row for each cell, whose columns have the names that files have.

        Its keys, then each column's estimate, standard error and interval, such as `price value` and `price
        low`, then those of the statistics, then whether it may be hidden and the word of each condition. The
        frame's `attrs` have the caption.

            result.to_pandas(mean_price=result.means("price"), median_age=result.quantiles("age", 0.5))

        Args:
            statistics: Means and quantiles of this result, by the name that their columns begin with. One
                without an interval, such as the mean of an empty group, is NaN.

        Raises:
            InvalidTask: pandas is not installed, or a statistic is of another result.
        """
        estimates = dict[str, list[Estimate]]()
        for name, found in statistics.items():
            pairs = [*found]
            if tuple(row for row, _ in pairs) != self.rows:
                raise InvalidTask(f"{name} is of another result: expected `means` or `quantiles` of this one")
            estimates[name] = [one for _, one in pairs]
        return frame(self._to_rows(estimates), self._column_types(estimates), self.caption)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the same rows as an Arrow stream, for pandas, polars or duckdb."""
        return arrow_stream(self._to_rows(), self._column_types(), requested_schema)

    def _column_types(self, statistics: Iterable[str] = ()) -> ColumnTypes:
        names = (*(column.name for column in self.columns), *statistics)
        numbers = figure_columns(names)
        conditions = [f"where {key}" for key, _ in self.where]
        distinct = distinct_names((*self.group_by, *numbers, MAY_BE_HIDDEN, *conditions))
        types = [str] * len(self.group_by) + [float] * len(numbers) + [bool] + [str] * len(conditions)
        return dict(zip(distinct, types, strict=True))

    def _to_rows(
        self, statistics: Mapping[str, Sequence[Estimate]] = _NO_STATISTICS
    ) -> Iterator[dict[str, Any]]:
        """Yield the columns of each cell by name."""
        names, words = self._column_types(statistics), [word for _, word in self.where]
        for place, row in enumerate(self.rows):
            further = (one[place] for one in statistics.values())
            numbers = [
                getattr(estimate, figure) if estimate.no_interval is None else math.nan
                for estimate in (*row.estimates, *further)
                for figure in FIGURES
            ]
            yield dict(zip(names, (*row.group, *numbers, row.may_be_hidden, *words), strict=True))

    def __repr__(self) -> str:
        """Show the groups that say something as commands print them, a line for each."""
        tables = result_tables(self, where=_ALL_ROWS)
        lines = "\n\n".join(text_table(one.head, align_estimates(one.rows)) for one in tables)
        notes = (note for one in tables for note in one.notes)
        return "\n".join((self.titled(lines), *notes, *self.threshold_notes))

    def _repr_html_(self) -> str:
        """Return the same as a table, for a notebook."""
        tables = result_tables(self, where=_ALL_ROWS)
        shown = (html_table(one.head, one.rows) for one in tables)
        notes = (self.caption, *(note for one in tables for note in one.notes), *self.threshold_notes)
        return "".join((*shown, *map(html_note, notes)))

    def estimate(self, column: str, *group: str) -> Estimate:
        """Return one number: a column of a group's cell.

        A group may be named by its first keys alone, which is one of a coarser level; without any, it is the
        total or the only cell.

        Raises:
            KeyError: there is no such column or cell.
        """
        wanted = group + (ALL,) * (len(self.group_by) - len(group))
        names = [known.name for known in self.columns]
        sums = {known.value: place for place, known in enumerate(self.columns) if known.bucket is None}
        place = names.index(column) if column in names else sums.get(self._declared(column))
        for row in self.rows:
            if place is not None and row.group == wanted:
                return row.estimates[place]
        if place is None:
            raise KeyError(f"the result has no column {column!r}; {list_known(column, names)}")
        groups = (" · ".join(row.group) for row in self.rows)
        raise KeyError(f"the result has no group {group}; {list_known(' · '.join(wanted), groups)}")

    def means(
        self, value: str, over: str | None = None, *, is_zero_elsewhere: bool = False
    ) -> list[tuple[ResultRow, Estimate]]:
        """Return, for each row, the mean of a value over its reports: sum over count, both of this query.

        Where the count is not clearly above its noise there is no interval. An interval ends where the mean
        of reports cannot lie beyond: over all of them, where the value's own range ends; over those that
        another value counts, at 0, if none of both is negative.

        Args:
            value: What is summed.
            over: What counts the reports, such as those that hold the value at all; by default all reports,
                if each has the value.
            is_zero_elsewhere: Whether `over` is 1 or 0, and the value is 0 in each report where it is 0.
                Then the mean lies in the value's range, too.

        Raises:
            JobRefused(MALFORMED): the query did not sum both, or some reports lack the value and `over` is
                left out.
        """
        over = over or self._count_of(value)
        places = self._places_of_sums(value, over)
        totals, counts = self._columns(places).transpose(2, 0, 1)
        above, below = (self.columns[place] for place in places)
        is_of_reports = below.value == COUNT or is_zero_elsewhere
        possible = above.report_range or ANY if is_of_reports else _ratio_range(above, below)
        found = (one.within(*possible) for one in _means(totals, counts, self.mechanism))
        return list(zip(self.rows, found, strict=True))

    def quantiles(
        self, value: str, share: float, over: str | None = None
    ) -> list[tuple[ResultRow, Estimate]]:
        """Return, for each row, the value that a given share of the row's reports do not exceed.

        Read from its histogram, as if reports were spread evenly in each bucket.

        The interval begins and ends at bucket bounds, so that it covers the reports' own quantile, with 99 %
        at least. Its standard error is not known, hence NaN. Where the reports are not clearly more than
        noise there is no interval.

        Args:
            value: A value with a histogram.
            share: From 0 to 1.
            over: What counts the reports that have the value, which holds 0 in the others. These are not
                among the row's reports then: they are subtracted from the bucket of 0. By default all
                reports, if each has the value.

        Raises:
            JobRefused(MALFORMED): no histogram of the value was asked for, the share is not within 0 and
            1, the query did not sum `over` and the count, or some reports lack the value and `over` is left
            out.
        """
        cells = [(place, column) for place, column in enumerate(self.columns) if column.bucket is not None]
        value = self._declared(value)
        places = [place for place, column in cells if column.value == value]
        if not places or not 0 <= share <= 1:
            raise JobRefused(
                JobReason.MALFORMED,
                f"the quantile of {value!r} is not available: expected a share from 0 to 1 and a "
                "query with the value's histogram",
            )
        over = over or self._count_of(value)
        buckets = [bucket for place in places if (bucket := self.columns[place].bucket) is not None]
        counts = self._columns(places)
        if over != COUNT:
            counting = self.columns[self._places_of_sums(over, COUNT)[0]]
            if counting.value != self.columns[places[0]].counted_by and counting.report_range not in (
                None,
                (0, 1),
            ):
                raise JobRefused(
                    JobReason.MALFORMED,
                    f"the quantile of {value!r} over {over!r} is not available: expected a value of 0 or 1 "
                    f"that says which reports have {value!r}, which the others hold as 0",
                )
            # Where a report without the value holds its 0
            zero = next((at for at, (low, high) in enumerate(buckets) if low <= 0 <= high), None)
            if zero is None:
                raise JobRefused(
                    JobReason.MALFORMED,
                    f"the quantile of {value!r} over {over!r} is not available: no bucket has the 0 that "
                    "other reports hold",
                )
            having, every = self._columns(self._places_of_sums(over, COUNT)).transpose(2, 0, 1)
            counts[0, :, zero] -= every[0] - having[0]
            counts[1, :, zero] = np.sqrt(counts[1, :, zero] ** 2 + every[1] ** 2 + having[1] ** 2)
        found = quantiles_of(counts, buckets, share, self.mechanism)
        return list(zip(self.rows, found, strict=True))

    def title_of(self, value: str) -> str:
        """Return what the result calls a value, by any of its names; one that it does not have, as it is."""
        name = self._declared(value)
        return next((column.shown_value for column in self.columns if column.value == name), value)

    def _declared(self, said: str) -> str:
        """Return the declared name of the value that is meant."""
        titles = {column.shown_value: column.value for column in self.columns}
        return declared_name(said, {column.value for column in self.columns}, titles)

    def _count_of(self, value: str) -> str:
        """Return what counts a value's reports: all of them.

        Raises:
            JobRefused(MALFORMED): some reports lack the value, so that it must be said.
        """
        name = self._declared(value)
        if found := next((column.counted_by for column in self.columns if column.value == name), ""):
            raise JobRefused(
                JobReason.MALFORMED,
                f"some reports do not have {name!r} and hold it as 0: give over={found!r} for those that "
                f"have one, or over={COUNT!r} for all; both are queried as values",
            )
        return COUNT

    def _places_of_sums(self, value: str, over: str) -> list[int]:
        """Return the places of two columns of sums.

        Raises:
            JobRefused(MALFORMED): the query did not sum both.
        """
        at = {column.value: place for place, column in enumerate(self.columns) if column.bucket is None}
        names = [self._declared(name) for name in (value, over)]
        for name in names:
            if name not in at:
                known = list_known(name, [self.columns[place].name for place in at.values()])
                raise JobRefused(
                    JobReason.MALFORMED,
                    f"no mean or quantile with {names[0]!r} and {names[1]!r} can be read off this answer: "
                    f"query both as values; {known}",
                )
        return [at[name] for name in names]

    def _columns(self, places: Sequence[int]) -> Numbers:
        """Return (2, rows, places) the values of some columns, and their standard errors."""
        taken = [[row.estimates[place] for place in places] for row in self.rows]
        return np.array(
            [
                [[one.value for one in row] for row in taken],
                [[one.standard_error for one in row] for row in taken],
            ]
        ).reshape(2, len(self.rows), len(places))


def _ratio_range(above: Column, below: Column) -> tuple[float, float]:
    """Return the least and the most of a ratio of two sums."""
    return above.sum_range if below.sum_range[0] == 0 else ANY


def _means(totals: Numbers, counts: Numbers, mechanism: Mechanism) -> Iterator[Estimate]:
    """Yield the ratios of two sums with independent noise: each is (2, rows), values and standard errors."""
    above, below = totals[1] ** 2, counts[1] ** 2
    ratio = Ratio(
        above=totals[0], below=counts[0], v0=above, v1=np.zeros_like(above), v2=below,
        deviation_below=counts[1],
    )  # fmt: skip
    value = np.nan_to_num(ratio.value)
    concentration = np.nan_to_num(divide(above**2 + value**4 * below**2, ratio.variance_at(value) ** 2))
    found = ratio.interval(reach(mechanism, concentration, CONFIDENCE))
    ends = (found.value, found.standard_error, found.low, found.high)
    for mean, error, low, high in zip(*(one.tolist() for one in ends), strict=True):
        yield Estimate.or_none(mean, error, low, high, mechanism)


def quantiles_of(
    cells: Numbers, buckets: Sequence[tuple[float, float]], share: float, mechanism: Mechanism
) -> Iterator[Estimate]:
    """Yield for each row a quantile of its reports: where a given share of them is reached.

    It is in the first bucket j up to which reports are at least the share of all.

    The interval's first bucket is the first one that is not surely too early, its last one the last that is
    not surely too late. For the true bucket each is one test of a weighted sum.

    Args:
        cells: (2, rows, buckets), values and standard errors.
        buckets: The least and the largest value of each.
        share: From 0 to 1.
        mechanism: Of the noise.
    """
    counts, variances = cells[0], cells[1] ** 2
    totals, last = counts.sum(-1), len(buckets) - 1
    excess = np.cumsum(counts, -1) - share * totals[:, None]
    # Excess j is the sum of counts times (1 - share) up to j and times -share after it.
    errors = np.sqrt(_weigh(variances, share, 2))
    concentration = np.nan_to_num(divide(_weigh(variances**2, share, 4), errors**4))
    clear = np.maximum(np.nan_to_num(divide(totals, np.sqrt(variances.sum(-1))), nan=CLEAR), 1e-3)
    errors *= reach(mechanism, concentration, CONFIDENCE) * (1 + NEAR / clear**2)[:, None]
    first = _first(excess >= 0)
    begin = np.minimum(_first(excess >= -errors), first)
    is_late = (excess - errors)[:, ::-1][:, 1:] <= 0  # from the last bucket but one down
    end = np.maximum(last - np.where(is_late.any(-1), _first(is_late), last), first)
    is_clear = (totals > 0) & (totals >= CLEAR * np.sqrt(variances.sum(-1)))
    is_any = is_clear & ((begin > 0) | (end < last) | (last == 0))
    # As if the reports were spread evenly in the bucket: the excess over its count says how far in it is.
    for row in range(len(counts)):
        at, count = first[row], counts[row, first[row]]
        low, high = buckets[at]
        inside = 0.0 if count <= 0 else min(1.0, max(0.0, 1 - excess[row, at] / count))
        least, most = (buckets[begin[row]][0], buckets[end[row]][1]) if is_any[row] else (math.nan, math.nan)
        yield Estimate.or_none(low + inside * (high - low), math.nan, least, most, mechanism)


def _first(is_so: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return for each row the first place where it is so; the last one, or 0, if it is so nowhere."""
    if not is_so.shape[-1]:  # the buckets before the last one, of a histogram that has one bucket
        return np.zeros(len(is_so), np.int64)
    places: NDArray[np.int64] = np.where(is_so.any(-1), np.argmax(is_so, -1), is_so.shape[-1] - 1)
    return places


def _weigh(spread: Numbers, share: float, power: int) -> Numbers:
    """Return for each j the sum of the spread times the powers of the weights of excess j."""
    up_to = np.cumsum(spread, -1)
    return np.asarray((1 - share) ** power * up_to + share**power * (up_to[:, -1:] - up_to))
