"""The search for the least noise, against the halving that it stands for."""

import math
from collections.abc import Callable
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from maskedlark.privacy.noise_search import SEARCH_PRECISION, smallest_within

LAWS: dict[str, Callable[[float], float]] = {
    "power": lambda ratio: ratio,
    "cliff": lambda ratio: math.inf if ratio > 1 else 0.0,
    "step": lambda ratio: 2.0 if ratio > 1 else 0.5,
    "wall": lambda ratio: ratio if ratio < 3 else math.inf,
    "steep": lambda ratio: math.exp(min(600.0, ratio - 1)),
}


def halved(is_within: Callable[[float], bool], too_small: float, enough: float) -> float:
    while enough / too_small > SEARCH_PRECISION:
        middle = math.sqrt(too_small * enough)
        too_small, enough = (too_small, middle) if is_within(middle) else (middle, enough)
    return enough


@given(
    law=st.sampled_from(sorted(LAWS)),
    power=st.floats(0.2, 6),
    decades=st.floats(0.002, 9),
    place=st.floats(0.001, 0.999),
    budget=st.floats(1e-3, 1e3),
)
def test_the_search_finds_what_halving_finds_and_asked_for_its_cost(
    law: str, power: float, decades: float, place: float, budget: float
) -> None:
    low, high = 1e-3, 1e-3 * 10**decades
    root, asked = low * 10 ** (decades * place), set[float]()

    def cost(noise: float) -> float:
        return budget * LAWS[law]((root / noise) ** power)

    def asked_cost(noise: float) -> float:
        asked.add(noise)
        return cost(noise)

    found = smallest_within(asked_cost, budget, low, high)
    assert found == halved(lambda noise: cost(noise) <= budget, low, high)
    assert found in {high, *asked}


def test_a_cost_that_is_nearly_a_power_is_asked_for_a_few_times() -> None:
    asked = list[float]()

    @cache
    def cost(noise: float) -> float:
        asked.append(noise)
        return 3 * math.pow(noise, -1.6) + math.pow(noise, -0.4)

    smallest_within(cost, 3.2, 0.05, 1.8)
    assert len(asked) <= 6
