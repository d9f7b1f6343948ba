"""What the most that a row counts cuts off sums, next to their noise, and which bound has the least error.

levels = sums_by_level(numbers_by_level(table, plan, value), errors)
most = suggest_most(list(levels.values()), share=0.8, limit=largest_bound(table, value.column))
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import median
from typing import Final

from adserver.quickstart.measurement import cut_off, round_up
from adserver.records.defaults import ALL
from maskedlark.frozen import frozen
from maskedlark.terminal.plural import plural

# Halvings of the range of bounds: beyond the two digits that are kept.
_HALVINGS: Final = 40
# A bound of up to this many times the least squared error is not worth a change
_WORSE: Final = 1.2
# Of a column whose numbers are all 0
_ANY_BOUND: Final = 1.0
# Up to so many medians the largest value is the bound: of ratings, marks and scales none is cut off.
_SHORT_SCALE: Final = 2.0
# So few rows, and no more than one in so many of those that are not 0, may be wrong cells
_FEW: Final = 5
_OF_ROWS: Final = 20
# They decide the best bound if it is so many times what it is without them
_DECISIVE: Final = 2.0
# A total may be of numbers that were rounded
_AS_ADDED_UP: Final = 1e-6


@frozen
class FewRows:
    """A handful of rows without which another bound would be the best: a wrong cell can be one.

    Attributes:
        rows: How many.
        above: How many rows have more than the best bound of all.
        least: The least of them, without its sign: each row that has so much is one of them.
        best_most: The best bound of the others.
    """

    rows: int
    above: int
    least: float
    best_most: float


@frozen
class LevelClipping:
    """What a bound cuts off the sums of one level of the result, next to the noise of that level.

    Attributes:
        keys: The columns by which it groups; none of the total.
        worst_group: Of the groups that are shown, the one of which most is cut off.
        worst_lost: What is cut off its sum, in the column's own unit.
        half_width: Of the 99 % interval of a sum of this level.
        best_most: The bound of least squared error at this level.
        best_half_width: Of an interval of this level at that bound.
        best_lost_share: What that bound would cut off all rows, as a share of what they add up to, both
            without signs.
    """

    keys: tuple[str, ...]
    worst_group: tuple[str, ...]
    worst_lost: float
    half_width: float
    best_most: float
    best_half_width: float
    best_lost_share: float

    @property
    def is_too_much(self) -> bool:
        """Return whether the cut-off exceeds the noise."""
        return self.worst_lost > self.half_width


@frozen
class Clipping:
    """What a bound cuts off a value's sums, of the rows that browsers report.

    Known from the owner's table alone. A share is None where numbers have both signs, since their sum may be
    near 0; what is cut off at both ends is added up with its sign.

    Attributes:
        most: The bound.
        rows: Rows that have more; 0 where it cuts nothing.
        lost: What is cut off the sum over all rows, in the column's own unit.
        lost_share: The same as a share of that sum.
        worst_group: The group, of those that are shown, of which most is cut off; empty without keys.
        worst_lost: What is cut off its sum.
        worst_share: The same as a share of its sum.
        best_most: The bound of least squared error at the epsilon of `[measure]`, over all levels.
        times_best: The squared error at `most` as a multiple of that at `best_most`.
        levels: Each level of which a group is shown, the coarsest first.
        few: The rows that decide `best_most`, if they are few.
    """

    most: float
    rows: int
    lost: float
    lost_share: float | None
    worst_group: tuple[str, ...]
    worst_lost: float
    worst_share: float | None
    best_most: float
    times_best: float
    levels: tuple[LevelClipping, ...]
    few: FewRows | None = None

    @property
    def has_both_signs(self) -> bool:
        """Return whether some numbers are above 0 and some are below."""
        return self.lost_share is None

    @property
    def is_worse(self) -> bool:
        """Return whether the bound has clearly more error than the best one."""
        return self.times_best > _WORSE


@frozen
class LevelSums:
    """What a value's rows are in each shown group of a level.

    Attributes:
        groups: Each group's numbers.
        error: The standard error of a group's sum at a bound of 1.
    """

    groups: Mapping[tuple[str, ...], Sequence[float]]
    error: float


def sums_by_level(
    levels: Sequence[Mapping[tuple[str, ...], Sequence[float]]], errors: Sequence[float]
) -> dict[int, LevelSums]:
    """Return the levels of which a group is shown, by how many keys they have."""
    return {
        level: LevelSums(groups=groups, error=error)
        for level, (groups, error) in enumerate(zip(levels, errors, strict=True))
        if groups
    }


def find_clipping(
    levels: Sequence[Mapping[tuple[str, ...], Sequence[float]]],
    keys: Sequence[str],
    *,
    most: float,
    half_widths: Sequence[float],
    errors: Sequence[float],
    share: float,
    limit: float,
) -> Clipping:
    """Return what a bound cuts off the sums of a value, and which bounds are better.

    Which these are does not depend on the bound, so that advice that is followed is not given again.

    Args:
        levels: The numbers of each group that is shown, by level from the total on.
        keys: By which the levels group.
        most: The bound.
        half_widths: Of each level's intervals.
        errors: The standard error of a group's sum at a bound of 1, by level, whatever `most` is.
        share: Of the rows, how many are reported.
        limit: The largest bound that a task takes.
    """
    numbers = levels[0][()]
    beyond = cut_off(numbers, most)
    has_both_signs = min(numbers) < 0 < max(numbers)

    def part(cut: float, of: Sequence[float]) -> float | None:
        # A group of which nothing is cut off may add up to 0
        return None if has_both_signs else cut / abs(sum(of)) if cut else 0.0

    sums_of = sums_by_level(levels, errors)
    lost = [{group: abs(sum(cut_off(of, most))) for group, of in one.items()} for one in levels]
    worst = {level: max(lost[level], key=lost[level].__getitem__) for level in sums_of}
    finest = max(sums_of)
    shown = list(sums_of.values())
    best = suggest_most(shown, share, limit)
    best_errors = _squared_error(shown, share, best)
    best_of = {level: suggest_most([of], share, limit) for level, of in sums_of.items()}
    magnitude = sum(map(abs, numbers))
    return Clipping(
        most=most,
        # A row that has more may be a part of one
        rows=max(1, round(share * sum(map(bool, beyond)))) if any(beyond) else 0,
        lost=share * abs(sum(beyond)),
        lost_share=part(abs(sum(beyond)), numbers),
        worst_group=worst[finest],
        worst_lost=share * lost[finest][worst[finest]],
        worst_share=part(lost[finest][worst[finest]], levels[finest][worst[finest]]),
        best_most=best,
        times_best=_squared_error(shown, share, most) / best_errors,
        levels=tuple(
            LevelClipping(
                keys=tuple(keys[:level]),
                worst_group=worst[level],
                worst_lost=share * lost[level][worst[level]],
                half_width=half_widths[level],
                best_most=best_of[level],
                best_half_width=half_widths[level] * best_of[level] / most,
                best_lost_share=sum(map(abs, cut_off(numbers, best_of[level]))) / magnitude,
            )
            for level in sums_of
        ),
        few=_find_few(shown, share, limit, best),
    )


def suggest_most(levels: Sequence[LevelSums], share: float, limit: float) -> float:
    """Return the bound of least squared error: of the mean over each level's groups, summed over the levels.

    Args:
        levels: Each with a group or more.
        share: Of the rows, how many are reported.
        limit: The largest bound that a task takes: of those up to it, it then has the least error.
    """
    # Each group with its weight
    groups = [(sorted(map(abs, group)), 1 / len(of.groups)) for of in levels for group in of.groups.values()]
    # Of the coarsest level, which has all rows of the others
    filled = [abs(value) for group in levels[0].groups.values() for value in group if value]
    if not filled:
        return _ANY_BOUND
    # What all values from a place on add up to.
    suffixes = [[0.0, *accumulate(reversed(group))][::-1] for group, _ in groups]
    low, high = 0.0, max(filled)
    for _ in range(_HALVINGS):
        bound = (low + high) / 2
        slope = sum(of.error**2 for of in levels) * bound
        for (group, weight), suffix in zip(groups, suffixes, strict=True):
            place = bisect_right(group, bound)
            more = len(group) - place
            # The squared bias falls by its root times the rows that have more.
            slope -= weight * share**2 * (suffix[place] - more * bound) * more
        low, high = (bound, high) if slope < 0 else (low, bound)
    middle = median(filled)
    least = max(filled) if max(filled) <= _SHORT_SCALE * middle else middle
    return min(round_up(max(high, least)), limit)


def find_total(numbers: Sequence[float]) -> float | None:
    """Return the number that all others add up to, as in a row of totals; None if none is so."""
    largest = max(numbers, key=abs, default=0.0)
    is_total = math.isclose(largest, math.fsum(numbers) - largest, rel_tol=_AS_ADDED_UP)
    return largest if is_total and sum(map(bool, numbers)) > _OF_ROWS else None


def _find_few(levels: Sequence[LevelSums], share: float, limit: float, best: float) -> FewRows | None:
    """Return the fewest of the largest rows that decide the best bound; None where it takes more than a few.

    Args:
        levels: As of `suggest_most`.
        share: As of `suggest_most`.
        limit: As of `suggest_most`.
        best: The best bound of all rows.
    """
    filled = sorted((abs(value) for value in levels[0].groups[()] if value), reverse=True)
    most = min(_FEW, len(filled) // _OF_ROWS)
    # Rows of one number are told together
    counts = [rows for rows in range(1, most + 1) if filled[rows] < filled[rows - 1]]
    if not counts:
        return None
    without = {counts[-1]: _suggest_without(levels, filled[counts[-1] - 1], share, limit)}
    usual = without[counts[-1]]
    if best < _DECISIVE * usual:
        return None
    for rows in counts:
        if rows not in without:
            without[rows] = _suggest_without(levels, filled[rows - 1], share, limit)
        if without[rows] < _DECISIVE * usual:
            return FewRows(
                rows=rows,
                above=sum(value > best for value in filled),
                least=filled[rows - 1],
                best_most=without[rows],
            )
    raise AssertionError("the last of them is the usual bound")


def _suggest_without(levels: Sequence[LevelSums], least: float, share: float, limit: float) -> float:
    """Return the best bound of the rows that have less than a number."""
    others = [
        LevelSums(
            groups={
                group: [value for value in of if abs(value) < least] for group, of in level.groups.items()
            },
            error=level.error,
        )
        for level in levels
    ]
    return suggest_most(others, share, limit)


def _squared_error(levels: Sequence[LevelSums], share: float, most: float) -> float:
    """Return the squared error of sums at a bound: what `suggest_most` makes least.

    Args:
        levels: Each with a group or more.
        share: Of the rows, how many are reported.
        most: The bound.
    """
    return sum(
        (of.error * most) ** 2
        + sum((share * sum(max(0.0, abs(one) - most) for one in group)) ** 2 for group in of.groups.values())
        / len(of.groups)
        for of in levels
    )


def advise_most(name: str, cut: Clipping) -> str | None:
    """Say that a bound cuts more off sums than their noise, or that another is clearly better; else None.

    A bound that is the best for one level, or without a few rows, is its owner's choice: what it is the best
    for is said, and what is lost by it.
    """
    too_much = ", ".join(name_level(one.keys) for one in cut.levels if one.is_too_much)
    if not cut.rows:
        does = "cuts nothing, and noise follows it"
    elif too_much:
        does = f"cuts more than the noise off sums {too_much}"
    else:
        does = "cuts less than the noise, which follows it"
    said = f"{name!r}: most = {cut.most:g} {does}"
    if not cut.is_worse and not (too_much and cut.best_most > cut.most):
        return f"{said}, and intervals do not cover that" if too_much else None
    best_for = ", ".join(name_level(one.keys) for one in cut.levels if one.best_most == cut.most)
    if best_for:
        chosen = f"the best for sums {best_for}"
    elif cut.few is not None and cut.few.best_most == cut.most:
        chosen = f"the best without {plural(cut.few.rows, 'row')}"
    else:
        return f"{said}: set most = {cut.best_most:g}, the best over all levels of the result"
    return f"{said}; it is {chosen}, and most = {cut.best_most:g} is the best over all levels of the result"


def name_level(keys: Sequence[str]) -> str:
    """Return what a level of groups is called: (all), or by its keys."""
    return f"by {', '.join(keys)}" if keys else ALL


def shorten(value: float) -> str:
    """Format a number with three digits, or as a whole one."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
