"""A result as a picture to look at: bars with their 99 % intervals, a small panel for each figure.

A panel has the largest groups only. Files of the other kinds have all of them.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from adserver.measuring.estimate import Estimate
from adserver.measuring.group_table import bucket_of_gaps, spell_bucket
from adserver.measuring.not_printed import is_empty_rest
from adserver.measuring.result import AggregateResult
from adserver.records.defaults import ALL, REST
from maskedlark.frozen import frozen
from maskedlark.terminal.pictures import as_png, new_figure
from maskedlark.terminal.plural import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

# Bars of a panel: fewer where there are many panels
_MOST_BARS: Final = 12
_FEWEST_BARS: Final = 5
# Up to so many panels are in two columns, and more in three
_TWO_COLUMNS: Final = 12
# Inches
_BAR: Final = 0.155
_AROUND_BARS: Final = 0.34
_TITLE_LINE: Final = 0.16
_ROOM: Final = 12.5
_WIDTHS: Final = {1: 9.0, 2: 12.0, 3: 15.0}
# What is left and right of axes, without names; and a letter of a name
_BESIDE: Final = 0.6
_LABEL_LETTER: Final = 0.062
# In an inch, of a title
_LETTERS: Final = 13
# Of the name of a group
_LABEL_LETTERS: Final = 30
_TICKS: Final = 8
# Letters between two labels of buckets
_BETWEEN_LABELS: Final = 3


def draw_result(
    result: AggregateResult, statistics: Sequence[tuple[str, Sequence[Estimate]]], heading: str
) -> bytes:
    """Draw a result as a PNG file.

    Args:
        result: What was measured.
        statistics: The name of each mean and quantile, and its estimate for each row.
        heading: A line on top, which is wrapped.
    """
    panels = panels_of(result, statistics)
    columns = _num_columns(len(panels))
    width = _WIDTHS[columns]
    heights = [panel.height(width / columns) for panel in panels]
    rows = [max(heights[start : start + columns]) for start in range(0, len(panels), columns)]
    figure = new_figure(width, sum(rows) + 0.2, heading)
    grid = figure.subplots(len(rows), columns, squeeze=False, gridspec_kw={"height_ratios": rows}).ravel()
    for axes, panel in zip(grid, panels, strict=False):
        panel.draw(axes, width / columns)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    return as_png(figure)


def _num_columns(panels: int) -> int:
    if panels == 1:
        return 1
    return 2 if panels <= _TWO_COLUMNS else 3


@frozen
class Panel:
    """Bars with error bars, the 99 % intervals.

    Attributes:
        title: What is shown.
        labels: Of the bars, the first on top or on the left.
        estimates: Of each.
        can_be_negative: Whether what is shown can. If not, nothing is drawn below 0, where noise may reach.
        is_upright: Whether bars stand side by side, as those of buckets do, however many there are.
    """

    title: str
    labels: Sequence[str]
    estimates: Sequence[Estimate]
    can_be_negative: bool
    is_upright: bool = False

    def height(self, width: float) -> float:
        """Return its height in inches, of a width in inches."""
        bars = _FEWEST_BARS if self.is_upright else len(self.labels)
        return _AROUND_BARS + _TITLE_LINE * len(self._wrapped(width)) + _BAR * bars

    def _wrapped(self, width: float) -> list[str]:
        """Return the lines of the title, which begins at the axes: right of the names of the bars."""
        names = 0 if self.is_upright else max(map(len, self.labels), default=0)
        return textwrap.wrap(self.title, int((width - _BESIDE - names * _LABEL_LETTER) * _LETTERS))

    def draw(self, axes: "Axes", width: float) -> None:
        """Draw onto these axes, which have a width in inches."""
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        # An answer may have numbers that are not known: those are not drawn
        values = [_known(estimate.value) for estimate in self.estimates]
        # Noise may put an estimate outside its interval, which holds possible numbers only
        errors = [
            [max(0.0, _known(estimate.value - estimate.low)) for estimate in self.estimates],
            [max(0.0, _known(estimate.high - estimate.value)) for estimate in self.estimates],
        ]
        places = range(len(values))
        style: dict[str, Any] = {
            "color": "tab:blue",
            "alpha": 0.75,
            "error_kw": {"elinewidth": 0.8, "capsize": 2},
        }
        bottom = None if self.can_be_negative else 0
        top = None if self.can_be_negative else max(_known(one.high) for one in self.estimates) * 1.03 or 1
        numbers: Axis = axes.yaxis if self.is_upright else axes.xaxis
        # Names are no formulas: prices have $
        if self.is_upright:
            axes.bar(places, values, yerr=errors, **style)
            longest = max(map(len, self.labels)) + _BETWEEN_LABELS
            fitting = int((width - _BESIDE) / (longest * _LABEL_LETTER))
            shown = places[:: math.ceil(len(places) / min(max(fitting, 2), _TICKS))]
            axes.set_xticks(shown, [self.labels[place] for place in shown], fontsize=7, parse_math=False)
            axes.set_ylim(bottom, top)
        else:
            axes.barh(places, values, xerr=errors, **style)
            axes.set_yticks(places, self.labels, fontsize=7, parse_math=False)
            axes.set_ylim(len(values) - 0.5, -0.5)
            axes.set_xlim(bottom, top)
        numbers.set_major_locator(MaxNLocator(4))
        numbers.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.10g}"))
        numbers.set_tick_params(labelsize=7, pad=2)
        numbers.grid(visible=True, alpha=0.3)
        axes.set_title("\n".join(self._wrapped(width)), fontsize=9, loc="left", pad=3, parse_math=False)


def _known(number: float) -> float:
    """Return a number that can be drawn: 0 in place of one that is not known."""
    return number if math.isfinite(number) else 0.0


@frozen
class _Figure:
    """A sum, mean or quantile, of which each row has an estimate.

    Attributes:
        name: For people.
        estimates: For each row.
        can_be_negative: Whether it can.
        is_sum: Whether it is a sum, or a count, and not read off sums.
    """

    name: str
    estimates: Sequence[Estimate]
    can_be_negative: bool
    is_sum: bool


def panels_of(result: AggregateResult, statistics: Sequence[tuple[str, Sequence[Estimate]]]) -> list[Panel]:
    """Return a panel for each sum, mean, quantile and histogram.

    Of groups by several keys rolled up, that of the first key, and of all keys if it is not mostly noise.
    Where that would be too many panels, one of both: of all keys if every group has room and is known.
    """
    figures = [*_sums(result), *_statistics(result, statistics)]
    buckets = list(_bucket_panels(result))
    levels = sorted({_level(row.group) for row in result.rows} - {0}) or [0]
    ends = [*dict.fromkeys((levels[0], levels[-1]))]
    are_both = len(figures) * len(ends) + len(buckets) <= _TWO_COLUMNS
    panels = len(figures) * (len(ends) if are_both else 1) + len(buckets)
    rows = math.ceil(panels / _num_columns(panels))
    bars = int((_ROOM / rows - _AROUND_BARS - _TITLE_LINE) / _BAR)
    drawing = _Drawing(result=result, most=min(max(bars, _FEWEST_BARS), _MOST_BARS))
    found = [
        panel
        for figure in figures
        for level in drawing.choose_levels(figure, ends, are_both=are_both)
        for panel in [drawing.panel(figure, level)]
    ]
    return [*found, *buckets]


def _sums(result: AggregateResult) -> Iterator[_Figure]:
    for place, column in enumerate(result.columns):
        if column.bucket is None:
            yield _Figure(
                name=column.name,
                estimates=[row.estimates[place] for row in result.rows],
                can_be_negative=column.sum_range[0] < 0,
                is_sum=True,
            )


def _statistics(
    result: AggregateResult, statistics: Sequence[tuple[str, Sequence[Estimate]]]
) -> Iterator[_Figure]:
    for name, estimates in statistics:
        known = [
            one
            for row, one in zip(result.rows, estimates, strict=True)
            if not row.may_be_hidden and one.no_interval is None
        ]
        yield _Figure(
            name=name,
            estimates=estimates,
            can_be_negative=any(one.low < 0 for one in known),
            is_sum=False,
        )


def _bucket_panels(result: AggregateResult) -> Iterator[Panel]:
    """Yield a panel for each histogram: its buckets in the coarsest cell."""
    for value in dict.fromkeys(column.shown_value for column in result.columns if column.bucket is not None):
        buckets = [
            (place, column.bucket)
            for place, column in enumerate(result.columns)
            if column.shown_value == value and column.bucket is not None
        ]
        # Of every cell would be a picture a cell
        first = result.rows[0]
        group = " · ".join(name for name in first.group if name != ALL)
        zero = bucket_of_gaps(result.columns[place] for place, _ in buckets)
        yield Panel(
            title=f"reports by {value}"
            + (f" in {group}" if group else "")
            + (f"; those without one are in {spell_bucket(zero)}" if zero else ""),
            labels=[f"{low:g}" if low == high else f"{low:g}..{high:g}" for _, (low, high) in buckets],
            estimates=[first.estimates[place] for place, _ in buckets],
            can_be_negative=False,
            is_upright=True,
        )


def _level(group: Sequence[str]) -> int:
    """Return by how many keys a group is."""
    return next((level for level in range(len(group), 0, -1) if group[level - 1] != ALL), 0)


@frozen
class _Drawing:
    """Which groups of a result are drawn.

    Attributes:
        result: What was measured.
        most: How many bars a panel has at most.
    """

    result: AggregateResult
    most: int

    def choose_levels(self, figure: _Figure, ends: Sequence[int], *, are_both: bool) -> Sequence[int]:
        """Return the levels of which a figure gets a panel, of the first and the last that groups are of."""
        known = [level for level in ends if self._known(figure, level)]
        if not known:
            # Of a roll-up the total is left
            total = min(_level(row.group) for row in self.result.rows)
            return [total] if figure.is_sum or self._known(figure, total) else []
        coarse, fine = known[0], known[-1]
        if coarse == fine or self._is_noise(figure, fine):
            return [coarse]
        if are_both:
            return [coarse, fine]
        has_room = len(self._known(figure, fine)) <= self.most
        is_whole = not self._lacks(figure, fine) or self._lacks(figure, coarse)
        return [fine if has_room and is_whole else coarse]

    def panel(self, figure: _Figure, level: int) -> Panel:
        """Return a panel of a level's groups, as many as there is room for."""
        known = self._known(figure, level)
        every = [place for place in self._places(level) if not self._is_rest(place)]
        drawn = self._drawn(figure, known or every)
        named = sum(not self._is_rest(place) for place in drawn)
        by = f"{figure.name} by {', '.join(self.result.group_by[:level])}" if level else figure.name
        lacking = "may be hidden" if figure.is_sum else "are unknown"
        first = "largest" if figure.is_sum else "surest"
        of = f"{named} of {plural(len(every), 'group')}"
        if not known and level:
            title = f"{by}: {of}, which may all be hidden"
        elif len(drawn) < len(known):
            title = f"{by}: the {first} {of}"
        elif named < len(every):
            title = f"{by}: {of}, the others {lacking}"
        elif not level and self.result.group_by:
            title = f"{by} of all: its groups {lacking}"
        else:
            title = by
        return Panel(
            title=title,
            labels=[_label(self.result.rows[place].group[:level]) for place in drawn],
            estimates=[figure.estimates[place] for place in drawn],
            can_be_negative=figure.can_be_negative,
        )

    def _places(self, level: int) -> list[int]:
        """Return the rows of a level: of another they would count twice."""
        return [place for place, row in enumerate(self.result.rows) if _level(row.group) == level]

    def _known(self, figure: _Figure, level: int) -> list[int]:
        """Return the rows of a level that surely say something of a figure."""
        known = [
            place
            for place in self._places(level)
            if not self.result.rows[place].may_be_hidden and figure.estimates[place].no_interval is None
        ]
        # A rest is mostly empty: only one that is more than noise says something
        rows = self.result.rows
        return [
            place
            for place in known
            if not self._is_rest(place)
            or (figure.estimates[place].low > 0 and not is_empty_rest(self.result, rows[place]))
        ]

    def _lacks(self, figure: _Figure, level: int) -> bool:
        """Return whether a level has a group of which nothing is known."""
        known = set(self._known(figure, level))
        return any(place not in known for place in self._places(level) if not self._is_rest(place))

    def _is_rest(self, place: int) -> bool:
        return REST in self.result.rows[place].group

    def _drawn(self, figure: _Figure, places: Sequence[int]) -> list[int]:
        """Return the rows that get a bar, the largest first and rests last."""
        of = figure.estimates

        def weigh(place: int) -> tuple[bool, float]:
            return self._is_rest(place), -of[place].value

        def doubt(place: int) -> tuple[bool, float]:
            return self._is_rest(place), of[place].high - of[place].low

        # Of many means the largest are those that noise made large
        return sorted(sorted(places, key=weigh if figure.is_sum else doubt)[: self.most], key=weigh)

    def _is_noise(self, figure: _Figure, level: int) -> bool:
        """Return whether most intervals of a level's bars reach further than half of the longest bar."""
        ones = [figure.estimates[place] for place in self._drawn(figure, self._known(figure, level))]
        longest = max(abs(one.value) for one in ones)
        return 2 * sum(one.high - one.low > longest for one in ones) > len(ones)


def _label(group: Sequence[str]) -> str:
    """Return the name of a group, of which the longest parts are cut off."""
    names = [*group]
    while sum(map(len, names)) > _LABEL_LETTERS:
        longest = max(range(len(names)), key=lambda place: len(names[place]))
        names[longest] = f"{names[longest][:-2]}…"
    return " · ".join(names) or "all"
