"""The audit of random allocation in small: helpers as they are, and builds that must be seen."""

from math import sqrt

import pytest
from scipy.stats import binom, norm

from maskedlark.privacy.accounting import spent
from tests import charge_builders
from tests.audit import epochs, slots_hidden
from tests.audit.bounds import bounds_by_count, chance
from tests.audit.site import DELTA

FEW = 4


@pytest.mark.slow
def test_a_ground_canary_is_once_in_an_epoch_and_under_the_claim() -> None:
    found = epochs.examine(5, trials=FEW)
    assert found.most == 1
    assert found.shown[0] <= found.claimed[0] < found.claimed[1]
    assert found.shown[1] <= found.claimed[1]
    charged = charge_builders.gaussian(epochs.NOISE, rounds=epochs.EPOCHS, epoch_steps=epochs.STEPS)
    assert found.claimed[1] == pytest.approx(spent([charged], DELTA).colluding)


@pytest.mark.slow
def test_slots_that_hang_on_the_transcript_are_ground_into_many_rounds() -> None:
    assert epochs.examine(5, is_ground=True, trials=FEW).most > 1


def test_slots_that_hang_on_the_transcript_are_caught_with_probability_999_in_1000() -> None:
    """Of at least ten rounds out of sixteen, where nearly 13 are expected: each number of right guesses."""
    rounds, found = epochs.EPOCHS * epochs.STEPS, 1 - (1 - 1 / epochs.STEPS) ** epochs._TRIES
    assert binom.cdf(9, rounds, found) < 0.06
    at_least, at_most = bounds_by_count(epochs.TRIALS, epochs.ERROR)
    claimed = sqrt(epochs.EPOCHS) / epochs.NOISE
    is_missed = norm.ppf(at_least)[:, None] - norm.ppf(at_most)[None, :] <= claimed
    right = sum(
        binom.pmf(taken, rounds, found) * norm.cdf(sqrt(taken) / epochs.NOISE / 2)
        for taken in range(rounds + 1)
    )
    assert chance(is_missed, right, 1 - right) <= 0.001


def test_slots_show_in_neither_work_nor_sizes_nor_tags() -> None:
    found = slots_hidden.examine(5, epochs=4)
    assert found.is_same_work
    assert found.are_tags_silent


def test_work_that_is_not_padded_shows_the_samples_sizes() -> None:
    with slots_hidden.unpadded_work():
        found = slots_hidden.examine(5, epochs=1)
    assert not found.is_same_work
    assert found.are_tags_silent


def test_tags_that_hang_on_values_alone_show_who_is_in_a_round() -> None:
    with slots_hidden.tags_of_values_alone():
        found = slots_hidden.examine(5, epochs=4)  # of 32 rounds, some have samples of one size
    assert found.is_same_work
    assert not found.are_tags_silent
