"""Why a column of words is none of numbers, amounts or dates, though most of its cells hold such.

>>> find_unread(Counter({"1": 3, "2": 4, "k.A.": 1}))
Unread(meant='numbers', why="numbers in 7 cells and 'k.A.' in 1: empty those cells")
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import Final

from maskedlark.encoding import dates
from maskedlark.encoding.cells import number
from maskedlark.encoding.identifiers import MOSTLY
from maskedlark.encoding.written_numbers import is_number_as_written
from maskedlark.frozen import frozen

# `EUR 5` has a unit, and `CMD-141998` is a name
_UNIT: Final = re.compile(r"[$€£¥₹%]|\b[a-zA-Z]{1,3}$|^[A-Z]{3}\b(?!-)")
# Units of a column that a reason names
_MOST_UNITS: Final = 4
_SPACE_OF_THOUSANDS: Final = re.compile(r"(?<=[0-9])[ ,'\u00a0\u202f\u2019](?=[0-9]{3}(?![0-9]))")


@frozen
class Unread:
    """What most cells of a column of words hold.

    Attributes:
        meant: "numbers", "amounts" or "dates".
        why: What keeps them from being read as such, and what to do.
    """

    meant: str
    why: str


def find_unread(counts: Counter[str]) -> Unread | None:
    """Return what keeps a column of words from being one of numbers, amounts or dates; None if nothing does.

    Args:
        counts: How many rows have each of its cells; not all of them are numbers, nor dates.
    """
    if others := _describe_others(counts, lambda cell: number(cell) is not None):
        return Unread(meant="numbers", why=f"numbers in {others}: empty those cells")
    if told := describe_units(counts):
        return Unread(meant="amounts", why=told)
    if others := _describe_others(counts, dates.is_date):
        return Unread(meant="dates", why=f"dates in {others}: empty those cells")
    seeming = Counter({cell: count for cell, count in counts.items() if dates.seems_date(cell)})
    dated = sum(count for cell, count in counts.items() if dates.is_date(cell))
    if seeming and seeming.total() + dated >= MOSTLY * counts.total():
        example = max(seeming, key=lambda cell: (seeming[cell], cell))
        return Unread(
            meant="dates",
            why=f"dates in a form that is not read in {seeming.total()} cells, such as {example!r}: "
            f"{dates.FORMS}",
        )
    return None


def _describe_others(counts: Counter[str], is_one: Callable[[str], bool]) -> str:
    """Return in how many cells most are of a kind, and what the others hold; empty if too few are."""
    filled = counts.total()
    others = {cell: count for cell, count in counts.items() if not is_one(cell)}
    rest = sum(others.values())
    # One word among them stands for a gap, however many cells have it
    if not others or not (filled - rest >= MOSTLY * filled or (len(others) == 1 and rest < filled / 2)):
        return ""
    example = next(iter(others))
    what = f"{example!r} in {rest}" if len(others) == 1 else f"words in {rest}, such as {example!r}"
    return f"{filled - rest} cells and {what}"


def describe_units(counts: Counter[str]) -> str:
    """Return what keeps a column's amounts from being numbers, and what to do; empty if it has none.

    `parse_table` reads those that all have one currency or %.
    """
    units = Counter[str]()
    for cell, count in counts.items():
        if is_number_as_written(_SPACE_OF_THOUSANDS.sub("", _UNIT.sub("", cell).strip())):
            found = _UNIT.search(cell)
            units[found[0] if found else ""] += count
    if units.total() < MOSTLY * counts.total():
        return ""
    named = ", ".join(repr(unit) for unit, _ in units.most_common(_MOST_UNITS) if unit)
    if not named:
        return "numbers with parted thousands or decimal commas: write them as 1234.5"
    if len(units) > 1:
        what = f"with and without a unit, {named}" if "" in units else f"with several units, {named}"
        return f"amounts {what}: write the numbers alone, all in one unit"
    return f"amounts with a unit, {named}: write the numbers alone, as 1234.5"
