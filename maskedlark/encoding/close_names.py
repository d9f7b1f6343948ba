"""Names of columns and words as people misspell them.

>>> find_close("campana", ["país", "Campaña"])
'Campaña'
>>> list_known("campana", ["país", "Campaña"])
"did you mean 'Campaña'? It has país, Campaña"
"""

import unicodedata
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

_MOST_LISTED: Final = 30


def fold(word: str) -> str:
    """Return a word without case, accents and repeated space."""
    # Case first: some letters fold to a letter and an accent
    parts = unicodedata.normalize("NFKD", word.casefold())
    return " ".join("".join(one for one in parts if not unicodedata.combining(one)).split())


def find_close(given: str, known: Iterable[str]) -> str | None:
    """Return the name that was probably meant; None if none is close."""
    # Folded, since ratios count a capital as another letter; of names that fold alike the first
    folded = {fold(one): one for one in reversed([*known])}
    said = fold(given)
    # `amount` of `amount_x100`, which is longer by more than half, before `count` and `amount_x100_filled`
    begun = sorted((one for one in folded if one.startswith(f"{said}_")), key=len)
    return next((folded[one] for one in (*begun, *get_close_matches(said, folded, 1))), None)


def list_known(given: str, known: Iterable[str]) -> str:
    """Return the end of a message that nothing is called `given`: the close name, and the first ones."""
    names = [*known]
    close = find_close(given, names)
    listed = _list(names)
    return listed if close is None else f"did you mean {close!r}? {listed[0].upper()}{listed[1:]}"


def list_unknown(given: Iterable[str], known: Iterable[str]) -> str:
    """Return the end of a message about a table that lacks columns: all of them, and those that it has.

    Args:
        given: At least one name, none of which is known.
        known: The columns that the table has.
    """
    unknown, names = [*dict.fromkeys(given)], [*known]
    if len(unknown) == 1:
        return f"no column {unknown[0]!r}; {list_known(unknown[0], names)}"
    meant = [(one, find_close(one, names)) for one in unknown]
    shown = ", ".join(f"{one!r}" + (f" (did you mean {close!r}?)" if close else "") for one, close in meant)
    return f"no columns {shown}; {_list(names)}"


def _list(names: Sequence[str]) -> str:
    listed = ", ".join(names[:_MOST_LISTED]) or "none"
    return f"it has {listed}" + (
        f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    )
