"""How wide an evaluation's intervals will be is known before it is charged."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adserver.measuring.estimate import NoInterval
from adserver.measuring.evaluation_forecast import _expected_histogram, forecast_evaluation
from adserver.measuring.evaluation_metrics import SmoothedCounts
from adserver.measuring.evaluation_result import read
from adserver.measuring.evaluator import plan_evaluation
from maskedlark.errors import InvalidModel, InvalidTask, JobRefused
from maskedlark.privacy.accounting import spent
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.evaluation import UNITS
from maskedlark.reports.task import LabelSpace
from maskedlark.reports.task_kinds import LabelKind
from tests.adserver.job_world import ENCODED_MODEL
from tests.adserver.painted import OF
from tests.measured import dataset_of, measuring_world

WORLD = measuring_world(mechanism=Mechanism.GAUSSIAN, epsilon=4.0, collusion_epsilon=8.0)


@pytest.mark.parametrize(("rate", "auc"), [(0.5, 0.7), (0.1, 0.8), (0.03, 0.95)])
def test_the_histogram_is_of_a_calibrated_model_of_the_rate_and_auc(rate: float, auc: float) -> None:
    counts = SmoothedCounts(counts=_expected_histogram(5_000, 1_000, rate, auc))
    assert counts.counts.sum() == pytest.approx(5_000)
    assert float(counts.share_of_positives()) == pytest.approx(rate)
    assert float(counts.roc_auc()) == pytest.approx(auc, abs=2e-3)
    assert float(counts.mean_over_rate()) == pytest.approx(1, abs=1e-2)


@pytest.mark.parametrize("rate", [0.5, 0.1])
def test_intervals_are_as_wide_as_those_of_answers_will_be(rate: float) -> None:
    dataset = dataset_of(WORLD, 20_000)
    forecast = forecast_evaluation(WORLD.task, dataset, epsilon=1.0, base_rate=rate)
    expected = _expected_histogram(20_000, 64, rate, 0.8)
    draw = np.random.default_rng(6)
    widths: dict[str, list[float]] = {one.name: [] for one in forecast.metrics}
    scale = forecast.bin_error / 2**0.5
    for _ in range(40):
        noisy = draw.poisson(expected) + draw.normal(0, forecast.bin_error, expected.shape)
        found = read(noisy, mechanism=Mechanism.GAUSSIAN, noise_scale=scale, is_of_classes=False)
        for one in found.metrics:
            if one.name in widths:
                widths[one.name].append(one.estimate.high - one.estimate.low)
    for one in forecast.metrics:
        assert one.estimate.high - one.estimate.low == pytest.approx(np.median(widths[one.name]), rel=0.1)


def test_the_noise_and_the_cost_are_those_of_the_evaluation() -> None:
    task, dataset = OF.of.task, OF.datasets[0]
    found = dataset_of(OF.of, 40)
    found = replace(found, dataset_id=dataset.dataset_id)
    planned = plan_evaluation(
        ENCODED_MODEL, task=task, dataset=found, query_id=bytes(16), epsilon=0.5, num_bins=10
    ).spec
    forecast = forecast_evaluation(task, found, epsilon=0.5, num_bins=10)
    assert forecast.cost == spent(planned.charges(task), task.delta)
    deviations = 2**0.5 if task.mechanism is Mechanism.GAUSSIAN else 2.0
    assert forecast.bin_error == pytest.approx(planned.noise_units(task) / UNITS * deviations)
    assert (forecast.records, forecast.num_bins, forecast.bin_records) == (40, 10, 2.0)


def test_what_will_not_be_known_is_said() -> None:
    forecast = forecast_evaluation(WORLD.task, dataset_of(WORLD, 500), epsilon=0.1, base_rate=0.01)
    assert {one.name: one.estimate.no_interval for one in forecast.metrics}["roc_auc"] is NoInterval.NOISE
    told = repr(forecast)
    assert "roc_auc unknown" in told
    assert "0.01 of the records have label 1, and a calibrated model whose AUC is 0.8 (or as you" in told
    assert "--auc; base_rate=, auc=)" in told


def test_of_several_classes_the_right_choices_are_the_positives() -> None:
    several = replace(WORLD.task, labels=replace(WORLD.task.labels, size=5))
    dataset = replace(dataset_of(WORLD, 5_000), task_id=several.task_id)
    forecast = forecast_evaluation(several, dataset, epsilon=1.0)
    assert [one.name for one in forecast.metrics] == ["accuracy", "confidence_roc_auc"]
    assert forecast.metrics[0].estimate.value == pytest.approx(0.5, abs=0.01)
    assert "0.5 of the records have a right first choice" in repr(forecast)


def test_what_no_evaluation_can_be_is_refused() -> None:
    dataset = dataset_of(WORLD, 500)
    wrongs: list[dict[str, Any]]
    wrongs = [{"base_rate": 0.0}, {"base_rate": 1.0}, {"auc": 0.4}, {"auc": 1.0}, {"epsilon": 9.0}]
    for wrong in wrongs:
        with pytest.raises(InvalidTask):
            forecast_evaluation(WORLD.task, dataset, **wrong)
    with pytest.raises(JobRefused, match="num_bins"):
        forecast_evaluation(WORLD.task, dataset, num_bins=1 << 20)
    numbers = replace(WORLD.task, labels=LabelSpace(kind=LabelKind.VALUES, size=3, num_buckets=2))
    with pytest.raises(InvalidModel, match="labels of this task are numbers"):
        forecast_evaluation(numbers, dataset)
