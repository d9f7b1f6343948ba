import numpy as np
import pytest

from adserver.simulating.draw_and_discard import DrawSimulation
from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.generalised_linear import Batches, Logistic
from maskedlark.randomness import seeded
from tests.bench.draw_laws import batched_averaging, share_that_dies, stationary_variance


@pytest.mark.parametrize(("instances", "law"), [(2, 1.0), (5, 2.5), (10, 5.0)])
def test_the_variance_over_instances_stays_at_half_their_number(instances: int, law: float) -> None:
    assert stationary_variance(instances, 0, updates=4_000, trees=128, seed=1) == pytest.approx(law, rel=0.1)


def test_updates_in_flight_widen_it_against_the_papers_theorem() -> None:
    assert stationary_variance(10, 30, updates=6_000, trees=64, seed=1) == pytest.approx(20.0, rel=0.1)


def test_an_update_dies_out_in_all_but_one_of_k_cases() -> None:
    assert share_that_dies(5, trials=3000, seed=1) == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("in_flight", [0, 5])
def test_clients_train_a_logistic_model_through_instances(in_flight: int) -> None:
    numbers = np.random.default_rng(1)
    features = numbers.random((500, 10, 3))
    truth = np.array([3.0, -2.0, 0.5])
    labels = (numbers.random((500, 10)) < 1 / (1 + np.exp(-(features @ truth)))).astype(np.int64)
    clients = Batches(features=features, labels=labels)
    settings = DrawAndDiscard(instances=5, learning_rate=0.1, epsilon=20.0)
    instances = settings.initial(np.zeros(3), seeded(1))
    order = numbers.integers(0, 500, 6000)
    simulation = DrawSimulation(
        settings=settings, model=Logistic(features=3), batches=clients, in_flight=in_flight
    )
    returns = sum(1 for _ in simulation.run(instances, order, seeded(2)))
    plain = batched_averaging(Logistic(features=3), clients, order, learning_rate=0.1, clients=5)
    assert returns == 6000 - in_flight
    assert np.corrcoef(settings.mean(instances), truth)[0, 1] > 0.95
    assert np.corrcoef(plain, truth)[0, 1] > 0.99
