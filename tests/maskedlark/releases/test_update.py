from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from maskedlark import canonical
from maskedlark.errors import InvalidTask, JobReason
from maskedlark.numbers.field import from_signed, to_bytes
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.release import combine
from maskedlark.releases.update import Phase, UpdateRound, UpdateSpec, answer_update, seen_rate
from tests.builders import world
from tests.refusals import refused
from tests.update_builders import FORM, random_vector, update_job, update_round, update_world

WORLD = update_world(mechanism="gaussian")
TASK = WORLD.task
ROUND = update_round(TASK)
SPEC = UpdateSpec(dataset_id=bytes(32), round=ROUND)


def no_noise(_mechanism: Mechanism, _scale: int, count: int) -> Any:
    return np.zeros(count, np.int64)


def released(records: int, spec: UpdateSpec = SPEC, other: UpdateSpec | None = None) -> Any:
    vector = from_signed(np.arange(FORM.length))
    return [
        answer_update(
            task=TASK, spec=one, pair=WORLD.pair(role), records=records, vector=vector, noise=no_noise
        )
        for role, one in enumerate((spec, other or spec))
    ]


def test_a_release_adds_up_and_one_share_alone_does_not_tell() -> None:
    first, second = released(records=2)
    assert combine(first, second).tolist() == [2 * index for index in range(FORM.length)]
    assert to_bytes(first.vector) != to_bytes(from_signed(np.arange(FORM.length)))


def test_fewer_devices_than_k_are_released_as_none() -> None:
    first, second = released(records=TASK.min_batch_size - 1)
    assert not combine(first, second).any()


@pytest.mark.parametrize(
    "changed",
    [
        replace(SPEC, dataset_id=b"d" * 32),
        replace(SPEC, round=update_round(TASK, index=1)),
        replace(SPEC, round=update_round(TASK, clip_norm=0.5)),
        replace(SPEC, round=update_round(TASK, job=update_job(TASK, instructions="[]"))),
    ],
)
def test_helpers_that_are_shown_different_rounds_disagree(changed: UpdateSpec) -> None:
    with refused(JobReason.HELPERS_DISAGREE):
        combine(*released(records=2, other=changed))


def test_noise_is_for_the_whole_vector_with_its_extra_coordinates() -> None:
    asked: list[int] = []

    def noise(_mechanism: Mechanism, scale: int, count: int) -> Any:
        asked.append(scale)
        return np.zeros(count, np.int64)

    answer_update(
        task=TASK,
        spec=SPEC,
        pair=WORLD.pair(0),
        records=2,
        vector=from_signed(np.zeros(FORM.length, np.int64)),
        noise=noise,
    )
    assert asked == [ROUND.noise_units(TASK)]
    assert asked[0] >= ROUND.job.phases[0].noise_multiplier * 2**24 * np.sqrt(1 + 2 / 64)


def test_one_round_has_one_release_whatever_its_weights() -> None:
    others = [update_round(TASK, content_digest=b"y" * 32), update_round(TASK, clip_norm=0.5)]
    assert {one.query_id for one in (ROUND, *others)} == {ROUND.query_id}
    assert len({one.round_id for one in (ROUND, *others)}) == 3
    assert update_round(TASK, index=1).query_id != ROUND.query_id
    assert update_round(TASK, job=update_job(TASK, job_id=b"w" * 16)).query_id != ROUND.query_id


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (update_round(TASK, clip_norm=TASK.clip_norm * 2), JobReason.MALFORMED),
        (update_round(TASK, job=update_job(TASK, task_id=bytes(32))), JobReason.MALFORMED),
        (update_round(TASK, index=3), JobReason.ROUND_BEYOND_PLAN),
        (
            update_round(
                TASK, job=update_job(TASK, phases=(Phase(rounds=1, sampling_rate=0.5, noise_multiplier=0.0),))
            ),
            JobReason.NOISE_OUT_OF_RANGE,
        ),
        (
            update_round(
                TASK,
                job=update_job(TASK, phases=(Phase(rounds=1, sampling_rate=0.5, noise_multiplier=1e-5),)),
            ),
            JobReason.NOISE_OUT_OF_RANGE,
        ),
    ],
)
def test_a_round_that_cannot_be_released_is_refused(one: UpdateRound, reason: JobReason) -> None:
    with refused(reason):
        one.check(TASK, records=10)


def test_a_sum_that_could_wrap_and_a_task_of_labels_are_refused() -> None:
    with refused(JobReason.OVERFLOW):
        ROUND.check(TASK, records=1 << 40)
    labels = world().task
    with refused(JobReason.UNDECLARED):
        update_round(labels, job=update_job(labels)).check(labels, records=10)


def test_a_release_that_could_wrap_is_refused_before_it_is_charged() -> None:
    SPEC.check(TASK, records=100)
    with refused(JobReason.OVERFLOW):
        SPEC.check(TASK, records=1 << 40)


def test_a_schedule_gives_each_round_the_settings_of_its_phase() -> None:
    phases = tuple(
        Phase(rounds=count, sampling_rate=rate, noise_multiplier=1.0) for count, rate in ((1, 0.1), (2, 0.2))
    )
    job = update_job(TASK, phases=phases)
    assert [job.phase(index).sampling_rate for index in range(3)] == [0.1, 0.2, 0.2]
    assert [(charge.sampling_rate, charge.rounds) for charge in job.charges(TASK, 2)] == [
        (seen_rate(0.1, 1.0), 1),
        (seen_rate(0.2, 1.0), 1),
    ]
    assert job.charges(TASK, 0) == ()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"sampling_rate": 1.5}, "sampling_rate"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"rounds": 0}, "rounds"),
    ],
)
def test_settings_of_a_phase_out_of_range_are_refused(settings: dict[str, float], reason: str) -> None:
    with pytest.raises(InvalidTask, match=reason):
        canonical.build(Phase, {"rounds": 1, "sampling_rate": 0.5, "noise_multiplier": 1.0, **settings})


def test_a_release_is_charged_at_the_rate_that_cover_leaves() -> None:
    assert SPEC.charges(TASK)[0].sampling_rate == pytest.approx(0.5)
    assert SPEC.charges(TASK)[0].is_self_sampled
    half = update_world(mechanism="gaussian", updates=replace(FORM, cover=0.5)).task
    assert replace(SPEC, round=update_round(half)).charges(half)[0].sampling_rate == pytest.approx(2 / 3)
    none = update_world(mechanism="gaussian", updates=replace(FORM, cover=0.0)).task
    assert replace(SPEC, round=update_round(none)).charges(none)[0].sampling_rate == 1.0


@given(
    st.floats(min_value=2.0**-40, max_value=1.0, exclude_max=True),
    st.floats(min_value=2.0**-40, max_value=1.0),
)
@example(0.1, 0.3)
@example(1 / 3, 2 / 3)
def test_the_rate_that_is_charged_is_never_under_the_exact_one(drawn: float, cover: float) -> None:
    rate, share = Fraction(drawn), Fraction(cover)
    exact = rate / (rate + (1 - rate) * share)
    assert exact <= Fraction(seen_rate(drawn, cover)) <= exact * (1 + Fraction(1, 2**48))


def test_sums_are_read_in_their_own_units() -> None:
    quiet = update_world().task
    one = update_round(quiet)
    clip_units = 2**24
    vectors = [random_vector(FORM, replace(quiet.clip), seed) for seed in range(3)]
    total = np.sum(vectors, axis=0)
    read = one.read_sum(quiet, total, records=3)
    assert read.values == pytest.approx(total[:5] / clip_units)
    assert read.excess == 3.0
    assert read.weight == pytest.approx(sum(vector[5] for vector in vectors) / (clip_units >> 3))


UNIT = 2**24


@pytest.mark.parametrize(
    "total",
    [
        [4 * UNIT, 0, 0, 0, 0, 0, 0],
        [-3 * UNIT - 1, 0, 0, 0, 0, 0, 0],
        [2 * UNIT, 2 * UNIT, 2 * UNIT, 0, 0, 0, 0],  # each is possible, all together are too long
        [0, 0, 0, 0, 0, -1, 0],  # a negative sum of weights
        [0, 0, 0, 0, 0, 3 * (UNIT >> 3) + 1, 0],
        [0, 0, 0, 0, 0, 0, 3 * (UNIT >> 3) + 1],
        [0, 0, 0, 0, 0, 0, -3 * (UNIT >> 3) - 1],
    ],
)
def test_a_sum_beyond_what_honest_devices_reach_is_refused(total: list[int]) -> None:
    quiet = update_world().task
    one = update_round(quiet)
    with refused(JobReason.SUM_OUT_OF_RANGE):
        one.read_sum(quiet, np.array(total, np.int64), records=3)


@pytest.mark.parametrize(
    "total",
    [
        [3 * UNIT, 0, 0, 0, 0, 3 * (UNIT >> 3), -3 * (UNIT >> 3)],
        [1 * UNIT, 2 * UNIT, -2 * UNIT, 0, 0, 0, 3 * (UNIT >> 3)],  # of length 3
    ],
)
def test_the_most_that_honest_devices_reach_is_read(total: list[int]) -> None:
    quiet = update_world().task
    assert (
        update_round(quiet).read_sum(quiet, np.array(total, np.int64), records=3).values[0] == total[0] / UNIT
    )


def test_a_noisy_sum_of_the_most_that_devices_send_is_never_thrown_away() -> None:
    drawn = np.random.default_rng(5)
    scale = ROUND.noise_units(TASK)
    most = np.array([3 * UNIT, 0, 0, 0, 0, 3 * (UNIT >> 3), -3 * (UNIT >> 3)])
    for _ in range(2_000):
        noisy = most + np.rint(drawn.normal(0, scale * np.sqrt(2), FORM.length)).astype(np.int64)
        assert ROUND.read_sum(TASK, noisy, records=3).values[0] == pytest.approx(noisy[0] / UNIT)


def test_a_task_without_noise_has_no_round_with_a_noise_multiplier() -> None:
    task = update_world(mechanism="none").task
    noisy = update_job(task, phases=(Phase(rounds=1, sampling_rate=0.5, noise_multiplier=1.0),))
    update_round(task).check(task, records=10)
    with refused(JobReason.NOISE_OUT_OF_RANGE, "must be 0"):
        update_round(task, job=noisy).check(task, records=10)
