"""An answer as a table for people: the rows that say something, and what the others add up to."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import compress
from types import MappingProxyType
from typing import Final

from adserver.measuring.cells import CellTable, ResultRow
from adserver.measuring.estimate import Estimate, format_cell, format_mean
from adserver.measuring.not_printed import (
    depth_of,
    is_empty_rest,
    list_with_remainders,
    with_whole_groups,
)
from adserver.records.defaults import NOT_PRINTED, OTHER, REST
from adserver.records.plain_names import distinct_names
from maskedlark.escape import escape
from maskedlark.frozen import frozen
from maskedlark.terminal.plural import plural

_NO_STATISTICS: Final[Mapping[str, Sequence[Estimate]]] = MappingProxyType({})


@frozen
class GroupTable:
    """A table and the lines below it.

    Attributes:
        head: The names of its columns.
        rows: Its cells.
        notes: What the table leaves out, a line for each.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def group_table(
    result: CellTable,
    statistics: Mapping[str, Sequence[Estimate]] = _NO_STATISTICS,
    *,
    is_all_shown: bool = False,
    without: Collection[str] = (),
    where: str,
    most_rows: int | None = None,
) -> GroupTable:
    """Return each group's estimates with half of their intervals, and how many groups are left out.

    After the parts of a group stands what those left out add up to, so that a column adds up to its whole.

    Args:
        result: What was measured.
        statistics: Further columns by name, each with an estimate for each row of the result.
        is_all_shown: Whether groups that may be hidden, or of which a statistic is unknown and each estimate
            may be 0, are rows, too.
        without: The titles of values whose buckets are no columns.
        where: Where all are, for the line that counts those that are not shown.
        most_rows: Levels of finer groups that would make more rows than that are left out; None: none are.
    """
    further = list(zip(*statistics.values(), strict=True)) if statistics else [()] * len(result.rows)
    places = [
        place
        for place, column in enumerate(result.columns)
        if column.bucket is None or column.shown_value not in without
    ]
    printed = with_whole_groups(
        result,
        [
            is_all_shown
            or not (
                row.may_be_hidden
                or is_empty_rest(result, row)
                or (any(one.no_interval for one in more) and _may_be_empty(row))
            )
            for row, more in zip(result.rows, further, strict=True)
        ],
    )
    deepest = _deepest_level(result, printed, most_rows)
    of_row = dict(zip((row.group for row in result.rows), further, strict=True))
    rows = [one for one in list_with_remainders(result, printed) if depth_of(one[0]) <= deepest]
    shown = (
        (
            *row.group,
            *(format_cell(row.estimates[place], may_be_hidden=row.may_be_hidden) for place in places),
            *(format_mean(one, may_be_hidden=row.may_be_hidden) for one in of_row.get(row.group, ())),
            *[""] * (len(statistics) if is_remainder else 0),
        )
        for row, is_remainder in rows
    )
    names = distinct_names((*result.group_by, *(result.columns[place].name for place in places), *statistics))
    left_out = _describe_hidden(
        row.group
        for row, is_printed in zip(result.rows, printed, strict=True)
        if not is_printed and depth_of(row) <= deepest
    )
    notes = []
    if left_out:
        notes.append(
            f"{left_out} not shown, which may be of too few reports or are hidden in the noise: {where}"
        )
    if any(is_remainder for _, is_remainder in rows):
        notes.append(f"{NOT_PRINTED} is what a group has beyond its parts above, so that they add up")
    if deepest < len(result.group_by):
        notes.append(f"groups by {' and '.join(map(escape, result.group_by))} are too many to print: {where}")
    return GroupTable(head=tuple(names), rows=tuple(shown), notes=tuple(notes))


def _deepest_level(result: CellTable, printed: Sequence[bool], most_rows: int | None) -> int:
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
