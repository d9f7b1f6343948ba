"""The arithmetic that a 784-500-10 round cannot do without, at the best rate that this machine reaches in
large products.

The digit and limb counts are the protocol's field of 64 bits and weights of 14 in the form of each way;
passes over values, digests and traffic are not counted. So the share of this limit that a round reaches says
what is left to gain by better code on the same machine.
"""

from collections.abc import Callable
from time import thread_time
from typing import Final

import numpy as np

from helper.gradient.exact.products.fastest import BackendChoice
from helper.gradient.exact.products.int8 import _is_saturating, multiply_digits
from tests.bench.harness import best_of

_SIDE: Final = 1024
_TURNS: Final = 5


def rates() -> dict[str, float]:
    """Multiplications a second in large square products, by way."""
    rng = np.random.default_rng(0)
    left = rng.integers(0, 256, (_SIDE, _SIDE)).astype(np.uint8)
    right = rng.integers(-64, 64, (_SIDE, _SIDE)).astype(np.int8)
    a, b = left.astype(np.float64), right.astype(np.float64)
    return {"int8": _rate(lambda: multiply_digits(left, right)), "float64": _rate(lambda: a @ b)}


def arithmetic_s(
    choice: BackendChoice, *, records: int, labels: int, inputs: int, hidden: int, outputs: int
) -> float:
    """The time of a round's products alone, at those rates."""
    digits = 10 if _is_saturating() else 8
    cost = {"int8": (2, 4, digits, 2 * digits), "float64": (1, 1, 2, 3)}
    first, second = records * inputs * hidden, records * hidden * outputs
    needed = (
        (choice.bytes_by_weights, 0, first),
        (choice.rows_by_weights, 1, second),
        ("float64", 1, labels * second),  # back from few outputs: narrow
        (choice.sum_of_bytes, 2, first),
        (choice.sum_of_rows, 3, second),
    )
    at = rates()
    return sum(cost[way][kind] * multiplications / at[way] for way, kind, multiplications in needed)


def _rate(product: Callable[[], object]) -> float:
    return _SIDE**3 / best_of(product, _TURNS, thread_time)
