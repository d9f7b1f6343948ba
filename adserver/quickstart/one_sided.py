"""Words, filled cells and gaps whose rows nearly all have one class, as of what follows the label.

find_one_sided(table.numbers("cancelled_at"), labels)
# "is filled in 1,326 rows, all of them 'yes' (18.5 % of all rows are)"

A date of cancellation that a quarter of the buyers lack ranks the rows too little to be a leak by its AUC.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from maskedlark.encoding.cells import number
from maskedlark.frozen import frozen
from maskedlark.terminal.plural import plural

_LEAST_SHARE: Final = 0.01
"""The share of the rows that a word holds at least. It also bounds how many words of a column are tried."""
_MOST_OTHERS: Final = 0.03
"""The share of other classes among a word's rows, over their share of all rows, at most.

Of Adult's columns the most one-sided word, `Own-child` of relationship, is at .055: it is known before the
label. The lifeboat of Titanic's passengers is at .03.
"""
_SURELY_BELOW: Final = 0.1
"""What that ratio is surely below, so that few rows do not decide."""
_CHANCE: Final = 1e-3
"""How often a word at `_SURELY_BELOW` has as few rows of other classes; one at 1 practically never has."""
# Numbers of more values than these are measurements, which have one-sided ranges, and no words
_MOST_NUMBERS: Final = 10


@frozen
class _Side:
    """Rows of a column that have something in common.

    Attributes:
        what: Which they are, for people.
        rows: How many.
        label: The most frequent class among them.
        others: How many of them have another one.
    """

    what: str
    rows: int
    label: str
    others: int


def find_one_sided(cells: Sequence[str | None], labels: Sequence[str | None]) -> str:
    """Describe the word of a column, or its filled cells or gaps, whose rows nearly all have one class.

    Args:
        cells: The column, None for a gap.
        labels: The class of each row; None for a row that is not learned.

    Returns:
        What the column has, to follow its name; of several words the most frequent one, and how many more
        there are. Empty if none of them is one-sided beyond chance.
    """
    by_cell: dict[str | None, Counter[str]] = defaultdict(Counter)
    everyone = Counter[str]()
    for (cell, label), count in Counter(zip(cells, labels, strict=True)).items():
        if label is not None:
            by_cell[cell][label] += count
            everyone[label] += count
    found = next((some for some in _sides(by_cell, everyone) if some), [])
    if not found:
        return ""
    first, *more = found
    rows = everyone.total()
    among = f"all but {first.others:,} of them" if first.others else "all of them"
    share = f"{100 * everyone[first.label] / rows:.3g} % of all rows are"
    further = f", and {plural(len(more), 'more of its words is', 'more of its words are')} like that"
    return f"{first.what} in {first.rows:,} rows, {among} {first.label!r} ({share}){further if more else ''}"


def _sides(by_cell: Mapping[str | None, Counter[str]], everyone: Counter[str]) -> Iterator[list[_Side]]:
    """Yield what is one-sided of the filled cells and the gaps, then of the words, most rows first."""
    gaps = by_cell.get(None, Counter[str]())
    filled = everyone - gaps
    words = {cell: counts for cell, counts in by_cell.items() if cell is not None}
    if gaps and filled:
        yield _one_sided({"is filled": filled, "is empty": gaps}, everyone)
    if len(words) <= _MOST_NUMBERS or any(number(cell) is None for cell in words):
        yield _one_sided({f"has {cell!r}": counts for cell, counts in words.items()}, everyone)


def _one_sided(by_what: Mapping[str, Counter[str]], everyone: Counter[str]) -> list[_Side]:
    found = list[_Side]()
    for what, counts in by_what.items():
        rows = counts.total()
        if rows < _LEAST_SHARE * everyone.total():
            continue
        [(label, most)] = counts.most_common(1)
        usual = 1 - everyone[label] / everyone.total()
        others = rows - most
        if others <= _MOST_OTHERS * usual * rows and _is_surely_below(others, rows, _SURELY_BELOW * usual):
            found.append(_Side(what=what, rows=rows, label=label, others=others))
    return sorted(found, key=lambda one: -one.rows)


def _is_surely_below(count: int, rows: int, share: float) -> bool:
    """Return whether so few rows would come by less than `_CHANCE` if their share were this one.

    By Chernoff's bound, which is exact for a count of 0 and never too low.
    """
    found = count / rows
    if found >= share:
        return False
    divergence = (1 - found) * math.log((1 - found) / (1 - share))
    divergence += found * math.log(found / share) if count else 0
    return rows * divergence >= -math.log(_CHANCE)
