"""The samplers draw exactly what they claim: their tables and coins against the definition, in 60 digits.

A value x is proposed with probability c_k / 2^32 / w and kept if a uniform U has U c_k < M rho(x). The tests
show both, and that the first never is below the second: so P(x) is proportional to rho(x). The statistical
tests are in `test_noise`.
"""

from collections.abc import Iterator

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskedlark.privacy import samplers
from maskedlark.privacy.rejection_strips import (
    COIN_BITS,
    COLUMNS,
    SURE_BITS,
    TAIL,
    WEIGHT_BITS,
    Law,
    Strips,
    exponent,
    strips,
)
from maskedlark.privacy.samplers import MAX_SCALE, discrete_gaussian, discrete_laplace
from maskedlark.randomness import Randomness, seeded

SCALES = [1, 2, 3, 10, 15, 16, 1000, (1 << 40) + 12345, MAX_SCALE]
COIN = 47
FURTHER_ZEROS, FURTHER_ONES = b"\0", b"\xff"


@pytest.fixture(autouse=True)
def sixty_digits() -> Iterator[None]:
    with mpmath.workdps(60):
        yield


def rho(of: Strips, x: int) -> mpmath.mpf:
    """The definition."""
    far = mpmath.mpf(x) / of.scale
    return mpmath.exp(-far if of.law is Law.LAPLACE else -far * far / 2)


def strip_word(of: Strips, strip: int) -> int:
    """32 bits that stand for a strip."""
    if of.coins[strip] > 0:
        return strip
    column = int(np.flatnonzero((of.others == strip) & (of.coins < 1 << COIN_BITS))[0])
    return column | int(of.coins[column]) << 8


def words(of: Strips, *, strip: int, place: int, coin: int, negative: bool = False) -> bytes:
    """The two random words of a proposal."""
    one = strip_word(of, strip) | negative << 32 | (coin >> 16) << 33
    return one.to_bytes(8, "little") + (place | (coin & 0xFFFF) << 48).to_bytes(8, "little")


def scripted(*draws: bytes, then: bytes = FURTHER_ZEROS) -> Randomness:
    """Gives these bytes first, then one byte over and over."""
    left = list(draws)

    def drawn(count: int) -> bytes:
        given_bytes = left.pop(0) if left else then * count
        assert len(given_bytes) == count
        return given_bytes

    return drawn


def kept(of: Strips, strip: int, place: int, coin: int, further: bytes = FURTHER_ZEROS) -> bool:
    """Whether a proposal is kept."""
    randomness = scripted(words(of, strip=strip, place=place, coin=coin), then=further)
    return len(samplers._batch(of, 1, randomness)) == 1


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("law", Law)
def test_every_strip_comes_up_exactly_as_often_as_its_weight(law: Law, scale: int) -> None:
    of, size = strips(law, scale), 1 << COIN_BITS
    often = [0] * COLUMNS
    for column in range(COLUMNS):
        often[column] += int(of.coins[column])
        often[int(of.others[column])] += size - int(of.coins[column])
    assert often == of.weights.tolist()
    assert sum(often) == 1 << WEIGHT_BITS


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("law", Law)
def test_every_strip_lies_over_the_curve_and_its_sure_part_under_it(law: Law, scale: int) -> None:
    of = strips(law, scale)
    for k, (weight, sure) in enumerate(zip(of.weights[:TAIL].tolist(), of.sure.tolist(), strict=False)):
        assert weight >= of.factor * rho(of, k << of.shift)
        assert sure * weight <= of.factor * rho(of, ((k + 1) << of.shift) - 1) * 2**SURE_BITS
    assert of.weights[TAIL] >= 2**WEIGHT_BITS * rho(of, TAIL << of.shift)
    assert of.sure[TAIL] == 0


@pytest.mark.parametrize("scale", [scale for scale in SCALES if scale > 15])
@pytest.mark.parametrize("law", Law)
def test_nearly_every_proposal_is_kept(law: Law, scale: int) -> None:
    assert len(samplers._batch(strips(law, scale), 1 << 14, seeded(scale))) > 0.93 * (1 << 14)


@pytest.mark.parametrize("scale", [1, 2, 3, 10, 1000, MAX_SCALE])
@pytest.mark.parametrize("law", Law)
def test_a_coin_keeps_exactly_what_the_definition_says(law: Law, scale: int) -> None:
    of = strips(law, scale)
    for strip in range(0, 60, 1 if scale < 100 else 7):
        for place in {0, (1 << of.shift) // 3, (1 << of.shift) - 1}:
            limit = of.factor * rho(of, (strip << of.shift) + place) / int(of.weights[strip]) * 2**COIN
            whole = int(mpmath.floor(limit))
            assert whole == 0 or kept(of, strip, place, whole - 1, FURTHER_ONES)
            assert not kept(of, strip, place, whole + 1, FURTHER_ZEROS)
            if limit > 0 and 1e-9 < limit - whole < 1 - 1e-9:
                assert kept(of, strip, place, whole, FURTHER_ZEROS)
                assert not kept(of, strip, place, whole, FURTHER_ONES)


@pytest.mark.parametrize("law", Law)
def test_the_last_strip_begins_the_curve_anew_further_out(law: Law) -> None:
    of = strips(law, 1000)
    start = 2 * (TAIL << of.shift)
    tail, then = words(of, strip=TAIL, place=0, coin=0), words(of, strip=3, place=5, coin=0)
    x, is_kept = samplers._exactly(of, TAIL, 0, 0, scripted(tail, then))
    assert (x, is_kept) == (start + (3 << of.shift) + 5, True)
    envelope = int(of.weights[3]) * (mpmath.mpf(int(of.weights[TAIL])) / 2**WEIGHT_BITS) ** 2
    limit = of.factor * rho(of, x) / envelope
    assert 0 < limit <= 1
    whole = int(mpmath.floor(limit * 2**COIN))
    assert not samplers._exactly(of, TAIL, 0, whole + 1, scripted(tail, then))[1]
    assert whole == 0 or samplers._exactly(of, TAIL, 0, whole - 1, scripted(tail, then))[1]


def test_a_negative_zero_is_dropped() -> None:
    of = strips(Law.LAPLACE, 1)
    both = [
        samplers._batch(of, 1, scripted(words(of, strip=0, place=0, coin=0, negative=sign)))
        for sign in (False, True)
    ]
    assert [values.tolist() for values in both] == [[0], []]


@given(scale=st.integers(1, MAX_SCALE), law=st.sampled_from(Law), seed=st.integers(0, 2**32))
def test_floating_point_decides_nothing(scale: int, law: Law, seed: int) -> None:
    sampler = discrete_laplace if law is Law.LAPLACE else discrete_gaussian
    quickly = sampler(scale, 300, seeded(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samplers, "_DOUBT", 0.9999)  # nearly all that is not sure is decided in Decimal
        slowly = sampler(scale, 300, seeded(seed))
    assert quickly.tolist() == slowly.tolist()


def test_the_exponent_is_the_definitions() -> None:
    assert exponent(Law.LAPLACE, 7, 3) == (3, 7)
    assert exponent(Law.GAUSSIAN, 7, 3) == (9, 98)
