"""Names of columns in the letters that a task's names have.

>>> plain_name("Campaña 2024")
'campana_2024'
"""

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from maskedlark.encoding.close_names import fold

if TYPE_CHECKING:
    from maskedlark.reports.measurement import Key, Value

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
# A declared name has at most 64: room for a number and `_filled`
_MOST: Final = 44
_MOST_WITH_WORD: Final = 60
# Between a column's name and a word's: no plain name has it
_WORD: Final = "__"
_NO_TITLES: Final[Mapping[str, str]] = MappingProxyType({})


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


def filled_name(value: str, declared: "Iterable[Value]") -> str | None:
    """Return the declared value that counts the reports with a value that others lack; None if there is none.

    By the names that quickstart gives: `spend` is counted by `spend_filled`, as is its word `spend__none`.
    """
    known = {one.name: one for one in declared}
    if value not in known:
        return None
    # A report has a word or not: an amount called `spend__net` is no word of `spend`
    is_flag = (known[value].low, known[value].high) == (0, 1)
    names = map(filled_name_of, (value, *((value.partition(_WORD)[0],) if is_flag else ())))
    return next((name for name in names if name in known), None)


def filled_name_of(value: str) -> str:
    """Return the name that quickstart declares for the count of the reports with a value."""
    return f"{value}_filled"


def order_of(name: str) -> tuple[bool, int, str, str]:
    """Return a key that sorts groups as people look for them: numbers first, then words by the alphabet."""
    return (False, int(name), "", "") if name.isdecimal() else (True, 0, fold(name), name)


def word_name_of(column: str, word: str) -> str:
    """Return the name that quickstart declares for the count of a word, where some reports have no word.

    Args:
        column: The column's name, as a task may declare it.
        word: One of its words, as it is spelled.
    """
    # It need not begin with a letter here
    plain = plain_name(word).removeprefix("column_")
    return f"{column}{_WORD}{plain}"[:_MOST_WITH_WORD].strip("_")


def shown_name(one: "Value | Key") -> str:
    """Return what results call a declared value or key: its title, or else its name."""
    return one.title or one.name


def names_by_title(ones: "Iterable[Value | Key]") -> dict[str, str]:
    """Return the declared names of values or keys by their titles; of those that have one."""
    return {one.title: one.name for one in ones if one.title}


def split_names(typed: str, separator: str, known: Collection[str]) -> list[str]:
    """Return the names of a list that a person typed, where a known name may hold the separator.

    The longest known name is taken.

    >>> split_names("Gerät, Typ,shop", ",", ["Gerät, Typ", "Gerät"])
    ['Gerät, Typ', 'shop']
    """
    parts, found, start = typed.split(separator), list[str](), 0
    while start < len(parts):
        ends = range(len(parts), start, -1)
        names = {end: separator.join(parts[start:end]).strip() for end in ends}
        end = next((end for end in ends if names[end] in known), start + 1)
        found.append(names[end])
        start = end
    return found


def declared_name(said: str, declared: Collection[str], titles: Mapping[str, str] = _NO_TITLES) -> str:
    """Return the declared name that is meant: by itself, by its title, or by the plain name of only one.

    Anything else is returned as it is said, such as `country!` of a condition that meant to exclude.

    Args:
        said: What a person wrote.
        declared: The names that a task declares.
        titles: Of those that results call otherwise, the declared name by its title.
    """
    if said in declared:
        return said
    if said in titles:
        return titles[said]
    if _OPERATORS.intersection(said):
        return said
    plain = plain_name(said)
    meant = {name for title, name in titles.items() if plain_name(title) == plain}
    if plain in declared:
        meant |= {plain, numbered_name(plain, 2)} & set(declared)
    return meant.pop() if len(meant) == 1 else said
