"""What correlated noise is charged as, in tasks of every kind, and sums that it can have."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from maskedlark.errors import JobReason
from maskedlark.privacy.accounting import spent, spent_in_turn
from maskedlark.privacy.correlated import sensitivity
from maskedlark.privacy.sample_size import EXPOSURE
from maskedlark.releases.job import JobSpec
from maskedlark.releases.samples import Samples
from tests import charge_builders
from tests.builders import world
from tests.maskedlark.releases.test_split_noise import FULL, SPLIT, job
from tests.refusals import refused

STEPS, EPOCHS, CARRIED = 4, 5, 56
ALLOCATED: dict[str, Any] = {
    "epoch_steps": STEPS,
    "sampling_numerator": 2**32 // STEPS,
    "rounds": STEPS * EPOCHS,
    "noise_multiplier": 6.0,
}


def correlated_job(of: Any = FULL, **changes: Any) -> JobSpec:
    return job(of, **{**ALLOCATED, "carried": CARRIED, **changes})


@pytest.mark.parametrize(("rounds", "epochs"), [(1, 1), (STEPS, 1), (STEPS + 1, 2), (STEPS * EPOCHS, EPOCHS)])
def test_begun_epochs_of_known_slots_are_one_release_at_less_noise(rounds: int, epochs: int) -> None:
    charged = correlated_job(is_sample_public=True).charge(FULL.task, rounds)
    assert (charged.rounds, charged.epoch_steps, charged.exposure) == (1, 1, 0.0)
    assert not charged.is_sampled
    length = sensitivity(CARRIED, steps=STEPS, epochs=epochs)
    assert charged.noise_multiplier == pytest.approx(6.0 / length, rel=1e-12)
    assert charged.noise_multiplier * length <= 6.0 * (1 + 1e-15)


@pytest.mark.parametrize("rounds", [1, STEPS * EPOCHS])
def test_a_job_of_secret_slots_is_charged_whole_once_it_has_answered(rounds: int) -> None:
    """An ad server that may close it early learns by the posterior of the slot when that is best for it."""
    charged = correlated_job().charge(FULL.task, rounds)
    assert charged == correlated_job().charge(FULL.task, STEPS * EPOCHS)
    assert charged.exposure == STEPS * EXPOSURE
    known = correlated_job(is_sample_public=True).charge(FULL.task, STEPS * EPOCHS)
    assert charged.without_sampling() == known


def test_both_helpers_noise_and_the_slot_count_against_the_ad_server_alone() -> None:
    charged = correlated_job().charge(FULL.task, STEPS * EPOCHS)
    known = charged.without_sampling()
    more = replace(known, noise_multiplier=known.noise_multiplier * math.sqrt(2))
    assert spent([known], 1e-6).ad_server == pytest.approx(spent([more], 1e-6).colluding, rel=1e-9)
    assert spent([charged], 1e-6).ad_server < spent([known], 1e-6).ad_server
    assert spent([charged], 1e-6).colluding == spent([known], 1e-6).colluding


def test_the_two_parts_of_a_charge_are_a_release_and_an_epoch() -> None:
    charged = correlated_job().charge(FULL.task, STEPS * EPOCHS)
    noise, overlap = charged.noise_multiplier, charged.overlap
    together = replace(charged.without_sampling(), noise_multiplier=noise / math.sqrt(overlap))
    apart = replace(charged, noise_multiplier=noise / math.sqrt(1 - overlap), overlap=0.0)
    assert spent([charged], 1e-6).ad_server == pytest.approx(spent([together, apart], 1e-6).ad_server)


def test_beside_other_releases_a_job_costs_no_more_than_with_known_slots() -> None:
    """In a filter secret slots are dear; the smaller bound counts, and which the first release decides."""
    charged, query = correlated_job().charge(FULL.task, 1), charge_builders.gaussian(20.0)
    known = charged.without_sampling()
    assert spent_in_turn([[charged], [query]], 1e-6) == spent_in_turn([[known], [query]], 1e-6)
    epochs = charge_builders.gaussian(3.0, epoch_steps=9)
    beside = spent_in_turn([[charged], [epochs]], 1e-6)
    assert beside.ad_server <= spent_in_turn([[known], [epochs]], 1e-6).ad_server


def test_jobs_that_hang_on_each_other_cost_no_more_than_fixed_ones() -> None:
    """Each is one Gaussian, so a filter adds up their precisions."""
    jobs = [[correlated_job(carried=one).charge(FULL.task, 7)] for one in (8, 32, 60)]
    flat = [one for job_ in jobs for one in job_]
    assert spent_in_turn(jobs, 1e-6).colluding == pytest.approx(spent(flat, 1e-6).colluding, rel=1e-12)


def test_split_noise_counts_a_half_of_the_variance() -> None:
    whole = correlated_job().charge(FULL.task, STEPS)
    half = correlated_job(SPLIT).charge(SPLIT.task, STEPS)
    assert half.noise_multiplier == pytest.approx(whole.noise_multiplier / math.sqrt(2), rel=1e-9)


def test_a_person_with_several_reports_moves_each_of_their_slots() -> None:
    """m reports in slots of their own shift at most m times as far as one."""
    person = world(mechanism="gaussian", unit="user", reports_per_user=3)
    charged = correlated_job(person, noise_multiplier=30.0).charge(person.task, STEPS)
    alone = correlated_job(noise_multiplier=30.0).charge(FULL.task, STEPS)
    assert charged.reports == 3
    at_a_third = replace(alone, noise_multiplier=alone.noise_multiplier / 3)
    assert spent([charged], 1e-6).colluding == pytest.approx(spent([at_a_third], 1e-6).colluding, rel=1e-9)
    assert (
        spent([alone], 1e-6).ad_server
        < spent([charged], 1e-6).ad_server
        < spent([charged.without_sampling()], 1e-6).ad_server
    )


def test_slots_are_a_secret_unless_the_job_says_otherwise() -> None:
    assert correlated_job().is_sample_secret
    assert not correlated_job(is_sample_public=True).is_sample_secret
    assert job(FULL, **ALLOCATED).is_sample_secret


def test_a_step_has_more_noise_than_its_scale() -> None:
    scale = correlated_job().noise_units(FULL.task)
    assert correlated_job().round_units(FULL.task) == pytest.approx(
        scale * math.sqrt(1 + (CARRIED / 64) ** 2), rel=1e-6
    )
    assert job(FULL, **ALLOCATED).round_units(FULL.task) == scale


def test_a_sum_that_correlated_noise_can_have_is_possible_and_more_is_not() -> None:
    spec = correlated_job()
    bound = spec.noise_bound(FULL.task, 1)
    assert bound > replace(spec, carried=None).noise_bound(FULL.task, 1)
    deviation = math.sqrt(2) * spec.round_units(FULL.task)
    spec.check_sum_possible(FULL.task, np.array([int(6 * deviation)]), records=1)
    with refused(JobReason.SUM_OUT_OF_RANGE):
        spec.check_sum_possible(FULL.task, np.array([4 * bound]), records=1)


def test_a_plan_is_charged_as_its_job_is() -> None:
    for is_public in (False, True):
        spec = correlated_job(is_sample_public=is_public, rounds=9)
        samples = Samples(
            sampling_numerator=spec.sampling_numerator,
            epoch_steps=STEPS,
            is_public=is_public,
            carried=CARRIED,
        )
        assert samples.charge(FULL.task, 6.0, rounds=9) == spec.charge(FULL.task, 9)


@pytest.mark.parametrize("mechanism", ["laplace", "none"])
def test_samples_carry_gaussian_noise_only(mechanism: str) -> None:
    samples = Samples(sampling_numerator=2**32 // STEPS, epoch_steps=STEPS)
    task = world(mechanism=mechanism, norm="l1" if mechanism == "laplace" else "l2").task
    with refused(JobReason.MALFORMED, match="must be Gaussian"):
        samples.carrying(task, rounds=STEPS, momentum=0.0, carried=CARRIED)
    carried = samples.carrying(FULL.task, rounds=STEPS, momentum=0.0, carried=CARRIED)
    assert carried == replace(samples, carried=CARRIED)
