"""Real numbers as integers of the field, and the bound that keeps a sum of them from wrapping.

A value x is carried as trunc(x * 2^frac_bits). Truncation is toward zero, so a clipped vector's norm stays
within its bound.

>>> decode_signed(np.array([24, -4]), frac_bits=4).tolist()
[1.5, -0.25]
"""

import numpy as np
from numpy.typing import NDArray

from maskedlark.errors import JobReason, JobRefused
from maskedlark.numbers.field import MAX_SIGNED, SignedVector


def decode_signed(values: SignedVector, frac_bits: int) -> NDArray[np.float64]:
    """Decode the reals that scaled integers stand for, correctly rounded to float64."""
    return np.ldexp(values.astype(np.float64), -frac_bits)


def check_no_overflow(*, records: int, sensitivity: int, noise_bound: int) -> None:
    """Refuse a job whose sum could leave the signed range of the field.

    Called by both helpers and the ad server before it runs.

    Args:
        records: The most records that one sum can hold.
        sensitivity: The most that one record adds to one coordinate, in units of 2^-frac_bits.
        noise_bound: The most that both helpers' noise adds to one coordinate, in the same units.

    Raises:
        JobRefused(OVERFLOW)
    """
    # In Python's integers: the product can be past 2^64, which is what is looked for.
    worst = records * sensitivity + noise_bound
    if worst > MAX_SIGNED:
        raise JobRefused(
            JobReason.OVERFLOW,
            f"a sum over {records} records could reach 2^{worst.bit_length()} units, past the field's 2^63: "
            "use fewer records, a smaller clip_norm or fewer frac_bits",
        )
