"""Forward evaluation: predictions are the model's, losses are torch's, accuracy counts classes."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from adserver.training.inference import Evaluation, evaluate, predict
from adserver.training.logit_scaling import least_loss
from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse, replace_parameters
from tests.onnx_builders import encoded, features, node, tensor, weights
from tests.torch_models import dense, export, squeezed


@pytest.mark.parametrize("records", [1, 2])
@pytest.mark.parametrize("make", [dense, squeezed])
def test_predictions_are_those_of_the_exported_module(
    make: Callable[[], tuple[nn.Module, int]], records: int
) -> None:
    """A file for one record at a time and a file for any number give the same."""
    module, width = make()
    x = features(1500, width)
    with torch.no_grad():
        expected = module(torch.from_numpy(x.astype(np.float32) / 256)).numpy().reshape(1500, 1)
    np.testing.assert_allclose(predict(export(module, width, records, dynamo=False), x), expected, atol=1e-6)


def test_no_examples_give_no_predictions() -> None:
    assert predict(dense_network([4, 3], "relu", seed=1), np.empty((0, 4), np.uint8)).shape == (0, 3)


@pytest.mark.parametrize(
    ("loss", "outputs", "final"),
    [
        (Loss.BINARY_CROSS_ENTROPY, 1, "sigmoid"),
        (Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, 1, "linear"),
        (Loss.CROSS_ENTROPY, 3, "linear"),
        (Loss.CROSS_ENTROPY, 3, "log_softmax"),
        (Loss.MSE, 1, "linear"),
        (Loss.POISSON, 1, "linear"),
    ],
)
def test_losses_are_those_of_torch(loss: Loss, outputs: int, final: str) -> None:
    file = dense_network([4, 5, outputs], "tanh", seed=2, final=final)
    x = features(20)
    labels = np.random.default_rng(3).integers(0, max(2, outputs), 20)
    z, y = torch.from_numpy(predict(file, x)).double(), torch.from_numpy(labels)
    expected = {
        Loss.BINARY_CROSS_ENTROPY: lambda: functional.binary_cross_entropy(z[:, 0], y.double()),
        Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS: lambda: functional.binary_cross_entropy_with_logits(
            z[:, 0], y.double()
        ),
        Loss.CROSS_ENTROPY: lambda: functional.cross_entropy(z, y),
        Loss.MSE: lambda: functional.mse_loss(z[:, 0], y.double()),
        Loss.POISSON: lambda: functional.poisson_nll_loss(z[:, 0], y.double()),
    }[loss]()
    assert evaluate(file, x, labels, loss).loss == pytest.approx(float(expected), rel=1e-9)


def test_accuracy_counts_the_right_classes() -> None:
    """The third feature decides: class 1 where its byte is 128 or more."""
    file = dense_network([4, 1], "relu", seed=1)
    weight = np.array([[0, 0, 1, 0]], np.float32)
    file = replace_parameters(file, parse(file, num_features=4), [weight, np.array([-0.498], np.float32)])
    x = features(50)
    truth = (x[:, 2] >= 128).astype(np.int64)
    assert evaluate(file, x, truth, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS).accuracy == 1.0
    wrong = truth.copy()
    wrong[:5] ^= 1
    assert evaluate(file, x, wrong, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS).accuracy == pytest.approx(0.9)
    assert evaluate(file, x, truth, Loss.MSE).accuracy is None


def test_a_certain_and_wrong_probability_has_a_finite_loss() -> None:
    file = dense_network([4, 1], "relu", seed=1, final="sigmoid")
    model = parse(file, num_features=4)
    file = replace_parameters(file, model, [np.zeros((1, 4), np.float32), np.array([1000], np.float32)])
    result = evaluate(file, features(3), np.zeros(3, np.int64), Loss.BINARY_CROSS_ENTROPY)
    assert np.isfinite(result.loss)
    assert result.accuracy == 0.0


def test_a_model_that_the_parser_refuses_is_not_run() -> None:
    with pytest.raises(InvalidModel) as refusal:
        predict(encoded([node("Relu", ["x"], ["y"])], []), features(1))
    assert refusal.value.reason is ModelReason.NOTHING_TO_TRAIN


def test_a_failure_of_onnxruntime_is_an_invalid_model() -> None:
    """The record's byte 255 is no row of a table of ten."""
    nodes = [
        node("Mul", ["x", "bytes"], ["1"]),
        node("Cast", ["1"], ["2"], to=7),
        node("Gather", ["table", "2"], ["o"]),
    ]
    file = encoded([*nodes, node("Flatten", ["o"], ["y"])], [weights("table", 10, 2), tensor("bytes", 256.0)])
    with pytest.raises(InvalidModel):
        predict(file, np.full((1, 4), 255, np.uint8))


def test_examples_without_labels_are_refused() -> None:
    file = dense_network([4, 1], "relu", seed=1)
    with pytest.raises(ValueError, match="expected one for each"):
        evaluate(file, features(2), np.zeros(1, np.int64), Loss.MSE)
    with pytest.raises(ValueError, match="at least one"):
        evaluate(file, np.empty((0, 4), np.uint8), np.empty(0, np.int64), Loss.MSE)


def test_auc_is_that_of_scikit_learn_with_ties_and_none_without_both_classes() -> None:
    from sklearn.metrics import roc_auc_score  # of the dev extra

    file = dense_network([2, 1], "relu", seed=2, final="linear")
    x = features(60, 2) // 128  # many equal scores
    labels = np.random.default_rng(3).integers(0, 2, 60)
    found = evaluate(file, x, labels, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS)
    assert found.auc == pytest.approx(roc_auc_score(labels, predict(file, x)[:, 0]))
    assert found.base_rate == pytest.approx(labels.mean())
    chance = 1 / (1 + np.exp(-predict(file, x)[:, 0].astype(float)))
    assert found.mean_over_rate == pytest.approx(chance.mean() / labels.mean())
    assert evaluate(file, x, np.zeros(60, np.int64), Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS).auc is None
    of_numbers = evaluate(file, x, labels, Loss.MSE)
    assert (of_numbers.auc, of_numbers.base_rate) == (None, None)
    two = dense_network([2, 2], "relu", seed=2, final="linear")
    logits = predict(two, x).astype(float)
    of_two = evaluate(two, x, labels, Loss.CROSS_ENTROPY)
    assert of_two.auc == pytest.approx(roc_auc_score(labels, logits[:, 1] - logits[:, 0]))
    assert of_two.base_rate == pytest.approx(labels.mean())
    assert of_two.accuracy == (logits.argmax(1) == labels).mean()
    assert of_numbers.auc_interval is None

    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert of_two.loss == pytest.approx(-np.log(chances[np.arange(60), labels]).mean())
    assert of_two.mean_over_rate == pytest.approx(chances[:, 1].mean() / labels.mean())
    assert of_two.calibrated_loss == least_loss(logits[:, 1] - logits[:, 0], labels == 1)
    three = dense_network([2, 3], "relu", seed=2, final="linear")
    assert evaluate(three, x[:3], np.array([2, 2, 1]), Loss.CROSS_ENTROPY).base_rate == pytest.approx(2 / 3)


def test_the_interval_of_an_auc_holds_in_99_of_100_panels_that_it_would_be_measured_on() -> None:
    loss, rng, positives = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, np.random.default_rng(5), 60
    labels = (np.arange(400) < positives).astype(np.int64)
    truth = 0.5 * (1 + math.erf(0.8 / 2))  # of normal scores that lie .8 apart
    held = 0
    for _ in range(500):
        found = Evaluation.of((rng.normal(size=400) + 0.8 * labels)[:, None], labels, loss)
        assert found.auc is not None
        assert found.auc_interval is not None
        low, high = found.auc_interval
        assert low < found.auc < high
        held += low <= truth <= high
    assert 485 <= held <= 500
    of_few = Evaluation.of(np.array([[0.1], [0.2], [-0.3]]), np.array([0, 1, 0]), loss)
    assert of_few.auc_interval is not None
    assert of_few.auc_interval[0] == pytest.approx(0.181, abs=0.001)
    assert of_few.auc_interval[1] == 1.0


@pytest.mark.parametrize(("accuracy", "warned"), [(0.51, 0), (0.5, 1), (0.3, 1)])
def test_a_model_that_is_no_better_than_the_most_frequent_label_is_warned_of(
    accuracy: float, warned: int
) -> None:
    found = Evaluation(loss=1.0, accuracy=accuracy, base_rate=0.5).warnings()
    assert ["most frequent label" in one for one in found] == [True] * warned


@pytest.mark.parametrize(
    ("auc", "over", "warned"),
    [
        (0.8, 1.05, []),
        (0.5, 1.0, ["no better than chance"]),
        (0.8, 0.7, ["0.70 of the base rate"]),
        (0.4, 1.2, ["no better than chance", "1.20 of the base rate"]),
        (None, None, []),
    ],
)
def test_a_model_that_says_little_is_warned_of(
    auc: float | None, over: float | None, warned: list[str]
) -> None:
    found = Evaluation(loss=0.5, accuracy=0.8, auc=auc, base_rate=0.2, mean_over_rate=over).warnings()
    assert len(found) == len(warned)
    assert all(part in warning for part, warning in zip(warned, found, strict=True))


@pytest.mark.parametrize(("interval", "is_warned"), [((0.48, 0.6), True), ((0.501, 0.579), False)])
def test_an_auc_that_may_be_chance_is_warned_of_with_its_interval(
    interval: tuple[float, float], *, is_warned: bool
) -> None:
    found = Evaluation(loss=0.5, accuracy=0.8, auc=0.54, auc_interval=interval).warnings()
    assert ["0.48" in one for one in found] == [True] * is_warned
