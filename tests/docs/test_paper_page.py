"""`make paper` tries what the figures of the paper are about, and its page leads to what exists."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from maskedlark.model.dense import dense_network
from maskedlark.model.onnx_file import parse
from maskedlark.model.weights import decode, encode, quantise
from maskedlark.privacy.mechanism import Mechanism
from tests.bench.paper import FULL, QUICK, Grid, Point, figure3, figure5, weights_of_both
from tests.bench.paper_latency import BATCHES, NETWORKS, QUICK_BATCHES
from tests.bench.private_training import PRODUCT_BITS, coarser

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/paper.md").read_text()
CODE = sorted(set(re.findall(r"`([a-z_/]+\.py):([A-Za-z_.]+)`", PAGE)))
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE)))


def names(path: str) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def test_the_page_has_every_section_algorithm_and_figure() -> None:
    wanted = [f"Algorithm {number}" for number in (1, 2, 3)] + [f"igure {number}" for number in range(1, 6)]
    wanted += ["3.1 ", "3.2 ", "3.3,", "3.3.1 ", "4.1.1 ", "4.1.2 ", "4.2,", "4.2.1 ", "4.2.2,", "4.2.3 "]
    wanted += ["5.1 ", "5.2,", "5.3,", "5.4,"]
    assert [one for one in wanted if one not in PAGE] == []


@pytest.mark.parametrize(("path", "name"), CODE)
def test_every_function_on_the_page_exists(path: str, name: str) -> None:
    assert set(name.split(".")) <= names(path)


@pytest.mark.parametrize(("path", "name"), TESTS)
def test_every_test_on_the_page_exists(path: str, name: str) -> None:
    assert name in names(path)


@pytest.mark.parametrize("grids", [QUICK, FULL], ids=["quick", "full"])
def test_every_figure_has_both_mechanisms_and_both_networks(grids: tuple[Grid, ...]) -> None:
    assert [grid.setup.layers for grid in grids] == [(30, 50, 50, 1), (784, 500, 10)]
    for grid in grids:
        both = {Mechanism.LAPLACE, Mechanism.GAUSSIAN}
        assert both == grid.clips.keys() == grid.noises.keys() == grid.steps.keys()
        assert all(any(noise > 0 for noise in noises) for noises in grid.noises.values())


def test_batch_sizes_go_from_one_to_4096() -> None:
    assert (BATCHES[0], BATCHES[-1], len(BATCHES)) == (1, 4_096, 13)
    assert set(QUICK_BATCHES) <= set(BATCHES)
    assert [network.layers for network in NETWORKS] == [(30, 50, 50, 1), (784, 500, 10)]


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_fewer_bits_lie_on_a_coarser_grid(bits: int) -> None:
    model = dense_network([30, 50, 1], "relu", seed=1)
    parsed = parse(model, num_features=30)
    for value in parsed.initial_values:
        tensor = quantise(value)
        rounded = coarser(tensor, bits)
        unit = 1 << (PRODUCT_BITS - bits)
        assert not (rounded.values % unit).any()
        assert len(np.unique(rounded.values)) <= 1 << bits
        assert np.abs(rounded.values - tensor.values).max() <= max(unit / 2, 8127 % unit)
    encoded = encode([coarser(quantise(value), bits) for value in parsed.initial_values])
    assert len(decode(encoded, parsed.parameters)) == len(parsed.parameters)


def small() -> Grid:
    """The Wisconsin network for a few rounds at one setting of each kind."""
    return replace(
        QUICK[0],
        setup=replace(QUICK[0].setup, rounds=20),
        clips={Mechanism.LAPLACE: (30.0,), Mechanism.GAUSSIAN: (1.0,)},
        noises={Mechanism.LAPLACE: (0.0, 4.0), Mechanism.GAUSSIAN: (0.0, 0.5)},
        local=(0.05,),
    )


@pytest.mark.slow
def test_the_figures_trainings_learn_and_noise_is_charged() -> None:
    points = [
        *figure3([small()], seeds=1),
        *figure5([small()], seeds=1),
        *weights_of_both([small()], seeds=1),
    ]
    assert [point.figure for point in points] == ["3"] * 4 + ["5"] * 2 + ["weights"] * 2

    def of(**said: object) -> list[Point]:
        return [one for one in points if all(getattr(one, name) == value for name, value in said.items())]

    for mechanism in ("laplace", "gaussian"):
        clear, noisy = of(figure="3", mechanism=mechanism)
        assert clear.accuracy > 0.8
        assert clear.epsilon is None
        assert noisy.epsilon is not None
        assert noisy.epsilon > 0
    clear, noisy = of(figure="3", mechanism="laplace")
    assert noisy.accuracy < clear.accuracy
    assert {point.feature_epsilon for point in of(figure="5")} == {0.05}
    eight, fourteen = of(figure="weights")
    assert (eight.weight_bits, fourteen.weight_bits) == (8, 14)
    assert abs(eight.accuracy - fourteen.accuracy) < 0.1
