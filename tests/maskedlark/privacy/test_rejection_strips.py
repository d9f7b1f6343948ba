"""The strips' own arithmetic: the slack of their bounds is really there."""

from decimal import localcontext

import pytest

from maskedlark.privacy.rejection_strips import Law, strips


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
