"""The epsilon of a list of charges under one trusted curator: of several valid bounds, the smallest.

    composed_epsilon(charges, delta)     # settings fixed before anything is released
    adaptive_epsilon(charges, delta)     # settings that may hang on what was released

    pure epsilons       Laplace, and sampled Laplace: they add up, at any delta
    one Gaussian        Gaussian releases without sampling compose to a single one, in closed form
    Renyi divergences   they add up, at each order
    loss distributions  composed by convolution, rounded up to a grid

The first three take microseconds a charge, the last one many milliseconds for each *different* charge, of
which there may be thousands. So equal charges are merged, all unsampled Gaussians become one, and loss
distributions are composed of few different charges only. Of many, the Renyi divergences alone count: what is
rarely far from the truth, for many small losses are nearly one Gaussian. Sampled Gaussians are then rounded
to fewer different ones, with less noise and a higher rate, and only the largest epochs of random allocation
are credited for their secret slots. All of that can only cost more.

`adaptive_epsilon` may use fewer of the bounds: pure epsilons, one Gaussian, and Renyi divergences at few
orders, each with a part of delta (docs/explanation/privacy.md, "Settings that hang on releases").

Source: I. Mironov, K. Talwar, L. Zhang, "Renyi Differential Privacy of the Sampled Gaussian Mechanism", 2019;
Y. Zhu, J. Dong, Y.-X. Wang, "Optimal Accounting of Differential Privacy via Characteristic Function", 2022;
V. Feldman, T. Zrnic, "Individual Privacy Accounting via a Renyi Filter", 2021; A. Smith, A. Thakurta, "Fully
Adaptive Composition for Gaussian Differential Privacy", 2022;
the losses of Poisson samples and of Laplace noise are computed by Google's dp-accounting.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from maskedlark.frozen import frozen
from maskedlark.privacy import random_allocation
from maskedlark.privacy.analytic_gaussian import gaussian_epsilon
from maskedlark.privacy.charge import GAUSSIAN_SLACK, LAPLACE_SLACK, NOISE_MULTIPLIERS, Charge
from maskedlark.privacy.loss_distribution import MAX_CELLS, LossDistribution, cells_of_sum
from maskedlark.privacy.mechanism import Mechanism

# dp-accounting brings scipy, more than a second to import: it is loaded only for what it alone knows, Poisson
# samples and Laplace noise.

_RENYI_ORDERS: Final = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024)
_ORDERS: Final = np.array(_RENYI_ORDERS, dtype=np.float64)
_LARGEST_EXPONENT: Final = 700.0
# Privacy loss distributions are composed only where that is quick, takes little memory, and their Fourier
# transforms' rounding is far below delta.
_LOSSES_FOR_EPSILON: Final = (1e-3, 200.0)
_LOSSES_UP_TO_ROUNDS: Final = 1 << 20
_LOSSES_FROM_DELTA: Final = 1e-10
_ROUNDING_OF_ROUNDS: Final = 1e-13  # dp-accounting's transforms, of each round: a thousand times a double's
_KEPT_LOSSES: Final = 16  # composed distributions, of `MAX_CELLS` in each direction at most
_MAX_MIXED: Final = 32  # reports of one person whose number in a sample is a mixture; of more, all or none
_LEAST_MIXED_SHIFT: Final = 2.0**-10  # of all of them, over the noise
_MAX_MIXED_CELLS: Final = 1 << 19  # cells times reports: the time that a mixture takes
_WIDEST: Final = 500.0
_RATES: Final = (2.0**-40, 1 - 2.0**-24)
"""Between these losses are computed in doubles: a lower rate counts as the lowest, a higher one as 1."""
MAX_COMPOSED: Final = 8
"""Loss distributions are composed of so many different charges at most, beside the unsampled Gaussians."""
_MAX_CLASSES: Final = 24  # of sampled Gaussians, whose divergences take a third of a millisecond each
_MAX_EPOCHS: Final = 8  # different settings of random allocation are computed: a tenth of a second each
_RATIOS: Final = (1.01, 1.05, 1.25, 2.0, 8.0, 2.0**20)
_FILTER_ORDERS: Final = (3, 5, 8, 12, 18, 28, 48, 96)
"""The orders that may decide when settings are adaptive: each has an equal part of delta."""
_TAILS: Final = 1e-3  # of delta, kept for what the ratios of random allocation leave out
_FILTER_TAILS: Final = 0.25  # the same in a filter, whose delta is a small part
_LEAST_PART: Final = 1e-300  # of delta: below it doubles lose their digits, and only pure epsilons count


Key: TypeAlias = tuple[Mechanism, float, float, int, int]
"""A mechanism, noise multiplier, sampling rate, steps an epoch, and reports of one person."""


def composed_epsilon(charges: Iterable[Charge], delta: float, *, noises: float = 1.0) -> float:
    """The epsilon at `delta` of charges, as under one trusted curator.

    The noise of each charge is all the noise there is.

    Args:
        charges: Any number, in any order.
        delta: In [0, 1).
        noises: How much more Gaussian noise there is than a charge names, unless its noise is common: sqrt(2)
            for two helpers'.

    Raises:
        ValueError: `delta` is outside its range.
    """
    parts = _checked_parts(charges, noises, delta)
    if parts.is_noiseless:
        return math.inf
    if len(parts.laplace) + len(parts.sampled) + len(parts.epochs) <= MAX_COMPOSED:
        return _of_few(parts.precision, parts.others(), delta)
    quick = _quick_epsilon(parts.fewer(), delta)
    return min(quick, _quick_epsilon(parts.unsampled(), delta)) if parts.sampled or parts.epochs else quick


def adaptive_epsilon(charges: Iterable[Charge], delta: float, *, noises: float = 1.0) -> float:
    """The same where each charge's settings may hang on what was released before.

    Raises:
        ValueError: `delta` is outside its range.
    """
    parts = _checked_parts(charges, noises, delta)
    if parts.is_noiseless:
        return math.inf
    # Of all epochs, also of those that are counted as known below: which these are is found only at the end,
    # and what is left out of an epoch was decided before it began.
    left_out = math.fsum(rounds * _most_left_out(key[3]) for key, rounds in parts.epochs.items())
    if left_out > _FILTER_TAILS * delta:
        parts, left_out = parts.unsampled(), 0.0
    elif len(parts.laplace) + len(parts.sampled) + len(parts.epochs) > MAX_COMPOSED:
        parts = parts.fewer()
    filtered = _filtered_epsilon(parts, delta, left_out)
    is_all_pure = not (parts.precision or parts.sampled) and parts.is_laplace
    return min(filtered, _pure_sum(parts)) if is_all_pure else filtered


def is_one_setting(charges: Iterable[Charge]) -> bool:
    """Whether charges are all at one setting, or all unsampled Gaussians: they cost the same either way.

    A job that plans others too could go on with those: its charges never are (privacy.md, "Settings that hang
    on releases").
    """
    found = list(charges)
    return len({_setting(one) for one in found}) <= 1 and not any(one.is_of_mixed_plan for one in found)


def _setting(charge: Charge) -> Key | None:
    """All but the number of rounds; one value for all unsampled Gaussians."""
    if charge.mechanism is Mechanism.GAUSSIAN and not charge.is_sampled:
        return None
    noise = -charge.noise_multiplier if charge.is_common else charge.noise_multiplier
    return charge.mechanism, noise, charge.sampling_rate, charge.epoch_steps, charge.reports


@frozen
class _Parts:
    """Charges, equal ones merged, by what bounds them.

    Attributes:
        precision: Of all unsampled Gaussian releases: the sum of 1 / noise^2.
        laplace: Rounds by settings, without epochs.
        sampled: The same of sampled Gaussian releases.
        epochs: The same of random allocation.
        is_noiseless: Whether one has no noise, or too little to count.
    """

    precision: float
    laplace: dict[Key, int]
    sampled: dict[Key, int]
    epochs: dict[Key, int]
    is_noiseless: bool

    @property
    def is_laplace(self) -> bool:
        """Whether no epoch is Gaussian."""
        return all(key[0] is not Mechanism.GAUSSIAN for key in self.epochs)

    def others(self) -> tuple[Charge, ...]:
        """All but the unsampled Gaussians, in canonical order."""
        return _charges({**self.laplace, **self.sampled, **self.epochs})

    def fewer(self) -> "_Parts":
        """The same or more cost, with few different sampled Gaussians and epochs of random allocation."""
        by_size = sorted(self.epochs, key=lambda key: (self.epochs[key] / key[1] ** 2, key), reverse=True)
        kept, rest = by_size[:_MAX_EPOCHS], by_size[_MAX_EPOCHS:]
        precision, laplace = self._without_slots(rest)
        return replace(
            self,
            precision=precision,
            laplace=laplace,
            sampled=_on_a_grid(self.sampled),
            epochs={key: self.epochs[key] for key in kept},
        )

    def unsampled(self) -> "_Parts":
        """The same, to whoever knows each sample."""
        shown = replace(self, laplace=_at_rate_1(self.laplace))
        precision, laplace = shown._without_slots([*self.epochs, *self.sampled])
        return replace(self, precision=precision, laplace=laplace, sampled={}, epochs={})

    def _without_slots(self, keys: Iterable[Key]) -> tuple[float, dict[Key, int]]:
        """The precision and the Laplace releases, with some sampled ones as if their samples were known."""
        rounds = {**self.epochs, **self.sampled}
        precisions, laplace = [self.precision], Counter(self.laplace)
        for key in keys:
            mechanism, noise, _, _, reports = key
            if mechanism is Mechanism.GAUSSIAN:
                precisions.append(rounds[key] * (reports / (noise * GAUSSIAN_SLACK)) ** 2)
            else:
                laplace[mechanism, noise, 1.0, 1, 1] += rounds[key]
        return math.fsum(precisions), dict(laplace)


def _checked_parts(charges: Iterable[Charge], noises: float, delta: float) -> _Parts:
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be in [0, 1), not {delta}")
    return _parts(charges, noises)


def _parts(charges: Iterable[Charge], noises: float) -> _Parts:
    """Every charge is looked at once, and this is all that is done for each of thousands."""
    smallest, largest = NOISE_MULTIPLIERS
    plain: Counter[float] = Counter()
    laplace: Counter[Key] = Counter()
    sampled: Counter[Key] = Counter()
    epochs: Counter[Key] = Counter()
    is_noiseless = False
    for charge in charges:
        mechanism, noise, rate = charge.mechanism, charge.noise_multiplier, _counted(charge.sampling_rate)
        steps, reports = charge.epoch_steps, charge.reports
        is_gaussian = mechanism is Mechanism.GAUSSIAN
        if is_gaussian and not charge.is_common:
            noise *= noises
        if reports > 1 and (steps > 1 or rate == 1 or not is_gaussian):
            # all of a person's reports together, as one shift, without sampling
            noise, rate, steps, reports = noise / reports, 1.0, 1, 1
        noise = min(noise, largest)
        if noise < smallest:
            is_noiseless = True
        elif steps > 1:
            epochs[mechanism, noise, 1.0, steps, 1] += charge.rounds
        elif not is_gaussian:
            laplace[mechanism, noise, rate, 1, 1] += charge.rounds
        elif rate < 1:
            sampled[mechanism, noise, rate, 1, reports] += charge.rounds
        else:
            plain[noise] += charge.rounds
    precision = math.fsum(rounds / (noise * GAUSSIAN_SLACK) ** 2 for noise, rounds in plain.items())
    return _Parts(
        precision=precision, laplace=laplace, sampled=sampled, epochs=epochs, is_noiseless=is_noiseless
    )


def _counted(rate: float) -> float:
    """A rate that costs at least as much, and whose losses doubles can tell."""
    lowest, highest = _RATES
    return max(rate, lowest) if rate <= highest else 1.0


def _at_rate_1(laplace: dict[Key, int]) -> dict[Key, int]:
    """Sampled Laplace releases, to whoever knows each sample."""
    shown: Counter[Key] = Counter()
    for key, rounds in laplace.items():
        shown[key[0], key[1], 1.0, 1, 1] += rounds
    return shown


def _charges(rounds: dict[Key, int]) -> tuple[Charge, ...]:
    return tuple(
        Charge(
            mechanism=key[0],
            noise_multiplier=key[1],
            sampling_rate=key[2],
            rounds=rounds[key],
            epoch_steps=key[3],
            reports=key[4],
        )
        for key in sorted(rounds)
    )


def _as_one_report(noise: float, rate: float, reports: int) -> tuple[float, float]:
    """The noise multiplier and rate of a sampled Gaussian release of one report that costs at least as much.

    Whenever any of a person's reports is in a sample, all of them are.
    """
    if reports == 1:
        return noise, rate
    return noise / reports, _counted(min(1.0, -math.expm1(reports * math.log1p(-rate)) * (1 + 2.0**-40)))


def _on_a_grid(sampled: dict[Key, int]) -> dict[Key, int]:
    """Sampled Gaussians with less noise and a higher rate.

    On the finest grid that leaves few different ones.
    """
    if len(sampled) <= _MAX_CLASSES:
        return sampled
    settings = np.array([_as_one_report(key[1], key[2], key[4]) for key in sampled])
    noises, rates = settings[:, 0], settings[:, 1]
    merged: Counter[Key] = Counter()
    for ratio in _RATIOS:
        step = math.log(ratio)
        less = np.minimum(np.exp(step * np.floor(np.log(noises) / step)) * (1 - 2.0**-50), noises)
        higher = np.minimum(
            1.0, np.maximum(np.exp(step * np.ceil(np.log(rates) / step)) * (1 + 2.0**-50), rates)
        )
        merged = Counter()
        for noise, rate, rounds in zip(less.tolist(), higher.tolist(), sampled.values(), strict=True):
            merged[Mechanism.GAUSSIAN, noise, rate, 1, 1] += rounds
        if len(merged) <= _MAX_CLASSES:
            break
    return merged


@lru_cache(maxsize=1024)
def _of_few(precision: float, others: tuple[Charge, ...], delta: float) -> float:
    """The epsilon of unsampled Gaussians of a total precision, and few others: the smallest of all bounds."""
    if not others:
        return _exact_gaussian_epsilon(precision, delta) if precision else 0.0
    parts = _parts(others, 1.0)
    quick = _quick_epsilon(replace(parts, precision=precision), delta)
    lowest, highest = _LOSSES_FOR_EPSILON
    rounds = sum(charge.rounds for charge in others)
    is_own = all(map(_is_own, others))
    is_exact = is_own or delta >= rounds * _ROUNDING_OF_ROUNDS
    if (
        rounds <= _LOSSES_UP_TO_ROUNDS
        and is_exact
        and lowest < quick < highest
        and delta >= _LOSSES_FROM_DELTA
    ):
        return min(quick, _loss_distribution_epsilon(precision, others, delta))
    return quick


def _quick_epsilon(parts: _Parts, delta: float) -> float:
    """The smallest of the bounds that need no loss distributions."""
    if not (parts.laplace or parts.sampled or parts.epochs):
        return _exact_gaussian_epsilon(parts.precision, delta)
    quick = _renyi_epsilon(parts, delta) if delta > 0 else math.inf
    if parts.precision or parts.sampled or not parts.is_laplace:
        return quick
    return min(quick, _pure_sum(parts))


def _pure_sum(parts: _Parts) -> float:
    """The sum of the epsilons of Laplace releases, valid at any delta."""
    rounds, pure = _pure_epsilons({**parts.laplace, **parts.epochs})
    return math.fsum(rounds * pure)


def _pure_epsilons(laplace: dict[Key, int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rounds, and what each costs at delta 0.

    Ln(1 + q (e^epsilon - 1)) of one sampled release of epsilon = 1 / noise_multiplier.

    An epoch of random allocation costs epsilon: no more than if the slot were known.
    """
    rounds = np.array(list(laplace.values()), dtype=np.float64)
    epsilons = 1 / np.array([key[1] for key in laplace])
    rates = np.array([key[2] for key in laplace])
    # beyond 500 sampling saves nothing, and e^epsilon leaves the floats
    return rounds, np.where(epsilons > 500, epsilons, np.log1p(rates * np.expm1(np.minimum(epsilons, 500))))


def _exact_gaussian_epsilon(precision: float, delta: float) -> float:
    """The epsilon of Gaussian releases without sampling.

    They compose to one Gaussian release (Balle and Wang 2018).
    """
    return gaussian_epsilon(1 / math.sqrt(precision), delta)


def _renyi_epsilon(parts: _Parts, delta: float) -> float:
    """The epsilon by adding Renyi divergences."""
    divergences, left_out = _divergences(parts)
    kept = (1 - _TAILS) * delta if left_out else delta
    epsilon = _epsilon_of_divergences(divergences, kept)
    if _covers(left_out, epsilon, _TAILS * delta):
        return epsilon
    return _quick_epsilon(parts.unsampled(), delta)


def _filtered_epsilon(parts: _Parts, delta: float, left_out: float) -> float:
    """The epsilon by a filter over few Renyi orders, each with its own part of delta.

    With a sum S of divergences at order a, and a part d of delta, it is S + ln((a-1)/a) - ln(a d) / (a-1)
    (Canonne, Kamath, Steinke 2020, proposition 12).

    Args:
        parts: The releases.
        delta: Of all orders, and of what the divergences leave out.
        left_out: The most that they leave out, within its part of delta.
    """
    part = (1 - _FILTER_TAILS) * delta / len(_FILTER_ORDERS)
    if part < _LEAST_PART:
        return math.inf
    divergences, _ = _divergences(parts)
    chosen = [_RENYI_ORDERS.index(order) for order in _FILTER_ORDERS]
    orders = _ORDERS[chosen]
    found = divergences[chosen] + np.log1p(-1 / orders) - np.log(orders * part) / (orders - 1)
    # what is kept was scaled up, by 1 / (1 - left_out) at most
    return max(0.0, float(found.min())) + 2 * left_out


def _covers(left_out: float, epsilon: float, kept: float) -> bool:
    """Whether what divergences leave out stays within the part of delta that is kept for it."""
    return left_out == 0 or (epsilon < _LARGEST_EXPONENT and left_out * (1 + math.exp(epsilon)) <= kept)


def _divergences(parts: _Parts) -> tuple[NDArray[np.float64], float]:
    """The sums of Renyi divergences at each of `_RENYI_ORDERS`, and the probability that they leave out."""
    divergences = parts.precision * _ORDERS / 2
    if parts.laplace:  # a pure epsilon costs min(epsilon, order epsilon^2 / 2) (Bun and Steinke 2016)
        rounds, pure = _pure_epsilons(parts.laplace)
        divergences += [float((rounds * np.minimum(pure, order * pure**2 / 2)).sum()) for order in _ORDERS]
    for key, count in parts.sampled.items():
        noise, rate = _as_one_report(key[1], key[2], key[4])
        divergences += count * _renyi_divergences(noise * GAUSSIAN_SLACK, rate)
    left_out = 0.0
    for (mechanism, noise, _, steps, _), count in parts.epochs.items():
        of_epoch, tails = _epoch_divergences(mechanism, _continuous(mechanism, noise), steps)
        divergences += count * of_epoch
        left_out += count * tails
    return divergences, left_out


def _epsilon_of_divergences(divergences: NDArray[np.float64], delta: float) -> float:
    """The least epsilon that the divergences at `_ORDERS` give at a positive delta.

    Source: C. Canonne, G. Kamath, T. Steinke, "The Discrete Gaussian for Differential Privacy", 2020,
    proposition 12. A divergence r alone gives delta <= sqrt(1 - e^-r) at epsilon 0 (Bretagnolle and Huber).
    """
    if (delta**2 + np.expm1(-divergences) > 0).any():
        return 0.0
    epsilons = divergences + np.log1p(-1 / _ORDERS) - np.log(delta * _ORDERS) / (_ORDERS - 1)
    return max(0.0, float(epsilons.min()))


@lru_cache(maxsize=8192)
def _renyi_divergences(noise: float, rate: float) -> NDArray[np.float64]:
    """The Renyi divergence of one sampled Gaussian release at each of `_RENYI_ORDERS`.

    At an integer order a it is ln(1 + sum over k >= 2 of C(a, k) (1-q)^(a-k) q^k (e^(k(k-1) / (2 noise^2)) -
    1)) / (a - 1). All terms are positive, so that unlike the textbook sum from k = 0 it loses no digits to
    cancellation where the divergence is tiny.
    """
    if rate == 1:
        return _ORDERS / (2 * noise**2)
    starts, k, rest, log_choose = _binomials()
    exponent = k * (k - 1) / (2 * noise**2)
    log_moment = np.where(
        exponent > 50, exponent, np.log(np.expm1(np.minimum(exponent, 50)))
    )  # up to 1e-22, relatively
    terms = log_choose + rest * math.log1p(-rate) + k * math.log(rate) + log_moment
    largest = np.maximum.reduceat(terms, starts)
    counts = np.diff(np.append(starts, len(terms)))
    log_excess = largest + np.log(np.add.reduceat(np.exp(terms - np.repeat(largest, counts)), starts))
    return np.asarray(np.logaddexp(0, log_excess) / (_ORDERS - 1))


@lru_cache(maxsize=1)
def _binomials() -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Of all orders a, one after the other: where each begins, its k from 2 to a, a - k, and ln C(a, k)."""
    k = np.concatenate([np.arange(2, order + 1, dtype=np.float64) for order in _RENYI_ORDERS])
    order = np.repeat(_ORDERS, np.array(_RENYI_ORDERS) - 1)
    starts = np.concatenate([[0], np.cumsum(np.array(_RENYI_ORDERS) - 1)[:-1]]).astype(np.int64)
    factorials = np.array([math.lgamma(n + 1) for n in range(_RENYI_ORDERS[-1] + 1)])  # their logarithms
    whole, part = order.astype(np.int64), k.astype(np.int64)
    return starts, k, order - k, factorials[whole] - factorials[part] - factorials[whole - part]


@lru_cache(maxsize=256)
def _epoch_divergences(mechanism: Mechanism, noise: float, steps: int) -> tuple[NDArray[np.float64], float]:
    """The larger Renyi divergence of both directions of one epoch, at each order.

    And the probability that the divergences leave out.

    An epoch that is too long or too little noised to be computed, or of which too much is left out, costs
    what it would if the slot were known.
    """
    if steps <= random_allocation.MAX_STEPS and noise >= random_allocation.LEAST_NOISE:
        found, left_out = random_allocation.epoch_ratios(mechanism, noise, steps).divergences(_ORDERS)
        if left_out <= _most_left_out(steps):
            return found, left_out
    if mechanism is Mechanism.GAUSSIAN:
        return _ORDERS / (2 * noise**2), 0.0
    return np.minimum(1 / noise, _ORDERS / (2 * noise**2)), 0.0


def _most_left_out(steps: int) -> float:
    """The most that may be left out of an epoch, known before anything is computed: several times what is."""
    return 2.0**-38 + 2.0**-42 * steps


def _continuous(mechanism: Mechanism, noise: float) -> float:
    """The multiplier of a continuous mechanism that is no more private than the discrete one."""
    return 1 / (1 / noise + LAPLACE_SLACK) if mechanism is Mechanism.LAPLACE else noise * GAUSSIAN_SLACK


def _loss_distribution_epsilon(precision: float, charges: Sequence[Charge], delta: float) -> float:
    """The epsilon by composing privacy loss distributions, rounded up to a grid that keeps this fast."""
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
    charges = [_mixed(charge, grid) for charge in charges]
    is_own = all(map(_is_own, (*plain, *charges)))
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
    noise, rate = _as_one_report(charge.noise_multiplier, charge.sampling_rate, charge.reports)
    return rate * math.expm1(1 / noise) / math.sqrt(charge.epoch_steps)


def _is_own(charge: Charge) -> bool:
    """Whether a charge's losses are computed without dp-accounting: an unsampled Gaussian, or allocation."""
    if _continuous(charge.mechanism, charge.noise_multiplier) < random_allocation.LEAST_NOISE:
        return False
    if charge.epoch_steps > 1:
        return charge.epoch_steps <= random_allocation.MAX_STEPS
    return charge.mechanism is Mechanism.GAUSSIAN and charge.sampling_rate == 1


@lru_cache(maxsize=_KEPT_LOSSES)
def _losses(charge: Charge, grid: float, is_own: bool) -> Any:
    """The pessimistic privacy loss distribution of all rounds of one charge; infinite if it is too long."""
    one = _one_loss(replace(charge, rounds=1), grid, is_own=is_own)
    if is_own or max(cells_of_sum(masses, charge.rounds) for masses in _masses(one)) <= MAX_CELLS:
        return one.self_compose(charge.rounds)
    return LossDistribution.infinite(grid).for_dp_accounting()


def _is_infinite(found: Any) -> bool:
    """Whether a loss is infinite for certain, in some direction: see `LossDistribution.infinite`."""
    return any(not masses.any() for masses in _masses(found))


def _masses(found: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The probabilities of the losses in both directions."""
    if isinstance(found, LossDistribution):
        return found.remove.masses, found.add.masses
    remove, add = (one.to_dense_pmf() for one in (found._pmf_remove, found._pmf_add))
    return np.asarray(remove._probs), np.asarray(add._probs)


def _mixed(charge: Charge, grid: float) -> Charge:
    """A charge whose mixture takes little time.

    Of many reports, or of long losses, the charge of one report that costs more; also of losses so short that
    dp-accounting does not come to an end.
    """
    shift = charge.reports / charge.noise_multiplier
    cells = charge.reports * (8 * shift + shift**2) / grid
    is_quick = charge.reports <= _MAX_MIXED and cells <= _MAX_MIXED_CELLS
    if charge.reports == 1 or (is_quick and shift >= _LEAST_MIXED_SHIFT):
        return charge
    noise, rate = _as_one_report(charge.noise_multiplier, charge.sampling_rate, charge.reports)
    return replace(charge, noise_multiplier=noise, sampling_rate=rate, reports=1)


def _one_loss(charge: Charge, grid: float, *, is_own: bool) -> Any:
    """The pessimistic privacy loss distribution of one round, or one epoch, of a charge.

    A `LossDistribution` if all charges that are composed are our own, else dp-accounting's.
    """
    noise = _continuous(charge.mechanism, charge.noise_multiplier)
    if _is_own(charge):
        found = random_allocation.epoch_ratios(charge.mechanism, noise, charge.epoch_steps).losses(grid)
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
    """The losses of a round whose sample holds a binomial number of one person's reports.

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
