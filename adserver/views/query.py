"""A result as files and for programs.

JSON, CSV, Parquet, and a picture of bars with error bars; and as a table for people.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import typer

from adserver.measuring.result import AggregateResult, Column, Estimate, ReleasedResult, ResultRow
from adserver.messages.query import EstimateMessage, ResultMessage
from adserver.views.printing import as_csv, print_table, write_as
from maskedlark.frozen import frozen
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.measurement import COUNT
from maskedlark.terminal.pictures import as_png, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Attributes of `Estimate` that a file has of each column of a result
_FIGURES: Final = ("value", "standard_error", "low", "high")
# What a file has in addition of a column whose numbers are clipped, the same in every row
_BOUNDS: Final = ("clipped_low", "clipped_high")
ENDINGS: Final = (".json", ".csv", ".parquet", ".png")
"""Of the files that `write_result` writes."""
# More bars than these cannot be told apart at the width of a page
_MOST_BARS: Final = 40
NO_GAPS: Final[Mapping[str, str]] = MappingProxyType({})
UNKNOWN: Final = "unknown"
"""Of a figure that an answer says nothing about, such as the mean over a group that may be empty."""


@frozen
class Statistic:
    """A mean or a quantile: what it is called, and how it is read off a result."""

    name: str
    read: Callable[[AggregateResult], Iterable[tuple[ResultRow, Estimate]]]

    @classmethod
    def mean(cls, value: str, over: str = COUNT) -> Self:
        """Return the mean of a value over the reports that another counts."""
        return cls(name=f"mean of {value}", read=lambda result: result.means(value, over))

    @classmethod
    def quantile(cls, value: str, share: float) -> Self:
        """Return a quantile of a value that has a histogram."""
        return cls(name=f"quantile {share:g} of {value}", read=lambda result: result.quantiles(value, share))

    def estimates(self, result: AggregateResult) -> list[Estimate]:
        """Return its estimate for each row."""
        return [estimate for _, estimate in self.read(result)]


def means_in(result: AggregateResult, filled: Mapping[str, str] = NO_GAPS) -> tuple[Statistic, ...]:
    """Return the means that a result's sums and count allow.

    Args:
        result: What was measured.
        filled: For values that some reports do not have, the value that counts those that do.
    """
    sums = [column.value for column in result.columns if column.bucket is None]
    counts = {COUNT, *filled.values()}
    return tuple(
        Statistic.mean(value, filled.get(value, COUNT))
        for value in sums
        if value not in counts and filled.get(value, COUNT) in sums
    )


_Written: TypeAlias = tuple[AggregateResult, Sequence[Statistic]]


def write_result(result: AggregateResult, path: Path, statistics: Sequence[Statistic] = ()) -> None:
    """Write a result in the form that the file's name ends with: .json, .csv, .parquet or .png.

    Statistics follow the sums, with their intervals; a picture has none.

    Raises:
        InvalidTask: another ending.
    """
    writers = (_json, _csv, _parquet, lambda one: _png(one[0]))
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
    result: AggregateResult, statistics: Sequence[Statistic] = (), *, is_all_shown: bool = True
) -> None:
    """Print a table of each group's estimates with half of their intervals, and how many groups it hides.

    Args:
        result: What was measured.
        statistics: Further columns.
        is_all_shown: Whether groups without an interval for each statistic are rows, too.
    """
    derived = [one.estimates(result) for one in statistics]
    further = list(zip(*derived, strict=True)) if statistics else [()] * len(result.rows)
    shown = [
        (*row.group, *_printed_cells(row), *map(format_estimate, more))
        for row, more in zip(result.rows, further, strict=True)
        if is_all_shown or all(one.no_interval is None for one in more)
    ]
    print_table((*result.group_by, *_names(result, statistics)), shown)
    if hidden := len(result.rows) - len(shown):
        typer.echo(
            f"{hidden} group{'s' * (hidden != 1)} of too few reports, not shown: add --all-rows to show all"
        )


def _names(result: AggregateResult, statistics: Sequence[Statistic]) -> tuple[str, ...]:
    return (*(column.name for column in result.columns), *(one.name for one in statistics))


def _printed_cells(row: ResultRow) -> Iterator[str]:
    """Yield a row's estimates; of one that may be hidden, what such a cell may have."""
    for one in row.estimates:
        # If it is hidden, the estimate is noise around zero: only the interval holds either way
        if row.may_be_hidden and one.no_interval is None:
            yield f"{one.low:,.0f} to {one.high:,.0f} (may be hidden)"
        else:
            yield format_estimate(one)


def format_estimate(estimate: Estimate) -> str:
    """Format an estimate with half of its interval, or with why it has none."""
    if not math.isfinite(estimate.value):
        return UNKNOWN
    if estimate.no_interval is not None:
        return f"{estimate.value:,.3g} ({estimate.no_interval.said})"
    half = (estimate.high - estimate.low) / 2
    # Without noise and sampling the figure is exact
    if half == 0:
        return f"{estimate.value:,.6g}" if estimate.value % 1 else f"{estimate.value:,.0f}"
    # Two significant digits of the half, and the estimate to the same place
    digits = max(0, 1 - math.floor(math.log10(half))) if math.isfinite(half) else 2
    # What rounds to 0 has no sign
    return f"{round(estimate.value, digits) + 0.0:,.{digits}f} ± {half:,.{digits}f}"


def summary_lines(result: AggregateResult) -> list[str]:
    """Return the lines under the table: how many reports, the noise, and the cost."""
    scales = ", ".join(
        f"{column.name} {column.noise_scale:.4g}" for column in result.columns if column.bucket is None
    )
    scales = scales or f"{result.columns[0].noise_scale:.4g}"
    return [
        f"{result.records:,} reports; {_threshold(result)} are in the rest, and show noise around zero",
        *clipped_lines(result),
        *noise_lines(result, f": {scales}; ± is half of a 99 % interval"),
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


def _threshold(result: AggregateResult) -> str:
    """Describe which cells are hidden."""
    least, noise = result.min_cell_count, result.threshold_noise
    if not noise:
        return f"cells of fewer than {least}"
    if not result.threshold_margin:
        return f"cells of fewer than about {least} (by counts with a noise of {noise:.3g})"
    shown = least + result.threshold_margin
    return f"cells of fewer than {least}, and most below {shown:.0f} (by counts with a noise of {noise:.3g})"


def noise_lines(result: ReleasedResult, scale: str) -> list[str]:
    """Describe the noise, with its scale in words, and what the release cost."""
    if result.mechanism is Mechanism.NONE:
        return ["no noise: no privacy"]
    return [f"{result.mechanism} noise of each helper{scale}", _cost_line(result)]


def _cost_line(result: ReleasedResult) -> str:
    """Describe what a release cost, and what its dataset has spent and open jobs have reserved."""
    cost, whole = result.cost, result.dataset_spent
    return (
        f"epsilon {cost.ad_server:.4g} ({cost.colluding:.4g} with one helper) at delta {result.delta:.2g};"
        f" spent and reserved of the dataset: {whole.ad_server:.4g} ({whole.colluding:.4g})"
    )


def _json(written: _Written) -> bytes:
    return (json.dumps(json_of(*written), indent=2) + "\n").encode()


def _file_columns(written: _Written) -> list[str]:
    result, _ = written
    figures = [f"{name} {figure}" for name in _names(*written) for figure in _FIGURES]
    bounds = [f"{column.name} {end}" for column in _clipped(result) for end in _BOUNDS]
    return [*result.group_by, *figures, *bounds]


def _clipped(result: AggregateResult) -> list[Column]:
    return [column for column in result.columns if column.clipped_to]


def _file_rows(written: _Written) -> Iterator[list[Any]]:
    result, statistics = written
    derived = [one.estimates(result) for one in statistics]
    bounds = [end for column in _clipped(result) for end in column.clipped_to or ()]
    for place, row in enumerate(result.rows):
        estimates = (*row.estimates, *(one[place] for one in derived))
        figures = [getattr(estimate, figure) for estimate in estimates for figure in _FIGURES]
        yield [*row.group, *figures, *bounds]


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
    table = pyarrow.table(dict(zip(_file_columns(written), map(list, columns), strict=True)))
    file = BytesIO()
    parquet.write_table(table.replace_schema_metadata({"maskedlark": about}), file)
    return file.getvalue()


def _png(result: AggregateResult) -> bytes:
    """Draw for each sum a panel of the finest cells.

    For each histogram a panel of its buckets in the coarsest cell.
    """
    panels = [_Panel(*panel) for panel in _panels(result)]
    figure = new_figure(9, 3.2 * len(panels))
    for axes, panel in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
        panel.draw(axes)
    figure.suptitle("\n".join([summary_lines(result)[-1], *clipped_lines(result)]), fontsize=9, wrap=True)
    return as_png(figure)


class _Panel:
    """Bars with error bars: the 99 % intervals."""

    def __init__(self, title: str, unit: str, labels: Sequence[str], estimates: Sequence[Estimate]) -> None:
        self._unit = unit
        self._title = (
            title if len(labels) <= _MOST_BARS else f"{title}: the first {_MOST_BARS} of {len(labels)} cells"
        )
        self._labels = labels[:_MOST_BARS]
        self._estimates = estimates[:_MOST_BARS]

    def draw(self, axes: "Axes") -> None:
        """Draw onto these axes."""
        values = [estimate.value for estimate in self._estimates]
        errors = [
            [estimate.value - estimate.low for estimate in self._estimates],
            [estimate.high - estimate.value for estimate in self._estimates],
        ]
        axes.bar(range(len(values)), values, yerr=errors, color="tab:blue", alpha=0.75, capsize=3)
        axes.set_xticks(
            range(len(values)),
            self._labels,
            # Upright names of more bars than that run into one another
            rotation=40 if len(values) > 6 else 0,
            ha="right" if len(values) > 6 else "center",
        )
        axes.set_title(self._title, fontsize=10)
        axes.set_ylabel(self._unit)
        axes.grid(visible=True, axis="y", alpha=0.3)


def _panels(result: AggregateResult) -> list[tuple[str, str, list[str], list[Estimate]]]:
    """Return for each panel its title, what its bars count, their labels and their estimates."""
    # Rolled-up rows are sums of the others: as bars beside them they would count twice
    finest = [row for row in result.rows if len(row.group) == 0 or row.group[-1] != "(all)"]
    panels = []
    for place, column in enumerate(result.columns):
        if column.bucket is None:
            labels = [" · ".join(row.group) or "all" for row in finest]
            panels.append(
                (
                    f"{column.name} by {', '.join(result.group_by) or 'nothing'}",
                    "reports" if column.value == COUNT else column.name,
                    labels,
                    [row.estimates[place] for row in finest],
                )
            )
    for value in dict.fromkeys(column.value for column in result.columns if column.bucket is not None):
        places = [
            place
            for place, column in enumerate(result.columns)
            if column.value == value and column.bucket is not None
        ]
        buckets = [result.columns[place].bucket or (0, 0) for place in places]
        # Buckets of every cell would be a picture a cell
        first = result.rows[0]
        labels = [f"{low}..{high}" for low, high in buckets]
        title = f"reports by {value}" + (f" in {' · '.join(first.group)}" if first.group else "")
        panels.append((title, "reports", labels, [first.estimates[place] for place in places]))
    return panels
