"""Random allocation: each record takes part in one round of each epoch, whatever the rounds bring."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, chisquare

from maskedlark.canonical import decode, encode
from maskedlark.errors import InvalidTask, JobReason
from maskedlark.privacy.accounting import Charge, spent
from maskedlark.privacy.correlated import sensitivity, slots_apart
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.sample_size import EXPOSURE, hides, least_batch, under, work_size
from maskedlark.releases.job import JobSpec
from maskedlark.releases.round import MaskedSum
from maskedlark.releases.samples import Samples, _steps_of_epoch
from maskedlark.reports.helper_pair_key import SAMPLING_DENOMINATOR
from maskedlark.reports.input_shares import InputShares
from tests.builders import helper_share, of_shares, zeros
from tests.maskedlark.releases.test_split_noise import FULL, job
from tests.refusals import refused

STEPS = 7
RECORDS = 5_000
ALLOCATED = {"epoch_steps": STEPS, "sampling_numerator": SAMPLING_DENOMINATOR // STEPS}


def allocated(**changes: object) -> JobSpec:
    return job(FULL, **{**ALLOCATED, **changes})


def taking_part(spec: JobSpec, round_index: int, weights: bytes, role: int = 0) -> np.ndarray:
    script = spec.round_transcript(round_index=round_index, weights=weights, numerics=b"")
    return spec.draw_sample(FULL.pair(role), round_index, script, RECORDS)


def test_each_record_takes_part_once_an_epoch_whatever_weights_are_sent() -> None:
    spec = allocated()
    for epoch in range(3):
        rounds = [taking_part(spec, epoch * STEPS + step, bytes([step, epoch])) for step in range(STEPS)]
        assert (np.sum(rounds, axis=0) == 1).all()


def test_other_weights_move_nobody_to_another_round() -> None:
    spec = allocated()
    assert (taking_part(spec, 3, b"one") == taking_part(spec, 3, b"ground")).all()


def test_both_helpers_allocate_alike_and_epochs_and_jobs_differently() -> None:
    spec = allocated()
    assert (taking_part(spec, 4, b"w", role=0) == taking_part(spec, 4, b"w", role=1)).all()
    assert (taking_part(spec, 4, b"w") != taking_part(spec, 4 + STEPS, b"w")).any()
    assert (taking_part(spec, 4, b"w") != taking_part(replace(spec, job_id=b"o" * 16), 4, b"w")).any()


def test_slots_are_uniform_and_independent_of_each_other() -> None:
    slots = FULL.pair(0).slots(bytes(32), 0, 70_000, STEPS)
    pairs = slots[::2] * np.uint64(STEPS) + slots[1::2]
    assert chisquare(np.bincount(slots.astype(np.int64), minlength=STEPS)).pvalue > 1e-6
    assert chisquare(np.bincount(pairs.astype(np.int64), minlength=STEPS**2)).pvalue > 1e-6


def test_a_job_from_before_allocation_keeps_its_bytes() -> None:
    encoded = encode(job(FULL))
    assert b"epoch_steps" not in encoded
    assert b"is_sample_public" not in encoded
    assert decode(JobSpec, encode(allocated(is_sample_public=True))) == allocated(is_sample_public=True)


def test_epoch_steps_go_with_their_own_rate_only() -> None:
    spec = encode(allocated()).replace(b'"epoch_steps":7', b'"epoch_steps":8')
    with pytest.raises(InvalidTask, match="sampling_numerator"):
        decode(JobSpec, spec)


@pytest.mark.parametrize(("rounds", "epochs"), [(1, 1), (STEPS, 1), (STEPS + 1, 2), (5 * STEPS, 5)])
def test_a_begun_epoch_is_charged_whole_in_both_budgets(rounds: int, epochs: int) -> None:
    charged = allocated().charge(FULL.task, rounds)
    assert (charged.epoch_steps, charged.rounds) == (STEPS, epochs)
    known = job(FULL, sampling_numerator=SAMPLING_DENOMINATOR).charge(FULL.task, epochs)
    assert spent([charged], 1e-6).colluding == spent([known], 1e-6).colluding


def test_public_samples_save_nothing() -> None:
    shown = allocated(is_sample_public=True).charge(FULL.task, 3 * STEPS)
    assert not shown.is_sampled
    assert shown.rounds == 3
    assert not job(FULL, is_sample_public=True).charge(FULL.task, 9).is_sampled


def test_secret_samples_are_charged_for_what_their_size_may_show() -> None:
    assert allocated().charge(FULL.task, 1).exposure == STEPS * EXPOSURE
    assert job(FULL).charge(FULL.task, 1).exposure == EXPOSURE
    assert job(FULL, sampling_numerator=SAMPLING_DENOMINATOR).charge(FULL.task, 1).exposure == 0


@pytest.mark.parametrize(("others", "rate", "k"), [(1_999, 0.01, 20), (19_999, 0.01, 20), (999, 0.3, 200)])
def test_the_bound_on_too_few_is_above_the_binomial_and_close_to_it(others: int, rate: float, k: int) -> None:
    exact = binom.cdf(k - 1, others, rate)
    bound = under(k, others=others, rate=rate)
    assert exact <= bound
    assert bound <= 1.5 * exact or bound == 1.0


@pytest.mark.parametrize("dataset_size", [50, 2_000, 60_000, 1 << 20])
@pytest.mark.parametrize("batch", [1, 20, 500, 2_048])
def test_a_larger_sample_than_the_padding_is_rarer_than_charged(dataset_size: int, batch: int) -> None:
    expected = min(batch, dataset_size)
    padded = work_size(expected=expected, least=1, most=dataset_size)
    assert binom.sf(padded, dataset_size, min(1.0, (expected + 1) / dataset_size)) <= math.exp(-32)


@pytest.mark.parametrize("k", [1, 20, 100])
def test_the_least_batch_hides_and_one_less_does_not(k: int) -> None:
    least = least_batch(dataset_size=20_000, k=k)
    assert hides(dataset_size=20_000, rate=least / 20_000, k=k)
    assert not hides(dataset_size=20_000, rate=(least - 1) / 20_000, k=k)


def test_a_batch_that_may_be_under_k_is_refused_and_told_what_fits() -> None:
    records = 100 * FULL.task.min_batch_size
    rate = SAMPLING_DENOMINATOR // 100
    small = job(FULL, sampling_numerator=rate)
    with refused(JobReason.MALFORMED, r"from [0-9]+ on its secrecy counts"):
        small.check_sample_hides(FULL.task, records=records)
    replace(small, is_sample_public=True).check_sample_hides(FULL.task, records=records)


def test_planned_samples_are_public_where_their_size_would_show_them() -> None:
    k = FULL.task.min_batch_size
    hidden = Samples.of(FULL.task, batch_size=20 * k + 200, dataset_size=100_000, is_allocated=True)
    shown = Samples.of(FULL.task, batch_size=k, dataset_size=100_000, is_allocated=True)
    assert (hidden.is_public, shown.is_public) == (False, True)
    whole = Samples.of(FULL.task, batch_size=100_000, dataset_size=100_000, is_allocated=True)
    assert whole == Samples(sampling_numerator=SAMPLING_DENOMINATOR)


@pytest.mark.parametrize(("batch", "steps"), [(100, 10), (101, 9), (999, None), (1_000, None), (300, 3)])
def test_an_epochs_batches_are_no_smaller_than_asked_for(batch: float, steps: int | None) -> None:
    assert _steps_of_epoch(expected_batch_size=batch, dataset_size=1_000) == steps


def test_the_work_of_a_step_does_not_depend_on_its_size() -> None:
    spec = allocated()
    shares = InputShares(
        features=np.zeros((RECORDS, 4), np.uint8),
        labels=np.zeros((RECORDS, 2), np.uint32),
        mask_shares=np.ones((RECORDS, 2), np.uint64),
    )
    sizes, counted = set(), set()

    def count(batch: InputShares) -> MaskedSum:
        sizes.add(len(batch))
        counted.add(int(batch.mask_shares.any(axis=1).sum()))
        return zeros(FULL.task)

    for index in range(STEPS):
        helper_share(FULL, spec, 0, of_shares(shares, count), records=len(shares), round_index=index)
    assert len(sizes) == 1
    assert len(counted) > 1


@pytest.mark.parametrize("rounds", [1, 2, 6, 7])
@pytest.mark.parametrize("steps", [2, 3, 7])
def test_samples_are_charged_by_what_hides_them(steps: int, rounds: int) -> None:
    """Epochs whole, coins each, known samples as none at all, correlated noise as one release."""

    def charged(**samples: Any) -> Charge:
        given = {"sampling_numerator": SAMPLING_DENOMINATOR // steps, **samples}
        return Samples(**given).charge(FULL.task, 2.0, rounds=rounds)

    plain = Charge(mechanism=Mechanism.GAUSSIAN, noise_multiplier=2.0, sampling_rate=1.0, rounds=rounds)
    epochs = replace(plain, rounds=math.ceil(rounds / steps))
    assert charged(epoch_steps=steps) == replace(epochs, epoch_steps=steps, exposure=steps * 2.0**-46)
    assert charged(epoch_steps=steps, is_public=True) == epochs
    rate = SAMPLING_DENOMINATOR // steps / SAMPLING_DENOMINATOR
    assert charged() == replace(plain, sampling_rate=rate, exposure=2.0**-46)
    assert charged(is_public=True) == charged(sampling_numerator=SAMPLING_DENOMINATOR) == plain

    length = sensitivity(32, steps=steps, epochs=epochs.rounds)
    together = replace(plain, rounds=1, noise_multiplier=2.0 / length)
    assert charged(epoch_steps=steps, carried=32, is_public=True) == together
    apart = slots_apart(32, steps=steps, epochs=epochs.rounds)
    assert charged(epoch_steps=steps, carried=32) == replace(
        together, epoch_steps=apart.slots, overlap=apart.overlap, exposure=steps * 2.0**-46
    )
