"""The work of an order against who would tell by its time whether one person's reports are sampled."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from helper.executors.orders import Summing
from maskedlark.model.losses import Loss
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.privacy.sample_size import work_size
from maskedlark.releases import round as rounds
from maskedlark.releases.round import Evaluated
from maskedlark.reports.helper_pair_key import PairKey

RECORDS = 20_000
SEGMENT = 2_000
RATE = 0.05
REPORTS = 400
PAIR = PairKey(secret=bytes(range(32)), role=0)
LOSS = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
CLIP = Clip(norm=Norm.L2, bound=1.0, frac_bits=20)
DRAWS = 40


def evaluated(seed: int, *, is_sampled: bool) -> Evaluated:
    """A round in which all reports of a person are sampled, or none; they are in the first segment."""
    draw = np.random.default_rng(seed)
    sample = draw.random(RECORDS) < RATE
    sample[:REPORTS] = is_sampled
    size = work_size(expected=int(RECORDS * RATE), least=0, most=RECORDS, reports=REPORTS)
    padding = partial(PAIR.padding, seed.to_bytes(4, "little"))
    return rounds._choose_evaluated(sample, padding, is_enough=True, at_least=size, reports=REPORTS)


def worked_on(one: Evaluated) -> int:
    """On how many records a worker that holds the first segment spends time."""
    count = int(one.is_evaluated[:SEGMENT].sum())
    return max(count, Summing.of(LOSS, CLIP, one).work(SEGMENT))


def test_an_orders_work_does_not_tell_whether_all_reports_of_a_person_are_sampled() -> None:
    with_them = {worked_on(evaluated(seed, is_sampled=True)) for seed in range(DRAWS)}
    without = {worked_on(evaluated(seed, is_sampled=False)) for seed in range(DRAWS)}
    assert len(with_them) == 1
    assert with_them == without


def test_with_room_for_one_report_an_orders_work_would_tell() -> None:
    """What shows that the test before can fail."""
    for seed in range(DRAWS):
        others = {
            worked_on(replace(evaluated(seed, is_sampled=is_sampled), reports=1))
            for is_sampled in (True, False)
        }
        assert len(others) == 2


@pytest.mark.parametrize("reports", [1, 7, 1024])
def test_an_order_has_room_for_a_persons_reports_and_never_more_than_there_are(reports: int) -> None:
    summing = Summing.of(LOSS, CLIP, replace(evaluated(1, is_sampled=True), reports=1))
    wider = replace(summing, reports=reports)
    assert wider.work(SEGMENT) == min(SEGMENT, summing.work(SEGMENT) + reports - 1)
    assert wider.work(10) == 10


MANY = 1_000_000
RARELY = 0.0001
CHOSEN = 65_536
NEAR = 8


def evenly(count: int, wanted: int) -> NDArray[np.bool_]:
    """The padding of before: evenly among the others."""
    is_chosen = np.zeros(count, np.bool_)
    is_chosen[np.arange(wanted) * count // max(1, wanted)] = True
    return is_chosen


def of_rare_records(seed: int, padding: Callable[[int, int], NDArray[np.bool_]]) -> Evaluated:
    sample = np.random.default_rng(seed).random(MANY) < RARELY
    size = work_size(expected=int(MANY * RARELY), least=0, most=MANY)
    return rounds._choose_evaluated(sample, padding, is_enough=True, at_least=size, reports=1)


def chosen_places() -> NDArray[np.intp]:
    """The places of one segment's records, whose sender knew where even padding most often lies."""
    often = np.zeros(MANY, np.int64)
    for seed in range(1_000, 1_150):
        one = of_rare_records(seed, evenly)
        often += one.is_evaluated & ~one.counts
    near = np.cumsum(often)
    near = near[2 * NEAR :] - near[: -2 * NEAR]
    return NEAR + np.argsort(-near, kind="stable")[:CHOSEN]


def test_an_orders_work_does_not_tell_the_sample_where_a_sender_chose_its_records_places() -> None:
    places = chosen_places()

    def is_over(one: Evaluated) -> bool:
        return int(one.is_evaluated[places].sum()) > Summing.of(LOSS, CLIP, one).work(CHOSEN)

    assert sum(is_over(of_rare_records(seed, evenly)) for seed in range(DRAWS)) > DRAWS // 2
    secret = [partial(PAIR.padding, seed.to_bytes(4, "little")) for seed in range(DRAWS)]
    assert not any(is_over(of_rare_records(seed, padding)) for seed, padding in enumerate(secret))
