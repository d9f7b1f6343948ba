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
from maskedlark.releases.job import JobSpec, charge, check_sum_possible, noise_bound, noise_units, round_units
from maskedlark.releases.samples import Samples, carrying, charge_of_samples
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
    charged = charge(FULL.task, correlated_job(is_sample_public=True), rounds)
    assert (charged.rounds, charged.epoch_steps, charged.exposure) == (1, 1, 0.0)
    assert not charged.is_sampled
    length = sensitivity(CARRIED, steps=STEPS, epochs=epochs)
    assert charged.noise_multiplier == pytest.approx(6.0 / length, rel=1e-12)
    assert charged.noise_multiplier * length <= 6.0 * (1 + 1e-15)


@pytest.mark.parametrize("rounds", [1, STEPS * EPOCHS])
def test_a_job_of_secret_slots_is_charged_whole_once_it_has_answered(rounds: int) -> None:
    """An ad server that may close it early learns by the posterior of the slot when that is best for it."""
    charged = charge(FULL.task, correlated_job(), rounds)
    assert charged == charge(FULL.task, correlated_job(), STEPS * EPOCHS)
    assert charged.exposure == STEPS * EXPOSURE
    known = charge(FULL.task, correlated_job(is_sample_public=True), STEPS * EPOCHS)
    assert charged.without_sampling() == known


def test_both_helpers_noise_and_the_slot_count_against_the_ad_server_alone() -> None:
    charged = charge(FULL.task, correlated_job(), STEPS * EPOCHS)
    known = charged.without_sampling()
    more = replace(known, noise_multiplier=known.noise_multiplier * math.sqrt(2))
    assert spent([known], 1e-6).ad_server == pytest.approx(spent([more], 1e-6).colluding, rel=1e-9)
    assert spent([charged], 1e-6).ad_server < spent([known], 1e-6).ad_server
    assert spent([charged], 1e-6).colluding == spent([known], 1e-6).colluding


def test_the_two_parts_of_a_charge_are_a_release_and_an_epoch() -> None:
    charged = charge(FULL.task, correlated_job(), STEPS * EPOCHS)
    noise, overlap = charged.noise_multiplier, charged.overlap
    together = replace(charged.without_sampling(), noise_multiplier=noise / math.sqrt(overlap))
    apart = replace(charged, noise_multiplier=noise / math.sqrt(1 - overlap), overlap=0.0)
    assert spent([charged], 1e-6).ad_server == pytest.approx(spent([together, apart], 1e-6).ad_server)


def test_beside_other_releases_a_job_costs_no_more_than_with_known_slots() -> None:
    """In a filter secret slots are dear; the smaller bound counts, and which the first release decides."""
    charged, query = charge(FULL.task, correlated_job(), 1), charge_builders.gaussian(20.0)
    known = charged.without_sampling()
    assert spent_in_turn([[charged], [query]], 1e-6) == spent_in_turn([[known], [query]], 1e-6)
    epochs = charge_builders.gaussian(3.0, epoch_steps=9)
    beside = spent_in_turn([[charged], [epochs]], 1e-6)
    assert beside.ad_server <= spent_in_turn([[known], [epochs]], 1e-6).ad_server


def test_jobs_that_hang_on_each_other_cost_no_more_than_fixed_ones() -> None:
    """Each is one Gaussian, so a filter adds up their precisions."""
    jobs = [[charge(FULL.task, correlated_job(carried=one), 7)] for one in (8, 32, 60)]
    flat = [one for job_ in jobs for one in job_]
    assert spent_in_turn(jobs, 1e-6).colluding == pytest.approx(spent(flat, 1e-6).colluding, rel=1e-12)


def test_split_noise_counts_a_half_of_the_variance() -> None:
    whole = charge(FULL.task, correlated_job(), STEPS)
    half = charge(SPLIT.task, correlated_job(SPLIT), STEPS)
    assert half.noise_multiplier == pytest.approx(whole.noise_multiplier / math.sqrt(2), rel=1e-9)


def test_a_person_with_several_reports_moves_each_of_their_slots() -> None:
    """m reports in slots of their own shift at most m times as far as one."""
    person = world(mechanism="gaussian", unit="user", reports_per_user=3)
    charged = charge(person.task, correlated_job(person, noise_multiplier=30.0), STEPS)
    alone = charge(FULL.task, correlated_job(noise_multiplier=30.0), STEPS)
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
    scale = noise_units(FULL.task, correlated_job())
    assert round_units(FULL.task, correlated_job()) == pytest.approx(
        scale * math.sqrt(1 + (CARRIED / 64) ** 2), rel=1e-6
    )
    assert round_units(FULL.task, job(FULL, **ALLOCATED)) == scale


def test_a_sum_that_correlated_noise_can_have_is_possible_and_more_is_not() -> None:
    spec = correlated_job()
    bound = noise_bound(FULL.task, spec, 1)
    assert bound > noise_bound(FULL.task, replace(spec, carried=None), 1)
    deviation = math.sqrt(2) * round_units(FULL.task, spec)
    check_sum_possible(FULL.task, spec, np.array([int(6 * deviation)]), records=1)
    with refused(JobReason.SUM_OUT_OF_RANGE):
        check_sum_possible(FULL.task, spec, np.array([4 * bound]), records=1)


def test_a_plan_is_charged_as_its_job_is() -> None:
    for is_public in (False, True):
        spec = correlated_job(is_sample_public=is_public, rounds=9)
        samples = Samples(
            sampling_numerator=spec.sampling_numerator,
            epoch_steps=STEPS,
            is_public=is_public,
            carried=CARRIED,
        )
        assert charge_of_samples(FULL.task, 6.0, rounds=9, samples=samples) == charge(FULL.task, spec, 9)


@pytest.mark.parametrize("mechanism", ["laplace", "none"])
def test_samples_carry_gaussian_noise_only(mechanism: str) -> None:
    samples = Samples(sampling_numerator=2**32 // STEPS, epoch_steps=STEPS)
    task = world(mechanism=mechanism, norm="l1" if mechanism == "laplace" else "l2").task
    with refused(JobReason.MALFORMED, match="must be Gaussian"):
        carrying(task, samples, rounds=STEPS, momentum=0.0, carried=CARRIED)
    carried = carrying(FULL.task, samples, rounds=STEPS, momentum=0.0, carried=CARRIED)
    assert carried == replace(samples, carried=CARRIED)
