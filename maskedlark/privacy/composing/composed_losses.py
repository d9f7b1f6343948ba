"""The bound by privacy loss distributions, which are composed by convolution and rounded up to a grid.

Source: Y. Zhu, J. Dong, Y.-X. Wang, "Optimal Accounting of Differential Privacy via Characteristic Function",
2022. The losses of Poisson samples of Gaussian releases, and of less noise than `random_allocation` computes,
come from Google's dp-accounting, which brings scipy, more than a second to import: loaded only for these.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from maskedlark.privacy.charge import GAUSSIAN_SLACK, Charge, continuous
from maskedlark.privacy.composing import random_allocation
from maskedlark.privacy.composing.loss_distribution import MAX_CELLS, LossDistribution, cells_of_sum
from maskedlark.privacy.composing.merged_charges import as_one_report
from maskedlark.privacy.mechanism import Mechanism

_KEPT_LOSSES: Final = 16  # composed distributions, of `MAX_CELLS` in each direction at most
_MAX_MIXED: Final = 32  # reports of one person whose number in a sample is a mixture; of more, all or none
_LEAST_MIXED_SHIFT: Final = 2.0**-10  # of all of them, over the noise
_MAX_MIXED_CELLS: Final = 1 << 19  # cells times reports: the time that a mixture takes
_WIDEST: Final = 500.0


def loss_distribution_epsilon(precision: float, charges: Sequence[Charge], delta: float) -> float:
    """Compose privacy loss distributions, rounded up to a grid that keeps this fast, to an epsilon."""
    plain = (
        [Charge(mechanism=Mechanism.GAUSSIAN, noise_multiplier=precision**-0.5, sampling_rate=1.0, rounds=1)]
        if precision
        else []
    )
    shifts = [charge.reports / charge.noise_multiplier for charge in (*plain, *charges)]
    width = sum(8 * shift + shift**2 for shift in shifts)
    if width > _WIDEST:
        return math.inf
    # A loss of typical size s on a grid of h looks like one of variance up to s * h: the grid must not swamp
    # the true variance.
    losses = [(charge.rounds, _typical_loss(charge)) for charge in (*plain, *charges)]
    is_swamped = 1e-3 * sum(rounds * loss for rounds, loss in losses) > 0.1 * sum(
        rounds * loss**2 for rounds, loss in losses
    )
    grid = 1e-4 if is_swamped and width < 20 else 1e-3
    charges = [_mix(charge, grid) for charge in charges]
    is_own = all(map(is_ours, (*plain, *charges)))
    first, *others = found = [
        *(_one_loss(charge, grid, is_own=is_own) for charge in plain),
        *(_losses(charge, grid, is_own) for charge in charges),
    ]
    if any(map(_is_infinite, found)) or sum(max(map(len, _masses(one))) for one in found) > MAX_CELLS:
        return math.inf  # dp-accounting cannot compose what has no finite loss at all
    for other in others:
        first = first.compose(other)
    return float(first.get_epsilon_for_delta(delta))


def _typical_loss(charge: Charge) -> float:
    noise, rate = as_one_report(charge.noise_multiplier, charge.sampling_rate, charge.reports)
    return rate * math.expm1(1 / noise) / math.sqrt(charge.epoch_steps)


def is_ours(charge: Charge) -> bool:
    """Return whether our own code computes a charge's losses: all but those of sampled Gaussians."""
    if continuous(charge.mechanism, charge.noise_multiplier, charge.noises) < random_allocation.LEAST_NOISE:
        return False
    if charge.epoch_steps > 1:
        return charge.epoch_steps <= random_allocation.MAX_STEPS
    return charge.mechanism is Mechanism.LAPLACE or charge.sampling_rate == 1


@lru_cache(maxsize=_KEPT_LOSSES)
def _losses(charge: Charge, grid: float, is_own: bool) -> Any:
    """Return the pessimistic losses of all rounds of a charge; infinite if there are too many cells."""
    one = _one_loss(replace(charge, rounds=1), grid, is_own=is_own)
    if is_own or max(cells_of_sum(masses, charge.rounds) for masses in _masses(one)) <= MAX_CELLS:
        return one.self_compose(charge.rounds)
    return LossDistribution.infinite(grid).for_dp_accounting()


def _is_infinite(found: Any) -> bool:
    """Return whether a loss is certainly infinite, in some direction: see `LossDistribution.infinite`."""
    return any(not masses.any() for masses in _masses(found))


def _masses(found: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the probabilities of the losses in both directions."""
    if isinstance(found, LossDistribution):
        return found.remove.masses, found.add.masses
    remove, add = (one.to_dense_pmf() for one in (found._pmf_remove, found._pmf_add))
    return np.asarray(remove._probs), np.asarray(add._probs)


def _mix(charge: Charge, grid: float) -> Charge:
    """Return a charge that costs at least as much and whose mixture is fast to compute.

    Of many reports, or of long losses, the charge of one report that costs more; also of losses so short that
    dp-accounting does not come to an end.
    """
    shift = charge.reports / charge.noise_multiplier
    cells = charge.reports * (8 * shift + shift**2) / grid
    is_quick = charge.reports <= _MAX_MIXED and cells <= _MAX_MIXED_CELLS
    if charge.reports == 1 or (is_quick and shift >= _LEAST_MIXED_SHIFT):
        return charge
    noise, rate = as_one_report(charge.noise_multiplier, charge.sampling_rate, charge.reports)
    return replace(charge, noise_multiplier=noise, sampling_rate=rate, reports=1)


def _one_loss(charge: Charge, grid: float, *, is_own: bool) -> Any:
    """Return the pessimistic privacy loss distribution of one round, or one epoch, of a charge.

    A `LossDistribution` if all charges that are composed are our own, else dp-accounting's.
    """
    noise = continuous(charge.mechanism, charge.noise_multiplier, charge.noises)
    if is_ours(charge):
        ratios = random_allocation.epoch_ratios(charge.mechanism, noise, charge.epoch_steps, charge.noises)
        found = ratios.losses(grid, charge.sampling_rate)
        return found if is_own else found.for_dp_accounting()
    from dp_accounting.pld import privacy_loss_distribution as distributions

    settings = {
        "sampling_prob": charge.sampling_rate,
        "value_discretization_interval": grid,
        "pessimistic_estimate": True,
    }
    if charge.mechanism is Mechanism.LAPLACE:
        return distributions.from_laplace_mechanism(noise, **settings)
    if charge.reports > 1:
        return _mixture(charge, grid)
    return distributions.from_gaussian_mechanism(noise, **settings)


def _mixture(charge: Charge, grid: float) -> Any:
    """Return the losses of a round whose sample holds a binomial number of one person's reports.

    Source: Choquette-Choo, Ganesh, Steinke, Thakurta 2024.
    """
    from dp_accounting.pld import privacy_loss_distribution as distributions

    m, rate = charge.reports, charge.sampling_rate
    odds = [math.comb(m, k) * rate**k * (1 - rate) ** (m - k) for k in range(m + 1)]
    odds[0] = 1.0 - math.fsum(odds[1:])
    kept = [k for k in range(m + 1) if odds[k] > 0]
    return distributions.from_mixture_gaussian_mechanism(
        charge.noise_multiplier * GAUSSIAN_SLACK,
        [float(k) for k in kept],
        [odds[k] for k in kept],
        pessimistic_estimate=True,
        value_discretization_interval=grid,
    )
