"""`make demo-federated`, whole, at a small size on random images."""

from pathlib import Path

import pytest

from docs.tutorial.federated_demo import Size, run
from tests.browser_sim.idx import write_mnist

SMALL = Size(devices=20, shard_size=5, rounds=2, quiet_rounds=2, least_devices=20)


@pytest.mark.page
@pytest.mark.slow
def test_the_federated_demo_trains_over_the_network_what_a_simulation_trains(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", train=200, test=40, packed=False)
    told = run(tmp_path / "out", tmp_path / "mnist", SMALL)
    assert told["bit_equal"] is True
    assert (told["rounds"], told["devices"], told["reports"]) == (2, 20, 40)
    assert 0 < told["epsilon"] <= 32
    assert told["epsilon"] < told["collusion_epsilon"] <= 64
    assert 0 <= told["test_accuracy"] <= 1
