"""Devices' training by torch: against numpy, onnxruntime and finite differences, and hostile graphs."""

import zlib
from base64 import b64encode
from typing import Any

import numpy as np
import pytest

from adserver.training.inference import predict
from maskedlark.autodiff.torch_models import torch_model
from maskedlark.errors import ModelReason
from maskedlark.federated.bounding import UpdateBound
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.graph_model import GraphModel
from maskedlark.federated.local_training import (
    Examples,
    LocalTraining,
    Parameters,
    TrainingSteps,
    batch_schedule,
)
from maskedlark.federated.strategies.client_level import ClientLevel
from maskedlark.federated.strategies.dp_fedavg import DpFedAvg
from maskedlark.federated.strategies.dp_fedsgd import DpFedSgd
from maskedlark.federated.strategies.fedprox import FedProx
from maskedlark.federated.strategy import Strategy, device_stream
from maskedlark.model.onnx_file import parse, replace_parameters
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.randomness import seeded
from tests.maskedlark.autodiff.graph_files import CHARACTERS, CONTEXT, character_file, dense_file
from tests.maskedlark.federated.federated_world import MODEL, examples
from tests.refusals import refused

SETTINGS: dict[str, Any] = {
    "devices": 5,
    "sampling_rate": 1.0,
    "rounds": 2,
    "noise_multiplier": 0.0,
    "bound": UpdateBound(clip_norm=0.5),
    "local": LocalTraining(epochs=3, batch_size=4, learning_rate=0.5),
}
COUNTED = {"bound": UpdateBound(clip_norm=0.5, is_counted=True), "quantile": AdaptiveClip(quantile=0.5)}
STRATEGIES: list[Strategy] = [
    DpFedAvg(**SETTINGS),
    DpFedAvg(**SETTINGS | {"bound": UpdateBound(clip_norm=0.5, is_per_layer=True)}),
    DpFedSgd(**SETTINGS),
    FedProx(**SETTINGS),
    ClientLevel(**SETTINGS | COUNTED),
]


def graph_of(file: bytes, features: int, classes: int, **changes: Any) -> GraphModel:
    parsed = parse(file, num_features=features)
    zeros = tuple(np.zeros_like(value) for value in parsed.initial_values)
    sizes = tuple(one.size for one in parsed.parameters)
    settings: dict[str, Any] = {"widths": (features, classes), "layer_sizes": sizes}
    return GraphModel.of_file(replace_parameters(file, parsed, zeros), **settings | changes)


def weights_of(file: bytes, features: int) -> Parameters:
    return np.concatenate([value.ravel() for value in parse(file, num_features=features).initial_values])


def text(count: int, seed: int = 1) -> Examples:
    numbers = np.random.default_rng(seed)
    codes = numbers.integers(0, CHARACTERS, (count, CONTEXT)).astype(np.uint8)
    return Examples(features=codes, labels=codes[:, -1].astype(np.int64))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda one: one.kind)
def test_torch_gives_numpys_updates_to_rounding(strategy: Strategy) -> None:
    state = strategy.start(MODEL.initial(seeded(1)))
    asked = strategy.next_round(state)
    assert asked is not None
    stack = [examples(count, seed) for seed, count in enumerate((7, 1, 0, 12, 5))]
    ours, theirs = (
        strategy.device_vectors(model, asked, stack, [device_stream(9, 0, one) for one in range(5)])
        for model in (MODEL, torch_model(MODEL))
    )
    unit = 2.0**-strategy.bound.frac_bits
    assert np.abs(ours - theirs).max() * unit < 1e-5
    assert np.abs(ours).max() * unit > 1e-2


def test_torch_gives_a_device_the_same_bits_alone_and_among_others() -> None:
    model = torch_model(graph_of(character_file(), CONTEXT, CHARACTERS))
    start = weights_of(character_file(), CONTEXT)
    stack = [text(count, count) for count in (9, 3, 6)]
    schedule = batch_schedule([9, 3, 6], LocalTraining(epochs=2, batch_size=4), [seeded(1)] * 3)
    together = model.train(start, stack, TrainingSteps(schedule=schedule, learning_rate=0.1))
    for device, one in enumerate(stack):
        alone = model.train(
            start, [one], TrainingSteps(schedule=schedule[device : device + 1], learning_rate=0.1)
        )
        assert (alone[0] == together[device]).all()


def test_a_dense_graph_scores_as_the_dense_model_does() -> None:
    """The graph takes bytes over 256, the dense model over 255, which its first layer makes up for."""
    file = dense_file(6, 5, 3)
    graph, dense = torch_model(graph_of(file, 6, 3)), DenseModel(widths=(6, 5, 3))
    first, *others = parse(file, num_features=6).initial_values
    start = np.concatenate([(one.T if one.ndim == 2 else one).ravel() for one in (first, *others)])
    scaled = np.concatenate([one.ravel() for one in (first * np.float32(256 / 255), *others)])
    held = examples(8, 2).features.astype(np.uint8)
    assert np.allclose(graph.logits(scaled, held), dense.logits(start, held), atol=1e-5)


def test_the_character_model_scores_as_onnxruntime_does() -> None:
    file, held = character_file(), text(11)
    model = torch_model(graph_of(file, CONTEXT, CHARACTERS))
    ours = model.logits(weights_of(file, CONTEXT), held.features)
    assert np.allclose(ours, predict(file, held.features.astype(np.uint8)), atol=1e-5)


def test_a_step_of_the_character_model_is_the_slope_of_its_loss() -> None:
    file, held = character_file(), text(6)
    model, start = torch_model(graph_of(file, CONTEXT, CHARACTERS)), weights_of(file, CONTEXT)
    schedule = np.arange(6)[None, None]
    step = model.train(start, [held], TrainingSteps(schedule=schedule, learning_rate=1.0))[0].astype(
        np.float64
    )
    direction = np.random.default_rng(1).normal(size=len(start)).astype(np.float32)
    reach = np.float32(1e-3)
    slope = (
        model.loss(start + reach * direction, held) - model.loss(start - reach * direction, held)
    ) / float(2 * reach)
    assert -step @ direction == pytest.approx(slope, rel=2e-3, abs=1e-4)


def test_the_character_model_learns_what_a_dense_one_may_not_see() -> None:
    file, held = character_file(), text(60)
    model, start = torch_model(graph_of(file, CONTEXT, CHARACTERS)), weights_of(file, CONTEXT)
    schedule = batch_schedule([60], LocalTraining(epochs=20, batch_size=10), [seeded(1)])
    trained = start + model.train(start, [held], TrainingSteps(schedule=schedule, learning_rate=0.5))[0]
    assert model.loss(trained, held) < 0.5 * model.loss(start, held)


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        ("not base64!", ModelReason.NOT_ONNX),
        (b64encode(b"not zlib").decode(), ModelReason.NOT_ONNX),
        (b64encode(zlib.compress(b"x" * 4000)[:10]).decode(), ModelReason.NOT_ONNX),
        (b64encode(zlib.compress(b"x" * 4000)).decode(), ModelReason.NOT_ONNX),
        (b64encode(zlib.compress(bytes(1 << 22), 9)).decode(), ModelReason.TOO_LARGE),
    ],
    ids=["not base64", "not zlib", "cut off", "not onnx", "a bomb"],
)
def test_a_hostile_graph_is_refused_by_name(packed: str, reason: ModelReason) -> None:
    with refused(reason):
        torch_model(GraphModel(widths=(6, 3), layer_sizes=(15,), packed=packed))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layer_sizes": (30, 5, 15)}, ModelReason.WRONG_SHAPE),
        ({"widths": (6, 4)}, ModelReason.WRONG_LOSS),
        ({"widths": (7, 3)}, ModelReason.WRONG_SHAPE),
    ],
)
def test_a_graph_that_is_not_what_the_job_says_is_refused(
    changes: dict[str, Any], reason: ModelReason
) -> None:
    with refused(reason):
        torch_model(graph_of(dense_file(6, 5, 3), 6, 3, **changes))


def test_a_graph_that_does_not_fit_a_jobs_instructions_is_refused() -> None:
    numbers = np.random.default_rng(1).bytes(20_000)
    with refused(ModelReason.TOO_LARGE):
        GraphModel.of_file(numbers, widths=(6, 3), layer_sizes=(1,))
