"""How wide a project's measurement will be, before anything is spent, and what its owner's table tells of it.

    forecasts = forecast_groups(table, data, measure, task, reported=320)
    tabulate_forecasts(forecasts)
    # [("revenue", "19", "(all)", "12", "± 210", "", "25"), ("", "", "by region", "", "± 210", "1234", "19")]

The noise is that of the query which a run asks, planned by the same functions for a task that nobody signed.
"""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from adserver.measuring.estimate import Estimate
from adserver.quickstart.budget_check import unsigned_task
from adserver.quickstart.clipping import (
    Clipping,
    advise_most,
    find_clipping,
    find_total,
    name_level,
    shorten,
    suggest_most,
    sums_by_level,
)
from adserver.quickstart.measurement import (
    MOST_DECIMALS,
    MeasurementPlan,
    cut_off,
    describe_gaps,
    describe_rest,
    group_rows,
    largest_bound,
    numbers_by_level,
    parse_numbers,
    parse_value,
    plan_measurement,
    read_numbers,
)
from adserver.quickstart.people import count_reported
from adserver.quickstart.settings import DataSettings, Measured, MeasureSettings, TaskSettings
from adserver.records.defaults import ALL
from maskedlark.encoding.table import Table
from maskedlark.frozen import frozen
from maskedlark.reports.measurement import COUNT
from maskedlark.terminal.plural import plural

if TYPE_CHECKING:
    from maskedlark.releases.query import QuerySpec
    from maskedlark.reports.task import Task

_ONLY_HERE: Final = "what is cut is known from your own table; where people's pages report, "
_NOT_PRIVATE: Final = (
    "exact figures of the rows of your own table, of small groups too: no epsilon covers them, so share "
    "measured.csv, measured.json and measured.png, and not this file"
)


FORECAST_COLUMNS: Final = ("value", "most", "level", "rows cut", "interval", "median", "best most")
"""Of the table of forecasts. The median is of the finest groups; `best most` has each level's least error."""


@frozen
class GroupForecast:
    """What a measured sum will be like in one group, of the rows that browsers report.

    Where the table has more rows, its sums and counts are scaled to those that are reported.

    Attributes:
        name: As results have it; see `MeasurementPlan.names`.
        reported: Rows that browsers report.
        half_width: Of the group's 99 % interval, in the column's own unit; without keys, of the total's.
        typical: The median over the groups of the table that are shown, of the sum of the rows, each counted
            as far as `most`; without keys, the total.
        rows_per_person: The most rows of a person, all of which epsilon is of; None: of one row.
        clipping: What that bound cuts off, and which are better; None of a word, of the
            count and of a column of zeros.
        quantiles: By what results call them, those of the group with the median number of rows, each with
            the interval that it will have at that noise.
        level_widths: Half of the interval in a group of each level, by its keys, the coarsest first.
        few: The lines and cells of the few rows that decide the best bound, by the table's order.
        is_total: Whether there is one such row, and all others add up to it.
    """

    name: str
    reported: int
    half_width: float
    typical: float
    rows_per_person: int | None = None
    clipping: Clipping | None = None
    quantiles: Mapping[str, Estimate] = field(default_factory=dict)
    level_widths: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    few: tuple[tuple[int, str], ...] = ()
    is_total: bool = False

    @property
    def is_too_wide(self) -> bool:
        """Return whether the interval reaches further than the typical sum."""
        return self.half_width > abs(self.typical)

    @property
    def known_quantiles(self) -> dict[str, float]:
        """The sizes, without a sign, of the quantiles that will have an interval."""
        return {name: abs(of.value) for name, of in self.quantiles.items() if of.no_interval is None}


def forecast_groups(
    table: Table,
    data: DataSettings,
    measure: MeasureSettings,
    task: TaskSettings,
    *,
    reported: int,
    plan: MeasurementPlan | None = None,
) -> tuple[GroupForecast, ...]:
    """Return a forecast of each value and of the count; none where `[measure]` names nothing.

    Args:
        table: The project's table.
        data: Its columns.
        measure: What is measured.
        task: What both helpers sign: the budgets, and the rows of a person if they are of one.
        reported: Rows that browsers will report.
        plan: As a run had it, of which the table has some rows; None: as of this table.

    Raises:
        InvalidTask: as `plan_measurement`, or epsilon is over the task's budget.
        JobRefused: the query has too many cells, or no noise fits the budgets.
    """
    # Loads numpy, which light commands do without.
    from adserver.measuring.intervals import half_width
    from maskedlark.privacy.mechanism import Mechanism

    plan = plan or plan_measurement(table, data, measure)
    if plan is None:
        return ()
    errors = _plan_errors(plan, task, measure.epsilon, reported)
    unit_errors = _plan_unit_errors(plan, task, measure.epsilon, reported)
    share = reported / len(table)
    found = []
    names = (*_names_of(measure, plan), COUNT)
    factor = half_width(Mechanism.GAUSSIAN)
    # Behind the values stand those that count the rows with a cell
    declared = (*[*plan.names][: len(measure.values)], COUNT)
    for name, value, one, by_level, in_units in zip(
        names, declared, (*measure.values, None), errors, unit_errors, strict=True
    ):
        most = 1.0 if one is None else one.bound
        levels = numbers_by_level(table, plan, one)
        # Where no group by all keys is shown, the finest that are
        finest = max(place for place, level in enumerate(levels) if level)
        groups = levels[finest]
        sums = [share * sum(max(-most, min(most, value)) for value in group) for group in groups.values()]
        width = factor * by_level[finest]
        clipping = None
        # Of a column of zeros no bound is better than another
        if one is not None and not one.word and any(levels[0][()]):
            clipping = find_clipping(
                levels,
                [*plan.keys.values()],
                most=most,
                half_widths=[factor * error for error in by_level],
                errors=in_units,
                share=share,
                limit=largest_bound(table, one.column),
            )
        quantiles = {}
        if one is not None and one.quantiles:
            group = sorted(groups, key=lambda group: len(groups[group]))[len(groups) // 2]
            rows = [of for of in _filled_rows(table, plan, one.column, finest) if of[0] == group]
            quantiles = _forecast_quantiles(plan, value, [of[1] for of in rows], errors[-1][finest], share)
        few = () if one is None or clipping is None else _list_few(table, one.column, clipping)
        found.append(
            GroupForecast(
                name=name,
                reported=reported,
                half_width=width,
                typical=median(sums),
                rows_per_person=task.rows_per_person,
                clipping=clipping,
                quantiles=quantiles,
                level_widths={
                    tuple(plan.keys.values())[:place]: factor * error
                    for place, (level, error) in enumerate(zip(levels, by_level, strict=True))
                    if level
                },
                few=few,
                is_total=len(few) == 1 and find_total(levels[0][()]) is not None,
            )
        )
    return tuple(found)


def _list_few(table: Table, column: str, cut: Clipping) -> tuple[tuple[int, str], ...]:
    """Return the lines and cells of the few rows that decide the best bound of a column."""
    few = cut.few
    if few is None:
        return ()
    rows = zip(table.lines, table.columns[column], parse_numbers(table, column), strict=True)
    return tuple(
        (line, cell or "") for line, cell, number in rows if number is not None and abs(number) >= few.least
    )


def _filled_rows(
    table: Table, plan: MeasurementPlan, column: str, level: int
) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield the group of a level, and the number, of each row that has one."""
    for group, number in zip(group_rows(table, plan), parse_numbers(table, column), strict=True):
        if number is not None:
            yield group[:level], number


def _forecast_quantiles(
    plan: MeasurementPlan, value: str, numbers: Sequence[float], error: float, share: float
) -> dict[str, Estimate]:
    """Return the quantiles of a group as a run without luck would: its own rows, and the noise's intervals.

    Args:
        plan: What is measured.
        value: A declared value with quantiles.
        numbers: Of the group's rows.
        error: The standard error of a count of the group; a bucket is one.
        share: Of the rows, how many are reported.
    """
    # Loads numpy, which light commands do without.
    import numpy as np

    from adserver.measuring.result import quantiles_of
    from maskedlark.privacy.mechanism import Mechanism

    declared = plan.declared.value(value)
    if declared is None:
        raise AssertionError("a plan has quantiles of values that it declares")
    starts, unit = declared.bucket_starts, declared.parts_per_unit
    counts, errors = np.zeros(len(starts)), np.full(len(starts), error)
    for number in numbers:
        at = bisect_right(starts, min(max(round(number * unit), declared.low), declared.high)) - 1
        counts[at] += share
    # The rows without a number are subtracted, which takes the noise of two further counts
    if plan.names[value] in plan.filled:
        errors[starts.index(0)] *= math.sqrt(3)
    ends = [start - 1 for start in starts[1:]] + [declared.high]
    buckets = [(low / unit, high / unit) for low, high in zip(starts, ends, strict=True)]
    cells = np.stack([counts, errors])[:, None, :]
    return {
        plan.name_quantile(value, of): one
        for of in plan.quantiles[value]
        for one in quantiles_of(cells, buckets, of, Mechanism.GAUSSIAN)
    }


def _names_of(measure: MeasureSettings, plan: MeasurementPlan) -> list[str]:
    """Return what results call the measured values; behind these a plan has those that count filled rows."""
    return list(plan.names.values())[: len(measure.values)]


def describe_forecasts(forecasts: Sequence[GroupForecast], measure: MeasureSettings) -> str:
    """Say in one line what the table of `tabulate_forecasts` is of."""
    rows = f"over {plural(forecasts[0].reported, 'reported row')}"
    of = " of a person" if forecasts[0].rows_per_person else ""
    return f"[measure] at epsilon {measure.epsilon:g}{of}, {rows}, 99 % intervals are about:"


def tabulate_forecasts(forecasts: Sequence[GroupForecast]) -> list[tuple[str, ...]]:
    """Return the lines of `FORECAST_COLUMNS`: of each value one a level, and one a quantile."""
    lines = list[tuple[str, ...]]()
    for one in forecasts:
        cut, finest = one.clipping, max(one.level_widths, key=len, default=())
        best = {} if cut is None else {level.keys: f"{level.best_most:g}" for level in cut.levels}
        bound, rows = ("", "") if cut is None else (f"{cut.most:g}", f"{cut.rows:,}")
        first = (one.name, bound, rows)
        for keys, width in one.level_widths.items():
            name, most, cut_rows = first
            # A level's first keys stand in the lines above
            level = f"+ {keys[-1]}" if len(keys) > 1 else name_level(keys)
            typical = shorten(one.typical) if keys == finest else ""
            lines.append((name, most, level, cut_rows, f"± {shorten(width)}", typical, best.get(keys, "")))
            first = ("", "", "")
        for name, of in one.quantiles.items():
            is_known = of.no_interval is None
            ends = f"{shorten(of.low)} to {shorten(of.high)}" if is_known else "unknown"
            # Which value and groups it is of stand in the lines above
            share, _, _ = name.partition(" of ")
            lines.append((f"  {share}", "", "", "", ends, shorten(of.value) if is_known else "", ""))
    return lines


def advise_bounds(forecasts: Sequence[GroupForecast]) -> tuple[str, ...]:
    """Return a line for each value whose bound cuts too much, or is clearly worse than another.

    And one for each whose best bound a few rows decide.
    """
    told = list[str | None]()
    for one in forecasts:
        if one.clipping is not None:
            few = one.clipping.few
            is_best = one.is_total and few is not None and few.best_most == one.clipping.most
            told += [
                None if is_best else advise_most(one.name, one.clipping),
                _describe_few(one, one.clipping),
            ]
    return tuple(one for one in told if one is not None)


def _describe_few(forecast: GroupForecast, cut: Clipping) -> str | None:
    """Say which few rows decide the best bound, with their lines; None where it takes more than a few."""
    few = cut.few
    if few is None:
        return None
    if forecast.is_total:
        ((line, cell),) = forecast.few
        return (
            f"{forecast.name!r}: line {line} seems to be a row of totals, as all others add up to its {cell}"
            f": remove it from the table. Without it most = {few.best_most:g} is the best"
        )
    rows = plural(few.rows, "row decides", "rows decide")
    above = plural(few.above, "row is", "rows are")
    cells = ", ".join(f"{cell} in line {line}" for line, cell in forecast.few)
    those, wrong = ("it", "the cell if it is") if few.rows == 1 else ("them", "the cells that are")
    return (
        f"{forecast.name!r}: {rows} that most = {cut.best_most:g} is the best, and {above} above it: {cells}"
        f". Without {those} most = {few.best_most:g} is the best: correct {wrong} wrong, or set that bound"
    )


def describe_measurement(
    table: Table,
    data: DataSettings,
    measure: MeasureSettings,
    forecasts: Sequence[GroupForecast],
    plan: MeasurementPlan | None = None,
) -> tuple[str, ...]:
    """Say what the owner's table tells of the results: where gaps and other words are.

    Gaps are of the rows whose label is learned, and other words of the table. Each line has the number of
    those rows. If bounds cut rows off, one says whence that is known.

    Args as of `forecast_groups`.
    """
    plan = plan or plan_measurement(table, data, measure)
    if plan is None:
        return ()
    # Without a label there is no panel
    whence = "only the panel tells it" if data.label else "it is not known"
    is_cut = any(one.clipping is not None and one.clipping.rows for one in forecasts)
    return (
        *([_ONLY_HERE + whence] if is_cut else ()),
        *describe_gaps(table, data, measure),
        *describe_rest(table, plan),
    )


def describe_own_table(
    table: Table,
    data: DataSettings,
    measure: MeasureSettings,
    task: TaskSettings,
    plan: MeasurementPlan,
) -> dict[str, Any]:
    """Return what the owner's table tells of a run's results, as a JSON document: none of it is released.

    Its figures are exact, also those of groups that the results hide; the first field says so.

    Args:
        table: The owner's rows that browsers reported.
        data: Its columns.
        measure: What is measured.
        task: What both helpers sign: the budgets.
        plan: As the run had it.

    Raises:
        InvalidTask, JobRefused: as `forecast_groups`.
    """
    forecasts = forecast_groups(table, data, measure, task, reported=len(table), plan=plan)
    return {
        "is_private": False,
        "about": _NOT_PRIVATE,
        "notes": (
            *advise_bounds(forecasts),
            *describe_measurement(table, data, measure, forecasts, plan),
        ),
        "clipped": {
            one.name: {**asdict(one.clipping), "half_width": one.half_width}
            for one in forecasts
            if one.clipping is not None and one.clipping.rows
        },
        "cut_off": [
            {"group": dict(zip(plan.keys.values(), group, strict=True)), **lost}
            for group, lost in cut_off_by_group(table, plan, measure).items()
        ],
    }


def cut_off_by_group(
    table: Table, plan: MeasurementPlan, measure: MeasureSettings
) -> dict[tuple[str, ...], dict[str, float]]:
    """Return what bounds cut off the sum of each group, and of the totals, of each value that they cut.

    Args:
        table: The owner's rows that browsers reported.
        plan: As its run had it.
        measure: What is measured.
    """
    found = defaultdict[tuple[str, ...], dict[str, float]](dict)
    for name, value in zip(_names_of(measure, plan), measure.values, strict=True):
        numbers = read_numbers(table, value)
        if value.word or not any(beyond := cut_off(numbers, value.bound)):
            continue
        lost = defaultdict[tuple[str, ...], float](float)
        for group, one in zip(group_rows(table, plan), beyond, strict=True):
            for level in range(len(group) + 1):
                lost[*group[:level], *(ALL,) * (len(group) - level)] += one
        for of, one in lost.items():
            # As exact as cells are: sums of floats end in digits of no meaning
            found[of][name] = round(one, MOST_DECIMALS)
    return found


def warn_of_forecasts(forecasts: Sequence[GroupForecast], measure: MeasureSettings) -> tuple[str, ...]:
    """Return what differs from good: a line for each bound, as of `advise_bounds`, and those of widths.

    One if intervals are wider than typical sums, with what makes them narrower, and one for quantiles that
    will be unknown, or are beyond the most that a row counts.
    """
    return (
        *(f"[measure] {one}" for one in advise_bounds(forecasts)),
        *_warn_of_sums(forecasts, measure),
        *_warn_of_quantiles(forecasts, measure),
    )


def _warn_of_quantiles(forecasts: Sequence[GroupForecast], measure: MeasureSettings) -> Iterator[str]:
    for one, value in zip(forecasts, measure.values, strict=False):
        if unknown := [name for name, of in one.quantiles.items() if of.no_interval is not None]:
            yield (
                f"[measure] at this noise nothing will be known of {', '.join(unknown)} in a typical group: "
                f"raise [measure] epsilon{' or use fewer keys' if measure.keys else ''}"
            )
        cut = one.clipping
        # Where the bound is to be lowered for the sums, quantiles above the lower one are beyond it too
        is_lowered = (
            cut is not None and cut.best_most < value.bound and advise_most(one.name, cut) is not None
        )
        bound = cut.best_most if cut is not None and is_lowered else value.bound
        beyond = {name: size for name, size in one.known_quantiles.items() if size >= bound}
        if beyond and cut is not None and max(beyond.values()) >= cut.best_most:
            yield (
                f"[measure] most = {cut.best_most:g}, the best for sums of {one.name!r}, is at most "
                f"{', '.join(beyond)} of a typical group of your own table: leave the quantile out, or write "
                f"a most above {shorten(max(beyond.values()))}, for which intervals of sums are wider"
            )
        elif beyond:
            yield (
                f"[measure] most = {value.bound:g} is at most {', '.join(beyond)} of a typical group of your "
                "own table, and a row counts no more: raise most, or leave the quantile out"
            )


def _warn_of_sums(forecasts: Sequence[GroupForecast], measure: MeasureSettings) -> tuple[str, ...]:
    wide = [one.name for one in forecasts if one.is_too_wide]
    if not wide:
        return ()
    lower = [
        _describe_lower(one.name, one.clipping)
        for one in forecasts
        if one.is_too_wide
        and one.clipping is not None
        and one.clipping.levels[-1].best_most < one.clipping.most
        # A lower bound would cut these off
        and one.clipping.levels[-1].best_most > max(one.known_quantiles.values(), default=0.0)
    ]
    remedies = ["raise [measure] epsilon"]
    remedies += ["use fewer keys"] if measure.keys else []
    remedies += [f"lower most ({'; '.join(lower)})"] if lower else []
    sums = "a typical group's sum" if measure.keys else "the sum"
    return (
        f"[measure] the 99 % interval is wider than {sums} for {', '.join(wide)}: {' or '.join(remedies)}",
    )


def _describe_lower(name: str, cut: Clipping) -> str:
    """Say what the bound that is best for the finest groups would make of their intervals."""
    level = cut.levels[-1]
    of = "all amounts, refunds too" if cut.has_both_signs else "the sum"
    return (
        f"of {name}, most = {level.best_most:g}, the best there, makes it ± {shorten(level.best_half_width)} "
        f"and cuts {level.best_lost_share:.1%} of {of}"
    )


def suggest_values(
    table: Table, data: DataSettings, columns: Sequence[str], measure: MeasureSettings
) -> tuple[Measured, ...]:
    """Return measured columns, or COLUMN==WORD, each with the most that a row counts.

    Noise follows that bound, and rows that have more make sums too small. The bound has the least mean
    squared error of the sums asked for at `measure`'s epsilon, where each level of the roll-up counts alike:
    the total, which has one sum, as much as all groups by all keys, or else the sums that one reads first
    would be the worst. It is at least the median of what is not 0: below that, most sums are of rows
    that are cut off, and say little more than how many there are. Where that median is half the largest value
    or more, as of ratings from 1 to 5, it is the largest value: noise at most doubles, and nothing is cut
    off.

    Raises:
        InvalidTask: there is no such column, or it holds words or nothing; or as `plan_measurement`.
        JobRefused: as `forecast_groups`.
    """
    asked = tuple(parse_value(table, column) for column in columns)
    whole = replace(measure, values=asked)
    return suggest_bounds(table, data, whole, TaskSettings(), reported=count_reported(table, data))


def suggest_bounds(
    table: Table,
    data: DataSettings,
    measure: MeasureSettings,
    task: TaskSettings,
    *,
    reported: int,
    plan: MeasurementPlan | None = None,
) -> tuple[Measured, ...]:
    """Return the measured values, those of numbers with the bound of least squared error at this epsilon.

    Args and errors as of `forecast_groups`.
    """
    plan = plan or plan_measurement(table, data, measure)
    if plan is None or not measure.values:
        return ()
    errors = _plan_unit_errors(plan, task, measure.epsilon, reported)
    found = []
    for one, by_level in zip(measure.values, errors, strict=False):
        if one.word:
            found.append(one)
            continue
        levels = numbers_by_level(table, plan, one)
        # Rows of totals are advised to be removed
        total = find_total(levels[0][()])
        if total is not None:
            levels = [
                {group: [x for x in of if x != total] for group, of in level.items()} for level in levels
            ]
        of = sums_by_level(levels, by_level)
        most = suggest_most(list(of.values()), reported / len(table), largest_bound(table, one.column))
        found.append(replace(one, most=most))
    return tuple(found)


def compare_intervals(
    plan: MeasurementPlan, task: TaskSettings, measure: MeasureSettings, *, reported: int
) -> float:
    """Return how many times as wide intervals are as those of an epsilon of one row.

    Args and errors as of `forecast_groups`; the task names the person.
    """
    person, row = (
        _plan_errors(plan, one, measure.epsilon, reported)[-1][0]
        for one in (task, replace(task, person="", rows_per_person=None))
    )
    return person / row


def _plan_errors(
    plan: MeasurementPlan, settings: TaskSettings, epsilon: float, reported: int
) -> tuple[tuple[float, ...], ...]:
    """Return the standard errors of each value, and of the count, in a group: in columns' own units.

    One for each level of the result, the coarsest first.
    """
    # Loads numpy, which light commands do without.
    from adserver.measuring.measurer import level_errors

    task = unsigned_task(settings, measurement=plan.declared)
    spec = plan_measured_query(plan, task, epsilon, reported)
    # Behind the sums stand the buckets, which have the error of a count
    errors = list(zip(*level_errors(task, spec), strict=True))[: len(plan.names) + 1]
    # Behind the values stand the counts of the rows without a gap, one of each column
    return (*errors[: len(errors) - 1 - len({*plan.filled.values()})], errors[-1])


def _plan_unit_errors(
    plan: MeasurementPlan, settings: TaskSettings, epsilon: float, reported: int
) -> tuple[tuple[float, ...], ...]:
    """Return the standard errors of `_plan_errors` at a bound of 1 for each value.

    A query carries a value on a whole number of steps, of which a large bound has few: there noise does not
    follow the bound in proportion, and the best bound of one plan would not be that of a plan with it.
    """
    declared = plan.declared
    values = []
    for value in declared.values:
        high = value.parts_per_unit
        low = -high if value.low else 0
        starts = (low, high) if value.bucket_starts else ()
        at_one = replace(value, low=low, high=high, bucket_starts=starts)
        values.append(at_one if value.is_clamped else value)
    return _plan_errors(
        replace(plan, declared=replace(declared, values=tuple(values))), settings, epsilon, reported
    )


def plan_measured_query(plan: MeasurementPlan, task: "Task", epsilon: float, reported: int) -> "QuerySpec":
    """Return the query that a run asks, with its noise.

    Args:
        plan: What is measured.
        task: As of `unsigned_task`, which declares it.
        epsilon: What it may cost.
        reported: Rows that browsers will report.

    Raises:
        InvalidTask: epsilon is over the task's budget.
        JobRefused: the query has too many cells, or no noise fits the budgets.
    """
    # Loads numpy, which light commands do without.
    from adserver.measuring.request import Request, plan_query
    from adserver.records.dataset_state import DatasetState
    from adserver.records.defaults import QUERY_ID_BYTES
    from adserver.store.datasets import Dataset

    dataset = Dataset(
        handle=b"",
        task_id=task.task_id,
        state=DatasetState.COMMITTED,
        created_at=0.0,
        received=reported,
        size=reported,
        view_mismatch=0,
        dataset_id=bytes(32),
        dropped=(Counter(), Counter()),
    )
    request = Request(
        values=(*plan.names, COUNT),
        histograms=tuple(plan.quantiles),
        group_by=tuple(plan.keys),
        is_rolled_up=bool(plan.keys),
        epsilon=epsilon,
    )
    return plan_query(request, task=task, dataset=dataset, query_id=bytes(QUERY_ID_BYTES)).spec
