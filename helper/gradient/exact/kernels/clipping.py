"""The factor that scales each record's gradient, so that its integer norm is within the sensitivity.

Specification: docs/spec/numerics.md, section "Clipping"; proof: docs/explanation/numerics.md.
"""

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.kernels.compiled import kernel
from helper.gradient.exact.kernels.rows import Real
from maskedlark.frozen import frozen
from maskedlark.privacy.clip import Clip, Norm

MARGIN_BITS: Final = 40
"""The bound is lowered by a factor 1 - 2^-40.

That is far more than all the roundings of a norm and a factor together.
"""
MAX_SENSITIVITY: Final = 2**62


@lru_cache(maxsize=64)
def _safe_bound(clip: Clip) -> float:
    """Return sensitivity * (1 - 2^-40) * 2^-frac_bits, rounded down to a float64."""
    lowered = clip.sensitivity * (2**MARGIN_BITS - 1) >> MARGIN_BITS
    # Only 53 bits are kept: of more, the conversion to a float64 could round up.
    excess = max(0, lowered.bit_length() - 53)
    return float(np.ldexp(float(lowered >> excess << excess), -clip.frac_bits))


def clip_factors(squares: Real, coefficients: Real, clip: Clip) -> Real:
    """Return the factor of each record's seed gradient for each label.

    Args:
        squares: (seeds, records): the squared L2 norm, or the L1 norm, of each seed's gradient.
        coefficients: (records, labels): the gradient of a label is coefficient * the gradient of its seed.
        clip: The bound.
    """
    factors = np.empty(coefficients.shape)
    norms = np.sqrt(squares) if clip.norm is Norm.L2 else squares
    _factors(norms, coefficients, _safe_bound(clip), factors)
    return factors


@kernel
def _factors(norms: Real, coefficients: Real, bound: float, factors: Real) -> None:
    """Fill in the coefficient itself if its gradient is within the bound, else +-bound / norm.

    0 for a norm that is not finite.
    """
    records, labels = coefficients.shape
    for r in range(records):
        for k in range(labels):
            # A loss of one output has one seed, of which each label's gradient is a multiple.
            norm, coefficient = norms[k if norms.shape[0] > 1 else 0, r], coefficients[r, k]
            clipped = (bound if coefficient > 0.0 else -bound) / norm  # divided whether it is taken or not
            finite = clipped if norm < np.inf else 0.0
            factors[r, k] = coefficient if abs(coefficient) * norm <= bound else finite


@frozen
class Masking:
    """What every trained layer needs to write its masked values, for one block of records.

    Attributes:
        factors: float64 (records, labels), from `clip_factors`.
        shares: uint64 (records, labels), this helper's mask shares.
        hashes: uint64 (records,), to which each layer adds its values' hash.
        frac_bits: The scale of the result.
        sensitivity: The most that the magnitude of a value can be, an integer.
    """

    factors: Real
    shares: NDArray[np.uint64]
    hashes: NDArray[np.uint64]
    frac_bits: int
    sensitivity: int
