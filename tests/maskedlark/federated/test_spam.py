from collections.abc import Callable

import numpy as np
import pytest

from maskedlark.errors import JobReason
from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.spam import SpamTest
from maskedlark.privacy.samplers import discrete_laplace
from maskedlark.randomness import seeded
from tests.bench.draw_laws import area_under_curve
from tests.refusals import refused

WEIGHTS = 387
JOB = DrawAndDiscard(instances=20, learning_rate=0.001, epsilon=np.log(32))
UPDATES = 3000


def scores(attack: Callable[[np.ndarray, np.ndarray], np.ndarray] | None) -> np.ndarray:
    """Scores of honest updates, or of one attacker's in their place, on instances that honest clients keep
    moving."""
    test = SpamTest.calibrate(JOB, weights=WEIGHTS, in_flight=0.0, randomness=seeded(1))
    stream = seeded(2)
    instances = JOB.initial(np.linspace(-1, 1, WEIGHTS), stream)
    found = []
    for drawn, place in zip(JOB.pick(UPDATES, stream), JOB.pick(UPDATES, stream), strict=True):
        assert JOB.epsilon is not None
        noise = discrete_laplace(JOB.noise_scale(JOB.epsilon), WEIGHTS, stream)
        honest = instances[drawn] + noise
        returned = honest if attack is None else attack(instances[drawn], noise)
        found.append(test.score(returned, instances))
        instances[place] = honest
    return np.array(found)


@pytest.fixture(scope="module")
def honest() -> np.ndarray:
    return scores(None)


ATTACKS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "scaled by ten": lambda drawn, noise: 10 * (drawn + noise),
    "a step ten times too long": lambda drawn, noise: drawn + 10 * noise,
    "sign flipped": lambda drawn, noise: -(drawn + noise),
    "constant": lambda drawn, noise: np.zeros_like(drawn),
    "slow drift of one noise": lambda drawn, noise: drawn + noise + round(JOB.noise_variance**0.5 * 2**32),
}


def test_at_most_one_honest_update_in_a_hundred_is_refused(honest: np.ndarray) -> None:
    assert np.mean(honest > 1) <= 0.01


@pytest.mark.parametrize("attack", list(ATTACKS))
def test_attacks_are_told_from_honest_updates(attack: str, honest: np.ndarray) -> None:
    spam = scores(ATTACKS[attack])
    assert area_under_curve(honest, spam) >= 0.99
    assert np.mean(spam > 1) >= 0.95


def test_the_papers_test_refuses_a_quarter_of_honest_updates() -> None:
    stream = seeded(2)
    instances = JOB.initial(np.zeros(WEIGHTS), stream)
    refused = 0
    for drawn, place in zip(JOB.pick(1000, stream), JOB.pick(1000, stream), strict=True):
        assert JOB.epsilon is not None
        returned = instances[drawn] + discrete_laplace(JOB.noise_scale(JOB.epsilon), WEIGHTS, stream)
        t = np.abs(returned - instances.mean(axis=0)) / instances.std(axis=0, ddof=1)
        refused += t.max() > 4
        instances[place] = returned
    assert 0.15 < refused / 1000 < 0.4


def test_one_instance_cannot_be_tested_against() -> None:
    job = DrawAndDiscard(instances=1, learning_rate=0.001, epsilon=1.0)
    with refused(JobReason.WRONG_STATE):
        SpamTest.calibrate(job, weights=10, in_flight=0.0, randomness=seeded(1))


def test_the_area_counts_ties_half() -> None:
    assert area_under_curve(np.array([0.0, 1.0]), np.array([1.0, 2.0])) == pytest.approx((1.5 + 2) / 4)


def test_whoever_sees_the_instances_knows_which_one_was_drawn() -> None:
    stream = seeded(3)
    instances = JOB.initial(np.zeros(WEIGHTS), stream)
    found = 0
    for drawn, place in zip(JOB.pick(1000, stream), JOB.pick(1000, stream), strict=True):
        assert JOB.epsilon is not None
        returned = instances[drawn] + discrete_laplace(JOB.noise_scale(JOB.epsilon), WEIGHTS, stream)
        found += int(np.square((returned - instances).astype(float)).sum(axis=1).argmin()) == drawn
        instances[place] = returned
    assert found >= 990


def test_the_spread_alone_lets_a_drift_of_two_standard_deviations_pass() -> None:
    test = SpamTest.calibrate(JOB, weights=WEIGHTS, in_flight=0.0, randomness=seeded(1))
    instances = JOB.initial(np.zeros(WEIGHTS), seeded(4))
    drift = round(2 * JOB.spread() ** 0.5 * 2**JOB.frac_bits)
    found = test.statistics(instances[0] + drift, instances)
    assert found.spread < test.high_spread
    assert found.step > 10 * test.high_step


def test_limits_of_noise_alone_refuse_honest_steps_where_noise_is_small() -> None:
    for epsilon, is_refused in ((60.0, True), (0.5, False)):
        job = DrawAndDiscard(instances=10, learning_rate=0.01, epsilon=epsilon)
        test = SpamTest.calibrate(job, weights=64, in_flight=0.0, randomness=seeded(1))
        instances = job.initial(np.zeros(64), seeded(2))
        step = np.full(64, round(0.005 * 2**job.frac_bits), np.int64)
        noise = discrete_laplace(job.noise_scale(epsilon), 64, seeded(3))
        assert test.is_spam(instances[4] - step + noise, instances) == is_refused
