"""A result as files and for programs.

JSON, CSV, Parquet, and a picture of bars with error bars; and as a table for people.
"""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import typer

from adserver.measuring.cells import Column, ResultRow
from adserver.measuring.estimate import FIGURES, Estimate, figure_columns, spell
from adserver.measuring.group_table import MOST_ROWS, align_estimates, result_tables
from adserver.measuring.intervals import CONFIDENCE
from adserver.measuring.result import AggregateResult, ReleasedResult
from adserver.messages.query import EstimateMessage, ResultMessage
from adserver.records.defaults import MAY_BE_HIDDEN
from adserver.records.plain_names import distinct_names
from adserver.views.printing import as_csv, print_table, write_as
from adserver.views.query_plot import draw_result
from maskedlark.frozen import frozen
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.measurement import COUNT
from maskedlark.reports.task_kinds import PrivacyUnit

# What a file has in addition of a column whose numbers are clipped, the same in every row
_BOUNDS: Final = ("clipped_low", "clipped_high")
# And of the release: how many reports the numbers are over, and what the intervals and epsilons are
_RELEASE: Final = {
    "reports": int,
    "confidence": float,
    "epsilon": float,
    "collusion_epsilon": float,
    "delta": float,
    "unit": str,
    "reports_per_user": int,
}
ENDINGS: Final = (".json", ".csv", ".parquet", ".png")
"""Of the files that `write_result` writes."""
# Codes of words are up to 2^32: nearly all have so many digits, and people's own numbers of groups fewer
_CODE_DIGITS: Final = 7


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


def quantiles_in(result: AggregateResult, shares: Sequence[float] = (0.5, 0.9)) -> tuple[Statistic, ...]:
    """Return quantiles of each value that has a histogram; the medians and .9 quantiles by default.

    Of a value that some reports do not have, and hold as 0, they are over those that do; without the sums
    that tell how many these are, there is none.
    """
    titles = {column.value: column.name for column in result.columns if column.bucket is None}
    over = {column.shown_value: column.counted_by for column in result.columns if column.bucket is not None}
    return tuple(
        Statistic.quantile(value, share, titles[counted_by] if counted_by else COUNT)
        for value, counted_by in over.items()
        for share in shares
        if not counted_by or {counted_by, COUNT} <= titles.keys()
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
    most_rows: int | None = MOST_ROWS,
) -> None:
    """Print a result as `result_tables` makes tables of it."""
    tables = result_tables(
        result,
        {one.name: one.estimates(result) for one in statistics},
        is_all_shown=is_all_shown,
        without=without,
        where=where,
        most_rows=most_rows,
    )
    for place, table in enumerate(tables):
        if place:
            typer.echo()
        print_table(table.head, align_estimates(table.rows))
        for note in table.notes:
            typer.echo(note)


def _names(result: AggregateResult, statistics: Sequence[Statistic]) -> tuple[str, ...]:
    return (*(column.name for column in result.columns), *(one.name for one in statistics))


def summary_lines(result: AggregateResult, statistics: Sequence[Statistic] = ()) -> list[str]:
    """Return the lines under the table of a result and its statistics: its caption, noise and budget."""
    scales = ", ".join(
        f"{column.name} {spell(column.noise_scale, 4)}" for column in result.columns if column.bucket is None
    )
    scales = scales or spell(result.columns[0].noise_scale, 4)
    return [
        result.caption,
        f"{_threshold(result)} are in the rest, and show noise around zero",
        *result.threshold_notes,
        *reading_lines(result, statistics),
        *noise_lines(result, f": {scales}; ± is half of an interval, one in brackets is uneven"),
    ]


def reading_lines(result: AggregateResult, statistics: Sequence[Statistic]) -> list[str]:
    """Return lines on names that are codes, and on estimates outside of intervals; none where not."""
    return [*_nameless_lines(result), *_outside_lines(result, statistics)]


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
        f"list: --again {result.query_id[:12]} --domain FILE with the words names them, and costs nothing"
    ]


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
    """Describe the noise, with its scale in words, and what is spent and reserved of the same budget."""
    if result.mechanism is Mechanism.NONE:
        return []
    whole, is_of_person = result.dataset_spent, result.unit is PrivacyUnit.USER
    whose = "each person, over all datasets of the task," if is_of_person else "the dataset"
    return [
        f"{result.mechanism} noise of each helper{scale}",
        f"spent and reserved of {whose} by then: {whole.ad_server:.4g} ({whole.colluding:.4g})",
    ]


def _json(written: _Written) -> bytes:
    return (json.dumps(json_of(*written), indent=2) + "\n").encode()


def _file_columns(written: _Written) -> dict[str, type]:
    """Return the columns of a file with what their cells are: text, numbers, or yes and no."""
    result, _ = written
    figures = figure_columns(_names(*written))
    bounds = [f"{column.name} {end}" for column in _clipped(result) for end in _BOUNDS]
    conditions = [f"where {key}" for key, _ in result.where]
    columns = [
        *((name, str) for name in result.group_by),
        *((name, float) for name in (*figures, *bounds)),
        (MAY_BE_HIDDEN, bool),
        *((name, str) for name in conditions),
        *_RELEASE.items(),
    ]
    names = distinct_names(name for name, _ in columns)
    return dict(zip(names, (kind for _, kind in columns), strict=True))


def _clipped(result: AggregateResult) -> list[Column]:
    return [column for column in result.columns if column.clipped_to]


def _file_rows(written: _Written) -> Iterator[list[Any]]:
    result, statistics = written
    derived = [one.estimates(result) for one in statistics]
    bounds = [end for column in _clipped(result) for end in column.clipped_to or ()]
    same = (*(word for _, word in result.where), *_released(result))
    for place, row in enumerate(result.rows):
        estimates = (*row.estimates, *(one[place] for one in derived))
        figures = [_figure(estimate, figure) for estimate in estimates for figure in FIGURES]
        yield [*row.group, *figures, *bounds, row.may_be_hidden, *same]


def _released(result: AggregateResult) -> tuple[object, ...]:
    """Return what `_RELEASE` names: epsilons are empty without noise."""
    cost = result.cost
    costs = (cost.ad_server, cost.colluding, result.delta)
    is_noisy = result.mechanism is not Mechanism.NONE
    unit = (result.unit.value, result.reports_per_user)
    return (result.records, CONFIDENCE, *(costs if is_noisy else [None] * len(costs)), *unit)


def _figure(estimate: Estimate, name: str) -> float | None:
    """Return a figure of an estimate; None where it is not known, as the ratio of two numbers near noise."""
    value: float = getattr(estimate, name)
    return value if estimate.no_interval is None and math.isfinite(value) else None


def csv_of(result: AggregateResult, statistics: Sequence[Statistic]) -> bytes:
    """Return the .csv file that `write_result` writes: one line a cell."""
    return _csv((result, statistics))


def _csv(written: _Written) -> bytes:
    """Encode one line a cell."""
    return as_csv([*_file_columns(written)], _file_rows(written))


def _parquet(written: _Written) -> bytes:
    """Encode the same columns; the rest of the result is the file's metadata, as JSON."""
    import pyarrow
    from pyarrow import parquet

    types = _file_columns(written)
    columns = list(zip(*_file_rows(written), strict=True))
    # So that a file alone says what it holds, and how noisy and how private it is
    about = ResultMessage.of(written[0]).model_dump_json(exclude={"rows"})
    as_arrow = {
        str: pyarrow.string(),
        float: pyarrow.float64(),
        int: pyarrow.int64(),
        bool: pyarrow.bool_(),
    }
    arrays = [
        pyarrow.array(list(column), as_arrow[kind])
        for column, kind in zip(columns, types.values(), strict=True)
    ]
    table = pyarrow.table(dict(zip(types, arrays, strict=True)))
    file = BytesIO()
    parquet.write_table(table.replace_schema_metadata({"maskedlark": about}), file)
    return file.getvalue()


def _png(written: _Written) -> bytes:
    result, statistics = written
    derived = [(one.name, one.estimates(result)) for one in statistics]
    return draw_result(result, derived, result.caption)
