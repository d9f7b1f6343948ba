"""Sizes of samples hide a person with all their reports, not one report of them."""

import math

import pytest
from scipy.stats import binom

from maskedlark.privacy.sample_size import EXPOSURE, hides, least_batch, under, work_size


def test_none_of_a_persons_reports_counts_among_the_others() -> None:
    size, k, reports = 1_200, 20, 1_000
    rate = least_batch(dataset_size=size, k=k) / size
    assert hides(dataset_size=size, rate=rate, k=k)
    assert under(k, others=size - reports, rate=rate) > 2.0**-20
    assert not hides(dataset_size=size, rate=rate, k=k, reports=reports)
    more = least_batch(dataset_size=size, k=k, reports=reports)
    assert hides(dataset_size=size, rate=more / size, k=k, reports=reports)
    assert more > least_batch(dataset_size=size, k=k)


def test_a_dataset_of_one_person_hides_no_sample() -> None:
    assert not hides(dataset_size=100, rate=0.99, k=1, reports=100)


def test_the_padding_has_room_for_all_of_a_persons_reports() -> None:
    alone = work_size(expected=500, least=20, most=10_000)
    assert work_size(expected=500, least=20, most=10_000, reports=8) == alone + 7
    assert work_size(expected=500, least=20, most=10_000, over=50) == 501 + 17 + 224 + 1


@pytest.mark.parametrize(
    ("least", "most", "size"), [(0, 10_000, 501 + 11 + 179 + 1), (700, 10_000, 700), (20, 600, 600)]
)
def test_the_padding_is_bernsteins_and_within_the_dataset(least: int, most: int, size: int) -> None:
    assert work_size(expected=500, least=least, most=most) == size


@pytest.mark.parametrize(
    ("k", "others", "rate"),
    [(1, 40, 0.5), (20, 1_199, 0.05), (20, 1_199, 0.04), (100, 60_000, 1 / 300), (2, 3, 0.9), (5, 5, 0.999)],
)
def test_the_bound_is_just_above_the_binomials_tail(k: int, others: int, rate: float) -> None:
    exact = binom.cdf(k - 1, others, rate)
    assert exact <= under(k, others=others, rate=rate) <= 1.6 * exact


@pytest.mark.parametrize(
    ("k", "others", "rate", "bound"),
    [
        (0, 10, 0.0, 0.0),
        (1, 0, 0.9, 1.0),
        (3, 2, 0.9, 1.0),
        (3, 100, 0.0, 1.0),
        (3, 100, 0.02, 1.0),  # as many as are expected, one more, and some
        (4, 100, 0.02, 1.0),
    ],
)
def test_where_the_series_does_not_fall_nothing_is_promised(
    k: int, others: int, rate: float, bound: float
) -> None:
    assert under(k, others=others, rate=rate) == bound


@pytest.mark.parametrize(
    ("size", "k", "reports"), [(1_200, 20, 1), (300, 1, 5), (60_000, 100, 1), (60, 50, 1)]
)
def test_the_least_batch_hides_and_a_smaller_one_does_not(size: int, k: int, reports: int) -> None:
    least = least_batch(dataset_size=size, k=k, reports=reports)
    assert hides(dataset_size=size, rate=least / size, k=k, reports=reports)
    assert least == k or not hides(dataset_size=size, rate=(least - 1) / size, k=k, reports=reports)
    assert least_batch(dataset_size=size, k=size + 1) == size


def test_a_sample_of_all_hides_whatever_its_size() -> None:
    assert hides(dataset_size=1, rate=1.0, k=5)
    assert not hides(dataset_size=1, rate=0.999, k=5)


def test_what_a_sample_shows_is_the_chance_of_too_few_and_of_too_many() -> None:
    assert 2.0**-50 + math.exp(-32) <= EXPOSURE == 2.0**-46
    rate = least_batch(dataset_size=1_200, k=20) / 1_200
    assert under(20, others=1_199, rate=rate) <= 2.0**-50 < under(20, others=1_199, rate=rate * 0.99)
