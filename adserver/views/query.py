"""A result as files and for programs.

JSON, CSV, Parquet, and a picture of bars with error bars; and as a table for people.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import compress
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import typer

from adserver.measuring.not_printed import (
    NOT_PRINTED,
    depth_of,
    list_with_remainders,
    with_whole_groups,
)
from adserver.measuring.result import (
    REST,
    AggregateResult,
    Column,
    Estimate,
    NoInterval,
    ReleasedResult,
    ResultRow,
    describe_unit,
    spell,
)
from adserver.messages.query import EstimateMessage, ResultMessage
from adserver.records.defaults import MAY_BE_HIDDEN, OTHER
from adserver.records.plain_names import distinct_names
from adserver.views.printing import as_csv, print_table, write_as
from adserver.views.query_plot import draw_result
from maskedlark.escape import escape
from maskedlark.frozen import frozen
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.measurement import COUNT
from maskedlark.terminal.plural import plural

# Attributes of `Estimate` that a file has of each column of a result
_FIGURES: Final = ("value", "standard_error", "low", "high")
# What a file has in addition of a column whose numbers are clipped, the same in every row
_BOUNDS: Final = ("clipped_low", "clipped_high")
ENDINGS: Final = (".json", ".csv", ".parquet", ".png")
"""Of the files that `write_result` writes."""
# Codes of words are up to 2^32: nearly all have so many digits, and people's own numbers of groups fewer
_CODE_DIGITS: Final = 7
# Of half an interval: an estimate is so far from its middle where both ends are printed
_UNEVEN: Final = 0.05
UNKNOWN: Final = "unknown"
"""Of a figure that an answer says nothing about, such as the mean over a group that may be empty."""


@frozen
class Statistic:
    """A mean or a quantile: what it is called, and how it is read off a result."""

    name: str
    read: Callable[[AggregateResult], Iterable[tuple[ResultRow, Estimate]]]

    @classmethod
    def mean(cls, value: str, over: str = COUNT, *, is_zero_elsewhere: bool = False) -> Self:
        """Return the mean of a value over the reports that another counts; see `AggregateResult.means`.

        Its name has what it is over, unless these are all reports.
        """
        return cls(
            name=f"mean of {value}" + (f" over {over}" if over != COUNT else ""),
            read=lambda result: result.means(value, over, is_zero_elsewhere=is_zero_elsewhere),
        )

    @classmethod
    def quantile(cls, value: str, share: float, over: str = COUNT) -> Self:
        """Return a quantile of a value that has a histogram; see `AggregateResult.quantiles`."""
        return cls(
            name=f"quantile {share:g} of {value}" + (f" over {over}" if over != COUNT else ""),
            read=lambda result: result.quantiles(value, share, over),
        )

    @classmethod
    def kept(cls, name: str, estimates: Sequence[Estimate]) -> Self:
        """Return a statistic that was read off its answer, with its estimate for each row of a result."""
        return cls(name=name, read=lambda result: zip(result.rows, estimates, strict=True))

    def estimates(self, result: AggregateResult) -> list[Estimate]:
        """Return its estimate for each row."""
        return [estimate for _, estimate in self.read(result)]


def means_in(result: AggregateResult) -> tuple[Statistic, ...]:
    """Return the means that a result's sums and counts allow.

    Of a value that some reports do not have, and hold as 0, it is over those that do.
    """
    titles = {column.value: column.name for column in result.columns if column.bucket is None}
    over = {column.value: column.counted_by for column in result.columns if column.bucket is None}
    counts = {COUNT, *over.values()}
    return tuple(
        Statistic.mean(titles[value], titles[counted_by or COUNT], is_zero_elsewhere=bool(counted_by))
        for value, counted_by in over.items()
        if value not in counts and (counted_by or COUNT) in titles
    )


def kept_in(said: Mapping[str, Any], names: Sequence[str]) -> tuple[Statistic, ...]:
    """Return some of the statistics that `json_of` wrote with a result, by their names."""
    return tuple(
        Statistic.kept(
            name, [EstimateMessage.model_validate(one).estimate() for one in said["statistics"][name]]
        )
        for name in names
    )


_Written: TypeAlias = tuple[AggregateResult, Sequence[Statistic]]


def write_result(result: AggregateResult, path: Path, statistics: Sequence[Statistic] = ()) -> None:
    """Write a result in the form that the file's name ends with: .json, .csv, .parquet or .png.

    A file has only what was released, so that its epsilon covers all figures in it. Statistics follow the
    sums, with their intervals. A figure that is not known is an empty cell in tables, and no bar in pictures,
    which have the largest groups alone.

    Raises:
        InvalidTask: another ending.
    """
    writers = (_json, _csv, _parquet, _png)
    write_as(dict(zip(ENDINGS, writers, strict=True)), (result, statistics), path, "a result is")


def json_of(result: AggregateResult, statistics: Sequence[Statistic]) -> dict[str, Any]:
    """Return a result and its statistics as JSON has them."""
    derived = {
        one.name: [
            {
                "group": dict(zip(result.group_by, row.group, strict=True)),
                **EstimateMessage.model_validate(estimate).model_dump(mode="json"),
            }
            for row, estimate in one.read(result)
        ]
        for one in statistics
    }
    return {**ResultMessage.of(result).model_dump(mode="json"), "statistics": derived}


def print_groups(
    result: AggregateResult,
    statistics: Sequence[Statistic] = (),
    *,
    is_all_shown: bool = True,
    without: Collection[str] = (),
    where: str = "add --all-rows to show all",
    most_rows: int | None = None,
) -> None:
    """Print a table of each group's estimates with half of their intervals, and how many groups it hides.

    After the parts of a group stands what the hidden ones add up to, so that a column adds up to its whole.

    Args:
        result: What was measured.
        statistics: Further columns.
        is_all_shown: Whether groups that may be hidden, or of which a statistic is unknown and each estimate
            may be 0, are rows, too.
        without: The titles of values whose buckets are no columns.
        where: Where all are, for the line that counts those that are not shown.
        most_rows: Levels of finer groups that would make more rows than that are left out; None: none are.
    """
    derived = [one.estimates(result) for one in statistics]
    further = list(zip(*derived, strict=True)) if statistics else [()] * len(result.rows)
    places = [
        place
        for place, column in enumerate(result.columns)
        if column.bucket is None or column.shown_value not in without
    ]
    printed = with_whole_groups(
        result,
        [
            is_all_shown
            or not (row.may_be_hidden or (any(one.no_interval for one in more) and _may_be_empty(row)))
            for row, more in zip(result.rows, further, strict=True)
        ],
    )
    deepest = _deepest_level(result, printed, most_rows)
    of_row = dict(zip((row.group for row in result.rows), further, strict=True))
    rows = [one for one in list_with_remainders(result, printed) if depth_of(one[0]) <= deepest]
    shown = [
        (
            *row.group,
            *_printed_cells(row, places),
            *(format_mean(one, may_be_hidden=row.may_be_hidden) for one in of_row.get(row.group, ())),
            *[""] * (len(statistics) if is_remainder else 0),
        )
        for row, is_remainder in rows
    ]
    columns = [result.columns[place].name for place in places]
    names = (*result.group_by, *columns, *(one.name for one in statistics))
    print_table(distinct_names(names), align_estimates(shown))
    if left_out := _describe_hidden(
        row.group
        for row, is_printed in zip(result.rows, printed, strict=True)
        if not is_printed and depth_of(row) <= deepest
    ):
        typer.echo(
            f"{left_out} not shown, which may be of too few reports or are hidden in the noise: {where}"
        )
    if any(is_remainder for _, is_remainder in rows):
        typer.echo(f"{NOT_PRINTED} is what a group has beyond its parts above, so that they add up")
    if deepest < len(result.group_by):
        typer.echo(f"groups by {' and '.join(map(escape, result.group_by))} are too many to print: {where}")


def _deepest_level(result: AggregateResult, printed: Sequence[bool], most_rows: int | None) -> int:
    """Return how many keys the finest groups have that are printed: at least the coarsest level's."""
    depths = Counter(map(depth_of, compress(result.rows, printed)))
    rows, deepest = 0, len(result.group_by)
    for place, depth in enumerate(sorted(depths)):
        rows += depths[depth]
        # The total alone says nothing of groups
        if most_rows is not None and rows > most_rows and place > 1:
            return deepest
        deepest = depth
    return len(result.group_by)


def _describe_hidden(groups: Iterable[Sequence[str]]) -> str:
    """Count groups that people name, and apart from them those of a key's other words, and rests."""
    kinds = Counter(REST if REST in group else OTHER if OTHER in group else "" for group in groups)
    told = {
        "": plural(kinds[""], "group"),
        OTHER: f"{plural(kinds[OTHER], 'group')} {OTHER!r} (words without a group of their own)",
        REST: f"{plural(kinds[REST], 'rest')} (of groups that are too small)",
    }
    return ", ".join(said for kind, said in told.items() if kinds[kind])


def _may_be_empty(row: ResultRow) -> bool:
    return all(one.low <= 0 <= one.high for one in row.estimates)


def _names(result: AggregateResult, statistics: Sequence[Statistic]) -> tuple[str, ...]:
    return (*(column.name for column in result.columns), *(one.name for one in statistics))


def _printed_cells(row: ResultRow, places: Iterable[int]) -> Iterator[str]:
    """Yield a row's estimates in these columns."""
    for one in (row.estimates[place] for place in places):
        yield format_cell(one, may_be_hidden=row.may_be_hidden)


def format_cell(estimate: Estimate, *, may_be_hidden: bool) -> str:
    """Format an estimate of a row; of one that may be hidden, what such a cell may have."""
    # If it is hidden, the estimate is noise around zero: only the interval holds either way
    if may_be_hidden and estimate.no_interval is None:
        return f"{estimate.low:,.0f} to {estimate.high:,.0f} (may be hidden)"
    return format_estimate(estimate)


def format_mean(estimate: Estimate, *, may_be_hidden: bool) -> str:
    """Format a mean or another statistic of a row, of which numbers near noise say nothing."""
    return UNKNOWN if may_be_hidden or estimate.no_interval else format_estimate(estimate)


def format_estimate(estimate: Estimate) -> str:
    """Format an estimate with half of its interval, with both ends if they are not even, or with why none is.

    Such as of a noisy count near 0: "5 ± 14" would reach below.
    """
    if not math.isfinite(estimate.value):
        return UNKNOWN
    if estimate.no_interval is NoInterval.NOISE:
        return f"{UNKNOWN} ({estimate.no_interval.said})"
    if estimate.no_interval is not None:
        return f"{estimate.value:,.3g} ({estimate.no_interval.said})"
    half = (estimate.high - estimate.low) / 2
    # Without noise and sampling the figure is exact
    if estimate.low == estimate.value == estimate.high:
        return f"{estimate.value:,.6g}" if estimate.value % 1 else f"{estimate.value:,.0f}"
    # Two significant digits of the half, and the estimate to the same place
    digits = max(0, 1 - math.floor(math.log10(half))) if 0 < half < math.inf else 2

    def told(number: float) -> str:
        # What rounds to 0 has no sign
        return f"{round(number, digits) + 0.0:,.{digits}f}"

    if abs(estimate.value - estimate.low - half) > _UNEVEN * half:
        return f"{told(estimate.value)} ({told(estimate.low)} to {told(estimate.high)})"
    return f"{told(estimate.value)} ± {told(half)}"


def align_estimates(rows: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the rows of a table with the ± of each column's estimates below each other."""
    columns = []
    for column in zip(*rows, strict=True):
        values = [cell.partition(" ± ")[0] if " ± " in cell else "" for cell in column]
        width = max(map(len, values))
        columns.append(
            [
                " " * (width - len(value)) + cell if value else cell
                for cell, value in zip(column, values, strict=True)
            ]
        )
    return list(zip(*columns, strict=True))


def summary_lines(result: AggregateResult, statistics: Sequence[Statistic] = ()) -> list[str]:
    """Return the lines under the table of a result and its statistics: how many reports, noise and cost."""
    scales = ", ".join(
        f"{column.name} {spell(column.noise_scale, 4)}" for column in result.columns if column.bucket is None
    )
    scales = scales or spell(result.columns[0].noise_scale, 4)
    only = [f"only reports where {escape(result.conditions)}"] if result.conditions else []
    return [
        *only,
        f"{result.records:,} reports; {_threshold(result)} are in the rest, and show noise around zero",
        *result.threshold_notes,
        *reading_lines(result, statistics),
        *noise_lines(result, f": {scales}; ± is half of a 99 % interval, one in brackets is uneven"),
    ]


def reading_lines(result: AggregateResult, statistics: Sequence[Statistic]) -> list[str]:
    """Return lines on what intervals do not cover, and on estimates outside of them; none where not."""
    return [
        *clipped_lines(result),
        *_nameless_lines(result),
        *_outside_lines(result, statistics),
    ]


def _nameless_lines(result: AggregateResult) -> list[str]:
    """Return a line on groups that have a code for a name; none where none has."""
    keys = [
        key
        for place, key in enumerate(result.group_by)
        if any(row.group[place].isdecimal() and len(row.group[place]) >= _CODE_DIGITS for row in result.rows)
    ]
    if not keys:
        return []
    return [
        f"a long number in {', '.join(keys)} may be the code of a word that the task's encoder does not "
        "list: ask with a domain of the words (--domain) to see their names"
    ]


def clipped_lines(result: AggregateResult) -> list[str]:
    """Return a line on the bounds to which the numbers of reports are clipped; none where none are."""
    bounds = [
        f"{low:,.10g} to {high:,.10g} of {column.name}"
        for column in _clipped(result)
        for low, high in [column.clipped_to or (-math.inf, math.inf)]
    ]
    if not bounds:
        return []
    return [f"sums are clipped: a report counts {', '.join(bounds)}; intervals do not cover what is beyond"]


def _outside_lines(result: AggregateResult, statistics: Sequence[Statistic]) -> list[str]:
    """Return a line on estimates that lie outside their intervals; none where none does."""
    rows = zip(result.rows, *(one.estimates(result) for one in statistics), strict=True)
    shown = [one for row, *more in rows if not row.may_be_hidden for one in (*row.estimates, *more)]
    # Without an interval its ends are infinite
    if all(one.low <= one.value <= one.high for one in shown if one.no_interval is None):
        return []
    return [
        "an estimate outside its interval is as noise left it: the interval ends at what is possible, as "
        "a count's does at 0"
    ]


def _threshold(result: AggregateResult) -> str:
    """Describe which cells are hidden."""
    least, noise = result.min_cell_count, result.threshold_noise
    if not noise:
        return f"cells of fewer than {least}"
    about = "" if result.threshold_margin else "about "
    return f"cells of fewer than {about}{least} (by counts with a noise of {noise:.3g})"


def noise_lines(result: ReleasedResult, scale: str) -> list[str]:
    """Describe the noise, with its scale in words, and what the release cost."""
    if result.mechanism is Mechanism.NONE:
        return ["no noise: no privacy"]
    return [f"{result.mechanism} noise of each helper{scale}", _cost_line(result)]


def _cost_line(result: ReleasedResult) -> str:
    """Describe what a release cost, and what is spent and reserved by open jobs of the same budget."""
    cost, whole = result.cost, result.dataset_spent
    of_person = describe_unit(result.unit)
    whose = "each person, over all datasets of the task," if of_person else "the dataset"
    return (
        f"epsilon {cost.ad_server:.4g}{of_person} ({cost.colluding:.4g} against "
        f"the ad server with one helper) at delta {result.delta:.2g}; spent and reserved of {whose} by then: "
        f"{whole.ad_server:.4g} ({whole.colluding:.4g})"
    )


def _json(written: _Written) -> bytes:
    return (json.dumps(json_of(*written), indent=2) + "\n").encode()


def _file_columns(written: _Written) -> list[str]:
    result, _ = written
    figures = [f"{name} {figure}" for name in _names(*written) for figure in _FIGURES]
    bounds = [f"{column.name} {end}" for column in _clipped(result) for end in _BOUNDS]
    conditions = [f"where {key}" for key, _ in result.where]
    return distinct_names((*result.group_by, *figures, *bounds, MAY_BE_HIDDEN, *conditions))


def _clipped(result: AggregateResult) -> list[Column]:
    return [column for column in result.columns if column.clipped_to]


def _file_rows(written: _Written) -> Iterator[list[Any]]:
    result, statistics = written
    derived = [one.estimates(result) for one in statistics]
    bounds = [end for column in _clipped(result) for end in column.clipped_to or ()]
    for place, row in enumerate(result.rows):
        estimates = (*row.estimates, *(one[place] for one in derived))
        figures = [_figure(estimate, figure) for estimate in estimates for figure in _FIGURES]
        yield [*row.group, *figures, *bounds, row.may_be_hidden, *(word for _, word in result.where)]


def _figure(estimate: Estimate, name: str) -> float | None:
    """Return a figure of an estimate; None where it is not known, as the ratio of two numbers near noise."""
    value: float = getattr(estimate, name)
    return value if estimate.no_interval is None and math.isfinite(value) else None


def _csv(written: _Written) -> bytes:
    """Encode one line a cell."""
    return as_csv(_file_columns(written), _file_rows(written))


def _parquet(written: _Written) -> bytes:
    """Encode the same columns; the rest of the result is the file's metadata, as JSON."""
    import pyarrow
    from pyarrow import parquet

    columns = list(zip(*_file_rows(written), strict=True))
    # So that a file alone says what it holds, and how noisy and how private it is
    about = ResultMessage.of(written[0]).model_dump_json(exclude={"rows"})
    keys = len(written[0].group_by)
    conditions = len(written[0].where)
    numbers = len(columns) - keys - 1 - conditions
    types = [pyarrow.string()] * keys + [pyarrow.float64()] * numbers
    types += [pyarrow.bool_()] + [pyarrow.string()] * conditions
    arrays = [pyarrow.array(list(column), kind) for column, kind in zip(columns, types, strict=True)]
    table = pyarrow.table(dict(zip(_file_columns(written), arrays, strict=True)))
    file = BytesIO()
    parquet.write_table(table.replace_schema_metadata({"maskedlark": about}), file)
    return file.getvalue()


def _png(written: _Written) -> bytes:
    result, statistics = written
    only = [f"only reports where {result.conditions}"] if result.conditions else []
    return draw_result(
        result,
        [(one.name, one.estimates(result)) for one in statistics],
        [*only, summary_lines(result)[-1], *clipped_lines(result)],
    )
