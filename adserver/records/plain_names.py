"""Names of columns in the letters that a task's names have.

>>> plain_name("Campaña 2024")
'campana_2024'
"""

import re
import unicodedata
from collections.abc import Collection, Iterable
from itertools import count
from typing import Final

# Letters that are more than another one with a mark
_WRITTEN_AS: Final = str.maketrans(
    {
        "æ": "ae",
        "œ": "oe",
        "ø": "o",
        "ß": "ss",
        "ð": "d",
        "đ": "d",
        "þ": "th",
        "ł": "l",
        "ħ": "h",
        "\u0131": "i",
    }
)
# Dropped with other signs, `country!` would be `country`, and the answer the opposite of the question
_OPERATORS: Final = frozenset("!<>=~")
# A number with decimals is declared in parts of its unit
_IN_PARTS: Final = re.compile(r"(.+)_x(10+)")
# A declared name has at most 64: room for a number, `_x1000000` and `_filled`
_MOST: Final = 44


def plain_name(column: str) -> str:
    """Return a column's name in a to z, digits and _: at most 44, of which the first is a letter.

    Accents are dropped. What has no such letters is `column`.
    """
    parts = unicodedata.normalize("NFKD", column.lower().translate(_WRITTEN_AS))
    letters = "".join(one for one in parts if not unicodedata.combining(one))
    plain = re.sub(r"[^a-z0-9]+", "_", letters.lower()).strip("_")
    # A task's names begin with a letter
    named = plain if re.match(r"[a-z]", plain) else f"column_{plain}"
    return named[:_MOST].strip("_")


def numbered_name(plain: str, count: int) -> str:
    """Return the name of the first, second or later column whose plain name is the same."""
    return plain if count == 1 else f"{plain}_{count}"


def distinct_names(names: Iterable[str]) -> list[str]:
    """Return the names in their order; one that an earlier one has gets a number."""
    found = dict[str, None]()
    for name in names:
        numbered = (numbered_name(name, place) for place in count(1))
        found[next(one for one in numbered if one not in found)] = None
    return [*found]


def filled_name(value: str, declared: Collection[str]) -> str | None:
    """Return the declared value that counts the reports with a value that others lack; None if there is none.

    By the names that quickstart gives: `spend_x100` is counted by `spend_x100_filled`.
    """
    name = filled_name_of(value)
    return name if value in declared and name in declared else None


def filled_name_of(value: str) -> str:
    """Return the name that quickstart declares for the count of the reports with a value."""
    return f"{value}_filled"


def parts_of_unit(value: str) -> int:
    """Return how many of a declared value's units its column's own has: 100 of `spend_x100`; 1 of others."""
    named = _IN_PARTS.fullmatch(value)
    return int(named[2]) if named else 1


def declared_name(said: str, declared: Collection[str]) -> str:
    """Return the declared name that is meant: the same, or that of the only column of this plain name.

    Anything else is returned as it is said, such as `country!` of a condition that meant to exclude, and
    `spend` of `spend_x100`: who asked for it would read hundredths as the whole.
    """
    if _OPERATORS.intersection(said):
        return said
    plain = plain_name(said)
    is_only = plain in declared and numbered_name(plain, 2) not in declared
    return plain if said not in declared and is_only else said
