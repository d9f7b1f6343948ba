"""Whether a column holds values that name people or things, and should not be published or counted unasked.

An encoder is public and signed, and holds the words of its columns. Each threshold is a value below.

>>> identifiers(["ann@mail.example", "bob@mail.example"] * 10)
'e-mail addresses'
>>> identifiers(["phone", "desktop"] * 10) is None
True
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from maskedlark.encoding.cells import number

FEWEST_ROWS: Final = 20
"""A column with fewer filled cells is not called nearly unique."""
NEARLY_UNIQUE: Final = 0.5
"""Words of which at least this share differ name their rows: a name, a street, a search."""
MOSTLY: Final = 0.9
"""Cells of one kind from this share on are what the column was meant to hold."""
NEARLY_ALL: Final = 0.95
"""Whole numbers of which at least this share differ may be identifiers or row numbers."""
# Row numbers: the range of the numbers over how many differ, at most
_DENSE: Final = 1.5
# Nearly unique whole numbers from this size on are identifiers, such as telephone numbers
_LONG_NUMBER: Final = 1e8
# Unix seconds of the years 2001 to 2033, and milliseconds
_UNIX_YEARS: Final = (range(10**9, 2 * 10**9), range(10**12, 2 * 10**12))
_TIME_NAME: Final = re.compile(r"(?i)time|date|seen|created|updated|epoch|unix|(?:^|[^a-z])(?:ts|at|on)$")
# The share of filled cells that look like one kind of identifier from which the column is one
_ANY_OF: Final = 0.01
_KINDS: Final = {
    "e-mail addresses": r"[^@\s]+@[^@\s]+\.[^@\s.]+",
    "UUIDs": r"\{?[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\}?",
    "IP addresses": r"(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?::[0-9]+)?|(?:[0-9a-fA-F]{0,4}:){3,7}[0-9a-fA-F]{0,4}",
    "hexadecimal ids": r"(?=[0-9a-fA-F]*[0-9])(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{16,}",
    "telephone numbers": r"(?:\+|00)[0-9][0-9 ()/.-]{6,}[0-9]",
    "account numbers": r"[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?",
    "web addresses with a query": r"https?://\S*[?#]\S+",
}
_ID_NAME: Final = re.compile(
    # `campaignId` is one, and `bid` and `paid` are not
    r"(?i:(?:^|[^a-z])(?:id|uuid|guid|key|nr|no|phone|tel|zip|plz|code)$)|(?<=[a-z])(?:Id|ID)$"
)
_CODE: Final = re.compile("0[0-9]+")
_PATTERNS: Final = {kind: re.compile(pattern) for kind, pattern in _KINDS.items()}


def identifiers(cells: Sequence[str | None]) -> str | None:
    """Return what a column of words looks like if that is identifiers, for a message; None if it does not.

    Numbers are no words: an encoder holds the edges of their bins only.
    """
    counts = Counter(cell for cell in cells if cell is not None)
    if kind := find_kind(counts, least=_ANY_OF):
        return kind
    filled = counts.total()
    is_nearly_unique = filled >= FEWEST_ROWS and len(counts) >= NEARLY_UNIQUE * filled
    if is_nearly_unique and not all(number(word) is not None for word in counts):
        return f"{len(counts)} different words in {filled} filled cells"
    return None


def find_kind(counts: Counter[str], *, least: float) -> str | None:
    """Return the kind of identifiers that at least this share of the cells are, for a message, or None."""
    for kind, pattern in _PATTERNS.items():
        found = sum(count for word, count in counts.items() if pattern.fullmatch(word))
        if found and found >= least * counts.total():
            return kind
    return None


def is_name_of_ids(column: str) -> bool:
    """Return whether a column's name says that its numbers name things, such as `campaign_id`."""
    return bool(_ID_NAME.search(column))


def why_codes(column: str, cells: Iterable[str]) -> str:
    """Return why the numbers of a column are no amounts but name things, for a message; empty if they may be.

    Args:
        column: Its name.
        cells: Its filled cells, which are all numbers; each different one at least once.

    Edge cases: codes are whole numbers; one with a decimal place makes all of them amounts.
    """
    words = set(cells)
    if not all(float(word).is_integer() for word in words):
        return ""
    if is_name_of_ids(column):
        return "numbers that name things, by the column's name"
    # Such as of a region or a ZIP code
    coded = min(filter(_CODE.fullmatch, words), default=None)
    return "" if coded is None else f"codes: numbers do not begin with 0 as {coded}"


def are_unix_times(column: str, numbers: Collection[float]) -> bool:
    """Return whether whole numbers are Unix seconds or milliseconds, by the column's name and their size."""
    return bool(_TIME_NAME.search(column)) and are_in_unix_years(numbers)


def are_in_unix_years(numbers: Collection[float]) -> bool:
    """Return whether whole numbers are as large as Unix seconds of today, or all as milliseconds."""
    return any(all(years.start <= one < years.stop for one in numbers) for years in _UNIX_YEARS)


def why_identifiers(column: str, counts: Counter[str]) -> str:
    """Return why the whole numbers of a column name its rows, for a message; empty if they may be amounts.

    Args:
        column: Its name.
        counts: How many rows have each of its numbers.

    Edge cases: Unix times, which are long and mostly all different, are no identifiers.
    """
    filled, values = counts.total(), [float(cell) for cell in counts]
    if filled < FEWEST_ROWS or not all(value.is_integer() for value in values):
        return ""
    if are_unix_times(column, values):
        return ""
    unique = f"{len(counts)} different values in {filled} filled cells"
    low, high = min(values), max(values)
    are_nearly_all = len(counts) >= NEARLY_ALL * filled
    if are_nearly_all and high - low + 1 <= _DENSE * len(counts):
        return f"row numbers: {unique}"
    is_long = are_nearly_all and low >= _LONG_NUMBER
    is_named = is_name_of_ids(column) and len(counts) >= NEARLY_UNIQUE * filled
    return f"an identifier: {unique}" if is_long or is_named else ""
