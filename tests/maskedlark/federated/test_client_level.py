from typing import Any

import numpy as np
import pytest

from maskedlark.federated.bounding import UpdateBound
from maskedlark.federated.moments2016 import MomentsStep, epsilon_2016
from maskedlark.federated.strategies.client_level import ClientLevel
from maskedlark.privacy.accounting import compose_epsilon
from maskedlark.randomness import seeded
from tests.maskedlark.federated.federated_world import MODEL


def client_level(**changes: Any) -> ClientLevel:
    settings: dict[str, Any] = {
        "devices": 1000,
        "sampling_rate": 0.22,
        "rounds": 100,
        "noise_multiplier": 1.3,
        "bound": UpdateBound(clip_norm=1.0),
        "epsilon": 8.0,
    }
    return ClientLevel(**settings | changes)


def test_a_job_ends_before_the_round_that_passes_its_budget() -> None:
    strategy = client_level()
    state = strategy.start(MODEL.initial(seeded(1)))
    rounds = 0
    while (asked := strategy.next_round(state)) is not None:
        state = strategy.step(state, asked, np.zeros(MODEL.size, np.int64))
        rounds += 1
    assert 0 < rounds < 100
    assert (
        compose_epsilon(strategy.charges(rounds), 1e-5)
        <= 8.0
        < compose_epsilon(strategy.charges(rounds + 1), 1e-5)
    )


def test_without_a_budget_all_rounds_run() -> None:
    assert client_level(epsilon=None).last_round() == 100


@pytest.mark.parametrize(
    ("rate", "rounds", "old_noise", "noise", "delta"),
    [(0.5, 11, 1.19, 0.98, 1e-3), (0.22, 54, 1.44, 1.25, 1e-5), (0.0508, 412, 1.09, 0.99, 1e-6)],
)
def test_the_papers_budgets_hold_at_the_listed_noise(
    rate: float, rounds: int, old_noise: float, noise: float, delta: float
) -> None:
    step = MomentsStep(sampling_rate=rate, noise_multiplier=old_noise, rounds=rounds)
    strategy = client_level(sampling_rate=rate, rounds=rounds, noise_multiplier=noise, delta=delta)
    assert epsilon_2016([step], delta) == pytest.approx(8.0, abs=0.1)
    assert compose_epsilon(strategy.charges(rounds), delta) == pytest.approx(8.0, abs=0.1)


def test_stages_grow_the_cohort_and_keep_noise_over_cohort() -> None:
    strategy = client_level(first_share=0.25, stages=4, rounds=20)
    terms = [strategy.terms(index) for index in range(20)]
    rates = [one.sampling_rate for one in terms]
    assert rates[0] == pytest.approx(0.22 / 4)
    assert rates[-1] == pytest.approx(0.22)
    assert sorted(rates) == rates
    assert len(set(rates)) == 4
    assert {round(one.noise_multiplier**2 / one.sampling_rate, 6) for one in terms} == {
        round(1.3**2 / 0.22, 6)
    }


@pytest.mark.parametrize(("noise", "is_cheaper"), [(2.5, True), (1.0, False)])
def test_small_cohorts_with_small_noise_cost_less_only_if_noise_is_large(
    noise: float, is_cheaper: bool
) -> None:
    full = client_level(rounds=20, noise_multiplier=noise)
    small = client_level(rounds=20, noise_multiplier=noise / 2, sampling_rate=0.22 / 4)
    costs = [compose_epsilon(one.charges(20), 1e-5) for one in (small, full)]
    assert (costs[0] < costs[1]) is is_cheaper


@pytest.mark.parametrize(
    "changes", [{"stages": 2}, {"first_share": 0.5}, {"stages": 101}, {"epsilon": 0.0}, {"delta": 1.0}]
)
def test_a_schedule_out_of_range_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        client_level(**changes)
