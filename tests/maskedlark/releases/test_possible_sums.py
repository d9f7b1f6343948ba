"""Sums that honest reports and the noise can have pass, up to their last unit; what is beyond is thrown
away."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from maskedlark.errors import JobReason, JobRefused
from maskedlark.numbers.field import MAX_SIGNED, SignedVector
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import noise_vector
from maskedlark.randomness import below, seeded
from maskedlark.releases.evaluation import UNITS
from maskedlark.releases.job import JobSpec
from maskedlark.releases.possible_sums import check_length
from maskedlark.releases.query import Measure, MeasureKind, QuerySpec
from maskedlark.releases.release import noise_of_both
from tests.builders import World, job_spec, world
from tests.maskedlark.query_specs import evaluation
from tests.maskedlark.query_specs import query as query_of
from tests.measured import SHOP

GAUSSIAN: dict[str, Any] = {"mechanism": "gaussian", "norm": "l2", "epsilon": 8.0}
RECORDS = 50


def refuses(check: Callable[..., None], *given: Any, **named: Any) -> bool:
    try:
        check(*given, **named)
    except JobRefused as refusal:
        return refusal.reason is JobReason.SUM_OUT_OF_RANGE
    return False


def query(of: World) -> QuerySpec:
    noise = 1.0 if of.task.mechanism is not Mechanism.NONE else 0.0
    measures = (
        Measure(value="purchase", scale=4 << 16),
        Measure(value="purchase", kind=MeasureKind.HISTOGRAM, scale=8 << 16),
        Measure(value="count", scale=16 << 16),
    )
    return query_of(of, measures=measures, noise_multiplier=noise, threshold_noise_multiplier=noise)


@pytest.mark.parametrize("settings", [{}, GAUSSIAN, {"mechanism": "laplace", "norm": "l1"}])
def test_every_column_of_an_answer_is_held_to_its_own_range(settings: dict[str, Any]) -> None:
    of = world(measurement=SHOP, **settings)
    spec = query(of)
    noise = noise_of_both(of.task, spec.noise_units(of.task), 7)
    least = [RECORDS * (4 << 16) * -5, *[0] * 5, 0]
    most = [RECORDS * (4 << 16) * 100, *[RECORDS * (8 << 16)] * 5, RECORDS * (16 << 16)]
    for bounds, step in ((least, -1), (most, 1)):
        edge = np.array(bounds, np.int64) + step * noise
        spec.check_possible(of.task, edge, records=RECORDS)
        for column in range(7):
            beyond = edge.copy()
            beyond[column] += step
            assert refuses(spec.check_possible, of.task, beyond, records=RECORDS)


@pytest.mark.parametrize("settings", [{}, GAUSSIAN])
def test_a_cell_of_an_evaluation_holds_no_more_than_all_reports(settings: dict[str, Any]) -> None:
    of = world(**settings)
    spec = evaluation(of, noise_multiplier=1.0 if settings else 0.0)
    noise = noise_of_both(of.task, spec.noise_units(of.task), 20)
    for edge, step in ((-noise, -1), (RECORDS * UNITS + noise, 1)):
        total = np.zeros(20, np.int64)
        total[7] = edge
        spec.check_possible(of.task, total, records=RECORDS)
        total[7] += step
        assert refuses(spec.check_possible, of.task, total, records=RECORDS)


def job(of: World) -> JobSpec:
    return job_spec(
        job_id=bytes(16),
        task_id=of.task.task_id,
        dataset_id=b"d" * 32,
        noise_multiplier=1.0 if of.task.mechanism is not Mechanism.NONE else 0.0,
    )


def test_a_sum_whose_every_coordinate_is_possible_can_be_too_long() -> None:
    of = world()
    spec = job(of)
    most = RECORDS * spec.clip(of.task).released_sensitivity
    along = np.zeros(400, np.int64)
    along[3] = most
    spec.check_sum_possible(of.task, along, records=RECORDS)
    spread = np.full(400, most // 20, np.int64)  # its length is `most`
    spec.check_sum_possible(of.task, spread, records=RECORDS)
    assert refuses(spec.check_sum_possible, of.task, spread + most // 1_000, records=RECORDS)
    assert refuses(spec.check_sum_possible, of.task, np.full(400, most, np.int64), records=RECORDS)


def test_a_length_without_noise_reaches_that_of_all_records_and_no_further() -> None:
    of = world(mechanism="none", norm="l2")
    spec = job(of)
    most = spec.clip(of.task).released_sensitivity
    for longer, is_refused in ((0, False), (10, True)):
        across = math.isqrt(2 * most * longer)  # the length is `longer` more than `most`
        total = np.array([most, across], np.int64)
        assert refuses(spec.check_sum_possible, of.task, total, records=1) is is_refused


def test_the_length_is_not_held_to_an_l2_bound_where_the_clip_is_l1() -> None:
    of = world(mechanism="none", norm="l1")
    spec = job(of)
    most = RECORDS * spec.clip(of.task).released_sensitivity
    spec.check_sum_possible(of.task, np.full(4, most, np.int64), records=RECORDS)


@pytest.mark.parametrize("count", [1, 40, 4_000])
def test_honest_sums_with_noise_are_never_refused(count: int) -> None:
    of = world(**GAUSSIAN)
    spec, randomness = job(of), seeded(count)
    most = RECORDS * spec.clip(of.task).released_sensitivity
    for _ in range(20):
        total = np.zeros(count, np.int64)
        total[int(below(count, 1, randomness)[0])] = most
        for _ in (0, 1):
            total += noise_vector(Mechanism.GAUSSIAN, spec.noise_units(of.task), count, randomness)
        spec.check_sum_possible(of.task, total, records=RECORDS)


@pytest.mark.parametrize("kind", ["train", "measure", "evaluate"])
def test_sums_of_random_masks_are_refused_but_for_a_negligible_chance(kind: str) -> None:
    of = world(measurement=SHOP, **GAUSSIAN)
    randomness = seeded(3)

    def uniform(count: int) -> SignedVector:
        return below(MAX_SIGNED, count, randomness).astype(np.int64) * np.where(
            below(2, count, randomness) > 0, 1, -1
        )

    for _ in range(50):
        if kind == "train":
            assert refuses(job(of).check_sum_possible, of.task, uniform(40), records=RECORDS)
        elif kind == "measure":
            assert refuses(query(of).check_possible, of.task, uniform(7), records=RECORDS)
        else:
            spec = evaluation(of, noise_multiplier=1.0)
            assert refuses(spec.check_possible, of.task, uniform(20), records=RECORDS)


def test_the_noise_of_a_length_is_what_two_gaussians_rarely_pass() -> None:
    """Of 2,000 draws in 50 dimensions none passes the bound, and none comes near a tenth of it from below."""
    draws = np.random.default_rng(5).normal(0.0, 1000 * np.sqrt(2), (2_000, 50)).round().astype(np.int64)
    for draw in draws:
        check_length(draw, most=0, noise_units=1_000, records=0)
    assert refuses(check_length, draws[0] * 3, most=0, noise_units=1_000, records=0)


@pytest.mark.parametrize("count", [1, 50, 4_000])
@pytest.mark.parametrize(("most", "units"), [(0, 1_000), (70_000, 1_000), (70_000, 0)])
def test_a_length_reaches_the_bound_of_the_proof_and_no_further(count: int, most: int, units: int) -> None:
    """e^-45 is under 2^-64."""
    bound = most + math.sqrt(2 * (count + 2 * math.sqrt(45 * count) + 2 * 45)) * units
    within, beyond = (np.full(count, int(bound * by / math.sqrt(count) * 1000)) for by in (0.9999, 1.0001))
    check_length(within, most=most * 1000, noise_units=units * 1000, records=1)
    assert refuses(check_length, beyond, most=most * 1000, noise_units=units * 1000, records=1)
