"""Two numbers for a logit: what they are fitted to, what they do in a graph, what cannot be calibrated."""

from contextlib import nullcontext
from dataclasses import replace
from io import BytesIO

import numpy as np
import onnxruntime
import pytest

from adserver.records.exported_model import ExportedModel
from adserver.training.calibration import calibrate_by_histogram, calibrate_by_panel, fold
from adserver.training.inference import evaluate, predict
from adserver.training.logit_scaling import Calibration, least_loss
from adserver.training.pipeline import ENCODER_IS, describe
from maskedlark.errors import InvalidModel, InvalidTask, JobReason
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from tests.refusals import refused

LOGITS, SCORES = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, Loss.BINARY_CROSS_ENTROPY
FINAL = {LOGITS: "linear", SCORES: "sigmoid"}


def model_of(loss: Loss) -> ExportedModel:
    return ExportedModel(encoded=dense_network([3, 1], "relu", seed=2, final=FINAL[loss]), rounds_done=1)


def run(onnx: bytes, features: np.ndarray) -> np.ndarray:
    scaled = features.astype(np.float32) / 256
    (output,) = onnxruntime.InferenceSession(onnx).run(None, {"features": scaled})
    return np.asarray(output)[:, 0].astype(np.float64)


def chances_of(onnx: bytes, features: np.ndarray, loss: Loss) -> np.ndarray:
    outputs = run(onnx, features)
    return outputs if loss is SCORES else 1 / (1 + np.exp(-outputs))


def panel(count: int, scale: float, shift: float, loss: Loss) -> tuple[np.ndarray, np.ndarray, bytes]:
    """Records whose true logits are the model's, scaled and shifted."""
    draw = np.random.default_rng(11)
    features = draw.integers(0, 256, (count, 3), np.uint8)
    chance = chances_of(model_of(loss).encoded, features, loss)
    true = 1 / (1 + np.exp(-(scale * np.log(chance / (1 - chance)) + shift)))
    labels = (draw.random(count) < true).astype(np.int64)
    stored = BytesIO()
    np.savez(stored, features=features, labels=labels)
    return features, labels, stored.getvalue()


@pytest.mark.parametrize("loss", [LOGITS, SCORES])
def test_a_panel_gives_back_the_scale_and_the_shift_and_the_predictions_add_up(loss: Loss) -> None:
    features, labels, stored = panel(40_000, 2.5, -1.5, loss)
    made = calibrate_by_panel(model_of(loss), stored, loss)
    assert made.scale == pytest.approx(2.5, abs=0.3)
    assert made.shift == pytest.approx(-1.5, abs=0.1)
    chance = chances_of(made.exported.encoded, features, loss)
    assert chance.mean() == pytest.approx(labels.mean(), rel=1e-3)
    assert parse(made.exported.encoded, num_features=3).output_width == 1
    before = chances_of(model_of(loss).encoded, features, loss)
    order = np.argsort(before)
    assert (np.diff(chance[order]) >= -1e-6).all()


@pytest.mark.parametrize("loss", [LOGITS, SCORES])
def test_a_calibrated_model_that_was_trained_further_is_calibrated_again(loss: Loss) -> None:
    """What quickstart leaves may be a later job's model."""
    folded = fold(model_of(loss).encoded, Calibration(scale=2.0, shift=-1.0), loss)
    again = fold(folded, Calibration(scale=0.5, shift=0.5), loss)
    features = np.array([[0, 0, 0], [255, 0, 9], [3, 200, 100]])
    before = chances_of(model_of(loss).encoded, features, loss)
    np.testing.assert_allclose(chances_of(again, features, loss), before, rtol=1e-5)


def test_a_histogram_calibrates_by_the_middle_of_each_bin() -> None:
    bins = 64
    scores = (np.arange(bins) + 0.5) / bins
    records = np.full(bins, 1_000.0)
    true = 1 / (1 + np.exp(-(0.5 * np.log(scores / (1 - scores)) - 2.0)))
    counts = np.stack([records * (1 - true), records * true])
    made = calibrate_by_histogram(model_of(LOGITS), counts, LOGITS)
    assert made.scale == pytest.approx(0.5, abs=1e-3)
    assert made.shift == pytest.approx(-2.0, abs=1e-2)


@pytest.mark.parametrize("loss", [LOGITS, SCORES])
def test_the_graph_scales_and_shifts_the_logit(loss: Loss) -> None:
    features = np.array([[0, 0, 0], [255, 0, 9], [3, 200, 100]])
    before = chances_of(model_of(loss).encoded, features, loss)
    folded = fold(model_of(loss).encoded, Calibration(scale=0.25, shift=-3.0), loss)
    expected = 1 / (1 + np.exp(-(0.25 * np.log(before / (1 - before)) - 3.0)))
    np.testing.assert_allclose(chances_of(folded, features, loss), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("positives", "negatives", "why"),
    [
        ([0.0, 0.0], [5.0, 6.0], "both labels"),
        ([5.0, 6.0], [0.0, 0.0], "both labels"),
        ([900.0, 1.0], [1.0, 900.0], "does not rank"),
    ],
)
def test_what_says_nothing_is_refused(positives: list[float], negatives: list[float], why: str) -> None:
    with pytest.raises(InvalidTask, match=why):
        Calibration.fit(np.array([-1.0, 1.0]), np.array(positives), np.array(negatives))


def test_labels_that_a_logit_separates_keep_finite_numbers() -> None:
    found = Calibration.fit(np.array([-1.0, 1.0]), np.array([0.0, 50.0]), np.array([50.0, 0.0]))
    assert 1.0 < found.scale < 100.0
    assert abs(found.shift) < 100.0


@pytest.mark.parametrize(
    ("middle", "width"), [(0, 1e-6), (50, 1), (-400, 0.1), (1_000, 100), (0, 1e4), (1e6, 1e5)]
)
def test_the_predictions_add_up_however_large_the_logits_are(middle: float, width: float) -> None:
    draw = np.random.default_rng(4)
    standard = draw.normal(size=4_000)
    labels = (draw.random(4_000) < 1 / (1 + np.exp(2 - standard))).astype(np.float64)
    logits = middle + width * standard
    found = Calibration.fit(logits, labels, 1 - labels)
    assert (1 / (1 + np.exp(-(found.scale * logits + found.shift)))).mean() == pytest.approx(
        labels.mean(), rel=1e-3
    )


@pytest.mark.parametrize("logit", [np.inf, -np.inf, np.nan])
def test_a_model_whose_output_is_no_number_is_refused(logit: float) -> None:
    with pytest.raises(InvalidTask, match="not finite"):
        Calibration.fit(np.array([logit, 0.0, 1.0]), np.array([1.0, 0.0, 1.0]), np.array([0.0, 1.0, 1.0]))


@pytest.mark.parametrize("loss", [one for one in Loss if one not in FINAL])
def test_a_model_without_a_probability_of_one_label_is_refused(loss: Loss) -> None:
    with pytest.raises(InvalidTask, match="no probability to calibrate"):
        calibrate_by_histogram(model_of(LOGITS), np.ones((2, 4)), loss)


def test_a_probability_that_no_sigmoid_makes_is_refused() -> None:
    network = dense_network([4, 1], "relu", seed=1)
    with pytest.raises(InvalidModel, match="does not end with a Sigmoid"):
        fold(network, Calibration(scale=1.0, shift=0.5), Loss.BINARY_CROSS_ENTROPY)


def test_two_logits_are_calibrated_by_a_panel() -> None:
    """Their difference is scaled and shifted."""
    encoded = dense_network([3, 2], "relu", seed=2, final="linear")
    draw = np.random.default_rng(5)
    features = draw.integers(0, 256, (3_000, 3), np.uint8)
    before = predict(encoded, features).astype(np.float64)
    difference = before[:, 1] - before[:, 0]
    labels = (draw.random(3_000) < 1 / (1 + np.exp(3 - 2 * difference))).astype(np.int64)
    stored = BytesIO()
    np.savez(stored, features=features, labels=labels)
    made = calibrate_by_panel(
        ExportedModel(encoded=encoded, rounds_done=1), stored.getvalue(), Loss.CROSS_ENTROPY
    )
    after = predict(made.exported.encoded, features).astype(np.float64)
    np.testing.assert_allclose(
        after[:, 1] - after[:, 0], made.scale * difference + made.shift, rtol=1e-4, atol=1e-4
    )
    found = evaluate(made.exported.encoded, features, labels, Loss.CROSS_ENTROPY)
    assert found.mean_over_rate == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize(
    ("positives", "told"), [(100, ""), (25, "of the panel's 400 rows 25 are of class 1")]
)
def test_a_panel_of_few_rows_of_a_label_is_warned_of(positives: int, told: str) -> None:
    stored, features = BytesIO(), np.random.default_rng(5).integers(0, 256, (400, 3), np.uint8)
    scores = chances_of(model_of(LOGITS).encoded, features, LOGITS)
    np.savez(stored, features=features, labels=(np.argsort(np.argsort(-scores)) < positives).astype(np.int64))
    made = calibrate_by_panel(model_of(LOGITS), stored.getvalue(), LOGITS)
    assert made.warning.startswith(told)
    assert bool(made.warning) == bool(told)
    assert not told or made.warning.endswith("may be off by 19 % (one standard error)")


def test_a_panel_of_labels_that_the_model_does_not_have_is_refused() -> None:
    stored = BytesIO()
    for largest, refusing in ((1, nullcontext()), (2, refused(JobReason.MALFORMED, "label"))):
        stored.seek(0)
        np.savez(stored, features=np.arange(12, dtype=np.uint8).reshape(4, 3), labels=[0, 1, largest, 0])
        with refusing:
            calibrate_by_panel(model_of(LOGITS), stored.getvalue(), LOGITS)


def test_a_panel_of_another_encoder_is_refused() -> None:
    features, labels, _ = panel(40, 1.0, 0.0, LOGITS)
    model = model_of(LOGITS)
    named = describe(model.encoded, **{ENCODER_IS: bytes(32).hex()})
    for first, refusing in ((0, nullcontext()), (1, refused(JobReason.MALFORMED, "encoder 01000000"))):
        stored = BytesIO()
        digest = np.array([first, *bytes(31)], np.uint8)
        np.savez(stored, features=features, labels=labels, encoder=digest)
        with refusing:
            calibrate_by_panel(replace(model, encoded=named), stored.getvalue(), LOGITS)
        calibrate_by_panel(model, stored.getvalue(), LOGITS)


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (0.2, -3.0), (7.0, 2.0)])
def test_the_least_loss_is_the_same_whatever_scale_and_shift_the_logits_have(
    scale: float, shift: float
) -> None:
    draw = np.random.default_rng(5)
    logits = draw.normal(-2.0, 1.0, 2_000)
    is_positive = draw.random(2_000) < 1 / (1 + np.exp(-logits))
    loss = least_loss(scale * logits + shift, is_positive)
    assert loss == pytest.approx(least_loss(logits, is_positive), rel=1e-3)
    assert loss == pytest.approx((np.logaddexp(0, logits) - is_positive * logits).mean(), rel=5e-3)


def test_the_least_loss_of_logits_that_say_nothing_is_that_of_the_base_rate() -> None:
    is_positive = np.arange(1_000) % 10 == 0
    entropy = -(0.1 * np.log(0.1) + 0.9 * np.log(0.9))
    assert least_loss(np.where(is_positive, -1.0, 1.0), is_positive) == pytest.approx(entropy)
    assert least_loss(np.zeros(1_000), is_positive) == pytest.approx(entropy)


@pytest.mark.parametrize("logits", [[0.0, 1.0], [float("nan"), 1.0], []])
def test_there_is_no_least_loss_for_one_label_or_a_logit_that_is_no_number(logits: list[float]) -> None:
    is_positive = np.array([False, bool(np.isnan(logits).any())])[: len(logits)]
    assert least_loss(np.array(logits), is_positive) is None
