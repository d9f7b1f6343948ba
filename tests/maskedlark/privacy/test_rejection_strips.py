"""The strips' own arithmetic: the slack of their bounds is really there."""

from decimal import Decimal, localcontext

import pytest

from maskedlark.privacy.rejection_strips import (
    COIN_BITS,
    COLUMNS,
    SURE_BITS,
    TAIL,
    WEIGHT_BITS,
    Law,
    exponent,
    strips,
)


@pytest.mark.parametrize("law", list(Law))
@pytest.mark.parametrize("scale", [5, 1024, 1 << 40])
def test_the_strips_do_not_hang_on_the_callers_decimal_context(law: Law, scale: int) -> None:
    """In a context of few digits a slack of 10^-40 would be lost, and with it that a bound is one."""
    usual = strips.__wrapped__(law, scale)
    with localcontext() as context:
        context.prec = 6
        found = strips.__wrapped__(law, scale)
    assert found.factor == usual.factor
    for name in ("weights", "sure", "coins", "others"):
        assert getattr(found, name).tolist() == getattr(usual, name).tolist()


@pytest.mark.parametrize("law", list(Law))
@pytest.mark.parametrize("scale", [1, 5, 31, 32, 1024, 999_983, 1 << 40])
def test_the_columns_give_each_strip_its_weight_and_the_weights_cover_the_curve(law: Law, scale: int) -> None:
    of = strips(law, scale)
    weights, coins, others = (part.tolist() for part in (of.weights, of.coins, of.others))
    size = 1 << COIN_BITS
    found = list(coins)
    for coin, other in zip(coins, others, strict=True):
        assert 0 <= coin <= size
        found[other] += size - coin
    assert found == weights
    assert sum(weights) == 1 << WEIGHT_BITS == COLUMNS * size
    with localcontext() as context:
        context.prec = 60
        width = 1 << of.shift
        assert 8 <= scale / width < 16 or width == 1
        for k in range(TAIL + 1):
            numerator, denominator = exponent(law, scale, k * width)
            highest = (Decimal(-numerator) / Decimal(denominator)).exp()
            numerator, denominator = exponent(law, scale, (k + 1) * width)
            lowest = (Decimal(-numerator) / Decimal(denominator)).exp()
            if k < TAIL:
                assert of.factor * highest < weights[k] <= of.factor * highest + (2 if k else 2 + COLUMNS)
                surely = of.factor * lowest * (1 << SURE_BITS) / weights[k]
                assert surely - 1 - Decimal(2) ** -20 <= int(of.sure[k]) < surely
            else:
                assert highest * (1 << WEIGHT_BITS) < weights[k] <= highest * (1 << WEIGHT_BITS) + 1
                assert of.sure[k] == 0


def test_what_is_cached_cannot_be_changed() -> None:
    of = strips(Law.GAUSSIAN, 1024)
    for part in (of.weights, of.sure, of.coins, of.others):
        with pytest.raises(ValueError, match="read-only"):
            part[0] = 1
