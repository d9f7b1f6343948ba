import numpy as np
import pytest

from maskedlark.errors import InvalidTask
from maskedlark.federated.populations import Population
from maskedlark.randomness import seeded

LABELS = np.random.default_rng(1).integers(0, 10, 6000)


def test_shards_give_each_device_two_labels_and_every_example_once() -> None:
    population = Population.in_shards(LABELS, devices=10, shards_each=2, shard_size=300, randomness=seeded(1))
    assert len(population) == 10
    assert sorted(np.concatenate(population.members)) == list(range(6000))
    assert max(len(set(LABELS[one])) for one in population.members) <= 4


def test_more_devices_than_shards_hold_shards_again() -> None:
    population = Population.in_shards(LABELS, devices=25, shards_each=2, shard_size=300, randomness=seeded(1))
    counts = np.bincount(np.concatenate(population.members), minlength=6000)
    assert {len(one) for one in population.members} == {600}
    assert set(counts) <= {2, 3}


def test_equal_parts_hold_each_example_at_most_once() -> None:
    population = Population.in_equal_parts(103, each=10, randomness=seeded(1))
    assert [len(one) for one in population.members] == [10] * 10
    assert len(set(np.concatenate(population.members).tolist())) == 100


def test_users_hold_their_own_examples_in_order() -> None:
    population = Population.by_user(["b", "a", "b", "c", "b", "a"], least=2)
    assert [one.tolist() for one in population.members] == [[1, 5], [0, 2, 4]]


@pytest.mark.parametrize("size", [0, 4000])
def test_a_set_too_small_for_its_shards_is_refused(size: int) -> None:
    with pytest.raises(InvalidTask, match="shards"):
        Population.in_shards(LABELS, devices=2, shards_each=2, shard_size=size, randomness=seeded(1))


def test_users_with_too_few_examples_are_refused_if_none_is_left() -> None:
    with pytest.raises(InvalidTask, match="no user has 3"):
        Population.by_user(["a", "b"], least=3)
    with pytest.raises(InvalidTask, match="too few"):
        Population.in_equal_parts(3, each=4, randomness=seeded(1))
