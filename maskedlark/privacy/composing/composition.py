"""The epsilon of a list of charges under one trusted curator: of several valid bounds, the smallest.

    compose_epsilon(charges, delta)      # settings fixed before anything is released
    adaptive_epsilon(charges, delta)     # settings that may depend on what was released

    pure epsilons       Laplace, and sampled Laplace: they add up, at any delta
    one Gaussian        Gaussian releases without sampling compose to a single one, in closed form
    Renyi divergences   they add up, at each order
    loss distributions  composed by convolution, rounded up to a grid

The first three take microseconds a charge, the last one many milliseconds for each *different* charge, of
which there may be thousands. So equal charges are merged, all unsampled Gaussians become one, and loss
distributions are composed of few different charges only. Of many, only the Renyi divergences count, which are
rarely far from the truth, because many small losses are nearly one Gaussian. Sampled Gaussians are then
rounded to fewer different ones, with less noise and a higher rate, and only the largest epochs of random
allocation are credited for their secret slots. All of that can only cost more.

`adaptive_epsilon` may use fewer of the bounds: pure epsilons, one Gaussian, and Renyi divergences at few
orders, each with a part of delta (docs/explanation/privacy-proofs.md, "Settings that depend on releases").

Source: I. Mironov, K. Talwar, L. Zhang, "Renyi Differential Privacy of the Sampled Gaussian Mechanism", 2019;
Y. Zhu, J. Dong, Y.-X. Wang, "Optimal Accounting of Differential Privacy via Characteristic Function", 2022;
V. Feldman, T. Zrnic, "Individual Privacy Accounting via a Renyi Filter", 2021; A. Smith, A. Thakurta, "Fully
Adaptive Composition for Gaussian Differential Privacy", 2022.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from maskedlark.privacy.charge import Charge
from maskedlark.privacy.composing.analytic_gaussian import gaussian_epsilon
from maskedlark.privacy.composing.composed_losses import loss_distribution_epsilon
from maskedlark.privacy.composing.merged_charges import ChargeParts, Setting, merge
from maskedlark.privacy.composing.renyi import (
    ORDERS,
    RENYI_ORDERS,
    divergences_of,
    epsilon_of_divergences,
    most_left_out,
    pure_epsilons,
)

_LARGEST_EXPONENT: Final = 700.0
# Privacy loss distributions are composed only where that is quick, takes little memory, and their Fourier
# transforms' rounding is far below delta.
_LOSSES_FROM_EPSILON: Final = 1e-3
_LOSSES_UP_TO_ROUNDS: Final = 1 << 20
_LOSSES_FROM_DELTA: Final = 1e-11  # below, what is rounded off a single loss counts for too much
MAX_COMPOSED: Final = 8
"""The most different charges whose loss distributions are composed, without the unsampled Gaussians."""
# The orders that may decide when settings are adaptive: each has an equal part of delta.
_FILTER_ORDERS: Final = (3, 5, 8, 12, 18, 28, 48, 96)
_TAILS: Final = 1e-3  # of delta, kept for what the ratios of random allocation leave out
_FILTER_TAILS: Final = 0.25  # the same in a filter, whose delta is a small part
_LEAST_PART: Final = 1e-300  # of delta: below it doubles lose their digits, and only pure epsilons count


def compose_epsilon(charges: Iterable[Charge], delta: float, *, noises: int = 1) -> float:
    """Return the epsilon of charges at `delta`, as under one trusted curator.

    The noise of each charge is all the noise there is.

    Args:
        charges: Any number, in any order.
        delta: In [0, 1).
        noises: How many noises like the one that a charge names are summed, unless that one is common: 2 for
            two helpers'.

    Raises:
        ValueError: `delta` is outside its range.
    """
    parts = _check_parts(charges, noises, delta)
    if parts.is_noiseless:
        return math.inf
    if len(parts.laplace) + len(parts.sampled) + len(parts.epochs) <= MAX_COMPOSED:
        return _of_few(parts.precision, parts.others(), delta)
    quick = _quick_epsilon(parts.fewer(), delta)
    return (
        min(quick, _quick_epsilon(parts.without_sampling(), delta))
        if parts.sampled or parts.epochs
        else quick
    )


def adaptive_epsilon(charges: Iterable[Charge], delta: float, *, noises: int = 1) -> float:
    """Return the same where each charge's settings may depend on what was released before.

    Raises:
        ValueError: `delta` is outside its range.
    """
    parts = _check_parts(charges, noises, delta)
    if parts.is_noiseless:
        return math.inf
    # Of all epochs, also of those that are counted as known below: which these are is found only at the end,
    # and what is left out of an epoch was decided before it began.
    left_out = math.fsum(
        [rounds * key.reports * most_left_out(key.steps) for key, rounds in parts.epochs.items()]
        + [
            rounds * most_left_out(1)
            for key, rounds in parts.sampled.items()
            if key.reports > 1 or key.is_of_labels
        ]
    )
    if left_out > _FILTER_TAILS * delta:
        parts, left_out = parts.without_sampling(), 0.0
    elif len(parts.laplace) + len(parts.sampled) + len(parts.epochs) > MAX_COMPOSED:
        parts = parts.fewer()
    filtered = _filter_epsilon(parts, delta, left_out)
    is_all_pure = not (parts.precision or parts.sampled) and parts.is_laplace
    return min(filtered, _pure_sum(parts)) if is_all_pure else filtered


def is_one_setting(charges: Iterable[Charge]) -> bool:
    """Return whether all charges have one setting, or are unsampled Gaussians: their order is irrelevant.

    A job that plans others too could go on with those: its charges never are (privacy-proofs.md,
    "Settings that depend on releases"). Those of a job of correlated noise are not one setting either, so
    that `are_gaussian_if_known` may count.
    """
    found = list(charges)
    is_alike = len({Setting.of(one) for one in found}) <= 1
    return is_alike and not any(one.is_of_mixed_plan or one.overlap for one in found)


def are_gaussian_if_known(charges: Iterable[Charge]) -> bool:
    """Return whether all charges are unsampled Gaussians, or jobs of correlated noise: the same, slots known.

    Which of the two bounds the first release decides: whether it fits with its slots known.
    """
    return all(one.overlap or Setting.of(one) is None for one in charges)


def _check_parts(charges: Iterable[Charge], noises: int, delta: float) -> ChargeParts:
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be in [0, 1), not {delta}")
    return merge(charges, noises)


@lru_cache(maxsize=1024)
def _of_few(precision: float, others: tuple[Charge, ...], delta: float) -> float:
    """Return the smallest bound for unsampled Gaussians of a total precision and a few other charges."""
    if not others:
        return _exact_gaussian_epsilon(precision, delta) if precision else 0.0
    parts = replace(merge(others, 1), precision=precision)
    quick = _quick_epsilon(parts, delta)
    if any(charge.is_sampled for charge in others):  # next to a rate of 1 the closed form may be the smallest
        known = _quick_epsilon(parts.without_sampling(), delta)
    else:
        known = math.inf
    rounds = sum(charge.rounds * charge.reports for charge in others)
    if rounds <= _LOSSES_UP_TO_ROUNDS and quick > _LOSSES_FROM_EPSILON and delta >= _LOSSES_FROM_DELTA:
        quick = min(quick, loss_distribution_epsilon(precision, others, delta))
    return min(quick, known)


def _quick_epsilon(parts: ChargeParts, delta: float) -> float:
    """Return the smallest of the bounds that need no loss distributions."""
    if not (parts.laplace or parts.sampled or parts.epochs):
        return _exact_gaussian_epsilon(parts.precision, delta)
    quick = _renyi_epsilon(parts, delta) if delta > 0 else math.inf
    if parts.precision or parts.sampled or not parts.is_laplace:
        return quick
    return min(quick, _pure_sum(parts))


def _pure_sum(parts: ChargeParts) -> float:
    """Return the sum of the epsilons of Laplace releases, valid at any delta."""
    rounds, pure = pure_epsilons({**parts.laplace, **parts.epochs})
    return math.fsum(rounds * pure)


def _exact_gaussian_epsilon(precision: float, delta: float) -> float:
    """Return the epsilon of Gaussian releases without sampling.

    They compose to one Gaussian release (Balle and Wang 2018).
    """
    return gaussian_epsilon(1 / math.sqrt(precision), delta)


def _renyi_epsilon(parts: ChargeParts, delta: float) -> float:
    """Return the epsilon by adding Renyi divergences."""
    divergences, left_out = divergences_of(parts)
    kept = (1 - _TAILS) * delta if left_out else delta
    epsilon = epsilon_of_divergences(divergences, kept)
    if _covers(left_out, epsilon, _TAILS * delta):
        return epsilon
    if any(key.reports > 1 for key in parts.sampled if not key.is_of_labels):
        return _quick_epsilon(parts.singly(), delta)
    return _quick_epsilon(parts.without_sampling(), delta)


def _filter_epsilon(parts: ChargeParts, delta: float, left_out: float) -> float:
    """Return the epsilon of a filter over a few Renyi orders, each with its own part of delta.

    With a sum S of divergences at order a, and a part d of delta, it is S + ln((a-1)/a) - ln(a d) / (a-1)
    (Canonne, Kamath, Steinke 2020, proposition 12).

    Args:
        parts: The releases.
        delta: Of all orders, and of what the divergences leave out.
        left_out: The most that they leave out, within its part of delta.
    """
    # Settings may follow what was released, and so may the order that turns out least: each pays its part.
    part = (1 - _FILTER_TAILS) * delta / len(_FILTER_ORDERS)
    if part < _LEAST_PART:
        return math.inf
    divergences, _ = divergences_of(parts)
    chosen = [RENYI_ORDERS.index(order) for order in _FILTER_ORDERS]
    orders = ORDERS[chosen]
    found = divergences[chosen] + np.log1p(-1 / orders) - np.log(orders * part) / (orders - 1)
    # what is kept was scaled up, by 1 / (1 - left_out) at most
    return max(0.0, float(found.min())) + 2 * left_out


def _covers(left_out: float, epsilon: float, kept: float) -> bool:
    """Return whether what divergences leave out stays within the part of delta reserved for it."""
    return left_out == 0 or (epsilon < _LARGEST_EXPONENT and left_out * (1 + math.exp(epsilon)) <= kept)
