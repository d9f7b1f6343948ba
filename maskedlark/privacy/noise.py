"""Noise for a release: how much, and the bounds that go with it.

A helper adds one noise vector to its share of a sum, once per round, before anything leaves it; a browser may
add noise to its features before it seals them. Floating-point noise leaks through its rounding (Mironov
2012), so the samplers (`samplers`) draw integers, exactly: if the bytes are uniform, the result has the
stated distribution, with no error term. For the same reason the result is a function of the random stream
alone, the same on every machine.

Source: C. Canonne, G. Kamath, T. Steinke, "The Discrete Gaussian for Differential Privacy", 2020.

>>> from maskedlark.randomness import system_randomness
>>> scale = noise_scale(Mechanism.GAUSSIAN, noise_multiplier=2.0, sensitivity=1 << 16)
>>> len(noise_vector(Mechanism.GAUSSIAN, scale, 1000, system_randomness))
1000
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from maskedlark.numbers.lengths import root_up
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.samplers import MAX_SCALE, check_parameters, discrete_gaussian, discrete_laplace
from maskedlark.randomness import Randomness

MIN_SCALE: Final = 1 << 10
"""The smallest noise scale, in units, that a release may use.

From there on the accountant's continuous mechanisms bound the discrete ones up to a slack that it charges
(proof: docs/explanation/privacy-proofs.md)."""

FEATURE_RANGE: Final = 255
FEATURE_FRAC_BITS: Final = 16


NoiseSource: TypeAlias = Callable[[Mechanism, int, int], NDArray[np.int64]]
"""Gives the noise of one release, fresh at each call, for a mechanism, a scale and a count.

It is `noise_vector` with its randomness bound, or what a helper drew ahead."""


def noise_vector(mechanism: Mechanism, scale: int, count: int, randomness: Randomness) -> NDArray[np.int64]:
    """Draw the noise that one helper adds to a sum of `count` coordinates.

    Zeros for `Mechanism.NONE`, whatever the scale.

    Raises:
        ValueError: `scale` or `count` is outside its range.
    """
    match mechanism:
        case Mechanism.LAPLACE:
            return discrete_laplace(scale, count, randomness)
        case Mechanism.GAUSSIAN:
            return discrete_gaussian(scale, count, randomness)
        case Mechanism.NONE:
            return np.zeros(count, np.int64)


def noise_scale(mechanism: Mechanism, noise_multiplier: float, sensitivity: int) -> int:
    """Convert a noise multiplier to a noise scale, in units.

    Their product rounded up, so a release is never noised less than charged.

    Args:
        mechanism: What the scale is for.
        noise_multiplier: Scale over sensitivity: b / L1 for Laplace, sigma / L2 for Gaussian.
        sensitivity: The most that one report moves the sum in the mechanism's norm, in units of 2^-frac_bits,
            at least 1.

    Guarantees: the same integer for every party; 0 for `Mechanism.NONE`; otherwise `MIN_SCALE` to
        `MAX_SCALE`.

    Raises:
        ValueError: a parameter is not positive and finite, or the scale leaves its range.
    """
    if sensitivity < 1:
        raise ValueError(f"sensitivity must be at least 1 unit, not {sensitivity}: use more frac_bits")
    if mechanism is Mechanism.NONE:
        return 0
    if not 0 < noise_multiplier < math.inf:
        raise ValueError(f"noise_multiplier must be positive and finite, not {noise_multiplier}")
    # In integers: a product of floats may round differently on another machine, and the helpers' scales must
    # be equal.
    numerator, denominator = noise_multiplier.as_integer_ratio()
    scale = -(-numerator * sensitivity // denominator)  # rounded up
    if not MIN_SCALE <= scale <= MAX_SCALE:
        raise ValueError(
            f"the noise scale is {scale} units, outside {MIN_SCALE}..{MAX_SCALE}: change frac_bits or "
            "noise_multiplier"
        )
    return scale


def split_scale(scale: int) -> int:
    """Return the least scale such that two Gaussians together have the variance of one of `scale`."""
    return root_up((scale * scale + 1) // 2)


def tail_bound(mechanism: Mechanism, scale: int, count: int) -> int:
    """Return what the largest of `count` absolute values exceeds with probability at most 2^-64.

    Proof: let c = 7/10 * (65 + bits of count) >= ln(2^65 count). With r = e^(-1/scale) a discrete Laplace
        has P(|x| > t) = 2 r^(t+1) / (1 + r) <= e^(-t/scale), at most e^-c at t = scale * c. A discrete
        Gaussian is sub-Gaussian (Canonne et al., lemma on its moment generating function), so P(|x| > t) <=
        2 e^(-t^2 / (2 sigma^2)), at most 2 e^-c at t = sigma * sqrt(2 c). The union bound over `count` values
        leaves at most 2^-64.

    Raises:
        ValueError: `scale` or `count` is outside its range.
    """
    if mechanism is Mechanism.NONE:
        return 0
    check_parameters(scale, count)
    return beyond_bits(mechanism, scale, 65 + count.bit_length())


def beyond_bits(mechanism: Mechanism, scale: int, bits: int) -> int:
    """Return what one value reaches, in one direction, with probability at most 2^-bits; 0 without noise.

    P(x >= t) <= e^(-t / scale) for a discrete Laplace, e^(-t^2 / (2 sigma^2)) for a discrete Gaussian, and
    7/10 > ln 2; integers only, so that all parties come to the same number.
    """
    match mechanism:
        case Mechanism.NONE:
            return 0
        case Mechanism.LAPLACE:
            return scale * bits * 7 // 10 + 1
        case Mechanism.GAUSSIAN:
            return math.isqrt(scale * scale * bits * 14 // 10) + 1


def noise_bytes(features: NDArray[np.uint8], epsilon: float, randomness: Randomness) -> NDArray[np.uint8]:
    """Return features with local differential privacy.

    Each byte plus Laplace noise of scale 255 / epsilon, rounded and clipped to 0..255.

    Called by a browser before it seals a report. The noise is drawn exactly, on a grid of 2^-16; its scale is
    rounded up.

    Args:
        features: Any shape.
        epsilon: *Per coordinate*. A record of d coordinates as a whole has d * epsilon.
        randomness: Where the bytes come from.

    Guarantees: for any two values of one coordinate, no result is more than e^epsilon times likelier under
        one than the other.

    Raises:
        ValueError: `epsilon` is not positive and finite, or so small that its noise leaves the sampler's
            range (under 1e-7).

    Source: Masked LARk, section 4.2.3, equation 3 and its footnote.
    """
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, not {epsilon}")
    scale = math.ceil((FEATURE_RANGE << FEATURE_FRAC_BITS) / Fraction(epsilon))
    # On a grid finer than the bytes, and rounded afterwards: rounding is post-processing and costs no
    # privacy.
    noise = discrete_laplace(scale, features.size, randomness)
    half = np.int64(1 << (FEATURE_FRAC_BITS - 1))
    # A shift of a negative number rounds down, so half is added first: the nearest integer for both signs.
    rounded = (noise + half) >> np.int64(FEATURE_FRAC_BITS)
    noised = features.astype(np.int64) + rounded.reshape(features.shape)
    return np.clip(noised, 0, FEATURE_RANGE).astype(np.uint8)
