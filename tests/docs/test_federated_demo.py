"""`make demo-federated`, whole, at a small size on random images."""

from pathlib import Path

import pytest

from browser_sim.source import InvalidSource
from browser_sim.sources.mnist import load_mnist
from docs.tutorial import federated_demo
from docs.tutorial.federated_demo import Size, images, is_there, run, write_digits
from tests.browser_sim.idx import write_mnist

SMALL = Size(devices=20, shard_size=5, rounds=2, quiet_rounds=2, least_devices=20)


@pytest.mark.page
@pytest.mark.slow
def test_the_federated_demo_trains_over_the_network_what_a_simulation_trains(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", train=200, test=40, packed=False)
    told = run(tmp_path / "out", tmp_path / "mnist", SMALL)
    assert told["bit_equal"] is True
    assert (told["rounds"], told["devices"], told["reports"]) == (2, 20, 40)
    assert 0 < told["epsilon"] <= 8
    assert told["epsilon"] < told["collusion_epsilon"] <= 16
    assert 0 <= told["test_accuracy"] <= 1


def test_without_mnist_and_a_network_the_demo_has_digits_and_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def unreachable(_folder: Path) -> None:
        raise InvalidSource("no mirror answers")

    monkeypatch.setenv("MASKEDLARK_DATA", str(tmp_path / "none"))
    monkeypatch.setattr(federated_demo, "download", unreachable)
    monkeypatch.setattr(federated_demo, "say", said.append)
    monkeypatch.setattr(
        federated_demo, "write_digits", lambda folder: write_digits(folder, train=500, test=100)
    )
    folder = images(tmp_path)
    source = load_mnist(folder)
    assert is_there(folder)
    assert source.own_test is not None
    assert (len(source.records), len(source.own_test)) == (500, 100)
    assert set(source.records.labels) == set(range(10))
    assert "fetching it to" in said[0]
    assert "scikit-learn's 1,797 digits" in said[1]
