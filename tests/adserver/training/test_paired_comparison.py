"""A difference of two models has DeLong's interval, which knows that both scored the same rows."""

import math
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm, t

from adserver.training.paired_comparison import (
    PairedComparison,
    compare_scores,
    describe_comparisons,
)
from maskedlark.errors import InvalidTask

Scores = NDArray[np.float64]


def two_models(rows: int, *, seed: int = 3, gap: float = 0.6) -> tuple[Scores, Scores, NDArray[np.int64]]:
    """Scores that share most of what they are wrong about; the first one's are better by a gap."""
    random = np.random.default_rng(seed)
    labels = (random.random(rows) < 0.3).astype(np.int64)
    shared = labels + random.normal(0, 1, rows)
    # Whole numbers, so that there are ties
    first = np.round(4 * (shared + gap * labels + random.normal(0, 0.3, rows)))
    return first, np.round(4 * (shared + random.normal(0, 0.3, rows))), labels


def floor(labels: NDArray[np.int64]) -> float:
    """The least variance of a difference: a tenth of a row of each class."""
    ones = int(labels.sum())
    return (0.1 / ones) ** 2 + (0.1 / (len(labels) - ones)) ** 2


def half_width(error: float, labels: NDArray[np.int64]) -> float:
    """What a 95 % interval has on either side, by Student's t for the rows of the rarer class."""
    rarer = min(int(labels.sum()), int((1 - labels).sum()))
    return float(t.ppf(0.975, rarer - 1)) * error


def area(scores: Scores, labels: NDArray[np.int64]) -> float:
    """The share of pairs in order, pair by pair."""
    pairs = [
        1.0 if one > other else 0.5 if one == other else 0.0
        for one in scores[labels == 1]
        for other in scores[labels == 0]
    ]
    return sum(pairs) / len(pairs)


def by_definition(first: Scores, second: Scores, labels: NDArray[np.int64]) -> tuple[float, float]:
    """The difference and its standard error from the definitions of both structural components."""

    def psi(one: float, other: float) -> float:
        return 1.0 if one > other else 0.5 if one == other else 0.0

    positives, negatives = np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)
    of_positives = [
        [sum(psi(scores[i], scores[j]) for j in negatives) / len(negatives) for i in positives]
        for scores in (first, second)
    ]
    of_negatives = [
        [sum(psi(scores[i], scores[j]) for i in positives) / len(positives) for j in negatives]
        for scores in (first, second)
    ]
    covariance = np.cov(of_positives) / len(positives) + np.cov(of_negatives) / len(negatives)
    contrast = np.array([1.0, -1.0])
    variance = contrast @ covariance @ contrast + floor(labels)
    return area(first, labels) - area(second, labels), math.sqrt(variance)


def test_the_interval_of_an_auc_difference_is_delongs() -> None:
    first, second, labels = two_models(150)
    found = compare_scores(first, second, labels)
    difference, error = by_definition(first, second, labels)
    assert found.value == pytest.approx(area(first, labels))
    assert found.other_value == pytest.approx(area(second, labels))
    assert found.difference == pytest.approx(difference)
    half = half_width(error, labels)
    assert (found.low, found.high) == pytest.approx((difference - half, difference + half))
    assert (found.metric, found.examples, found.is_rough) == ("auc", 150, False)


def test_five_cases_ten_times_by_hand() -> None:
    """Positives 4 and 2, negatives 3, 1 and 0; the other model swaps nothing but 2 and 1."""
    labels = np.tile([1, 1, 0, 0, 0], 10)
    first, second = np.tile([4.0, 2.0, 3.0, 1.0, 0.0], 10), np.tile([4.0, 1.0, 3.0, 2.0, 0.0], 10)
    found = compare_scores(first, second, labels)
    assert (found.value, found.other_value) == pytest.approx((5 / 6, 4 / 6))
    # Placements differ by 0 and 1/3 for positives, by 0, 1/2 and 0 for negatives
    variance = np.var([0, 1 / 3] * 10, ddof=1) / 20 + np.var([0, 1 / 2, 0] * 10, ddof=1) / 30
    error = math.sqrt(variance + (0.1 / 20) ** 2 + (0.1 / 30) ** 2)
    assert found.high == pytest.approx(1 / 6 + 2.0930 * error, rel=1e-4)
    assert not found.is_rough


def test_models_that_rank_all_rows_alike_have_a_narrow_interval_but_no_certainty() -> None:
    labels = np.array([1] * 30 + [0] * 60)
    found = compare_scores(np.arange(90.0), np.arange(90.0), labels)
    half = half_width(math.sqrt((0.1 / 30) ** 2 + (0.1 / 60) ** 2), labels)
    assert (found.low, found.difference, found.high) == pytest.approx((-half, 0, half))
    assert 0.005 < half < 0.01


@pytest.mark.parametrize(
    ("positives", "gap", "least"), [(10, 0.3, 0.93), (15, 0.3, 0.93), (20, 0.3, 0.93), (10, 0.0, 0.95)]
)
def test_an_interval_of_few_rows_covers_what_it_says(positives: int, gap: float, least: float) -> None:
    """Of a difference that is known: chances of normal scores' order, with models that share their errors."""
    random = np.random.default_rng(6)
    labels = np.array([1] * positives + [0] * 200)
    shared, own = 1.0, 0.5
    # A pair's scores differ by their means and both rows' noise
    spread = math.sqrt(2 * (shared**2 + own**2))
    expected = norm.cdf((1 + gap) / spread) - norm.cdf(1 / spread)
    covered = 0
    for _ in range(600):
        noise = random.normal(0, shared, len(labels))
        first, second = (
            mean * labels + noise + random.normal(0, own, len(labels)) for mean in (1 + gap, 1.0)
        )
        found = compare_scores(first, second, labels)
        covered += found.low <= expected <= found.high
    assert covered / 600 > least


@pytest.mark.parametrize("classes", [2, 4])
def test_a_bootstrap_of_rows_has_the_same_interval(classes: int) -> None:
    random = np.random.default_rng(8)
    if classes == 2:
        first, second, labels = two_models(600, gap=0.2)
    else:
        labels = random.integers(0, classes, 600)
        shared = np.eye(classes)[labels] * 1.5 + random.normal(0, 1, (600, classes))
        first, second = (shared + random.normal(0, scale, (600, classes)) for scale in (0.2, 0.7))
    found = compare_scores(first, second, labels)
    differences = []
    for _ in range(1_000):
        rows = random.integers(0, 600, 600)
        drawn = compare_scores(first[rows], second[rows], labels[rows])
        differences.append(drawn.difference)
    low, high = np.quantile(differences, (0.025, 0.975))
    width = high - low
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.1 * width)
    assert found.metric == ("auc" if classes == 2 else "accuracy")


def test_pairs_are_of_identical_rows() -> None:
    first, second, labels = two_models(600, gap=0.2)
    found, order = compare_scores(first, second, labels), np.random.default_rng(1).permutation(600)
    # All rows in another order say the same
    again = compare_scores(first[order], second[order], labels[order])
    assert (again.low, again.high) == pytest.approx((found.low, found.high))
    # The same scores of each class on other rows have the same AUC, but share no mistakes
    others = second.copy()
    for label in (0, 1):
        others[labels == label] = np.random.default_rng(2).permutation(second[labels == label])
    unpaired = compare_scores(first, others, labels)
    assert unpaired.difference == pytest.approx(found.difference)
    assert unpaired.high - unpaired.low > 2 * (found.high - found.low)


def test_only_the_order_of_scores_counts_and_two_outputs_are_one() -> None:
    first, second, labels = two_models(100)
    found = compare_scores(first, second, labels)
    assert compare_scores(np.exp(first / 9), second[:, None], labels) == found
    assert compare_scores(np.stack([first * 0, first], axis=1), second, labels) == found


def test_infinite_scores_are_the_highest_but_not_two_of_one_row() -> None:
    first, second, labels = two_models(100)
    highest = np.where(first == first.max(), np.inf, first)
    assert compare_scores(highest, second, labels) == compare_scores(first, second, labels)
    with pytest.raises(InvalidTask, match="the scores of the model hold NaN"):
        compare_scores(np.full((100, 2), np.inf), second, labels)


def test_classes_of_which_no_row_tells_the_models_apart_leave_an_interval_open() -> None:
    scores = np.eye(3)[np.array([0, 1, 2] * 4)]
    found = compare_scores(scores, scores, np.array([0, 1, 2] * 4))
    assert found.low < 0 < found.high
    assert found.difference == 0


def comparison(
    low: float, high: float, name: str = "plain training", metric: str = "auc"
) -> PairedComparison:
    return PairedComparison(
        metric=metric,
        value=0.8,
        other_value=0.8 - (low + high) / 2,
        difference=(low + high) / 2,
        low=low,
        high=high,
        examples=900,
        names=("the private model", name),
    )


@pytest.mark.parametrize(
    ("low", "high", "metric", "says"),
    [
        (0.012, 0.035, "auc", "ranks 0.012 to 0.035 better than plain training"),
        (-0.02, -0.001, "auc", "ranks 0.001 to 0.020 worse than plain training"),
        (-0.02, 0.001, "auc", "cannot be told apart from plain training (-0.020 to +0.001)"),
        (0.0, 0.0, "auc", "cannot be told apart from plain training (+0.0000 to +0.0000)"),
        (-0.0038, 0.0001, "auc", "cannot be told apart from plain training (-0.0038 to +0.0001)"),
        (0.0002, 0.0031, "auc", "ranks 0.0002 to 0.0031 better than plain training"),
        (0.012, 0.035, "accuracy", "is right 0.012 to 0.035 more often than plain training"),
        (-0.02, -0.01, "accuracy", "is right 0.010 to 0.020 less often than plain training"),
    ],
)
def test_a_verdict_says_which_is_better_if_the_rows_tell(
    low: float, high: float, metric: str, says: str
) -> None:
    found = comparison(low, high, metric=metric)
    shown = "AUC" if metric == "auc" else metric
    assert found.verdict == f"The private model {says} ({shown}, 95 %, on the same 900 rows)."
    assert found.verdict in repr(found)
    assert "<td>difference</td>" in found._repr_html_()


@pytest.mark.parametrize(
    ("alone", "plain", "says"),
    [
        (
            (0.012, 0.035),
            (-0.02, -0.001),
            "ranks 0.012 to 0.035 better than the panel alone, and 0.001 to 0.020 worse than plain training",
        ),
        (
            (-0.02, 0.01),
            (-0.02, 0.03),
            "cannot be told apart from the panel alone (-0.020 to +0.010) or plain training "
            "(-0.020 to +0.030)",
        ),
        (
            (0.012, 0.035),
            (-0.02, 0.03),
            "ranks 0.012 to 0.035 better than the panel alone, and cannot be told apart from plain training "
            "(-0.020 to +0.030)",
        ),
    ],
)
def test_two_comparisons_are_one_sentence(
    alone: tuple[float, float], plain: tuple[float, float], says: str
) -> None:
    told = describe_comparisons((comparison(*alone, "the panel alone"), comparison(*plain)))
    assert told == f"The private model {says} (AUC, 95 %, on the same 900 rows)."


def test_few_rows_of_a_class_are_said() -> None:
    labels = np.array([1] * 19 + [0] * 100)
    scores = np.arange(119.0)
    assert "few rows of a class" in compare_scores(scores, scores, labels).verdict
    assert "few rows" not in compare_scores(scores[1:], scores[1:], np.array([1] * 20 + [0] * 98)).verdict


@pytest.mark.parametrize(
    ("scores", "labels", "says"),
    [
        (np.arange(3.0), [0, 1, 0, 1], "expected one row for each of 4 labels"),
        (np.array([1.0, np.nan, 0.0, 2.0]), [0, 1, 0, 1], "hold NaN"),
        (np.arange(4.0), [0, 1, 2, 1], r"labels are other than the codes 0..1 of 2 classes"),
        (np.arange(4.0), [0, 0, 0, 1], "of 4 rows 1 are of class 1: expected at least 10 of each"),
        (np.ones((4, 3)), [0, 1, 0, 1], "of 3 and 2 classes"),
        (np.ones((4, 0)), [0, 1, 0, 1], "have the shape"),
    ],
)
def test_scores_that_cannot_be_compared_are_refused(scores: Scores, labels: list[int], says: str) -> None:
    with pytest.raises(InvalidTask, match=says):
        compare_scores(scores, np.arange(4.0), np.array(labels))


def test_without_rows_nothing_is_compared() -> None:
    nothing = np.array([], np.int64)
    with pytest.raises(InvalidTask, match="of 0 rows 0 are of class 1"):
        compare_scores(np.ones(0), np.ones(0), nothing)
    with pytest.raises(InvalidTask, match="there are no labelled rows"):
        compare_scores(np.ones((0, 3)), np.ones((0, 3)), nothing)


@pytest.mark.parametrize("seed", [1, 2])
def test_more_rows_narrow_the_interval(seed: int) -> None:
    widths = [
        found.high - found.low
        for rows in (200, 800, 3_200)
        for found in [compare_scores(*two_models(rows, seed=seed))]
    ]
    assert all(0.4 < after / before < 0.65 for before, after in pairwise(widths))
