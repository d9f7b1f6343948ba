"""Names of columns and words as people misspell them.

>>> find_close("campana", ["país", "Campaña"])
'Campaña'
>>> list_known("campana", ["país", "Campaña"])
"did you mean 'Campaña'? It has país, Campaña"
"""

import unicodedata
from collections.abc import Iterable
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
    return next((folded[one] for one in get_close_matches(fold(given), folded, 1)), None)


def list_known(given: str, known: Iterable[str]) -> str:
    """Return the end of a message that nothing is called `given`: the close name, and the first ones."""
    names = [*known]
    close = find_close(given, names)
    listed = ", ".join(names[:_MOST_LISTED])
    if len(names) > _MOST_LISTED:
        listed += f" and {len(names) - _MOST_LISTED} more"
    return f"it has {listed}" if close is None else f"did you mean {close!r}? It has {listed}"
