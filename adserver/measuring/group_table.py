"""An answer as a table for people: the rows that say something, and what the others add up to."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from types import MappingProxyType
from typing import Final, Self

from adserver.measuring.cells import ANY, CellTable, Column, ResultRow
from adserver.measuring.estimate import Estimate, format_cell, format_mean, spell
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

MOST_ROWS: Final = 200
"""Rows of a table for people, on every face."""
_BUCKET_DIGITS: Final = 10
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


def result_tables(
    result: CellTable,
    statistics: Mapping[str, Sequence[Estimate]] = _NO_STATISTICS,
    *,
    is_all_shown: bool = False,
    without: Collection[str] = (),
    where: str,
    most_rows: int | None = MOST_ROWS,
) -> tuple[GroupTable, ...]:
    """Return a table of each group's estimates with half of their intervals, and one of each histogram.

    After the parts of a group stands what those left out add up to, so that a column adds up to its whole.
    Where only histograms were asked for, their tables are all.

    Args:
        result: What was measured.
        statistics: Further columns by name, each with an estimate for each row of the result.
        is_all_shown: Whether groups that may be hidden, or of which a statistic is unknown and each estimate
            may be 0, are rows, too.
        without: The titles of values whose histograms have no table.
        where: Where all are, for the lines that count those that are not shown.
        most_rows: How many rows a table has at most; None: all. Levels of finer groups are left out first.
    """
    shown = _ShownRows.of(result, statistics, is_all_shown=is_all_shown, where=where, most_rows=most_rows)
    places = _places_by_histogram(result)
    tables = [shown.histogram(name, places[name]) for name in places if name not in without]
    if statistics or not tables or any(column.bucket is None for column in result.columns):
        tables.insert(0, shown.groups(statistics))
    first, *others = tables
    return replace(first, notes=(*shown.notes, *first.notes)), *others


@frozen
class _ShownRows:
    """The rows of a result that tables have.

    Attributes:
        result: What was measured.
        rows: The rows, each with whether it is what others lack of their group.
        notes: What is left out.
        where: Where all rows are.
        most_rows: Of a table.
    """

    result: CellTable
    rows: Sequence[tuple[ResultRow, bool]]
    notes: tuple[str, ...]
    where: str
    most_rows: int | None

    @classmethod
    def of(
        cls,
        result: CellTable,
        statistics: Mapping[str, Sequence[Estimate]],
        *,
        is_all_shown: bool,
        where: str,
        most_rows: int | None,
    ) -> Self:
        """Choose the rows, and say which are left out."""
        printed = with_whole_groups(
            result,
            [
                is_all_shown
                or not (
                    row.may_be_hidden
                    or is_empty_rest(result, row)
                    or (any(one.no_interval for one in more) and _may_be_empty(row))
                )
                for row, more in zip(result.rows, _further(result, statistics), strict=True)
            ],
        )
        deepest = _deepest_level(result, printed, most_rows)
        rows = [one for one in list_with_remainders(result, printed) if depth_of(one[0]) <= deepest]
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
            keys = " and ".join(map(escape, result.group_by))
            notes.append(f"groups by {keys} are too many to print: {where}")
        return cls(result=result, rows=rows, notes=tuple(notes), where=where, most_rows=most_rows)

    def groups(self, statistics: Mapping[str, Sequence[Estimate]]) -> GroupTable:
        """Return a row for each group, with its sums and statistics."""
        result, columns = self.result, self.result.columns
        places = [place for place, column in enumerate(columns) if column.bucket is None]
        of_row = dict(zip((row.group for row in result.rows), _further(result, statistics), strict=True))
        shown = [
            (
                *row.group,
                *(format_cell(row.estimates[place], may_be_hidden=row.may_be_hidden) for place in places),
                *(format_mean(one, may_be_hidden=row.may_be_hidden) for one in of_row.get(row.group, ())),
                *[""] * (len(statistics) if is_remainder else 0),
            )
            for row, is_remainder in self.rows[: self.most_rows]
        ]
        names = distinct_names((*result.group_by, *(columns[place].name for place in places), *statistics))
        return GroupTable(head=tuple(names), rows=tuple(shown), notes=self._count_rest(len(shown), "row"))

    def histogram(self, value: str, places: Sequence[int]) -> GroupTable:
        """Return a row for each bucket of each group: a column for each bucket would be too wide to read."""
        columns = self.result.columns
        groups = len(self.rows) if self.most_rows is None else max(1, self.most_rows // len(places))
        shown = [
            (
                *row.group,
                spell_bucket(columns[place]),
                format_cell(row.estimates[place], may_be_hidden=row.may_be_hidden),
            )
            for row, _ in self.rows[:groups]
            for place in places
        ]
        return GroupTable(
            head=tuple(distinct_names((*self.result.group_by, value, "reports"))),
            rows=tuple(shown),
            notes=(*self._count_rest(groups, "group"), *describe_gaps(value, (columns[at] for at in places))),
        )

    def _count_rest(self, shown: int, what: str) -> tuple[str, ...]:
        left = len(self.rows) - shown
        said = plural(left, f"more {what} is", f"more {what}s are")
        return (f"{said} not printed: {self.where}",) if left > 0 else ()


def _further(
    result: CellTable, statistics: Mapping[str, Sequence[Estimate]]
) -> Sequence[tuple[Estimate, ...]]:
    """Return the statistics of each row."""
    return list(zip(*statistics.values(), strict=True)) if statistics else [()] * len(result.rows)


def _places_by_histogram(result: CellTable) -> dict[str, list[int]]:
    """Return the places of the buckets of each histogram, by what results call its value."""
    found = defaultdict[str, list[int]](list)
    for place, column in enumerate(result.columns):
        if column.bucket is not None:
            found[column.shown_value].append(place)
    return found


def describe_gaps(value: str, buckets: Iterable[Column]) -> tuple[str, ...]:
    """Return a line on the bucket that holds the reports without a value, too; none where all have it.

    Args:
        value: What results call it.
        buckets: The columns of its histogram.
    """
    zero = bucket_of_gaps(buckets)
    if zero is None:
        return ()
    return (
        f"reports without {value} hold 0, so bucket {spell_bucket(zero)} has them, too: {zero.counted_by} "
        "counts the others",
    )


def bucket_of_gaps(buckets: Iterable[Column]) -> Column | None:
    """Return the bucket that holds the reports without a value; None where all have it."""
    return next(
        (one for one in buckets if one.counted_by and one.bucket and one.bucket[0] <= 0 <= one.bucket[1]),
        None,
    )


def spell_bucket(column: Column) -> str:
    """Return the numbers of a bucket."""
    low, high = (spell(end, _BUCKET_DIGITS) for end in column.bucket or ANY)
    return low if low == high else f"{low} to {high}"


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
