"""Correlated noise: sensitivity and overlap against all slots, its law, an adversary who sees every step."""

import math
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from maskedlark.privacy.correlated import (
    DENOMINATOR,
    LEAST_SCALE,
    MAX_EPOCHS,
    OWN_SCALE,
    StepStreams,
    best_carried,
    draw_step_noise,
    gain,
    scale_to_keep,
    sensitivity,
    slots_apart,
    tail_of_step,
    trajectory_error,
    units_of_step,
)
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import tail_bound
from maskedlark.privacy.samplers import discrete_gaussian
from maskedlark.randomness import Randomness, Stream, derive_key
from tests import reference

SCALE = 1 << 20


def strategy(carried: int, length: int) -> NDArray[np.float64]:
    """C: the inverse of 1 on the diagonal and -beta below it."""
    taken = np.eye(length) - carried / DENOMINATOR * np.eye(length, k=-1)
    return np.asarray(np.linalg.inv(taken))


def shifts(carried: int, steps: int, epochs: int, tail: int = 0) -> NDArray[np.float64]:
    """(steps, length) what a record of +1 in each epoch does to the steps, for each of its slots."""
    c = strategy(carried, steps * epochs + tail)
    return np.stack([c[:, slot : steps * epochs : steps].sum(axis=1) for slot in range(steps)])


def longest(carried: int, steps: int, epochs: int) -> float:
    """The largest |C g| of all slots and all signs, at finitely many steps."""
    c = strategy(carried, steps * epochs)
    found = 0.0
    for slot in range(steps):
        for signs in product((1, -1), repeat=epochs - 1):
            found = max(found, float(np.linalg.norm(c[:, slot : steps * epochs : steps] @ (1, *signs))))
    return found


def streams(seed: int, step: int) -> StepStreams:
    def stream(kind: str, of: int) -> Randomness:
        return Stream(derive_key(seed.to_bytes(8, "little"), f"{kind} {of}".encode()))

    return StepStreams(
        kept=stream("kept", step), own=stream("own", step), before=stream("kept", step - 1) if step else None
    )


def steps_of_noise(carried: int, scale: int, length: int, count: int, seed: int = 0) -> NDArray[np.int64]:
    """(length, count): so many runs of a job of so many steps."""
    return np.stack([draw_step_noise(carried, scale, count, streams(seed, i)) for i in range(length)])


# --- what a record does, at the worst slots


@pytest.mark.parametrize("carried", [-1, 0, DENOMINATOR, DENOMINATOR + 1])
def test_a_part_that_carries_nothing_or_all_has_no_tail(carried: int) -> None:
    with pytest.raises(ValueError, match="carried must be in"):
        tail_of_step(carried, SCALE, 10)


@pytest.mark.parametrize("carried", [1, 32, 48, 60, 63])
@pytest.mark.parametrize("schedule", [(2, 5), (3, 4), (5, 3), (4, 1)])
def test_no_slots_and_signs_pass_the_sensitivity(carried: int, schedule: tuple[int, int]) -> None:
    steps, epochs = schedule
    assert longest(carried, steps, epochs) <= sensitivity(carried, steps=steps, epochs=epochs)


@pytest.mark.parametrize("carried", [16, 32, 48])
def test_the_sensitivity_is_met_where_more_steps_follow(carried: int) -> None:
    """With enough steps behind the last slot, the worst of all slots reaches it."""
    steps, epochs = 3, 4
    met = max(map(float, np.linalg.norm(shifts(carried, steps, epochs, tail=60), axis=1)))
    assert met == pytest.approx(sensitivity(carried, steps=steps, epochs=epochs), rel=1e-9)
    assert met <= sensitivity(carried, steps=steps, epochs=epochs)


@pytest.mark.parametrize("carried", [1, 32, 48, 61, 63])
@pytest.mark.parametrize("schedule", [(2, 5), (3, 4), (9, 17), (29, 7), (100, 1), (7, 1)])
def test_slots_far_apart_overlap_no_more_than_is_charged(carried: int, schedule: tuple[int, int]) -> None:
    """Each rotation of the evenly spaced slots, whichever of them lie around the epoch's end."""
    steps, epochs = schedule
    apart = slots_apart(carried, steps=steps, epochs=epochs)
    assert 2 <= apart.slots <= steps
    products = (found := shifts(carried, steps, epochs)) @ found.T
    spaced = [number * steps // apart.slots for number in range(apart.slots)]
    charged = apart.overlap * sensitivity(carried, steps=steps, epochs=epochs) ** 2
    for first in range(steps):
        group = products[np.ix_(*[[(first + offset) % steps for offset in spaced]] * 2)]
        assert group[~np.eye(apart.slots, dtype=bool)].max() <= charged


def products(carried: int, steps: int, epochs: int, distance: int) -> Fraction:
    """The product of two slots' shifts at a distance, exactly, with infinitely many steps after them."""
    beta = Fraction(carried, DENOMINATOR)
    pairs = product(range(epochs), repeat=2)
    return sum((beta ** abs(distance + (f - e) * steps) for e, f in pairs), Fraction()) / (1 - beta**2)


@pytest.mark.parametrize("carried", [0, 1, 48, 63])
@pytest.mark.parametrize("schedule", [(2, 5), (3, 4), (7, 1), (29, 3), (2, 1), (300, 2)])
def test_what_is_charged_is_the_exact_sum_and_a_little_more(carried: int, schedule: tuple[int, int]) -> None:
    steps, epochs = schedule
    longest = products(carried, steps, epochs, 0)
    charged = Fraction(sensitivity(carried, steps=steps, epochs=epochs)) ** 2
    assert longest * (1 + Fraction(1, 1 << 41)) <= charged <= longest * (1 + Fraction(1, 1 << 39))

    overlaps = {
        slots: products(carried, steps, epochs, steps // slots) / longest
        for slots in range(2, min(steps, 256) + 1)
    }
    apart = slots_apart(carried, steps=steps, epochs=epochs)
    least, overlap = overlaps[apart.slots], Fraction(apart.overlap)
    assert least * (1 + Fraction(1, 1 << 41)) <= overlap <= least * (1 + Fraction(1, 1 << 38)) or least == 0
    mean_products = {slots: one + (1 - one) / slots for slots, one in overlaps.items()}
    best = min(mean_products.values())
    assert mean_products[apart.slots] <= best * (1 + Fraction(1, 1 << 38))


@pytest.mark.parametrize(
    ("carried", "steps", "slots"), [(0, 1_000, 256), (0, 256, 256), (0, 255, 255), (48, 2, 2)]
)
def test_no_more_slots_are_counted_than_there_are_and_than_256(carried: int, steps: int, slots: int) -> None:
    assert slots_apart(carried, steps=steps, epochs=1).slots == slots


def test_more_of_the_noise_taken_out_leaves_slots_more_alike() -> None:
    found = [slots_apart(carried, steps=29, epochs=7).overlap for carried in (16, 32, 48, 63)]
    assert all(less < more for less, more in pairwise(found))
    assert found[-1] < 1


def test_independent_noise_costs_the_root_of_the_epochs() -> None:
    assert sensitivity(0, steps=29, epochs=7) == pytest.approx(math.sqrt(7), rel=1e-9)


def test_each_epoch_that_begins_costs_more() -> None:
    found = [sensitivity(60, steps=4, epochs=epochs) for epochs in range(1, 40)]
    assert all(less < more for less, more in pairwise(found))


@pytest.mark.parametrize(("carried", "epochs"), [(-1, 1), (DENOMINATOR, 1), (1, 0), (1, MAX_EPOCHS + 1)])
def test_a_sensitivity_outside_its_range_is_refused(carried: int, epochs: int) -> None:
    with pytest.raises(ValueError, match=r"carried must be|correlated noise is (for|limited)"):
        sensitivity(carried, steps=2, epochs=epochs)
    with pytest.raises(ValueError, match="of at least 2 steps"):
        slots_apart(1, steps=1, epochs=1)


# --- the draws


def test_a_step_is_what_the_reference_says() -> None:
    def gaussian(key: bytes, scale: int) -> list[int]:
        return [int(value) for value in discrete_gaussian(scale, 50, Stream(key))]

    keys = [derive_key(b"a", purpose) for purpose in (b"kept", b"own", b"before")]
    drawn = draw_step_noise(
        61, SCALE, 50, StepStreams(kept=Stream(keys[0]), own=Stream(keys[1]), before=Stream(keys[2]))
    )
    assert drawn.tolist() == reference.correlated_noise(
        61, SCALE, gaussian, kept=keys[0], own=keys[1], before=keys[2]
    )


def test_steps_have_the_covariance_that_is_charged() -> None:
    carried, length, count = 48, 5, 40_000
    beta = carried / DENOMINATOR
    taken = np.eye(length) - beta * np.eye(length, k=-1)
    wanted = taken @ taken.T
    found = np.cov(steps_of_noise(carried, SCALE, length, count) / SCALE)
    assert np.abs(found - wanted).max() < 6 * 2 / math.sqrt(count)


def test_the_sum_of_all_steps_keeps_little_noise() -> None:
    noise = steps_of_noise(60, SCALE, 30, 5_000).sum(axis=0) / SCALE
    independent = math.sqrt(30)
    assert noise.std() < independent / 3


def test_two_steps_are_a_discrete_gaussian_on_all_integers() -> None:
    """D u + v leaves no trace of D.

    The joint law is proportional to exp(-k S^-1 k / 2) at every integer k.
    """
    carried, each, d = 50, 24, DENOMINATOR
    u = np.arange(-12 * each, 12 * each + 1, dtype=np.float64)
    weight = np.exp(-(u**2) / (2 * each**2))
    taken = np.array([[1.0, 0.0], [-carried / d, 1.0]]) * d
    inverse = np.linalg.inv(OWN_SCALE**2 * np.eye(2) + each**2 * taken @ taken.T)

    def law(k: tuple[int, int]) -> float:
        first = weight * np.exp(-((k[0] - d * u) ** 2) / (2 * OWN_SCALE**2))
        rest = k[1] + carried * u[:, None] - d * u[None, :]
        return float((first[:, None] * weight[None, :] * np.exp(-(rest**2) / (2 * OWN_SCALE**2))).sum())

    points = [(0, 0), (1, 0), (31, -17), (64, 50), (100, 3), (-700, 900), (1500, -1001)]
    ratios = [
        math.log(law(k)) + 0.5 * float(np.array(k, float) @ inverse @ np.array(k, float)) for k in points
    ]
    assert max(ratios) - min(ratios) < 1e-10


def test_noise_is_within_its_tail_and_its_deviation() -> None:
    noise = steps_of_noise(60, SCALE, 4, 20_000)
    assert int(np.abs(noise).max()) <= tail_of_step(60, SCALE, noise.size)
    assert noise[1:].std() < units_of_step(60, SCALE) * 1.03
    assert noise[1:].std() > units_of_step(60, SCALE) * 0.97


def test_a_steps_tail_and_deviation_count_all_three_parts() -> None:
    """D = 64, v of 512 units, u of 1,024."""
    of_u, of_v = (tail_bound(Mechanism.GAUSSIAN, scale, 9) for scale in (1_024, 512))
    assert tail_of_step(48, 1 << 16, 9) == of_v + (64 + 48) * of_u
    square = 512**2 + (64**2 + 48**2) * 1_024**2
    assert units_of_step(48, 1 << 16) - 1 <= math.sqrt(square) < units_of_step(48, 1 << 16)
    assert (LEAST_SCALE, OWN_SCALE, DENOMINATOR, MAX_EPOCHS) == (1 << 16, 512, 64, 1_000)
    for outside in (0, 64):
        with pytest.raises(ValueError, match="carried must be in"):
            tail_of_step(outside, 1 << 16, 9)


def test_less_noise_than_the_proof_needs_is_refused() -> None:
    assert scale_to_keep(LEAST_SCALE) == 1024
    assert scale_to_keep(LEAST_SCALE + 1) == 1025
    with pytest.raises(ValueError, match="use more frac_bits"):
        draw_step_noise(60, LEAST_SCALE - 1, 1, streams(0, 0))
    for carried in (0, DENOMINATOR):
        with pytest.raises(ValueError, match="carried must be"):
            draw_step_noise(carried, LEAST_SCALE, 1, streams(0, 0))


# --- an adversary who sees every step


def shown(noise: NDArray[np.int64], shift: NDArray[np.float64], carried: int) -> float:
    """What the best test tells: the distance of two Gaussians that has its hits at its false alarms.

    It undoes C^-1 step by step, with the answers alone, and projects on the record's shift.
    """
    direction = strategy(carried, len(shift)) @ shift
    direction /= np.linalg.norm(direction)
    project = strategy(carried, len(shift)).T @ direction
    without = project @ noise
    with_record = project @ (noise + shift[:, None])
    threshold = (without.mean() + with_record.mean()) / 2
    hits, alarms = (with_record > threshold).mean(), (without > threshold).mean()
    return float(norm.ppf(hits) - norm.ppf(alarms))


@pytest.mark.parametrize("noises", [1, 2], ids=["one-helper", "both-helpers"])
def test_an_adversary_at_the_worst_slots_stays_under_the_claim(noises: int) -> None:
    """t = 2, three epochs, a record of +C in each: the claim is met from below, and sqrt(E) is not enough."""
    carried, steps, epochs, tail = 48, 2, 3, 24
    scale, runs = LEAST_SCALE, 60_000
    length = steps * epochs + tail
    noise = sum(
        (steps_of_noise(carried, scale, length, runs, seed) for seed in range(noises)),
        start=np.zeros((length, runs), np.int64),
    )
    clip = scale / 0.6  # a noise multiplier of .6
    least, most = math.inf, 0.0
    for slot in range(steps):
        shift = np.zeros(length)
        shift[slot : steps * epochs : steps] = clip
        found = shown(noise, shift, carried) * 0.6 * math.sqrt(noises)
        least, most = min(least, found), max(most, found)
    claimed = sensitivity(carried, steps=steps, epochs=epochs)
    assert 0.96 * claimed < most < 1.02 * claimed
    assert least > 0.96 * most  # the slots are equally bad where enough steps follow
    assert most > 1.5 * math.sqrt(epochs)


# --- how much of a step is taken out


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("schedule", [(29, 7), (9, 17), (2, 5), (10, 1)])
def test_the_choice_is_the_best_of_all(momentum: float, schedule: tuple[int, int]) -> None:
    steps, epochs = schedule
    gains = {one: gain(one, steps=steps, epochs=epochs, momentum=momentum) for one in range(1, DENOMINATOR)}
    assert gains[best_carried(steps=steps, epochs=epochs, momentum=momentum)] == min(gains.values()) < 1


def test_the_error_is_that_of_the_weights() -> None:
    length, momentum, carried = 40, 0.9, 60
    velocity = np.array(
        [[momentum ** (i - j) if j <= i else 0.0 for j in range(length)] for i in range(length)]
    )
    weights = np.tril(np.ones((length, length))) @ velocity
    left = weights @ np.linalg.inv(strategy(carried, length))
    wanted = math.sqrt((left**2).sum() / length)
    assert trajectory_error(carried, rounds=length, momentum=momentum) == pytest.approx(wanted, rel=1e-9)


def test_the_figures_of_the_decision_are_these() -> None:
    """docs/adr/0042-one-slot.md: mnist 8 x 24 and online_shoppers 17 x 9 at momentum .9."""
    assert sensitivity(61, steps=24, epochs=8) == pytest.approx(12.383, abs=0.001)
    assert gain(60, steps=24, epochs=8, momentum=0.9) == pytest.approx(0.248, abs=0.001)
    assert gain(57, steps=9, epochs=17, momentum=0.9) == pytest.approx(0.368, abs=0.001)
