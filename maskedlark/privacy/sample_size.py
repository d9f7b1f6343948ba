"""Bounds on the size of a secret sample, so that the size does not show which records are in it.

They hold except with small probabilities, which are charged.

    hides(dataset_size=60_000, rate=1 / 29, k=100)      # may the secrecy of such samples be counted?
    work_size(expected=2_048, least=100, most=60_000)    # on how many records a step does its work

The size of a sample depends on whether a record is in it, and is visible in two ways. A step with fewer than
k records gives an empty sum: an attacker that knows that k - 1 others are in the sample learns from a sum
that is not empty that the record is. And a sample that exceeds the padded work takes longer. Both are kept
rarer than `EXPOSURE` together in each step, which the accountant adds to delta; where the first cannot be, no
amplification is counted. Counts are binomial, for each record's coin or slot is drawn on its own.
"""

import math
from math import isqrt
from typing import Final

EXPOSURE: Final = 2.0**-46
"""The most that the size of one step's sample shows, as a probability."""

_UNDER_K: Final = 2.0**-50
_OVER: Final = 32  # e^-32 is 1.3e-14: with `_UNDER_K` less than `EXPOSURE`


def hides(*, dataset_size: int, rate: float, k: int, reports: int = 1) -> bool:
    """Return whether a step samples k records of *other* people, except with probability 2^-50.

    The person has so many reports at most.
    """
    return rate >= 1 or under(k, others=dataset_size - reports, rate=rate) <= _UNDER_K


def under(k: int, *, others: int, rate: float) -> float:
    """Bound the probability that fewer than k of so many other records are in a sample.

    The binomial terms fall from k - 1 down at least as fast as a geometric series.
    """
    most = k - 1
    if k < 1:
        return 0.0
    if most >= others * rate:
        return 1.0
    log_term = (
        math.lgamma(others + 1)
        - math.lgamma(most + 1)
        - math.lgamma(others - most + 1)
        + most * math.log(rate)
        + (others - most) * math.log1p(-rate)
    )
    falls = most * (1 - rate) / ((others - most + 1) * rate)
    return min(1.0, 1.001 * math.exp(min(log_term, 0.0)) / (1 - falls)) if falls < 1 else 1.0


def least_batch(*, dataset_size: int, k: int, reports: int = 1) -> int:
    """Return the smallest expected sample whose secrecy counts, in records; all records if none does."""
    low, high = min(k, dataset_size), dataset_size
    while low < high:
        middle = (low + high) // 2
        if hides(dataset_size=dataset_size, rate=middle / dataset_size, k=k, reports=reports):
            high = middle
        else:
            low = middle + 1
    return low


def work_size(*, expected: int, least: int, most: int, reports: int = 1, over: int = _OVER) -> int:
    """Return on how many records a step works; its sample is larger with probability at most e^-over.

    By Bernstein's inequality, in integers, so that both helpers find the same number.

    Args:
        expected: The expected size of the sample, rounded down.
        least: The work is never less.
        most: The dataset's size.
        reports: The most of one person, for all of which there is room in addition to the others'.
        over: 32 for a whole step, more for each of its parts.
    """
    mean = expected + 1
    margin = over // 3 + 1 + isqrt((over // 3 + 1) ** 2 + 2 * over * mean) + 1
    return min(most, max(least, mean + margin + reports - 1))
