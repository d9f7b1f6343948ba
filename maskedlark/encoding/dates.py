"""Dates as columns of their own: the day of the week, the hour, and the day as a number.

A column `seen` becomes `seen@weekday` (Mon to Sun), `seen@day` (days since 1970-01-01: with a number's bins
that is the age in days, wherever it is counted from) and, where cells hold times, `seen@hour` (0 to 23). A
time is taken as it is written, in its own zone; Unix seconds are UTC. Where slashes part a date, the column's
`DateOrder` says which of day and month stands first: it is given, as an encoder keeps it, or all cells of the
column together show it.

>>> parts({"seen": ["2026-11-28 04:50", None]}, "seen")["seen@weekday"]
['Sat', None]
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum, unique
from types import MappingProxyType
from typing import Final

from maskedlark.encoding.cells import Cells
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen

WEEKDAY: Final = "weekday"
DAY: Final = "day"
HOUR: Final = "hour"
_AT: Final = "@"
_WEEKDAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_EPOCH: Final = date(1970, 1, 1)
_TIME: Final = (
    r"(?:[T ]+([01]?[0-9]|2[0-3]):[0-5][0-9](?::[0-6][0-9](?:[.,][0-9]+)?)?"
    r"(?: ?(?:Z|UTC|[+-][0-9]{2}:?[0-9]{2}))?)?"
)
_ISO: Final = re.compile(rf"([0-9]{{4}})[-/.]([0-9]{{1,2}})[-/.]([0-9]{{1,2}}){_TIME}")
_DOTTED: Final = re.compile(rf"([0-9]{{1,2}})\.([0-9]{{1,2}})\.([0-9]{{4}}){_TIME}")
_SLASHED: Final = re.compile(rf"([0-9]{{1,2}})[/-]([0-9]{{1,2}})[/-]([0-9]{{4}}){_TIME}")
_SHORT_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH: Final = (
    r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY_THEN_NAME: Final = re.compile(
    rf"([0-9]{{1,2}})[ -]{_MONTH},?[ -]([0-9]{{4}}){_TIME}", re.IGNORECASE | re.ASCII
)
_NAME_THEN_DAY: Final = re.compile(
    rf"{_MONTH}[ -]([0-9]{{1,2}}),?[ -]([0-9]{{4}}){_TIME}", re.IGNORECASE | re.ASCII
)
# What these mean, no other cell of the column decides.
_CLEAR: Final = (_ISO, _DOTTED, _DAY_THEN_NAME, _NAME_THEN_DAY)
_NO_DATE: Final = "it holds no date"
FORMS: Final = "write dates as 2026-11-28, 28.11.2026 or 28 Nov 2026, and times as 2026-11-28 04:50"
"""The forms of dates that people are asked for."""
_FOUR_DIGITS: Final = "with years of two digits: write four, as 2026-11-28"
# Where the day stands, and of which century the year is, a cell does not say
_DAY_OR_MONTH: Final = "(?:0?[1-9]|[12][0-9]|3[01])"
_SHORT_YEAR: Final = re.compile(rf"{_DAY_OR_MONTH}([./-]){_DAY_OR_MONTH}\1[0-9]{{2}}{_TIME}")
# A day, a month and a year with anything next to them, such as a weekday, "17. April" or "14:34 Uhr"
_SEEMS_DATE: Final = re.compile(
    r"(?:[^\W\d_]+\.?,? ?)?"
    r"(?:[0-9]{1,2}(?:[./-] ?[0-9]{1,2}[./-] ?|(?:\.|st|nd|rd|th)? ?(?:of |de )?[^\W\d_]{3,}\.?,? (?:de )?)"
    r"(?:19|20)[0-9]{2}|(?:19|20)[0-9]{2}[./-][0-9]{1,2}[./-][0-9]{1,2}|"
    r"[^\W\d_]{3,}\.? [0-9]{1,2}(?:st|nd|rd|th)?,? (?:19|20)[0-9]{2})(?![0-9]).*"
)
# Seconds since 1973, so that years and small ids are no dates; or milliseconds, of more digits.
_UNIX: Final = re.compile(r"([0-9]{9,10})(?:\.[0-9]+)?|([0-9]{12,13})")


@unique
class DateOrder(StrEnum):
    """What stands first where slashes part a date, 13/04/2026 or 04/13/2026."""

    DAY_FIRST = "dmy"
    MONTH_FIRST = "mdy"

    @property
    def first(self) -> str:
        """What stands first, in words."""
        return "day" if self is DateOrder.DAY_FIRST else "month"


class UnknownOrder(InvalidTask):
    """Nothing shows whether the day or the month stands first in a column's dates with slashes."""

    def __init__(self, column: str | None = None) -> None:
        of = "" if column is None else f"column {column!r}: "
        super().__init__(f"{of}its dates with slashes do not show whether the day or the month stands first")


class WrongDate(InvalidTask):
    """Cells of a column of dates are none.

    Attributes:
        column: The column's name.
        row: The row of the first of them, from 0, without the header.
        why: What is wrong with it, and how many other cells are wrong; it does not tell the cell.
    """

    def __init__(self, column: str, row: int, why: str) -> None:
        super().__init__(f"column {column!r}, row {row + 1}: {why}")
        self.column, self.row, self.why = column, row, why


@frozen
class _Moment:
    day: date
    hour: int | None


def part_of(column: str) -> str | None:
    """Return the column that a part was made of: `seen` of `seen@day`; None if the name is no part's."""
    of, _, part = column.rpartition(_AT)
    return of if of and part in (WEEKDAY, DAY, HOUR) else None


def split_order(named: str) -> tuple[str, DateOrder | None]:
    """Return the column and the order of `COLUMN=dmy` or `COLUMN=mdy`; no order for a column alone.

    >>> split_order("seen=mdy")
    ('seen', <DateOrder.MONTH_FIRST: 'mdy'>)
    """
    column, _, order = named.rpartition("=")
    return (column, DateOrder(order)) if column and order in set(DateOrder) else (named, None)


def find_order(cells: Cells) -> DateOrder | None:
    """Return what stands first in a column's dates with slashes; None if there are none.

    Raises:
        UnknownOrder: nothing shows it.
        InvalidTask: some cells show one and some the other.
    """
    return _order({cell for cell in cells if cell is not None})


def are_dates(cells: Cells) -> bool:
    """Return True if some cells are filled and each of them is a date, in any form that is read.

    Raises:
        UnknownOrder: they are, but nothing shows whether the day or the month stands first.
        InvalidTask: some cells show one and some the other.
    """
    filled = {cell for cell in cells if cell is not None}
    return bool(filled) and _moments(filled, None) is not None


def is_date(cell: str) -> bool:
    """Return True if a cell alone is a date, whichever of day and month stands first."""
    return bool(_UNIX.fullmatch(cell)) or any(_moment(cell, order) is not None for order in DateOrder)


def seems_date(cell: str) -> bool:
    """Return True if a cell that is no date was probably meant as one, in a form that is not read."""
    return bool(_SEEMS_DATE.fullmatch(cell)) and not is_date(cell)


def has_short_year(cell: str) -> bool:
    """Return True if a cell looks like a date whose year has two digits, which is not read."""
    return bool(_SHORT_YEAR.fullmatch(cell))


def wrong_dates(cells: Cells, order: DateOrder | None = None) -> dict[str, str]:
    """Return the cells that keep `parts` from reading the other ones, each with the reason.

    Besides cells that are no date these are the rarer of Unix seconds and written dates, and dates with
    slashes that contradict the order or, without one, where nothing shows it. Where some contradict it and
    none shows it, these are all dates with slashes. Where no cell is a date, the reason has the forms that
    are read.

    Args:
        cells: A column's.
        order: What stands first in its dates with slashes; None: what the cells show.
    """
    counts = Counter(cell for cell in cells if cell is not None)
    wrong = {cell: why for cell in counts if (why := _why_no_date(cell, order))}
    if len(wrong) == len(counts):
        return {cell: _add_forms(why) for cell, why in wrong.items()}
    unix = {cell for cell in counts if _UNIX.fullmatch(cell)}
    written = counts.keys() - wrong.keys() - unix
    rarer = min(unix, written, key=lambda form: sum(counts[cell] for cell in form))
    held, others = ("Unix seconds", "a written date") if rarer is unix else ("a written date", "Unix seconds")
    wrong |= dict.fromkeys(rarer, f"it holds {held}, where other rows hold {others}: write all in one way")
    slashed = [cell for cell in counts if _SLASHED.fullmatch(cell) and is_date(cell)]
    if order is not None and {*_find_orders(slashed)} == {_other(order)}:
        # What can be read in the order would be read wrongly
        wrong |= dict.fromkeys(slashed, _why_other(order))
    try:
        order or _order(counts.keys() - wrong.keys())
    except InvalidTask as error:
        why = f"{error}: write 2026-11-28"
        wrong |= {cell: why for cell in counts if cell not in wrong and _SLASHED.fullmatch(cell)}
    return wrong


def _add_forms(why: str) -> str:
    return f"{why}: {FORMS}" if why == _NO_DATE else why


def _why_no_date(cell: str, order: DateOrder | None) -> str:
    """Return why a cell is no date of a column's order; nothing if it is one."""
    if has_short_year(cell):
        return f"it holds a date {_FOUR_DIGITS}"
    if not is_date(cell):
        return _NO_DATE
    return _why_contradicts(order) if order is not None and _contradicts(cell, order) else ""


def _contradicts(cell: str, order: DateOrder) -> bool:
    """Return True for a date with slashes whose month would be above 12."""
    return bool(_SLASHED.fullmatch(cell)) and is_date(cell) and _moment(cell, order) is None


def _why_contradicts(order: DateOrder) -> str:
    return (
        f"it holds a date with the {_other(order).first} first, but this column's dates with slashes have "
        f"the {order.first} first ({order})"
    )


def _why_other(order: DateOrder) -> str:
    return (
        f"its dates with slashes have the {_other(order).first} first, and would be read with the "
        f"{order.first} first ({order}): write 2026-11-28"
    )


def _other(order: DateOrder) -> DateOrder:
    return DateOrder.MONTH_FIRST if order is DateOrder.DAY_FIRST else DateOrder.DAY_FIRST


def _find_orders(slashed: Iterable[str]) -> Iterator[DateOrder]:
    """Yield the order that each date with slashes shows by itself, if it shows one."""
    for cell in slashed:
        shown = [order for order in DateOrder if _moment(cell, order) is not None]
        if len(shown) == 1:
            yield shown[0]


def parts(
    columns: Mapping[str, Cells], name: str, order: DateOrder | None = None
) -> dict[str, list[str | None]]:
    """Return the columns that a column of dates becomes.

    Args:
        columns: A table's.
        name: The column of dates.
        order: What stands first in its dates with slashes; None: what its cells show.

    Raises:
        UnknownOrder: nothing shows whether the day or the month stands first.
        WrongDate: a cell is no date, or contradicts the order.
        InvalidTask: some dates with slashes have the day first and some the month.
    """
    cells = columns[name]
    try:
        moments = _moments({cell for cell in cells if cell is not None}, order)
    except UnknownOrder:
        raise UnknownOrder(name) from None
    except InvalidTask as error:
        raise InvalidTask(f"column {name!r}: {error}: write 2026-11-28") from None
    if moments is None:
        wrong = wrong_dates(cells, order)
        first, *others = (row for row, cell in enumerate(cells) if cell in wrong)
        more = "1 more cell" if len(others) == 1 else f"{len(others)} more cells"
        said = f" ({more} of the column cannot be read)" if others else ""
        raise WrongDate(name, first, f"{_add_forms(wrong[cells[first] or ''])}{said}")
    found = [None if cell is None else moments[cell] for cell in cells]
    made: dict[str, list[str | None]] = {
        f"{name}{_AT}{WEEKDAY}": [None if one is None else _WEEKDAYS[one.day.weekday()] for one in found],
        f"{name}{_AT}{DAY}": [None if one is None else str((one.day - _EPOCH).days) for one in found],
        f"{name}{_AT}{HOUR}": [None if one is None or one.hour is None else str(one.hour) for one in found],
    }
    # Dates without times have no hour, and a column of nothing but gaps would be a feature.
    if all(one is None or one.hour is None for one in found):
        del made[f"{name}{_AT}{HOUR}"]
    return made


def in_one_form(cells: Cells, order: DateOrder | None = None) -> list[str | None]:
    """Return dates as 2026-11-28, those with a time as 2026-11-28 04:00: each by itself has the same parts.

    Cells of other columns are returned as they are, and so are dates of which neither `order` nor the cells
    show whether the day or the month stands first.
    """
    try:
        moments = _moments({cell for cell in cells if cell is not None}, order)
    except InvalidTask:
        moments = None
    if moments is None:
        return [*cells]
    hours = {cell: "" if one.hour is None else f" {one.hour:02}:00" for cell, one in moments.items()}
    written = {cell: f"{one.day}{hours[cell]}" for cell, one in moments.items()}
    return [None if cell is None else written[cell] for cell in cells]


def with_parts(
    columns: Mapping[str, Cells],
    wanted: Sequence[str],
    orders: Mapping[str, DateOrder] = MappingProxyType({}),
) -> dict[str, Cells]:
    """Return the wanted parts of dates that the table lacks, made from its columns of dates.

    Args:
        columns: A table's.
        wanted: The parts.
        orders: What stands first in dates with slashes, by the column; of others their cells show it.

    Raises:
        InvalidTask: as `parts`.
    """
    lacking = [name for name in wanted if name not in columns and part_of(name) in columns]
    made: dict[str, Cells] = {}
    for of in dict.fromkeys(map(part_of, lacking)):
        if of is not None:
            # A table without times has no hours to give an encoder that was fitted to some: they are missing.
            nothing: list[str | None] = [None] * len(columns[of])
            found = parts(columns, of, orders.get(of))
            made |= {name: found.get(name, nothing) for name in lacking if part_of(name) == of}
    return made


def _moments(cells: set[str], order: DateOrder | None) -> dict[str, _Moment] | None:
    """Parse distinct cells; None if one is no date."""
    unix = {cell: matched for cell in cells if (matched := _UNIX.fullmatch(cell))}
    if len(unix) == len(cells):
        return {cell: _unix(matched) for cell, matched in unix.items()}
    order = order or _order(cells)
    found = {cell: _moment(cell, order) for cell in cells}
    moments = {cell: one for cell, one in found.items() if one is not None}
    return moments if len(moments) == len(cells) else None


def _unix(matched: re.Match[str]) -> _Moment:
    seconds = float(matched[0]) / (1_000 if matched[2] else 1)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return _Moment(day=moment.date(), hour=moment.hour)


def _order(cells: set[str]) -> DateOrder | None:
    """Return what stands first in the dates with slashes; None if there are none, or other cells.

    Raises:
        UnknownOrder: nothing shows it.
        InvalidTask: some cells show one and some the other.
    """
    found = [one for cell in cells if (one := _SLASHED.fullmatch(cell))]
    # A cell that is no date at all makes the column none: then it does not matter what stands first.
    clear = sum(any(form.fullmatch(one) for form in _CLEAR) for one in cells)
    if not found or len(found) + clear < len(cells):
        return None
    is_day, is_month = any(int(one[1]) > 12 for one in found), any(int(one[2]) > 12 for one in found)
    if is_day and is_month:
        raise InvalidTask("its dates with slashes have the day first in some cells and the month in others")
    # Guessed, a wrong order would read most dates without an error, and all of them wrongly.
    if not is_day and not is_month:
        raise UnknownOrder()
    return DateOrder.DAY_FIRST if is_day else DateOrder.MONTH_FIRST


def _moment(cell: str, order: DateOrder | None) -> _Moment | None:
    if iso := _ISO.fullmatch(cell):
        year, month, day, hour = iso.groups()
    elif dotted := _DOTTED.fullmatch(cell):
        day, month, year, hour = dotted.groups()
    elif named := _DAY_THEN_NAME.fullmatch(cell):
        day, month, year, hour = named.groups()
    elif named := _NAME_THEN_DAY.fullmatch(cell):
        month, day, year, hour = named.groups()
    elif order is not None and (slashed := _SLASHED.fullmatch(cell)):
        first, second, year, hour = slashed.groups()
        day, month = (first, second) if order is DateOrder.DAY_FIRST else (second, first)
    else:
        return None
    number = int(month) if month.isdecimal() else _SHORT_MONTHS.index(month[:3].lower()) + 1
    try:
        return _Moment(day=date(int(year), number, int(day)), hour=None if hour is None else int(hour))
    except ValueError:
        return None
