"""Which losses fit which models, and the fully connected networks that the ad server writes itself."""

from collections.abc import Sequence

import numpy as np
import onnxruntime
import pytest

from maskedlark.errors import ModelReason
from maskedlark.model.activations import FINAL_ACTIVATIONS, HIDDEN_ACTIVATIONS
from maskedlark.model.dense import dense_network
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss, check_loss
from maskedlark.model.onnx_file import parse
from tests.refusals import refused


def model_of(outputs: int) -> Model:
    return parse(dense_network([3, outputs], "relu", seed=0), num_features=3)


@pytest.mark.parametrize(
    ("loss", "outputs", "classes"),
    [
        (Loss.BINARY_CROSS_ENTROPY, 1, 2),
        (Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, 1, 2),
        (Loss.CROSS_ENTROPY, 5, 5),
        (Loss.MSE, 1, None),
        (Loss.MSE, 1, 7),
        (Loss.POISSON, 1, None),
    ],
)
def test_a_fitting_loss_is_accepted(loss: Loss, outputs: int, classes: int | None) -> None:
    check_loss(model_of(outputs), loss, classes)


@pytest.mark.parametrize(
    ("loss", "outputs", "classes"),
    [
        (Loss.BINARY_CROSS_ENTROPY, 2, 2),
        (Loss.BINARY_CROSS_ENTROPY, 1, 3),
        (Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, 1, None),
        (Loss.CROSS_ENTROPY, 5, 4),
        (Loss.CROSS_ENTROPY, 1, None),
        (Loss.MSE, 2, None),
        (Loss.POISSON, 2, 2),
    ],
)
def test_a_loss_that_does_not_fit_is_refused(loss: Loss, outputs: int, classes: int | None) -> None:
    with refused(ModelReason.WRONG_LOSS):
        check_loss(model_of(outputs), loss, classes)


def test_losses_have_names() -> None:
    assert [Loss.named(loss.value) for loss in Loss] == list(Loss)
    with refused(ModelReason.UNKNOWN_LOSS):
        Loss.named("hinge")


@pytest.mark.parametrize("activation", HIDDEN_ACTIVATIONS)
@pytest.mark.parametrize("final", FINAL_ACTIVATIONS)
def test_every_dense_network_parses(activation: str, final: str) -> None:
    model = parse(dense_network([7, 5, 4, 3], activation, seed=1, final=final), num_features=7)
    assert model.output_width == 3
    assert [(p.name, p.shape) for p in model.parameters] == [
        ("0.weight", (5, 7)),
        ("0.bias", (5,)),
        ("1.weight", (4, 5)),
        ("1.bias", (4,)),
        ("2.weight", (3, 4)),
        ("2.bias", (3,)),
    ]


def test_initial_weights_fill_the_interval_of_torch_and_depend_on_the_seed() -> None:
    weight = parse(dense_network([400, 100], "relu", seed=1), num_features=400).initial_values[0]
    bound = 1 / np.sqrt(400)
    assert np.abs(weight).max() <= bound
    assert np.abs(weight).max() > 0.99 * bound
    assert abs(weight.mean()) < 0.01 * bound
    assert weight.std() == pytest.approx(bound / np.sqrt(3), rel=0.02)
    assert dense_network([4, 2], "relu", seed=1) == dense_network([4, 2], "relu", seed=1)
    assert dense_network([4, 2], "relu", seed=1) != dense_network([4, 2], "relu", seed=2)


@pytest.mark.parametrize(
    ("layers", "activation", "final", "reason"),
    [
        ([3], "relu", "linear", ModelReason.WRONG_SHAPE),
        ([3, 0, 1], "relu", "linear", ModelReason.WRONG_SHAPE),
        ([3, 1], "step", "linear", ModelReason.UNKNOWN_OPERATOR),
        ([3, 1], "relu", "relu6", ModelReason.UNKNOWN_OPERATOR),
    ],
)
def test_impossible_networks_are_refused(
    layers: Sequence[int], activation: str, final: str, reason: ModelReason
) -> None:
    with refused(reason):
        dense_network(layers, activation, seed=0, final=final)


def test_centred_features_enter_as_twice_their_distance_from_the_centres() -> None:
    centres = (0, 128, 64)
    plain, centred = (dense_network([3, 1], "relu", seed=5, centres=given) for given in (None, centres))
    features = np.array([[0.0, 0.5, 0.75], [0.25, 0.0, 0.5]], np.float32)
    (there,), (here,) = (
        onnxruntime.InferenceSession(file).run(None, {"features": given})
        for file, given in (
            (centred, features),
            (plain, 2 * (features - np.array(centres, np.float32) / 256)),
        )
    )
    np.testing.assert_allclose(there, here, rtol=1e-6)
    assert parse(centred, num_features=3).parameters == parse(plain, num_features=3).parameters
    with refused(ModelReason.WRONG_SHAPE):
        dense_network([3, 1], "relu", seed=5, centres=(1, 2))
