"""The least noise whose cost is within a budget, where the cost takes long to compute.

>>> round(smallest_within(lambda noise: 1 / noise, 4.0, 0.01, 100.0), 3)
0.25
"""

import math
from collections.abc import Callable
from itertools import count
from typing import Final

SEARCH_PRECISION: Final = 1.01
_GUESSES: Final = 4  # then halving goes on between what is known
_LEAST_COST: Final = 1e-300
_FARTHEST: Final = 50.0


def smallest_within(cost: Callable[[float], float], budget: float, too_small: float, enough: float) -> float:
    """Find by halving where a falling cost meets a budget, to `SEARCH_PRECISION`, from above.

    A cost takes long to compute, so it is not asked for at every half: a guess says where halving would end,
    and if the cost at the ends of that last part says otherwise, the next guess knows more.

    Args:
        cost: Falls; remembers what it was asked for.
        budget: Of the cost.
        too_small: Where the cost is above the budget.
        enough: Where it is within.
    """
    below, above = too_small, enough
    seen = (too_small, enough)
    for turn in count():
        guess = _where_met(cost, budget, seen) if turn < _GUESSES else math.nan
        low, high = _last_half(
            too_small, enough, guess if below < guess < above else math.sqrt(below * above)
        )
        if low <= below and high >= above:
            break
        asked = high if high < above else low
        below, above = (below, asked) if cost(asked) <= budget else (asked, above)
        seen = (seen[1], asked)
    return high


def _last_half(too_small: float, enough: float, wanted: float) -> tuple[float, float]:
    """Return the ends of the part in which halving finds a point."""
    while enough / too_small > SEARCH_PRECISION:
        middle = math.sqrt(too_small * enough)
        too_small, enough = (too_small, middle) if middle >= wanted else (middle, enough)
    return too_small, enough


def _where_met(cost: Callable[[float], float], budget: float, seen: tuple[float, float]) -> float:
    """Return where a line through two costs, in logarithms, meets the budget; NaN where it is level."""
    first, last = (math.log(max(cost(one), _LEAST_COST)) for one in seen)
    if first == last or math.inf in (first, last):
        return math.nan
    ahead = math.log(seen[1] / seen[0]) * (math.log(budget) - last) / (last - first)
    return seen[1] * math.exp(ahead) if abs(ahead) < _FARTHEST else math.nan
