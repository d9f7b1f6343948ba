"""Sums that no honest reports and no noise can give: the ad server throws them away instead of using them.

A report whose masks or values have not the form of the task makes the field sum anything. Proofs of form keep
such reports out of a dataset; this is the last look, and the only one in a task without proofs.
"""

import math
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from maskedlark.errors import JobReason, JobRefused
from maskedlark.numbers.field import SignedVector
from maskedlark.numbers.lengths import l2_norm

# More than what float64 loses in a length.
_ROUNDING: Final = 1 + 2.0**-30
# At least ln(2^64).
_LN_2_64: Final = 45


Bound: TypeAlias = int | Sequence[int]


def check_within(total: SignedVector, *, least: Bound, most: Bound, noise: int, records: int) -> None:
    """Refuse a sum of which a number is outside what so many honest reports and the noise can reach.

    Args:
        total: (n,) for one bound, (n, W) for W bounds.
        least: What the numbers, or those of each column, are at least without noise.
        most: What they are at most.
        noise: What both helpers' noise exceeds nowhere.
        records: For the message.

    Raises:
        JobRefused(SUM_OUT_OF_RANGE)
    """
    # Bounds are Python's integers: records times a bound can pass what int64 holds.
    columns = [total] if isinstance(least, int) else list(total.T)
    lows = [least] if isinstance(least, int) else least
    highs = [most] if isinstance(most, int) else most
    for column, low, high in zip(columns, lows, highs, strict=True):
        if column.size and not (low - noise <= int(column.min()) and int(column.max()) <= high + noise):
            raise _impossible(records)


def check_length(total: SignedVector, *, most: int, noise_units: int, records: int) -> None:
    """Refuse a sum that is longer, in L2, than all values together can be and both helpers' Gaussian noise.

    The noise of two helpers is sub-Gaussian of variance 2 noise_units^2 in each of n independent coordinates,
    so its squared length passes 2 noise_units^2 (n + 2 sqrt(n x) + 2 x) with probability at most e^-x; here x
    = 45, under 2^-64.

    Raises:
        JobRefused(SUM_OUT_OF_RANGE)

    Source: Hsu, Kakade, Zhang, "A tail inequality for quadratic forms of subgaussian random vectors", 2012.
    """
    count = len(total)
    noise = math.sqrt(2 * (count + 2 * math.sqrt(count * _LN_2_64) + 2 * _LN_2_64)) * noise_units
    if l2_norm(total.astype(np.float64)) > (most + noise) * _ROUNDING:
        raise _impossible(records)


def _impossible(records: int) -> JobRefused:
    return JobRefused(
        JobReason.SUM_OUT_OF_RANGE, f"a sum is beyond what {records} honest reports and the noise can reach"
    )
