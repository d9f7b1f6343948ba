"""Whether a column holds values that name people or things, and should not be published or counted unasked.

An encoder is public and signed, and holds the words of its columns. Each threshold is a value below.

>>> identifiers(["ann@mail.example", "bob@mail.example"] * 10)
'e-mail addresses'
>>> identifiers(["phone", "desktop"] * 10) is None
True
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from maskedlark.encoding.cells import number

FEWEST_ROWS: Final = 20
"""A column with fewer filled cells is not called nearly unique."""
NEARLY_UNIQUE: Final = 0.5
"""Words of which at least this share differ name their rows: a name, a street, a search."""
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
