"""Weights that were trained elsewhere are told from untrained ones, whatever base rate they saw."""

import numpy as np
import pytest
from numpy.typing import NDArray

from adserver.training.eval_set import EvalSet
from adserver.training.inference import evaluate
from adserver.training.trained_weights import know_labels
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse, replace_parameters

LOSS = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
WIDTH = 16
EFFECTS = np.random.default_rng(7).standard_normal(WIDTH)


def chances(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-logits)))


def panel_of(seed: int, records: int = 1_000, rate: float = 0.1) -> EvalSet:
    """Each feature says something of the label, which lets many untrained networks rank records."""
    random = np.random.default_rng(seed)
    features = 128 + 40 * random.standard_normal((records, WIDTH))
    signal = features @ EFFECTS / 60
    labels = random.random(records) < chances(signal - np.quantile(signal, 1 - rate))
    return EvalSet(features=features.clip(0, 255).astype(np.uint8), labels=labels.astype(np.int64))


def pretrained(seed: int) -> bytes:
    """Some steps of logistic regression on other records, with a bias of a far larger base rate."""
    public = panel_of(1_000 + seed)
    inputs, weight, bias = public.features / 256, np.zeros(WIDTH), -1.0
    for _ in range(500):
        errors = chances(inputs @ weight + bias) - public.labels
        weight, bias = weight - 0.5 * errors @ inputs / len(public), bias - 0.5 * errors.mean()
    encoded = dense_network([WIDTH, 1], "relu", seed=seed)
    values = [weight[None].astype(np.float32), np.array([bias + 3], np.float32)]
    return replace_parameters(encoded, parse(encoded, num_features=WIDTH), values)


@pytest.mark.parametrize("hidden", [(), (16,)])
def test_untrained_weights_are_judged_untrained_though_one_in_five_ranks_records_far_from_chance(
    hidden: tuple[int, ...],
) -> None:
    areas, judged = list[float](), 0
    for seed in range(60):
        encoded, panel = dense_network([WIDTH, *hidden, 1], "relu", seed=seed), panel_of(seed)
        found = evaluate(encoded, panel.features, panel.labels, LOSS)
        areas.append(found.auc_interval[0] if found.auc_interval else 0.0)
        judged += know_labels(encoded, LOSS, panel)
    assert np.mean(np.array(areas) > 0.5) > 0.2
    # At 1/1,000 each, more than 2 of 60 have a probability of 1/30,000.
    assert judged <= 2


def test_weights_of_another_base_rate_are_judged_trained_though_their_loss_is_above_the_base_rates() -> None:
    for seed in range(20):
        encoded, panel = pretrained(seed), panel_of(seed)
        rate = panel.labels.mean()
        least = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
        assert evaluate(encoded, panel.features, panel.labels, LOSS).loss > least
        assert know_labels(encoded, LOSS, panel)


def test_equal_weights_are_in_no_better_order_than_others() -> None:
    encoded, panel = dense_network([WIDTH, 1], "relu", seed=1), panel_of(1)
    values = [np.ones((1, WIDTH), np.float32), np.zeros(1, np.float32)]
    equal = replace_parameters(encoded, parse(encoded, num_features=WIDTH), values)
    assert not know_labels(equal, LOSS, panel)


@pytest.mark.parametrize("loss", [LOSS, Loss.POISSON])
def test_nobody_can_tell_by_one_label_or_by_counts(loss: Loss) -> None:
    panel = panel_of(1)
    labels = np.zeros_like(panel.labels) if loss is LOSS else panel.labels
    assert not know_labels(pretrained(1), loss, EvalSet(features=panel.features, labels=labels))


def test_of_a_large_panel_some_records_decide() -> None:
    panel = panel_of(1, records=5_000)
    assert know_labels(pretrained(1), LOSS, panel)
    assert not know_labels(dense_network([WIDTH, 1], "relu", seed=3), LOSS, panel)


def test_of_a_large_panel_rare_labels_are_enough_to_tell() -> None:
    judged = []
    for seed in range(5):
        panel = panel_of(seed, records=40_000, rate=1e-5)
        assert 5 < panel.labels.sum() < 0.01 * len(panel)
        judged.append(know_labels(pretrained(seed), LOSS, panel))
    assert all(judged)
