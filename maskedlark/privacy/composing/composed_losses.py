"""The bound by privacy loss distributions, which are composed by convolution and rounded up to a grid.

Source: Y. Zhu, J. Dong, Y.-X. Wang, "Optimal Accounting of Differential Privacy via Characteristic Function",
2022.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from maskedlark.privacy.charge import Charge, continuous
from maskedlark.privacy.composing.likelihood_ratios import sample_ratios
from maskedlark.privacy.composing.loss_distribution import LossDistribution, Losses, repeat
from maskedlark.privacy.composing.random_allocation import LEAST_NOISE, MAX_STEPS, epoch_ratios
from maskedlark.privacy.mechanism import Mechanism

_KEPT_LOSSES: Final = 16  # composed distributions, of `MAX_CELLS` in each direction at most
_WIDEST: Final = 500.0
_CHOICE_DELTA: Final = 1e-6
_MOST_POWER: Final = 8.0  # ln of the mean of R^m: above it one report at a time is the better bound


def loss_distribution_epsilon(precision: float, charges: Sequence[Charge], delta: float) -> float:
    """Compose privacy loss distributions, rounded up to a grid that keeps this fast, to an epsilon."""
    plain = (
        [Charge(mechanism=Mechanism.GAUSSIAN, noise_multiplier=precision**-0.5, sampling_rate=1.0, rounds=1)]
        if precision
        else []
    )
    shifts = [
        charge.reports * (1 + charge.is_of_labels) / charge.noise_multiplier for charge in (*plain, *charges)
    ]
    width = sum(8 * shift + shift**2 for shift in shifts)
    if width > _WIDEST:
        return math.inf
    # A loss of typical size s on a grid of h looks like one of variance up to s * h: the grid must not swamp
    # the true variance.
    losses = [(charge.rounds * charge.reports, _typical_loss(charge)) for charge in (*plain, *charges)]
    is_swamped = 1e-3 * sum(rounds * loss for rounds, loss in losses) > 0.1 * sum(
        rounds * loss**2 for rounds, loss in losses
    )
    grid = 1e-4 if is_swamped and width < 20 else 1e-3
    first, *others = [
        *(_all_rounds(charge, grid) for charge in plain),
        *(_losses(charge, grid) for charge in charges),
    ]
    for other in others:
        first = first.compose(other)
    return first.get_epsilon_for_delta(delta)


def _typical_loss(charge: Charge) -> float:
    noise = charge.noise_multiplier / math.sqrt(charge.reports)
    return charge.sampling_rate * math.expm1(1 / noise) / math.sqrt(charge.epoch_steps)


@lru_cache(maxsize=_KEPT_LOSSES)
def _losses(charge: Charge, grid: float) -> LossDistribution:
    return _all_rounds(charge, grid)


def _all_rounds(charge: Charge, grid: float) -> LossDistribution:
    """Return the pessimistic losses of all rounds, or epochs, of a charge; infinite if not computed.

    In an epoch the ratio of a person's m reports is at most R^m, where R is that of one: given the slots,
    e^((k y - k^2 / 2) / z^2) of k reports in one step is at most the product of their own ratios. That bounds
    the losses when they are removed. Those when they are added, and both where R^m is far from the truth,
    are bounded by m epochs of one report each (`Setting.as_single_reports`).
    """
    mechanism, rate, reports = charge.mechanism, charge.sampling_rate, charge.reports
    steps, rounds = charge.epoch_steps, charge.rounds
    noise = continuous(mechanism, charge.noise_multiplier, charge.noises)
    if noise / math.sqrt(reports) < LEAST_NOISE or steps > MAX_STEPS:
        return LossDistribution.infinite(grid)
    if charge.is_of_labels:
        ratios_of_one = (
            sample_ratios(noise, rate, 1)
            if rate < 1
            else epoch_ratios(mechanism, noise, steps, noises=charge.noises).points()
        )
        return ratios_of_one.against_negative().losses(grid).self_compose(rounds)
    if mechanism is Mechanism.GAUSSIAN and rate < 1:
        return sample_ratios(noise, rate, reports).losses(grid).self_compose(rounds)
    ratios = epoch_ratios(mechanism, noise / math.sqrt(reports), steps, noises=charge.noises)
    singly = ratios.points(rate).losses(grid).self_compose(rounds * reports)
    if reports == 1 or reports * (reports - 1) / (2 * noise**2) > _MOST_POWER:
        return singly
    together = epoch_ratios(mechanism, noise, steps, reports=reports).losses_of_several(grid)
    removed = min(repeat(together, rounds, Losses.compose), singly.remove, key=_epsilon_of)
    return LossDistribution(remove=removed, add=singly.add)


def _epsilon_of(losses: Losses) -> float:
    """Return by what one of several valid bounds is chosen."""
    return losses.epsilon(_CHOICE_DELTA)
