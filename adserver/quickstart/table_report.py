"""What a table holds, column by column, and what quickstart makes of it.

The label's classes, numbers, words and dates; and what is left out, and why.

    report = read_report(parse_table(content, "visits.csv"), label="bought")
    report.left_out()            # {"user_id": "an identifier: 8000 different values in 8000 filled cells"}

Each decision is a heuristic whose threshold stands below; the owner's `lark.toml` has the last word. A column
that follows the label is one that alone predicts nearly every label which the most frequent class does not,
or ranks the rows of two classes nearly perfectly: usually it is known only after the label, and a model that
uses it is worth nothing later. One that ranks them a little less well is kept, with a warning, since some
measurements are that good: in the Wisconsin breast-cancer data single columns reach an AUC of .975. So is one
of which a word, the filled cells or the gaps have nearly one class only (`one_sided`).
"""

import json
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum, unique
from typing import Final, NamedTuple

import numpy as np

from adserver.quickstart.one_sided import find_one_sided
from maskedlark.encoding import dates
from maskedlark.encoding.cells import Cells, number
from maskedlark.encoding.close_names import fold, list_known
from maskedlark.encoding.encoder import MAX_WORD, TOP
from maskedlark.encoding.fit import order_classes, spell_class
from maskedlark.encoding.identifiers import (
    FEWEST_ROWS,
    MOSTLY,
    are_unix_times,
    why_codes,
    why_identifiers,
)
from maskedlark.encoding.people_columns import why_private
from maskedlark.encoding.table import Table
from maskedlark.encoding.unread_cells import find_unread
from maskedlark.encoding.written_numbers import doubts_points, find_example
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.terminal.plural import plural

MOST_CLASSES: Final = 100
"""A label of more classes is a number or an identifier."""
FEWEST_OF_A_CLASS: Final = 10
"""A class of fewer rows is left out, if two others remain: a typing error, or too few to learn from."""
FOLLOWS_THE_LABEL: Final = 0.95
"""The share of the labels beyond the most frequent class that a column alone predicts, if it is a leak."""
RANKS_THE_LABEL: Final = 0.99
"""The AUC of a column alone from which it is left out as a leak."""
MAY_RANK_THE_LABEL: Final = 0.95
"""The AUC of a column alone from which it is warned of."""
# Words of a column whose spellings a warning names
_MOST_SPELLINGS: Final = 3
_PREDICTOR_BINS: Final = 20
_PREDICTED_ROWS: Final = 2_000
# More than those: of a rare class, few rows would leave the AUC open.
_RANKED_ROWS: Final = 20_000


@unique
class Use(StrEnum):
    """What quickstart makes of a column."""

    NUMBER = "number"
    WORDS = "words"
    DATE = "date"
    LEFT_OUT = "left out"


@frozen
class ColumnReport:
    """What a column holds, and what becomes of it.

    Attributes:
        name: Of the column.
        distinct: How many different cells it has.
        gaps: How many empty cells.
        example: The most frequent cell as it is written, which is what groups by words are called.
        use: What it becomes.
        why: For a column that is left out, or read otherwise than its cells suggest; no cell is in it.
        looks_like: What identifiers its words look like, or that they name people; None for public words.
        unread: What keeps a column of words from being read as numbers or dates; empty if nothing does, or
            if the words are few enough to be meant.
        leak: How it tells the label by itself, whatever becomes of it; empty if it does not.
        spellings: Which of its words differ in case, accents or space only; empty if none do.
        order: What stands first in its dates with slashes; None if it has none.
    """

    name: str
    distinct: int
    gaps: int
    example: str
    use: Use
    why: str = ""
    looks_like: str | None = None
    unread: str = ""
    leak: str = ""
    spellings: str = ""
    order: dates.DateOrder | None = None


@frozen
class TableReport:
    """What a table holds.

    Attributes:
        rows: How many there are.
        written: How the file was written.
        label: The label's column; empty if there is none.
        classes: Rows of each class that is learned.
        other_labels: Rows of each other label, too few to be a class.
        unlabelled: Rows without a label.
        columns: All but the label's.
        label_spellings: Of the label, as a column's `spellings`.
        label_gaps: Which words of the label read as gaps, as of `Table.explain_gaps`.
    """

    rows: int
    written: str
    label: str
    classes: Mapping[str, int]
    other_labels: Mapping[str, int]
    unlabelled: int
    columns: tuple[ColumnReport, ...]
    label_spellings: str = ""
    label_gaps: str = ""

    @property
    def labelled(self) -> int:
        """The number of rows with a label that is learned."""
        return sum(self.classes.values())

    def left_out(self) -> dict[str, str]:
        """Return why each column is left out that is."""
        return {column.name: column.why for column in self.columns if column.use is Use.LEFT_OUT}

    def find_leaks(self, kept: Collection[str]) -> tuple[str, ...]:
        """Return how each kept column tells the label by itself that does."""
        return tuple(
            f"column {column.name!r} {column.leak}"
            for column in self.columns
            if column.leak and column.name in kept
        )

    def warn_of_leaks(self, kept: Collection[str]) -> tuple[str, ...]:
        """Return a warning of each kept column that tells the label by itself."""
        return tuple(
            f"{leak}: leave it out ([data] ignore) unless it is known before the label"
            for leak in self.find_leaks(kept)
        )

    def warn_of_spellings(self, used: Collection[str]) -> tuple[str, ...]:
        """Return a warning for the label and each used column that has a word in several spellings."""
        spellings = {self.label: self.label_spellings}
        spellings |= {column.name: column.spellings for column in self.columns if column.name in used}
        return _describe_spellings(spellings)

    def named(self, use: Use) -> tuple[str, ...]:
        """Return the columns of one use."""
        return tuple(column.name for column in self.columns if column.use is use)

    def dates(self) -> tuple[str, ...]:
        """Return the columns of dates, with what stands first where slashes part them."""
        found = [column for column in self.columns if column.use is Use.DATE]
        return tuple(f"{one.name}={one.order}" if one.order else one.name for one in found)

    def codes(self) -> tuple[str, ...]:
        """Return the columns of numbers that are read as words."""
        return tuple(column.name for column in self.columns if column.use is Use.WORDS and column.why)

    def ids(self) -> tuple[str, ...]:
        """Return the columns of more words than one byte tells apart."""
        return tuple(
            column.name for column in self.columns if column.use is Use.WORDS and column.distinct >= TOP
        )


def read_report(table: Table, label: str) -> TableReport:
    """Describe a table whose column `label` is to be predicted; empty if its columns are measured alone.

    Raises:
        InvalidTask: there is no such column, it holds fewer than two classes, or no column is left.
    """
    if not label:
        unknown = [None] * len(table)
        return TableReport(
            rows=len(table),
            written=table.written,
            label="",
            classes={},
            other_labels={},
            unlabelled=len(table),
            columns=tuple(_column(table, name, unknown, unknown) for name in table.columns),
        )
    if label not in table.columns:
        raise InvalidTask(
            f"{table.name} has no column {label!r} for the label; {list_known(label, table.columns)} "
            f"(read as {table.written})"
        )
    labels = [None if cell is None else spell_class(cell) for cell in table.columns[label]]
    counts = Counter(cell for cell in labels if cell is not None)
    _check_label(table.name, label, counts, gaps=labels.count(None))
    classes = {name: count for name, count in counts.items() if count >= FEWEST_OF_A_CLASS}
    if len(classes) < 2:
        classes = dict(counts)
    learned = [cell if cell in classes else None for cell in labels]
    columns = tuple(_column(table, name, labels, learned) for name in table.columns if name != label)
    report = TableReport(
        rows=len(table),
        written=table.written,
        label=label,
        classes={name: classes[name] for name in order_classes(classes)},
        other_labels={name: count for name, count in counts.items() if name not in classes},
        unlabelled=labels.count(None),
        columns=columns,
        label_spellings=_find_spellings(counts),
        label_gaps=table.explain_gaps(label),
    )
    if len(report.left_out()) == len(columns):
        reasons = "; ".join(f"{name!r}: {why}" for name, why in list(report.left_out().items())[:3])
        raise InvalidTask(f"{table.name} has no column to learn from: {reasons or 'it has no other column'}")
    return report


def _check_label(table: str, label: str, counts: Counter[str], gaps: int) -> None:
    rows = counts.total()
    if not counts:
        raise InvalidTask(f"{table}: the label column {label!r} is empty in every row: choose another label")
    if len(counts) == 1:
        others = (
            f"; {plural(gaps, 'other row has', 'other rows have')} an empty cell, which '-' and NA are, too"
        )
        without = f"{others}: if these are a class, write a word for it" if gaps else ""
        raise InvalidTask(
            f"{table}: the label column {label!r} has one class only, in all {rows} labelled rows: "
            "nothing can "
            "be learned from it; add rows of another class or choose another label"
            f"{without}"
        )
    if len(counts) > MOST_CLASSES:
        are_numbers = all(number(cell) is not None for cell in counts)
        what = "numbers" if are_numbers else "words"
        raise InvalidTask(
            f"{table}: the label column {label!r} holds {len(counts)} different {what} in {rows} rows, but "
            f"quickstart trains on at most {MOST_CLASSES} classes: choose a column of classes"
        )


def _column(
    table: Table, name: str, labels: Sequence[str | None], learned: Sequence[str | None]
) -> ColumnReport:
    cells = table.numbers(name)
    counts = Counter(cell for cell in cells if cell is not None)
    reading = _use(name, cells, counts)
    use, why, unread = reading.use, reading.why, reading.why if reading.is_unread else ""
    order = dates.find_order(cells) if use is Use.DATE else None
    if order is not None:
        why = f"with slashes, the {order.first} first"
    if name in table.amounts and use is Use.NUMBER and (unit := table.amounts[name].unit):
        why = f"read without {unit!r}"
    if use is Use.NUMBER and not why:
        why = doubts_points(cells)
    follows = len(counts) > 0 and _follows(cells, labels)
    are_words = use is Use.WORDS or _are_words(counts)
    area = _rank(cells, learned, are_words=are_words) if counts else None
    leak = f"ranks the label by itself (AUC {area:.3f})" if area and area > MAY_RANK_THE_LABEL else ""
    if not leak and len(cells) > counts.total():
        # Gaps can hide it, such as those of a delivery time that only few bookings have
        filled = [None if cell is None else label for cell, label in zip(cells, learned, strict=True)]
        within = _rank(cells, filled, are_words=are_words) if counts else None
        if within and within > MAY_RANK_THE_LABEL:
            leak = f"ranks the label by itself where it is not empty (AUC {within:.3f})"
    if not leak:
        leak = find_one_sided(cells, learned)
    if follows:
        leak = "follows the label: alone it predicts nearly every row"
    # What says how a column can be read would make a feature of the leak
    if (use is not Use.LEFT_OUT or unread) and (follows or (area and area >= RANKS_THE_LABEL)):
        use, why, order = Use.LEFT_OUT, f"it {leak} (a leak?)", None
    return ColumnReport(
        name=name,
        distinct=len(counts),
        gaps=len(cells) - counts.total(),
        example=table.examples.get(name) or find_example(table.columns[name]),
        use=use,
        why=why,
        looks_like=why_private(name, cells) if _are_words(counts) else None,
        unread=unread,
        leak=leak,
        spellings="" if use is Use.DATE else _find_spellings(counts),
        order=order,
    )


def warn_of_points(table: Table, used: Collection[str]) -> tuple[str, ...]:
    """Return a warning for each used column of numbers whose points may part thousands."""
    doubts = {name: doubts_points(table.numbers(name)) for name in table.columns if name in used}
    return tuple(f"column {name!r}: {told}" for name, told in doubts.items() if told)


def warn_of_spellings(table: Table, used: Collection[str]) -> tuple[str, ...]:
    """Return a warning for each used column of a table that has a word in several spellings.

    Columns that are not there, and dates, are passed over.
    """
    found = dict[str, str]()
    for name in table.columns:
        if name not in used:
            continue
        cells = table.numbers(name)
        counts = Counter(cell for cell in cells if cell is not None)
        if (told := _find_spellings(counts)) and _use(name, cells, counts).use is not Use.DATE:
            found[name] = told
    return _describe_spellings(found)


def _describe_spellings(spellings: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(
        f"column {name!r} has words that differ in case, accents or space only: {told}; if they mean the "
        "same, write them in one way"
        for name, told in spellings.items()
        if told
    )


def _find_spellings(counts: Counter[str]) -> str:
    """Return the words that are written in several ways: the rarer ones of each with their rows, and it."""
    by_word: dict[str, list[str]] = defaultdict(list)
    for cell in sorted(counts, key=lambda cell: (-counts[cell], cell)):
        # Numbers as they are: 1.0 and 1 are no spellings
        by_word[cell if number(cell) is not None else fold(cell)].append(cell)
    several = [one for one in by_word.values() if len(one) > 1]
    told = list[str]()
    for usual, *others in several[:_MOST_SPELLINGS]:
        rarer = [f"{one!r} ({plural(counts[one], 'row')})" for one in others]
        told.append(f"{' and '.join(rarer)} next to {usual!r}")
    left = len(several) - len(told)
    return ", ".join((*told, *((f"and {plural(left, 'more word')}",) if left else ())))


def _are_words(counts: Counter[str]) -> bool:
    return any(number(cell) is None for cell in counts)


class _Reading(NamedTuple):
    """What a column becomes.

    Attributes:
        use: That.
        why: Why, if that is not what its cells look like.
        is_unread: Whether `why` is what keeps words from being read as numbers or dates.
    """

    use: Use
    why: str = ""
    is_unread: bool = False


def _use(name: str, cells: Cells, counts: Counter[str]) -> _Reading:
    """Return what a column becomes."""
    if why := _why_useless(name, cells, counts):
        return _Reading(Use.LEFT_OUT, why)
    if not _are_words(counts):
        return _use_of_numbers(name, counts)
    short = sum(count for cell, count in counts.items() if dates.has_short_year(cell))
    if short >= MOSTLY * counts.total():
        return _Reading(Use.LEFT_OUT, "dates with years of two digits: write four", is_unread=True)
    try:
        if dates.are_dates(cells):
            return _Reading(Use.DATE)
    except InvalidTask as error:
        return _Reading(Use.LEFT_OUT, f"{error}: {_how_to_read_dates(name, error)}", is_unread=True)
    return _use_of_words(name, cells, counts)


def _how_to_read_dates(name: str, error: InvalidTask) -> str:
    """Return what to do where it is not known what stands first in dates with slashes."""
    if not isinstance(error, dates.UnknownOrder):
        return "write 2026-11-28"
    day, month = (json.dumps([f"{name}={order}"], ensure_ascii=False) for order in dates.DateOrder)
    return f"move it to dates = {day} if the day does, or to dates = {month} if the month does"


def _why_useless(name: str, cells: Cells, counts: Counter[str]) -> str:
    if not 0 < len(name) <= MAX_WORD:
        return f"its name in the header has {len(name)} characters instead of 1 to {MAX_WORD}"
    if not counts:
        return "empty in every row"
    return "the same in every row" if len(counts) == 1 and counts.total() == len(cells) else ""


def _use_of_numbers(name: str, counts: Counter[str]) -> _Reading:
    filled, values = counts.total(), [float(cell) for cell in counts]
    if not all(value.is_integer() for value in values) or filled < FEWEST_ROWS:
        return _Reading(Use.NUMBER)
    # Before row numbers and identifiers: times are long, and mostly all different. Not if written as 1.7e9.
    if are_unix_times(name, values) and dates.are_dates([*counts]):
        return _Reading(Use.DATE)
    if why := why_identifiers(name, counts):
        return _Reading(Use.LEFT_OUT, why)
    why = why_codes(name, counts)
    # Words stay as they are written, such as ZIP codes
    return _Reading(Use.WORDS if why else Use.NUMBER, why)


def _use_of_words(name: str, cells: Cells, counts: Counter[str]) -> _Reading:
    found, unread = why_private(name, cells), find_unread(counts)
    are_many = found is not None or len(counts) > MOST_CLASSES
    if unread is not None and are_many:
        return _Reading(Use.LEFT_OUT, unread.why, is_unread=True)
    if found is not None:
        return _Reading(Use.LEFT_OUT, f"looks like identifiers: {found}")
    if unread is None or unread.meant == "amounts":
        return _Reading(Use.WORDS)
    # Codes such as `4G` beside `5` may be meant, so it is not left out.
    return _Reading(Use.WORDS, f"{unread.why} if it is a column of {unread.meant}", is_unread=True)


def _follows(cells: Cells, labels: Sequence[str | None]) -> bool:
    """Return True if the column alone predicts `FOLLOWS_THE_LABEL` of what the base rate leaves.

    Each row is predicted by the most frequent label of the other rows with its word, or with a number in its
    bin of `_PREDICTOR_BINS`; a gap counts as a separate word.
    """
    rows = [row for row, label in enumerate(labels) if label is not None]
    # Spread over the file, since tables are often sorted by time or label.
    rows = rows[:: max(1, len(rows) // _PREDICTED_ROWS)]
    seen = [labels[row] for row in rows]
    by_key: dict[object, list[int]] = defaultdict(list)
    for (key, _), count in Counter(zip(_keys([cells[row] for row in rows]), seen, strict=True)).items():
        by_key[key].append(count)
    base = max(Counter(seen).values(), default=0)
    right = 0
    for counts in by_key.values():
        most, second = sorted((*counts, 0), reverse=True)[:2]
        # Without itself, a row of the most frequent label is still predicted if that leads by more than one.
        right += most if most - 1 > second else 0
    beyond = len(rows) - base
    return beyond > 0 and right - base >= FOLLOWS_THE_LABEL * beyond


def _rank(cells: Cells, labels: Sequence[str | None], *, are_words: bool) -> float | None:
    """Return the AUC of a column alone; None but for two classes, each of enough rows.

    Numbers rank the rows by value, in the direction that is better, with gaps below or above all of them.
    Words, a gap among them, rank by their label rate in the other half of the rows: in its own row a word of
    one row only would be always right.
    """
    rows = [row for row, label in enumerate(labels) if label is not None]
    rows = rows[:: max(1, len(rows) // _RANKED_ROWS)]
    seen = Counter(labels[row] for row in rows)
    if len(seen) != 2 or min(seen.values()) < FEWEST_OF_A_CLASS:
        return None
    positive = min(seen, key=lambda label: (seen[label], str(label)))
    shown, hits = [cells[row] for row in rows], [labels[row] == positive for row in rows]
    if are_words:
        return _area(_cross_fit(shown, hits), hits)
    values = {cell: number(cell) for cell in set(shown) if cell is not None}
    found = list[float]()
    for gap in (-math.inf, math.inf):
        ranks = [gap if cell is None or (value := values[cell]) is None else value for cell in shown]
        area = _area(ranks, hits)
        found += [area, 1 - area]
    return max(found)


def _cross_fit(words: Cells, hits: Sequence[bool]) -> list[float]:
    """Return each word's label rate in the half of the rows that its own row is not in."""
    # Drawn, since tables alternate; the same ones every time
    halves = (np.random.default_rng(1).random(len(words)) < 0.5).tolist()
    base = sum(hits) / len(hits)
    count, positives = Counter(zip(words, halves, strict=True)), Counter[tuple[str | None, bool]]()
    for word, half, hit in zip(words, halves, hits, strict=True):
        positives[word, half] += hit
    return [
        # Drawn to the base rate by one row, which a word that the other half does not have gets.
        (positives[word, not half] + base) / (count[word, not half] + 1)
        for word, half in zip(words, halves, strict=True)
    ]


def _area(ranks: Sequence[float], hits: Sequence[bool]) -> float:
    """Return the share of pairs of both classes that the ranks put in order, ties counted half."""
    everyone = Counter(ranks)
    positives = Counter(rank for rank, hit in zip(ranks, hits, strict=True) if hit)
    below = ordered = 0.0
    for rank in sorted(everyone):
        others = everyone[rank] - positives[rank]
        ordered += positives[rank] * (below + others / 2)
        below += others
    return ordered / (below * positives.total())


def _keys(cells: Cells) -> Sequence[object]:
    """Return each cell's word, or the bin of its number."""
    values = {cell: number(cell) for cell in set(cells) if cell is not None}
    if None in values.values():
        return cells
    numbers = [None if cell is None else values[cell] for cell in cells]
    ascending = sorted(value for value in numbers if value is not None)
    # A value as frequent as a bin is one of its own: the 0 of a column of payments.
    least = len(ascending) / _PREDICTOR_BINS
    atoms = {value for value, count in Counter(ascending).items() if count >= least}
    cuts = (
        [part * len(ascending) // _PREDICTOR_BINS for part in range(1, _PREDICTOR_BINS)] if ascending else []
    )
    edges = sorted({ascending[cut] for cut in cuts})
    return [
        None if value is None else (value in atoms, value if value in atoms else bisect_right(edges, value))
        for value in numbers
    ]
