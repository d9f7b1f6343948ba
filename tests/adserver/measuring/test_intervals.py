"""99 % intervals cover as they say, or there is none; a few cells of `make bench-intervals`."""

import numpy as np
import pytest

from adserver.measuring.estimate import Estimate, NoInterval
from adserver.measuring.evaluation_result import _Readings, read
from adserver.measuring.intervals import Ratio, chance_above, clear_of_zero, half_width, reach
from maskedlark.privacy.mechanism import Mechanism
from tests.bench.intervals import (
    Cell,
    Setting,
    Threshold,
    evaluation_cells,
    evaluation_noise,
    noise_of_both,
    query_cells,
    summary,
    threshold_cells,
)

DATA_SETS = 1_000
LEAST = 0.98
"""Of true coverage .99 and 1,000 data sets, three standard deviations less."""


def setting(mechanism: Mechanism, epsilon: float, records: int, positives: float) -> Setting:
    return Setting(
        mechanism=mechanism, epsilon=epsilon, records=records, positives=positives, shape="calibrated"
    )


@pytest.mark.parametrize(
    ("asked", "known"),
    [
        (setting(Mechanism.GAUSSIAN, 1.0, 2_000, 0.2), {"roc_auc", "accuracy", "loss", "calibration"}),
        (setting(Mechanism.GAUSSIAN, 1.0, 10_000, 0.2), {"roc_auc", "pr_auc", "calibration"}),
        (setting(Mechanism.LAPLACE, 1.0, 500, 0.5), {"roc_auc", "pr_auc", "normalised_entropy"}),
        (setting(Mechanism.LAPLACE, 4.0, 2_000, 0.05), {"roc_auc", "positives"}),
        (setting(Mechanism.GAUSSIAN, 0.25, 500, 0.01), set()),
    ],
)
def test_intervals_of_evaluations_cover_or_there_is_none(asked: Setting, known: set[str]) -> None:
    cells = {cell.figure: cell for cell in evaluation_cells(asked, DATA_SETS, seed=1)}
    for cell in cells.values():
        assert cell.wrong <= 1 - LEAST, cell
        if cell.with_interval >= 0.5:
            assert LEAST <= cell.coverage <= 0.9999, cell
    assert {name for name in known if cells[name].with_interval >= 0.9} == known
    if not known:
        assert cells["roc_auc"].with_interval == cells["pr_auc"].with_interval == 0


@pytest.mark.parametrize("mechanism", [Mechanism.GAUSSIAN, Mechanism.LAPLACE])
def test_intervals_of_queries_cover(mechanism: Mechanism) -> None:
    for cell in query_cells(setting(mechanism, 1.0, 500, 0.2), 1, data_sets=(4_000, 500)):
        assert cell.with_interval > 0.95, cell
        assert 0.985 <= cell.coverage <= 0.9999, cell


@pytest.mark.parametrize(
    "asked",
    [
        Threshold(mechanism=Mechanism.GAUSSIAN, epsilon=4.0, least=100),
        Threshold(mechanism=Mechanism.LAPLACE, epsilon=1.0, least=20),
        Threshold(mechanism=Mechanism.GAUSSIAN, epsilon=2.0, least=20, value="purchase"),
        Threshold(mechanism=Mechanism.LAPLACE, epsilon=4.0, least=100, value="purchase"),
    ],
)
def test_roll_ups_and_hidden_cells_are_covered(asked: Threshold) -> None:
    cells = {cell.figure: cell for cell in threshold_cells(asked, 40, seed=2)}
    assert set(cells) == {
        "cells of about k",
        "cells of a roll-up",
        "rests of a roll-up",
        "total of a roll-up",
    }
    for cell in cells.values():
        assert cell.with_interval == 1
        assert cell.coverage >= (0.9 if cell.figure.startswith("total") else 0.98), cell


def readings(histogram: list[list[float]], scale: float, mechanism: Mechanism) -> _Readings:
    return read(np.array(histogram), mechanism=mechanism, noise_scale=scale, is_of_classes=False)


def estimates(found: _Readings) -> dict[str, Estimate]:
    return {one.name: one.estimate for one in found.metrics}


def test_one_class_alone_has_no_curve() -> None:
    numbers = np.random.default_rng(4)
    for mechanism in (Mechanism.GAUSSIAN, Mechanism.LAPLACE):
        scale = evaluation_noise(mechanism, 1.0)
        known = 0
        for seed in range(40):
            truth = np.stack([np.full(64, 100.0), np.zeros(64)])
            noisy = truth + noise_of_both(mechanism, scale, truth.shape, [seed, int(numbers.integers(9))])
            found = estimates(readings(noisy.tolist(), scale, mechanism))
            known += found["roc_auc"].no_interval is None
            assert found["pr_auc"].no_interval is NoInterval.NOISE
            assert found["accuracy"].low <= 0.5 <= found["accuracy"].high or seed % 50
        assert known == 0
    without = estimates(readings([[10.0, 40.0], [0.0, 0.0]], 0.0, Mechanism.NONE))
    assert without["roc_auc"].no_interval is NoInterval.RECORDS
    assert np.isnan(without["roc_auc"].value)


def test_predictions_in_one_bin_tell_nothing_and_the_interval_says_so() -> None:
    scale, inside = evaluation_noise(Mechanism.GAUSSIAN, 1.0), 0
    truth = np.zeros((2, 64))
    truth[:, 20] = 4_000, 1_000
    for seed in range(60):
        noisy = truth + noise_of_both(Mechanism.GAUSSIAN, scale, truth.shape, seed)
        found = estimates(readings(noisy.tolist(), scale, Mechanism.GAUSSIAN))
        inside += found["roc_auc"].low <= 0.5 <= found["roc_auc"].high
    assert inside >= 57


def test_without_noise_a_share_has_wilsons_interval() -> None:
    found = estimates(readings([[60.0, 0.0], [0.0, 0.0]], 0.0, Mechanism.NONE))["positives"]
    reached = half_width(Mechanism.GAUSSIAN, 0.992) * (1 + 2 / 60)
    assert (found.low, found.value) == (0.0, 0.0)
    assert found.high == pytest.approx(reached**2 / (60 + reached**2))


def test_a_value_lies_within_its_interval() -> None:
    scale = evaluation_noise(Mechanism.LAPLACE, 0.5)
    truth = np.stack([np.geomspace(300, 1, 64), np.geomspace(1, 60, 64)])
    for seed in range(20):
        noisy = truth + noise_of_both(Mechanism.LAPLACE, scale, truth.shape, seed)
        found = readings(noisy.tolist(), scale, Mechanism.LAPLACE)
        points = [end for curve in (found.roc, found.pr, found.calibration) for end in curve]
        for one in [
            *estimates(found).values(),
            *(point.y for point in points),
            *(point.x for point in points),
        ]:
            assert one.low <= one.value <= one.high


def test_laplace_noise_reaches_between_its_own_law_and_a_gaussians() -> None:
    numbers = np.random.default_rng(5)
    for weights in ([1.0], [1.0, 1.0], [1.0] * 8):
        noise = numbers.laplace(size=(200_000, 2, len(weights))).sum(1) @ np.array(weights) / 2
        variance = float(np.square(weights).sum())
        concentration = np.array(float(np.power(weights, 4).sum()) / variance**2)
        reached = float(reach(Mechanism.LAPLACE, concentration, 0.99)) * variance**0.5
        assert 0.989 <= (np.abs(noise) <= reached).mean() <= 0.992, weights


def test_a_denominator_that_may_be_noise_gives_no_interval() -> None:
    one = np.array(1.0)
    ratio = Ratio(above=3 * one, below=3.9 * one, v0=one, v1=0 * one, v2=one, deviation_below=one)
    assert np.isnan(ratio.interval(2.6).low)
    wide = Ratio(above=3 * one, below=4.3 * one, v0=one, v1=0 * one, v2=one, deviation_below=one)
    assert wide.interval(2.6).low < 0.1
    assert wide.interval(2.6).high > 2


def test_people_read_why_there_is_no_interval() -> None:
    for reason, text in (
        (NoInterval.NOISE, "unknown (no interval at this noise"),
        (NoInterval.RECORDS, "0.812 (no interval: too few"),
    ):
        estimate = Estimate(value=0.8123, standard_error=np.inf, low=-np.inf, high=np.inf, no_interval=reason)
        assert str(estimate).startswith(text)


def test_the_summary_counts_cells_that_have_intervals() -> None:
    asked = setting(Mechanism.GAUSSIAN, 1.0, 500, 0.2)
    cells = [
        Cell(figure=figure, setting=asked, with_interval=share, coverage=coverage, wrong=wrong, width=1.0)
        for figure, share, coverage, wrong in (
            ("a", 1.0, 0.99, 0.01),
            ("b", 0.6, 0.98, 0.012),
            ("c", 0.1, 0.5, 0.05),
        )
    ]
    told = summary(cells)
    assert (told["coverage_least"], told["coverage_most"]) == (0.98, 0.99)
    assert (told["cells"], told["cells_without"], told["wrong_most"]) == (2, 1, 0.05)


@pytest.mark.parametrize("mechanism", [Mechanism.GAUSSIAN, Mechanism.LAPLACE])
def test_the_chance_of_noise_is_what_intervals_leave_out(mechanism: Mechanism) -> None:
    for confidence in (0.5, 0.99, 0.999_999):
        reached = np.array([half_width(mechanism, confidence)])
        assert 2 * chance_above(mechanism, reached)[0] == pytest.approx(1 - confidence, rel=1e-3)
        assert chance_above(mechanism, -reached)[0] == pytest.approx((1 + confidence) / 2, rel=1e-6)


def test_without_noise_whatever_is_not_zero_is_clear() -> None:
    assert chance_above(Mechanism.NONE, np.array([-1.0, 0.0, 1e-9])).tolist() == [1.0, 1.0, 0.0]


def test_the_more_are_clear_the_less_each_has_to_be() -> None:
    """Benjamini and Hochberg's bounds at .05 of four numbers: .0125, .025, .0375, .05."""
    assert clear_of_zero(np.array([0.02, 0.9, 0.9, 0.9]), 0.05).tolist() == [False] * 4
    assert clear_of_zero(np.array([0.9, 0.02, 0.001, 0.9]), 0.05).tolist() == [False, True, True, False]
    assert clear_of_zero(np.array([0.05, 0.05, 0.05, 0.05]), 0.05).tolist() == [True] * 4
    assert clear_of_zero(np.array([0.026, 0.012, 0.036, 0.9]), 0.05).tolist() == [True, True, True, False]
