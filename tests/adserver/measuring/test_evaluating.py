"""Evaluations through two helpers against scikit-learn on the same scores, without noise exactly and with it
within the intervals.
"""

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression

from adserver.measuring.estimate import NoInterval
from adserver.measuring.evaluation_metrics import smooth
from adserver.measuring.evaluation_result import OF_LABELS, EvaluationResult, read
from adserver.measuring.evaluator import Evaluator, histogram_of, plan_evaluation
from adserver.messages.evaluation import EvaluationMessage
from adserver.peers.replies import QueryAnswer
from adserver.peers.retrying import ONCE
from adserver.records.asked_query import PlannedQuery, S, StoredAnswer
from adserver.records.defaults import DEFAULT_BINS
from adserver.store.queries import QueryStore
from adserver.views import evaluation
from adserver.views.evaluation import print_evaluation, write_plot
from maskedlark.errors import HelperUnavailable, InvalidModel, InvalidTask, JobReason, JobRefused, ModelReason
from maskedlark.model import weights
from maskedlark.model.dense import dense_network
from maskedlark.model.onnx_file import parse, replace_parameters
from maskedlark.numbers.field import from_signed
from maskedlark.numbers.field import share as split
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.randomness import seeded
from maskedlark.releases.evaluation import ROWS, UNITS
from maskedlark.releases.kinds import AnyQuery
from maskedlark.reports.input_shares import InputShares
from tests.adserver.evaluation_helper import MemoryEvaluationHelper
from tests.builders import NOW, world
from tests.measured import dataset_of

SHOPPERS = (
    Path(os.environ.get("MASKEDLARK_DATA", Path(__file__).resolve().parents[4] / "shared" / "data"))
    / "online_shoppers_intention.csv"
)
needs_shoppers = pytest.mark.skipif(not SHOPPERS.is_file(), reason=f"no {SHOPPERS.name} in $MASKEDLARK_DATA")


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Records in the clear, and a model of them."""

    features: NDArray[np.uint8]
    labels: NDArray[np.int64]
    model: bytes

    @property
    def scores(self) -> NDArray[np.float64]:
        """The model's probabilities, of exactly the weights that helpers use."""
        parsed = parse(self.model, num_features=self.features.shape[1])
        weight, bias = (weights.quantise(values).to_float() for values in parsed.initial_values)
        return np.asarray(1 / (1 + np.exp(-(self.features / 256 @ weight.reshape(-1) + bias))))

    def binned(self, bins: int) -> NDArray[np.float64]:
        """The middle of each score's bin."""
        return (np.floor(self.scores * bins) + 0.5) / bins


def model_of(width: int, weight: NDArray[np.float64], bias: float) -> bytes:
    """A logistic regression as an ONNX file."""
    encoded = dense_network([width, 1], "relu", seed=1)
    parsed = parse(encoded, num_features=width)
    shapes = [values.shape for values in parsed.initial_values]
    return replace_parameters(
        encoded, parsed, [weight.astype(np.float32).reshape(shapes[0]), np.full(shapes[1], bias, np.float32)]
    )


def synthetic(records: int, seed: int = 1) -> Examples:
    rng = np.random.default_rng(seed)
    features = rng.integers(0, 256, (records, 4)).astype(np.uint8)
    truth = features / 256 @ np.array([4.0, -3.0, 2.0, 0.0]) - 2.5
    labels = (rng.random(records) < 1 / (1 + np.exp(-truth))).astype(np.int64)
    return Examples(
        features=features, labels=labels, model=model_of(4, np.array([3.0, -3.0, 1.0, 0.5]), -2.0)
    )


@cache
def shoppers() -> Examples:
    """The shop's sessions as bytes, and a logistic regression of whether they end in a purchase."""
    table = np.nan_to_num(np.genfromtxt(SHOPPERS, delimiter=",", skip_header=1))
    values, labels = table[:, :-1], table[:, -1].astype(np.int64)
    low, high = values.min(0), values.max(0)
    features = np.floor(255 * np.log1p(values - low) / np.log1p(high - low)).astype(np.uint8)
    fitted = LogisticRegression(max_iter=2_000, C=10).fit(features / 256, labels)
    return Examples(
        features=features,
        labels=labels,
        model=model_of(values.shape[1], fitted.coef_[0], float(fitted.intercept_[0])),
    )


class Kept(QueryStore):
    """Evaluations that were asked, and what happened in which order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.answers: dict[bytes, StoredAnswer] = {}

    def add(self, planned: PlannedQuery[S], *, asked_at: float, request: bytes | None = None) -> bool:
        assert (asked_at, request) == (NOW, None)
        self.events.append("kept")
        return True

    def remove(self, query_id: bytes) -> None:
        self.events.append("forgotten")

    def some(self, query_ids: Sequence[bytes]) -> Any:
        return () if self.events[-1] == "forgotten" else query_ids

    def discovery_before(self, query_id: bytes) -> None:
        return None

    def keep_answer(self, query_id: bytes, answer: StoredAnswer) -> None:
        self.events.append("answer kept")
        self.answers[query_id] = answer

    def answer(self, query_id: bytes) -> StoredAnswer | None:
        return self.answers.get(query_id)


def shares_of(examples: Examples, candidates: int = 2) -> tuple[InputShares, InputShares]:
    """Every label is a candidate; the first one is the real one."""
    count = len(examples.labels)
    labels = ((examples.labels[:, None] + np.arange(candidates)) % candidates).astype(np.uint32)
    masks = np.zeros((count, candidates), np.int64)
    masks[:, 0] = 1
    first, second = (
        InputShares(features=examples.features, labels=labels, mask_shares=part.reshape(masks.shape))
        for part in split(from_signed(masks.reshape(-1)), seeded(5, "masks"))
    )
    return first, second


def evaluated(
    examples: Examples,
    *,
    bins: int = DEFAULT_BINS,
    epsilon: float | None = None,
    seed: int = 0,
    **changes: Any,
) -> EvaluationResult:
    """An evaluation of examples, from the plan to the result."""
    of = world(num_features=examples.features.shape[1], **changes)
    dataset = dataset_of(of, len(examples.labels))
    plan = plan_evaluation(
        examples.model, task=of.task, dataset=dataset, query_id=bytes(16), epsilon=epsilon, num_bins=bins
    )
    first, second = (
        MemoryEvaluationHelper(of, role, one, seed)
        for role, one in enumerate(shares_of(examples, of.task.num_candidates))
    )
    return Evaluator(
        helpers=(first, second), task=of.task, dataset=dataset, store=Kept(), clock=lambda: NOW
    ).evaluate(plan)


@pytest.mark.parametrize("bins", [10, 64, 1_000])
def test_without_noise_every_figure_is_scikit_learns_on_the_binned_scores(bins: int) -> None:
    examples = synthetic(3_000)
    result, binned, labels = evaluated(examples, bins=bins), examples.binned(bins), examples.labels
    log_loss = sk.log_loss(labels, binned)
    expected = {
        "loss": log_loss,
        "normalised_entropy": log_loss / sk.log_loss(labels, np.full(len(labels), labels.mean())),
        "accuracy": sk.accuracy_score(labels, binned > 0.5),
        "roc_auc": sk.roc_auc_score(labels, binned),
        "pr_auc": sk.average_precision_score(labels, binned),
        "positives": labels.mean(),
        "mean_over_rate": binned.mean() / labels.mean(),
    }
    assert {one.name: one.estimate.value for one in result.metrics} == pytest.approx(expected, rel=1e-12)


def test_without_noise_the_curves_are_scikit_learns() -> None:
    examples = synthetic(3_000)
    result, binned = evaluated(examples, bins=20), examples.binned(20)
    false, true, _ = sk.roc_curve(examples.labels, binned, drop_intermediate=False)
    assert {(point.x.value, point.y.value) for point in result.roc} == set(
        zip(false.tolist(), true.tolist(), strict=True)
    )
    precision, recall, thresholds = sk.precision_recall_curve(examples.labels, binned)
    ours = {(round(point.x.value, 12), round(point.y.value, 12)) for point in result.pr}
    theirs = zip(
        recall[: len(thresholds)].round(12).tolist(),
        precision[: len(thresholds)].round(12).tolist(),
        strict=True,
    )
    assert ours == set(theirs)
    observed, predicted = calibration_by_group(examples, result)
    assert [point.y.value for point in result.calibration] == pytest.approx(observed, rel=1e-12)
    assert [point.x.value for point in result.calibration] == pytest.approx(predicted, abs=1 / 20)


def calibration_by_group(examples: Examples, result: EvaluationResult) -> tuple[list[float], list[float]]:
    """scikit-learn's curve over the result's groups of scores.

    The observed shares, and the means of the unbinned scores.
    """
    group = (
        np.searchsorted([point.threshold for point in result.calibration], examples.scores, side="right") - 1
    )
    count = len(result.calibration)
    observed, _ = calibration_curve(examples.labels, (group + 0.5) / count, n_bins=count)
    return observed.tolist(), [float(examples.scores[group == one].mean()) for one in range(count)]


@needs_shoppers
@pytest.mark.parametrize(("mechanism", "norm"), [("laplace", "l1"), ("gaussian", "l2")])
def test_auc_at_epsilon_1_with_12_000_records_is_within_a_hundredth_of_scikit_learns(
    mechanism: str, norm: str
) -> None:
    examples = shoppers()
    truth = sk.roc_auc_score(examples.labels, examples.scores)
    results = [
        evaluated(examples, epsilon=1.0, seed=seed, mechanism=mechanism, norm=norm) for seed in range(20)
    ]
    errors = [abs(result.metric("roc_auc").value - truth) for result in results]
    assert 11_000 < len(examples.labels) < 13_000
    assert max(result.cost.ad_server for result in results) <= 1.0
    assert max(errors) < 0.01


@needs_shoppers
@pytest.mark.parametrize(("mechanism", "norm"), [("laplace", "l1"), ("gaussian", "l2")])
def test_the_calibration_curve_at_epsilon_1_is_within_a_hundredth_of_scikit_learns_by_records(
    mechanism: str, norm: str
) -> None:
    examples = shoppers()
    for seed in range(10):
        result = evaluated(examples, epsilon=1.0, seed=seed, mechanism=mechanism, norm=norm)
        observed, predicted = calibration_by_group(examples, result)
        share = np.diff(
            np.searchsorted(
                np.sort(examples.scores), [*(point.threshold for point in result.calibration), 2.0]
            )
        )
        for found, truth in ((result.calibration, observed), (result.calibration, predicted)):
            values = [point.y.value if truth is observed else point.x.value for point in found]
            assert np.average(np.abs(np.subtract(values, truth)), weights=share) < 0.01


def test_of_several_classes_accuracy_and_confidence_are_read() -> None:
    rng = np.random.default_rng(2)
    features = rng.integers(0, 256, (2_000, 4)).astype(np.uint8)
    model = dense_network([4, 3], "relu", seed=3)
    weight, bias = (
        weights.quantise(values).to_float() for values in parse(model, num_features=4).initial_values
    )
    raised = np.exp(features / 256 @ (weight if weight.shape == (4, 3) else weight.T) + bias)
    labels = np.where(rng.random(2_000) < 0.7, raised.argmax(1), rng.integers(0, 3, 2_000))
    examples = Examples(features=features, labels=labels, model=model)
    result = evaluated(examples, labels={"kind": "classes", "size": 3}, num_decoys=2)
    is_right, confidence = raised.argmax(1) == labels, raised.max(1) / raised.sum(1)
    assert result.metric("accuracy").value == pytest.approx(is_right.mean())
    binned = np.floor(confidence * DEFAULT_BINS)
    assert result.metric("confidence_roc_auc").value == pytest.approx(sk.roc_auc_score(is_right, binned))
    with pytest.raises(KeyError, match="accuracy"):
        result.metric("loss")


@given(noisy=arrays(np.float64, (2, 9), elements=st.floats(-50, 200)))
def test_smoothed_counts_are_never_negative_and_keep_each_rows_total(noisy: NDArray[np.float64]) -> None:
    counts = smooth(noisy)
    assert (counts >= 0).all()
    assert counts.sum(1) == pytest.approx(np.maximum(noisy.sum(1), 0), abs=1e-9)


@given(counts=arrays(np.int64, (2, 9), elements=st.integers(0, 500)))
def test_true_counts_are_left_alone(counts: NDArray[np.int64]) -> None:
    assert smooth(counts.astype(np.float64)) == pytest.approx(counts)


def test_an_answer_of_noise_alone_is_read_as_unknown_or_within_bounds() -> None:
    readings = read(np.full((2, 8), -3.0), mechanism=Mechanism.GAUSSIAN, noise_scale=5.0, is_of_classes=False)
    assert all(np.isnan(one.estimate.value) for one in readings.metrics)
    assert {one.estimate.no_interval for one in readings.metrics} == {NoInterval.NOISE}
    assert readings.roc == readings.calibration == ()


@pytest.mark.parametrize(
    ("asked", "error", "reason"),
    [
        ({"bins": 10_001}, JobRefused, JobReason.DOMAIN_TOO_LARGE),
        ({"epsilon": 1.0}, JobRefused, JobReason.NOISE_OUT_OF_RANGE),
        ({"labels": {"kind": "classes", "size": 3}}, InvalidModel, ModelReason.WRONG_LOSS),
        ({"labels": {"kind": "values", "size": 9, "num_buckets": 4}}, InvalidModel, ModelReason.WRONG_LOSS),
        (
            {"mechanism": "laplace", "norm": "l1", "delta": 1e-12, "epsilon": 1e-9},
            JobRefused,
            JobReason.BUDGET_EXHAUSTED,
        ),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_a_helper_is_asked(
    asked: dict[str, Any], error: type[Any], reason: Any
) -> None:
    with pytest.raises(error) as refused:
        evaluated(synthetic(50), **asked)
    assert refused.value.reason is reason


@pytest.mark.parametrize(
    ("wrong", "reason"), [({"bins": 1}, "num_bins"), ({"mechanism": "gaussian", "epsilon": -1.0}, "epsilon")]
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidTask, match=reason):
        evaluated(synthetic(50), **wrong)


def test_a_result_is_shown_as_json_lines_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = evaluated(synthetic(2_000), mechanism="gaussian", epsilon=2.0)
    told = json.loads(EvaluationMessage.of(result).model_dump_json())
    assert told["metrics"]["roc_auc"]["value"] == result.metric("roc_auc").value
    assert told["epsilon"]["ad_server"] == result.cost.ad_server
    assert len(told["calibration"]) == len(result.calibration)
    print_evaluation(result)
    printed = capsys.readouterr().out
    figures, calibration = (
        table.splitlines()[1:] for table in printed.split("\nevaluation ")[0].split("\n\n")
    )
    assert [line.split()[0] for line in figures] == list(OF_LABELS)
    assert len(calibration) == len(result.calibration)
    assert f"{result.noise_scale:.4g} records" in printed
    write_plot(result, tmp_path / "curves.png")
    drawn = (tmp_path / "curves.png").read_bytes()
    width, height = struct.unpack(">II", drawn[16:24])
    assert drawn.startswith(b"\x89PNG")
    assert width > height > 300
    with pytest.raises(InvalidTask):
        write_plot(result, tmp_path / "curves.txt")


def test_a_picture_of_an_evaluation_has_the_caption_that_is_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = evaluated(synthetic(2_000), mechanism="gaussian", epsilon=2.0)
    monkeypatch.setattr(evaluation, "as_png", lambda figure: figure.get_suptitle().encode())
    write_plot(result, tmp_path / "curves.png")
    assert " ".join((tmp_path / "curves.png").read_text().split()) == " ".join(result.caption.split())


@dataclass
class Away:
    """A helper that does not answer, or refuses."""

    store: Kept
    error: Exception

    def run_query(
        self, query: AnyQuery, beside: bytes, length: int, *, cancelled: Event | None = None
    ) -> QueryAnswer:
        self.store.events.append("asked")
        raise self.error


def test_an_evaluation_is_kept_before_a_helper_is_asked_and_stays_kept_when_none_answers() -> None:
    examples, store = synthetic(50), Kept()
    of = world(num_features=examples.features.shape[1])
    dataset, away = dataset_of(of, len(examples.labels)), Away(store, HelperUnavailable("away"))
    plan = plan_evaluation(examples.model, task=of.task, dataset=dataset, query_id=bytes(16))
    evaluator = Evaluator(
        helpers=(away, away), task=of.task, dataset=dataset, store=store, clock=lambda: NOW, backoff=ONCE
    )
    with pytest.raises(HelperUnavailable):
        evaluator.evaluate(plan)
    assert (store.events[0], set(store.events[1:])) == ("kept", {"asked"})
    with pytest.raises(HelperUnavailable):
        evaluator.again(plan)
    assert store.events.count("kept") == 1


def test_a_stored_answers_histogram_is_read_while_helpers_are_away() -> None:
    examples, store = synthetic(50), Kept()
    of = world(num_features=examples.features.shape[1])
    dataset = dataset_of(of, len(examples.labels))
    plan = plan_evaluation(examples.model, task=of.task, dataset=dataset, query_id=bytes(16))
    away = Away(store, HelperUnavailable("away"))
    evaluator = Evaluator(
        helpers=(away, away), task=of.task, dataset=dataset, store=store, clock=lambda: NOW, backoff=ONCE
    )
    with pytest.raises(HelperUnavailable):
        evaluator.again(plan)
    first, second = (
        MemoryEvaluationHelper(of, role, one, 0)
        for role, one in enumerate(shares_of(examples, of.task.num_candidates))
    )
    result = replace(evaluator, helpers=(first, second)).evaluate(plan)
    asked = store.events.count("asked")
    kept = store.answers[bytes(16)].total.reshape(ROWS, -1) / UNITS
    assert evaluator.again(plan) == result
    assert np.array_equal(histogram_of(plan, store.answers[bytes(16)]), smooth(kept))
    assert store.events.count("asked") == asked


def test_an_evaluation_that_both_helpers_refuse_unpaid_is_forgotten() -> None:
    examples, store = synthetic(50), Kept()
    of = world(num_features=examples.features.shape[1])
    dataset, poor = (
        dataset_of(of, len(examples.labels)),
        Away(store, JobRefused(JobReason.BUDGET_EXHAUSTED, "spent")),
    )
    plan = plan_evaluation(examples.model, task=of.task, dataset=dataset, query_id=bytes(16))
    with pytest.raises(JobRefused):
        Evaluator(
            helpers=(poor, poor), task=of.task, dataset=dataset, store=store, clock=lambda: NOW
        ).evaluate(plan)
    assert (store.events[0], store.events[-1]) == ("kept", "forgotten")
