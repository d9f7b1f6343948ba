"""What the groups that a table leaves out add up to, so that its parts and their whole can be compared.

    printed = with_whole_groups(result, printed)
    rows = list_with_remainders(result, printed)

A group that may be too small, or is hidden in the noise, is no row of a table for people; its reports are
then in no printed row at all, since the rest of a roll-up holds those of groups that surely are too small.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from adserver.measuring.cells import CellTable, ResultRow
from adserver.measuring.estimate import Estimate
from adserver.measuring.intervals import CONFIDENCE, chance_above, half_width
from adserver.records.defaults import ALL, NOT_PRINTED, REST
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.measurement import COUNT

# Of sums in float64 of the same integers in another order
_ROUNDING: Final = 1e-9


def depth_of(row: ResultRow) -> int:
    """Return how many of a group's keys are named: 0 of the total."""
    return len(row.group) - row.group.count(ALL)


def is_empty_rest(result: CellTable, row: ResultRow) -> bool:
    """Return whether a row is a rest that may have no report: what it shows is then noise.

    Its count says so, if there is one. Without one each column may be noise: the clearest one is compared
    with what noise alone makes of that many.
    """
    if REST not in row.group:
        return False
    pairs = [*zip(result.columns, row.estimates, strict=True)]
    counts = [one for column, one in pairs if column.value == COUNT and column.bucket is None]
    if counts:
        return counts[0].low <= 0
    clear = max(abs(one.value) / (one.standard_error or 1.0) for _, one in pairs)
    [chance] = chance_above(result.mechanism, np.array([clear])).tolist()
    return 2 * len(pairs) * float(chance) > 1 - CONFIDENCE


def with_whole_groups(result: CellTable, printed: Sequence[bool]) -> list[bool]:
    """Return which rows are printed if each one comes with the groups that it is a part of.

    A rest is printed only where its group is: it is shown whatever its size, and mostly noise.
    """
    wanted, known = set(), {row.group for row in result.rows}
    for row, is_printed in zip(result.rows, printed, strict=True):
        group = row.group
        while is_printed and REST not in group and group not in wanted:
            wanted.add(group)
            group = _whole_of(group)
    # Groups that the result does not have hold nothing back
    held_back = known - wanted
    return [
        row.group in wanted or (is_printed and REST in row.group and _whole_of(row.group) not in held_back)
        for row, is_printed in zip(result.rows, printed, strict=True)
    ]


def list_with_remainders(result: CellTable, printed: Sequence[bool]) -> Iterator[tuple[ResultRow, bool]]:
    """Yield the rows that are printed, and after the parts of a group what they lack of it, if some do.

    What is lacking is the group less its printed parts. Its interval covers at least as often as theirs: its
    variance is at most that of the group plus those of the printed parts, since parts that were fitted to
    their whole vary against each other and with it, and others are independent. Of fitted parts it is also at
    most the sum of the variances of those that are not printed.

    Args:
        result: What was measured.
        printed: Of each row, whether it is.

    Yields:
        A row, and whether it is what others lack.
    """
    rows = dict(zip((row.group for row in result.rows), result.rows, strict=True))
    parts: dict[tuple[str, ...], list[tuple[ResultRow, bool]]] = defaultdict(list)
    for row, is_printed in zip(result.rows, printed, strict=True):
        if depth_of(row):
            parts[_whole_of(row.group)].append((row, is_printed))
    last = {of[-1][0].group: whole for whole, of in parts.items()}
    for row, is_printed in zip(result.rows, printed, strict=True):
        if is_printed:
            yield row, False
        whole = last.get(row.group)
        if whole is None or whole not in rows:
            continue
        shown = [part for part, is_shown in parts[whole] if is_shown]
        hidden = [part for part, is_shown in parts[whole] if not is_shown]
        if shown and hidden:
            remainder = _remainder(result, rows[whole], shown, hidden)
            # Exactly nothing is lacking only without noise
            if any(one.value or one.standard_error for one in remainder.estimates):
                yield remainder, True


def _whole_of(group: tuple[str, ...]) -> tuple[str, ...]:
    """Return the group that one is a part of: the same but for its last key."""
    named = len(group) - group.count(ALL)
    return (*group[: max(0, named - 1)], *(ALL,) * (len(group) - max(0, named - 1)))


def _remainder(
    result: CellTable, whole: ResultRow, shown: Sequence[ResultRow], hidden: Sequence[ResultRow]
) -> ResultRow:
    numbers = zip(
        result.columns,
        whole.estimates,
        zip(*(row.estimates for row in shown), strict=True),
        zip(*(row.estimates for row in hidden), strict=True),
        strict=True,
    )
    estimates = (
        _lacking(of, others, left, result.mechanism).within(*column.sum_range)
        for column, of, others, left in numbers
    )
    named = depth_of(shown[0])
    group = (*shown[0].group[: named - 1], NOT_PRINTED, *(ALL,) * (len(whole.group) - named))
    return ResultRow(group=group, estimates=tuple(estimates))


def _lacking(
    whole: Estimate, shown: Sequence[Estimate], hidden: Sequence[Estimate], mechanism: Mechanism
) -> Estimate:
    value = whole.value - math.fsum(one.value for one in shown)
    variance = _variance([whole, *shown])
    left = math.fsum(one.value for one in hidden)
    size = math.fsum(abs(one.value) for one in (whole, *shown, *hidden))
    if math.isclose(left, value, rel_tol=0.0, abs_tol=_ROUNDING * size):
        variance = min(variance, _variance(hidden))
    error = math.sqrt(variance)
    half = half_width(mechanism) * error
    return Estimate(value=value, standard_error=error, low=value - half, high=value + half)


def _variance(estimates: Sequence[Estimate]) -> float:
    return math.fsum(one.standard_error**2 for one in estimates)
