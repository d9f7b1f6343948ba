"""Noise for a release: exact discrete samplers, and the bounds that go with them.

A helper adds one noise vector to its share of a sum, once per round, before anything leaves it; a browser may
add noise to its features before it seals them. Floating-point noise leaks through its rounding (Mironov
2012), so from the random bytes to the result everything here is an integer: no logarithm, no exponential, no
division that rounds. The samplers are therefore *exact*: if the bytes are uniform, the result has the stated
distribution, with no error term. For the same reason the result is a function of the random stream alone, the
same on every machine.

The building block is a coin that shows heads with probability exp(-g) for a rational g, tossed without
computing exp. Toss coins of probability g/1, g/2, g/3, ... (0 <= g <= 1) until one fails, at toss K. Then P(K
> k) = g^k / k!, so

    P(K odd) = sum over odd k of (g^(k-1) / (k-1)! - g^k / k!) = exp(-g).

A coin of probability n/m is "a uniform integer below m is below n". All functions toss whole vectors of coins
at a time. Taking the first `count` accepted proposals of a sequence of independent ones leaves them
independent and exactly distributed.

How long a call takes depends on the bytes drawn. A helper draws ahead of time, so that its noise does not
show in its timing.

Source: C. Canonne, G. Kamath, T. Steinke, "The Discrete Gaussian for Differential Privacy", 2020, algorithms
1 to 3.
"""

import math
from collections.abc import Callable
from enum import StrEnum, unique
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from maskedlark.randomness import Randomness, below

MAX_SCALE: Final = 1 << 48
"""The largest noise scale.

A coin's bound 2 k scale, and every value, stay below 2^63 unless 2^14 coins of probability at most 1/e show
heads in a row, which has probability below 2^-23000."""

MIN_SCALE: Final = 1 << 10
"""The smallest noise scale, in units, that a release may use.

From there on the accountant's continuous mechanisms bound the discrete
ones up to a slack that it charges (proof: docs/explanation/privacy.md)."""

FEATURE_RANGE: Final = 255
FEATURE_FRAC_BITS: Final = 16

_MAX_BATCH = 1 << 16  # proposals drawn together: more leave a core's cache, fewer pay for numpy's calls


@unique
class Mechanism(StrEnum):
    """The distribution of the noise.

    It decides the norm in which values are clipped: L1 for Laplace, L2 for Gaussian.
    """

    LAPLACE = "laplace"
    GAUSSIAN = "gaussian"
    NONE = "none"


@unique
class NoiseDivision(StrEnum):
    """How much of a release's noise each helper adds."""

    FULL = "full"
    """Each helper adds all of it, so that either one's noise alone is enough."""
    SPLIT = "split"
    """Each helper adds half of the variance: the sum has it once, and one helper's noise alone is less.

    Gaussian only, since the sum of two
    Gaussians is Gaussian and nothing like it holds of Laplace."""


NoiseSource: TypeAlias = Callable[[Mechanism, int, int], NDArray[np.int64]]
"""Gives the noise of one release, fresh at each call, for a mechanism, a scale and a count.

`noise_vector` with its randomness bound, or
what a helper drew ahead."""


def discrete_laplace(scale: int, count: int, randomness: Randomness) -> NDArray[np.int64]:
    """`count` independent integers x with P(x) proportional to exp(-|x| / scale). Both helpers, and browsers.

    Args:
        scale: In the units of the result, 1 to `MAX_SCALE`.
        count: How many, at least 0.
        randomness: Where the bytes come from.

    Guarantees: exact; a function of `scale`, `count` and the bytes alone.

    Raises:
        ValueError: `scale` or `count` is outside its range.
    """
    _check(scale, count)
    return _first_accepted(count, lambda proposals: _laplace_batch(scale, proposals, randomness))


def discrete_gaussian(sigma: int, count: int, randomness: Randomness) -> NDArray[np.int64]:
    """`count` independent integers x with P(x) proportional to exp(-x^2 / (2 sigma^2)). Both helpers.

    Args:
        sigma: In the units of the result, 1 to `MAX_SCALE`. The variance is at most sigma^2, and within 1e-5
            of it.
        count: How many, at least 0.
        randomness: Where the bytes come from.

    Guarantees: exact; a function of `sigma`, `count` and the bytes alone.

    Raises:
        ValueError: `sigma` or `count` is outside its range.
    """
    _check(sigma, count)
    return _first_accepted(count, lambda proposals: _gaussian_batch(sigma, proposals, randomness))


def noise_vector(mechanism: Mechanism, scale: int, count: int, randomness: Randomness) -> NDArray[np.int64]:
    """The noise that one helper adds to a sum of `count` coordinates.

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
    """The noise scale, in units, of a noise multiplier.

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
    scale = math.ceil(Fraction(noise_multiplier) * sensitivity)
    if not MIN_SCALE <= scale <= MAX_SCALE:
        raise ValueError(
            f"the noise scale is {scale} units, outside {MIN_SCALE}..{MAX_SCALE}: change frac_bits or noise_multiplier"
        )
    return scale


def split_scale(scale: int) -> int:
    """The least integer scale of which two Gaussians have, together, at least the variance of one of `scale`."""
    half = math.isqrt((scale * scale + 1) // 2)
    return half if 2 * half * half >= scale * scale else half + 1


def tail_bound(mechanism: Mechanism, scale: int, count: int) -> int:
    """What the largest of `count` absolute noise values of one helper exceeds with probability at most 2^-64.

    Proof: let c = 7/10 * (65 + bits of count) >= ln(2^65 count). With r = e^(-1/scale) a discrete Laplace has
        P(|x| > t) = 2 r^(t+1) / (1 + r) <= e^(-t/scale), at most e^-c at t = scale * c. A discrete Gaussian
        is sub-Gaussian (Canonne et al., lemma on its moment generating function), so P(|x| > t) <= 2 e^(-t^2
        / (2 sigma^2)), at most 2 e^-c at t = sigma * sqrt(2 c). The union bound over `count` values leaves at
        most 2^-64.

    Raises:
        ValueError: `scale` or `count` is outside its range.
    """
    if mechanism is Mechanism.NONE:
        return 0
    _check(scale, count)
    bits = 65 + count.bit_length()
    if mechanism is Mechanism.LAPLACE:
        return scale * bits * 7 // 10 + 1
    return math.isqrt(scale * scale * bits * 14 // 10) + 1


def noise_bytes(features: NDArray[np.uint8], epsilon: float, randomness: Randomness) -> NDArray[np.uint8]:
    """Features with local differential privacy.

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
    noise = discrete_laplace(scale, features.size, randomness)
    half = np.int64(1 << (FEATURE_FRAC_BITS - 1))
    rounded = (noise + half) >> np.int64(FEATURE_FRAC_BITS)
    noised = features.astype(np.int64) + rounded.reshape(features.shape)
    return np.clip(noised, 0, FEATURE_RANGE).astype(np.uint8)


def _check(scale: int, count: int) -> None:
    """Refuse parameters that no sampler takes."""
    if not 1 <= scale <= MAX_SCALE:
        raise ValueError(f"a noise scale must be in 1..{MAX_SCALE} units, not {scale}")
    if count < 0:
        raise ValueError(f"count must be at least 0, not {count}")


def _first_accepted(count: int, accepted: Callable[[int], NDArray[np.int64]]) -> NDArray[np.int64]:
    """The first `count` values that batches of proposals give.

    `accepted(n)` makes n proposals and keeps the good ones.
    """
    drawn = np.empty(count, np.int64)
    filled = 0
    while filled < count:
        missing = count - filled
        batch = accepted(min(_MAX_BATCH, 2 * missing + 16))[:missing]
        drawn[filled : filled + len(batch)] = batch
        filled += len(batch)
    return drawn


def _laplace_batch(scale: int, proposals: int, randomness: Randomness) -> NDArray[np.int64]:
    """Those of some proposals that algorithm 2 accepts (about 0.63 of them), as discrete Laplace values."""
    low = _below(scale, proposals, randomness)
    low = low[_coins_exp(low, scale, randomness)]
    magnitudes = low + scale * _geometric(len(low), randomness)
    negative = (np.frombuffer(randomness(len(low)), np.uint8) & 1).astype(bool)
    once = ~(negative & (magnitudes == 0))  # else zero, which has two signs, would come up twice as often
    values: NDArray[np.int64] = np.where(negative, -magnitudes, magnitudes)[once]
    return values


def _gaussian_batch(sigma: int, proposals: int, randomness: Randomness) -> NDArray[np.int64]:
    """Those of some discrete Laplace values y that algorithm 3, at t = sigma, accepts.

    A coin of exp(-(|y| - sigma)^2 / (2 sigma^2)).

    With ||y| - sigma| = m sigma + r, 0 <= r < sigma, that is exp(-m^2 / 2) * exp(-m r / sigma) * exp(-r^2 /
    (2 sigma^2)).
    """
    values = _laplace_batch(sigma, proposals, randomness)
    whole, rest = np.divmod(np.abs(np.abs(values) - sigma), sigma)
    accepted = _coins_exp_square(rest, sigma, randomness)
    far = np.flatnonzero(accepted & (whole > 0))
    m, r = whole[far], rest[far]
    accepted[far] = _coins_exp(m * m, 2, randomness) & _coins_exp(m * r, sigma, randomness)
    return values[accepted]


def _coins_exp(numerators: NDArray[np.int64], denominator: int, randomness: Randomness) -> NDArray[np.bool_]:
    """Coins that show heads with probability exp(-numerator / denominator), each numerator at least 0."""
    whole, rest = np.divmod(numerators, denominator)
    heads = _odd_first_failure(
        len(rest), lambda k, still: _below(denominator * k, len(still), randomness) < rest[still]
    )
    beyond = np.flatnonzero(heads & (whole > 0))
    heads[beyond] = _geometric(len(beyond), randomness) >= whole[beyond]
    return heads


def _coins_exp_square(
    numerators: NDArray[np.int64], denominator: int, randomness: Randomness
) -> NDArray[np.bool_]:
    """Coins that show heads with probability exp(-(n / d)^2 / 2), each n in 0..d-1.

    Two coins, n / (2 k d) and n / d, stand for one.
    """

    def tosses(k: int, still: NDArray[np.intp]) -> NDArray[np.bool_]:
        limits = numerators[still]
        passed = _below(2 * k * denominator, len(still), randomness) < limits
        both = np.flatnonzero(passed)
        passed[both] = _below(denominator, len(both), randomness) < limits[both]
        return passed

    return _odd_first_failure(len(numerators), tosses)


def _geometric(count: int, randomness: Randomness) -> NDArray[np.int64]:
    """Integers v >= 0 with P(v >= n) = exp(-n).

    How many coins of exp(-1) show heads before the first tail.
    """
    runs = np.zeros(count, np.int64)
    still = np.arange(count)
    while still.size:
        # The coin of probability 1/1 never fails, so the tosses begin with the second: an odd one among these
        # is an even K.
        tails = _odd_first_failure(
            len(still), lambda k, tossing: _below(k + 1, len(tossing), randomness) == 0
        )
        still = still[~tails]
        runs[still] += 1
    return runs


def _below(bound: int, count: int, randomness: Randomness) -> NDArray[np.int64]:
    """Uniform integers below a bound, signed.

    Numpy compares them with signed integers without a detour through floats.
    """
    return below(bound, count, randomness).view(np.int64)


def _odd_first_failure(
    count: int, tosses: Callable[[int, NDArray[np.intp]], NDArray[np.bool_]]
) -> NDArray[np.bool_]:
    """Which of `count` sequences of tosses fail first at an odd toss.

    `tosses(k, still)` makes toss k of those still running.
    """
    odd = np.ones(count, np.bool_)
    still = np.arange(count)
    k = 1
    while still.size:
        still = still[tosses(k, still)]
        k += 1
        odd[still] = k % 2 == 1
    return odd
