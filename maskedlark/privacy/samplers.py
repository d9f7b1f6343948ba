"""Exact samplers of discrete Laplace and discrete Gaussian noise, some twenty nanoseconds a value.

    noise = discrete_gaussian(sigma=1 << 40, count=397_510, randomness=system_randomness)

A proposal x comes from the strips (see `strips`), and a coin decides whether it is kept: with a uniform real
number U in [0, 1), keep x if U c_k < M rho(x). Then every x is kept with probability proportional to rho(x),
and a random sign makes it two-sided (a negative zero is dropped, or zero would come up twice as often).

The coin is exact, although rho(x) is an exponential and U has infinitely many bits, because only as much of
both is computed as decides the comparison:

1. the first 31 bits of U are below the strip's `sure` bound, as about 19 times in 20: keep;
2. 47 bits of U, and rho(x) in float64, are further apart than the float64 value can be wrong: keep or drop;
3. otherwise, about once in 2^34 proposals: rho(x) in Decimal to 40 digits, then more digits and more bits of
U, until they differ.

Step 2 grants float64's exp an error of one part in 2^30, where the mathematical libraries in use stay below
one in 2^50. It decides nothing that step 3 would decide otherwise. So the values are a function of the random
bytes alone, on every machine: both helpers draw the noise of a count from a common stream.

How long a call takes depends on the bytes drawn, not on anything secret besides them. A helper draws its
noise ahead of time.
"""

from decimal import Decimal
from typing import Final, TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

from maskedlark.privacy.rejection_strips import (
    COIN_BITS,
    SURE_BITS,
    TAIL,
    WEIGHT_BITS,
    Law,
    Strips,
    exact_context,
    exponent,
    strips,
)
from maskedlark.randomness import Randomness

Words: TypeAlias = NDArray[np.uint64]

MAX_SCALE: Final = 1 << 48
"""The largest noise scale.

A strip is then 2^45 wide and has its 45 bits and 16 of its coin in one random word; every value stays below
2^63 unless 2^10 proposals in a row fall into the last strip, which has probability below 2^-22000."""

_BATCH: Final = 1 << 15  # proposals drawn together: more leave a core's cache, fewer pay for numpy's calls
_COIN_MORE_BITS: Final = 16
_COIN_LENGTH: Final = SURE_BITS + _COIN_MORE_BITS
_DOUBT: Final = 2.0**-30
_DEEPEST: Final = 64.0  # below e^-64 every coin of 47 bits but zero says no


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
    return _draw(Law.LAPLACE, scale, count, randomness)


def discrete_gaussian(sigma: int, count: int, randomness: Randomness) -> NDArray[np.int64]:
    """`count` independent integers x with P(x) proportional to exp(-x^2 / (2 sigma^2)). Both helpers.

    Args:
        sigma: In the units of the result, 1 to `MAX_SCALE`. The variance is at most sigma^2, and within 1e-5
            of it.
        count: As of `discrete_laplace`, as all that follows.
        randomness: Where the bytes come from.
    """
    return _draw(Law.GAUSSIAN, sigma, count, randomness)


def check_parameters(scale: int, count: int) -> None:
    """Refuse parameters that no sampler takes."""
    if not 1 <= scale <= MAX_SCALE:
        raise ValueError(f"a noise scale must be in 1..{MAX_SCALE} units, not {scale}")
    if count < 0:
        raise ValueError(f"count must be at least 0, not {count}")


def _draw(law: Law, scale: int, count: int, randomness: Randomness) -> NDArray[np.int64]:
    """Return the first `count` accepted proposals.

    They are independent, since taking the first ones looks at no value.
    """
    check_parameters(scale, count)
    of, drawn = strips(law, scale), np.empty(count, np.int64)
    filled = 0
    while filled < count:
        missing = count - filled
        # About 1 in 20 proposals is dropped: an eighth more mostly fills the rest in one batch.
        kept = _batch(of, min(_BATCH, missing + missing // 8 + 16), randomness)[:missing]
        drawn[filled : filled + len(kept)] = kept
        filled += len(kept)
    return drawn


def _batch(of: Strips, proposals: int, randomness: Randomness) -> NDArray[np.int64]:
    """Return the accepted ones of some proposals (about 0.95), from two words of random bits each.

    One word has 32 bits for the strip, one for the sign, the coin's first 31; the other the place in the
    strip and 16 more for the coin.
    """
    one, other = (
        np.frombuffer(randomness(16 * proposals), "<u8").astype(np.uint64, copy=False).reshape(2, proposals)
    )
    strip = _strip(of, one)
    x = (strip << of.shift) + (other & np.uint64((1 << of.shift) - 1)).view(np.int64)
    coin = one >> np.uint64(64 - SURE_BITS)
    is_kept = coin < of.sure.take(strip)
    unsure = np.flatnonzero(~is_kept)
    coins = (coin[unsure] << np.uint64(_COIN_MORE_BITS)) | (other[unsure] >> np.uint64(64 - _COIN_MORE_BITS))
    is_kept[unsure], is_open = _nearly(of, strip[unsure], x[unsure], coins)
    for number in np.flatnonzero(is_open):
        place = unsure[number]
        x[place], is_kept[place] = _exactly(
            of, int(strip[place]), int(x[place]), int(coins[number]), randomness
        )
    negative = ((one >> np.uint64(32)) & np.uint64(1)).view(np.int64)
    # Of the two zeros one is dropped, or zero would come up twice as often as its weight.
    is_kept &= (x != 0) | (negative == 0)
    x ^= -negative  # a number's complement, plus one, is its opposite
    x += negative
    return x[is_kept]


def _strip(of: Strips, words: Words) -> NDArray[np.int64]:
    """Return the strip that 32 bits select."""
    column = (words & np.uint64(0xFF)).view(np.int64)
    coin = (words >> np.uint64(8)) & np.uint64((1 << COIN_BITS) - 1)
    return np.where(coin < of.coins.take(column), column, of.others.take(column))


def _nearly(
    of: Strips, strip: NDArray[np.int64], x: NDArray[np.int64], coins: Words
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Step 2: which proposals are kept, and of which it is open."""
    weights, numbers = of.weights[strip].astype(np.float64), coins.astype(np.float64)
    far = x / np.float64(of.scale)
    match of.law:
        case Law.LAPLACE:
            depth = np.minimum(far, _DEEPEST)
        case Law.GAUSSIAN:
            depth = np.minimum(far * far / 2, _DEEPEST)
        case _:
            assert_never(of.law)
    bound = np.exp(-depth) * (of.factor * 2.0**_COIN_LENGTH)
    # The whole interval [U, U + 2^-47) must be on one side of the bound, by more than exp may be wrong.
    is_kept = weights * (numbers + 1) <= bound * (1 - _DOUBT)
    is_dropped = weights * numbers >= bound * (1 + _DOUBT)
    in_tail = strip == TAIL
    return is_kept & ~in_tail, ~(is_kept | is_dropped) | in_tail


def _exactly(of: Strips, strip: int, x: int, coin: int, randomness: Randomness) -> tuple[int, bool]:
    """Step 3: (x, whether it is kept).

    In the last strip, x is first drawn: 255 strips further, as often as that strip comes up.

    n times in the last strip have probability (c_255 / 2^32)^n, and c_255 / 2^32 >= rho(255 w). So for both
    laws the strip k behind them has a weight of at least M rho((255 n + k) w), as the coin needs.
    """
    weight, bits = int(of.weights[strip]), _COIN_LENGTH
    start = 0
    while strip == TAIL:
        start += TAIL << of.shift
        one, other = np.frombuffer(randomness(16), "<u8").astype(np.uint64)
        strip = int(_strip(of, one[None])[0])
        x = start + (strip << of.shift) + (int(other) & ((1 << of.shift) - 1))
        weight, bits = weight * int(of.weights[strip]), bits + WEIGHT_BITS
    numerator, denominator = exponent(of.law, of.scale, x)
    digits = 40
    while True:
        context = exact_context(digits + len(str(numerator // denominator)) + 10)
        curve = context.exp(context.divide(Decimal(-numerator), Decimal(denominator)))
        bound = context.multiply(Decimal(of.factor << bits), curve)
        error = context.multiply(bound, Decimal(10) ** -digits)
        if weight * (coin + 1) <= context.subtract(bound, error):
            return x, True
        if weight * coin >= context.add(bound, error):
            return x, False
        # Still undecided: 64 more bits of U, and 20 more digits of rho.
        coin = (coin << 64) | int.from_bytes(randomness(8), "little")
        bits += 64
        digits += 20
