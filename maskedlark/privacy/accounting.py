"""What the releases on one dataset cost, in (epsilon, delta), against each of the two adversaries.

Both helpers keep a list of `Charge`s per dataset, and ask `spent` before each job and each release; the ad
server asks `fitting_noise_multiplier` to plan a job. Adjacent datasets differ in one report's contribution,
which is there or is zeroed; the number of reports, and which exist, is public. (dp-accounting calls the same
pairs of distributions ADD_OR_REMOVE_ONE.)

    adversary                       noise counted                                 minibatch counted as secret
    ad server alone                 Gaussian: both helpers'; Laplace: one's       yes
    ad server with one helper       the other helper's                            no

The numbers are those of the *continuous* mechanisms at slightly less noise, which bound the discrete ones
that the helpers draw; docs/explanation/privacy.md has the proofs, and the claim's limits. Of several valid
bounds the smallest counts: pure epsilons (Laplace), the closed form (Gaussian without sampling), Renyi
divergences, and the composed privacy loss distribution.

Source: I. Mironov, K. Talwar, L. Zhang, "Renyi Differential Privacy of the Sampled Gaussian Mechanism", 2019;
Y. Zhu, J. Dong, Y.-X. Wang, "Optimal Accounting of Differential Privacy via Characteristic Function", 2022;
the bounds are computed by Google's dp-accounting.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from maskedlark.errors import JobReason, JobRefused
from maskedlark.privacy.noise import Mechanism

# dp-accounting brings scipy, a second to import: it is loaded when something is first accounted, not when a
# party starts.

GAUSSIAN_SLACK: Final = 1 - 2.0**-17
"""A discrete Gaussian of at least `MIN_SCALE` units is at least as private as a continuous one of this
times its sigma."""

LAPLACE_SLACK: Final = 2.0**-22
"""A discrete Laplace of at least `MIN_SCALE` units and epsilon e is at least as private as a continuous one
of e plus this."""

NOISE_MULTIPLIERS: Final = (2.0**-20, 2.0**20)
"""The range in which the bounds are numerically sound.

Less noise costs infinity, more is counted as the most.
"""

SEARCH_PRECISION: Final = 1.01

_RENYI_ORDERS: Final = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024)
# Privacy loss distributions are composed only where that is quick and their Fourier transforms' rounding is
# far below delta.
_LOSSES_FOR_EPSILON: Final = (1e-3, 200.0)
_LOSSES_UP_TO_ROUNDS: Final = 1 << 20
_LOSSES_FROM_DELTA: Final = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """Rounds of one job on one dataset, at the same settings.

    Attributes:
        mechanism: The noise of each helper.
        noise_multiplier: Each helper's noise scale over the sensitivity: Laplace b / L1, Gaussian sigma / L2;
            0 for `none`.
        sampling_rate: The probability with which each record is in a round's secret minibatch, in (0, 1]; 1
            for no sampling.
        rounds: How many releases, at least 1.
        is_common: Whether both helpers draw the noise alike, from their common key, and apply it to what
            both see in clear: it counts
            once, and against the ad server alone; a helper that colludes learns nothing new from such a
            release.
        delta: The probability, of each release, that its noise fails to hide a report altogether; only of
            common noise, below 1/2.
        is_self_sampled: Whether each device flips the coin itself, so that the sample is a secret from
            everybody, helpers included.
        reports: How many reports of one person, at most, the dataset holds, where a person is protected and
            not a report.

    Raises:
        ValueError: a value is outside its range, or not a number.
    """

    mechanism: Mechanism
    noise_multiplier: float
    sampling_rate: float
    rounds: int
    is_common: bool = False
    delta: float = 0.0
    is_self_sampled: bool = False
    reports: int = 1

    def __post_init__(self) -> None:
        noiseless = self.mechanism is Mechanism.NONE
        if not (self.noise_multiplier == 0 if noiseless else 0 < self.noise_multiplier < math.inf):
            wanted = "0 without a mechanism" if noiseless else "positive and finite"
            raise ValueError(f"noise_multiplier must be {wanted}, not {self.noise_multiplier}")
        if not 0 < self.sampling_rate <= 1:
            raise ValueError(f"sampling_rate must be in (0, 1], not {self.sampling_rate}")
        if not isinstance(self.rounds, int) or self.rounds < 1:
            raise ValueError(f"rounds must be a positive integer, not {self.rounds}")
        if not 0 <= self.delta < 0.5 or (self.delta and not self.is_common):
            raise ValueError(f"delta must be in [0, 0.5), and is of common noise only, not {self.delta}")
        if not isinstance(self.reports, int) or self.reports < 1:
            raise ValueError(f"reports must be a positive integer, not {self.reports}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Epsilons:
    """The epsilon at one delta against the ad server alone.

    And against the ad server colluding with either helper.
    """

    ad_server: float
    colluding: float


def spent(charges: Sequence[Charge], delta: float) -> Epsilons:
    """What a dataset's charges cost together.

    Called by both helpers before each job and release, and by the ad server to show it.

    Args:
        charges: In any order; charges at the same settings may be split or merged without changing the cost.
        delta: In [0, 1). At 0 only Laplace noise has a finite cost.

    Guarantees: an upper bound for each adversary; infinity if any charge has no mechanism; 0 for no charges.

    Raises:
        ValueError: `delta` is outside its range.
    """
    ad_server = spent_against_ad_server(charges, delta)
    colluding = [_seen_by_helper(charge) for charge in charges if not charge.is_common]
    return Epsilons(ad_server=ad_server, colluding=composed_epsilon(colluding, delta))


def spent_against_ad_server(charges: Sequence[Charge], delta: float) -> float:
    """The first of `spent`'s two epsilons, without the work for the second.

    Arguments, guarantees and errors as there.
    """
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be in [0, 1), not {delta}")
    failures = math.fsum(charge.rounds * charge.delta for charge in charges)
    if failures > delta:
        return math.inf
    # A release that fails with probability d is (0, d)-private in one direction and ln(1 / (1 - d)) <= 2 d in
    # the other.
    return (
        composed_epsilon([_seen_by_ad_server(charge) for charge in charges], delta - failures) + 2 * failures
    )


def fitting_noise_multiplier(
    epsilon: float,
    delta: float,
    *,
    mechanism: Mechanism,
    sampling_rate: float,
    rounds: int,
    already: Sequence[Charge],
    collusion_epsilon: float,
    reports: int = 1,
) -> float:
    """The smallest noise multiplier, to 1 %, with which a job stays within both budgets of its dataset.

    Ad server.

    Args:
        epsilon: The dataset's budget against the ad server alone; may be infinite.
        delta: Of both budgets.
        mechanism: The job's noise.
        sampling_rate: The job's.
        rounds: The job's.
        already: What was charged to the dataset before.
        collusion_epsilon: The dataset's budget against the ad server with one helper; may be infinite.
        reports: Of one person in the dataset, at most.

    Guarantees: `spent([*already, the job], delta)` is within both budgets at the result, which lies in
        `NOISE_MULTIPLIERS`.

    Raises:
        ValueError: a parameter is outside its range.
        JobRefused(BUDGET_EXHAUSTED): no noise is enough.
    """

    def charges(noise_multiplier: float) -> tuple[Charge]:
        one = Charge(
            mechanism=mechanism,
            noise_multiplier=noise_multiplier,
            sampling_rate=sampling_rate,
            rounds=rounds,
            reports=reports,
        )
        return (one,)

    is_noisy = mechanism is not Mechanism.NONE
    return smallest_fitting(
        charges if is_noisy else None, epsilon, delta, already=already, collusion_epsilon=collusion_epsilon
    )


def smallest_fitting(
    charges: Callable[[float], Sequence[Charge]] | None,
    epsilon: float,
    delta: float,
    *,
    already: Sequence[Charge],
    collusion_epsilon: float,
) -> float:
    """The smallest noise multiplier, to 1 %, whose charges stay within both budgets.

    As `fitting_noise_multiplier`, for any release.

    Args:
        charges: What a release at a noise multiplier is charged as, the less the larger it is; None for a
            release without noise.
        epsilon: See `fitting_noise_multiplier`.
        delta: The same.
        already: The same.
        collusion_epsilon: The same.

    Raises:
        ValueError: a parameter is outside its range.
        JobRefused(BUDGET_EXHAUSTED): no noise is enough.
    """
    if not (epsilon > 0 and collusion_epsilon > 0):
        raise ValueError(f"both budgets must be positive, not {epsilon} and {collusion_epsilon}")

    def fits(noise_multiplier: float) -> bool:
        cost = spent([*already, *(charges(noise_multiplier) if charges else ())], delta)
        return cost.ad_server <= epsilon and cost.colluding <= collusion_epsilon

    lowest, highest = NOISE_MULTIPLIERS
    if charges is None or not fits(highest):
        before = spent(already, delta)
        raise JobRefused(
            JobReason.BUDGET_EXHAUSTED,
            f"no noise makes this fit: {before.ad_server:.4g} of {epsilon:.4g} is spent against the ad server and "
            f"{before.colluding:.4g} of {collusion_epsilon:.4g} against it with one helper, at delta {delta:.2g}: "
            "use another dataset or fewer rounds",
        )
    return lowest if fits(lowest) else _smallest(fits, lowest, highest)


def composed_epsilon(charges: Sequence[Charge], delta: float) -> float:
    """The epsilon at `delta` of charges each of whose noise is all the noise there is.

    As under one trusted curator.

    Raises:
        ValueError: `delta` is outside its range.
    """
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be in [0, 1), not {delta}")
    return _merged_epsilon(_merge(charges), delta)


def _seen_by_ad_server(charge: Charge) -> Charge:
    """The charge with the noise that the ad server cannot take off."""
    if charge.mechanism is not Mechanism.GAUSSIAN or charge.is_common:
        return charge  # a second Laplace noise can only help, but is not counted
    return replace(charge, noise_multiplier=charge.noise_multiplier * math.sqrt(2))


def _seen_by_helper(charge: Charge) -> Charge:
    """The charge against who knows which records a helper samples.

    A coin that a device flips itself it does not know.
    """
    return charge if charge.is_self_sampled else replace(charge, sampling_rate=1.0)


def _of_person(charge: Charge) -> Charge:
    """The charge of all of a person's reports together, where that is one shift.

    `reports` times the sensitivity, without sampling.

    Gaussian noise under sampling is left as it is: how many of the reports are in a sample is binomial, and
    the mixture is composed.
    """
    if charge.reports == 1 or (charge.mechanism is Mechanism.GAUSSIAN and charge.sampling_rate < 1):
        return charge
    return replace(
        charge, noise_multiplier=charge.noise_multiplier / charge.reports, sampling_rate=1.0, reports=1
    )


def _as_one_report(charge: Charge) -> Charge:
    """A charge of one report that costs at least as much.

    Whenever any of a person's reports is in a sample, all of them are.
    """
    if charge.reports == 1:
        return charge
    rate = -math.expm1(charge.reports * math.log1p(-charge.sampling_rate)) * (1 + 2.0**-40)
    return replace(
        charge,
        noise_multiplier=charge.noise_multiplier / charge.reports,
        sampling_rate=min(1.0, rate),
        reports=1,
    )


def _merge(charges: Sequence[Charge]) -> tuple[Charge, ...]:
    """The same cost in canonical order, rounds at the same settings together."""
    rounds: Counter[tuple[str, float, float, int]] = Counter()
    for charge in map(_of_person, charges):
        multiplier = min(charge.noise_multiplier, NOISE_MULTIPLIERS[1])
        rounds[charge.mechanism, multiplier, charge.sampling_rate, charge.reports] += charge.rounds
    return tuple(
        Charge(
            mechanism=Mechanism(mechanism),
            noise_multiplier=multiplier,
            sampling_rate=rate,
            rounds=total,
            reports=reports,
        )
        for (mechanism, multiplier, rate, reports), total in sorted(rounds.items())
    )


@lru_cache(maxsize=1024)
def _merged_epsilon(charges: tuple[Charge, ...], delta: float) -> float:
    """`composed_epsilon` of canonical charges: the smallest of the bounds."""
    if not charges:
        return 0.0
    if any(charge.noise_multiplier < NOISE_MULTIPLIERS[0] for charge in charges):  # none at all, too
        return math.inf
    kinds = {charge.mechanism for charge in charges}
    if kinds == {Mechanism.GAUSSIAN} and all(charge.sampling_rate == 1 for charge in charges):
        return _exact_gaussian_epsilon(charges, delta)
    quick = _renyi_epsilon(charges, delta) if delta > 0 else math.inf
    if kinds == {Mechanism.LAPLACE}:
        quick = min(quick, math.fsum(charge.rounds * _pure_epsilon(charge) for charge in charges))
    lowest, highest = _LOSSES_FOR_EPSILON
    is_short = sum(charge.rounds for charge in charges) <= _LOSSES_UP_TO_ROUNDS
    if is_short and lowest < quick < highest and delta >= _LOSSES_FROM_DELTA:
        return min(quick, _loss_distribution_epsilon(charges, delta))
    return quick


def _pure_epsilon(charge: Charge) -> float:
    """ln(1 + q (e^epsilon - 1)).

    The cost at delta 0 of one sampled Laplace release of epsilon = 1 / noise_multiplier.
    """
    epsilon, rate = 1 / charge.noise_multiplier, charge.sampling_rate
    if epsilon > 500:
        return epsilon  # sampling saves nothing, and e^epsilon leaves the floats
    return math.log1p(rate * math.expm1(epsilon))


def _exact_gaussian_epsilon(charges: Sequence[Charge], delta: float) -> float:
    """The epsilon of Gaussian releases without sampling.

    Which compose to one Gaussian release (Balle and Wang 2018).
    """
    import dp_accounting

    precision = math.fsum(charge.rounds / _noise(charge) ** 2 for charge in charges)
    with np.errstate(
        divide="ignore"
    ):  # where its search meets a delta of zero to the last bit, it takes the logarithm
        return float(dp_accounting.get_epsilon_gaussian(1 / math.sqrt(precision), delta))


def _renyi_epsilon(charges: Sequence[Charge], delta: float) -> float:
    """The epsilon by adding Renyi divergences.

    A pure epsilon costs min(epsilon, order epsilon^2 / 2) (Bun and Steinke 2016).
    """
    from dp_accounting.rdp import compute_epsilon

    divergences = np.zeros(len(_RENYI_ORDERS))
    for charge in map(_as_one_report, charges):
        if charge.mechanism is Mechanism.LAPLACE:
            pure = _pure_epsilon(charge)
            divergences += charge.rounds * np.minimum(pure, np.array(_RENYI_ORDERS) * pure**2 / 2)
        else:
            divergences += charge.rounds * _renyi_divergences(_noise(charge), charge.sampling_rate)
    epsilon, _ = compute_epsilon(_RENYI_ORDERS, divergences, delta)
    return float(epsilon)


@lru_cache(maxsize=8192)
def _renyi_divergences(noise: float, rate: float) -> NDArray[np.float64]:
    """The Renyi divergence of one sampled Gaussian release at each of `_RENYI_ORDERS`.

    At an integer order a it is ln(1 + sum over k >= 2 of C(a, k) (1-q)^(a-k) q^k (e^(k(k-1) / (2 noise^2)) -
    1)) / (a - 1). All terms are positive, so that unlike the textbook sum from k = 0 it loses no digits to
    cancellation where the divergence is tiny.
    """
    from scipy.special import gammaln, logsumexp

    if rate == 1:
        return np.array(_RENYI_ORDERS) / (2 * noise**2)
    divergences = np.empty(len(_RENYI_ORDERS))
    for i, order in enumerate(_RENYI_ORDERS):
        k = np.arange(2, order + 1, dtype=np.float64)
        exponent = k * (k - 1) / (2 * noise**2)
        log_moment = np.where(
            exponent > 50, exponent, np.log(np.expm1(np.minimum(exponent, 50)))
        )  # up to 1e-22, relatively
        log_choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        log_excess = logsumexp(log_choose + (order - k) * math.log1p(-rate) + k * math.log(rate) + log_moment)
        divergences[i] = np.logaddexp(0, log_excess) / (order - 1)
    return divergences


def _loss_distribution_epsilon(charges: Sequence[Charge], delta: float) -> float:
    """The epsilon by composing privacy loss distributions, rounded up to a grid that keeps this fast."""
    shifts = [charge.reports / charge.noise_multiplier for charge in charges]
    width = sum(8 * shift + shift**2 for shift in shifts)
    if width > 500:
        return math.inf
    # A loss of typical size s on a grid of h looks like one of variance up to s * h: the grid must not swamp
    # the true variance.
    losses = [
        (one.rounds, one.sampling_rate * math.expm1(1 / one.noise_multiplier))
        for one in map(_as_one_report, charges)
    ]
    is_swamped = 1e-3 * sum(rounds * loss for rounds, loss in losses) > 0.1 * sum(
        rounds * loss**2 for rounds, loss in losses
    )
    grid = 1e-4 if is_swamped and width < 20 else 1e-3
    first, *others = (_losses(charge, grid) for charge in charges)
    for other in others:
        first = first.compose(other)
    return float(first.get_epsilon_for_delta(delta))


@lru_cache(maxsize=256)
def _losses(charge: Charge, grid: float) -> Any:
    """The pessimistic privacy loss distribution of all rounds of one charge."""
    from dp_accounting.pld import privacy_loss_distribution as distributions

    settings = {
        "sampling_prob": charge.sampling_rate,
        "value_discretization_interval": grid,
        "pessimistic_estimate": True,
    }
    if charge.mechanism is Mechanism.LAPLACE:
        one = distributions.from_laplace_mechanism(
            1 / (1 / charge.noise_multiplier + LAPLACE_SLACK), **settings
        )
    elif charge.reports > 1:
        one = _mixture(charge, grid)
    else:
        one = distributions.from_gaussian_mechanism(_noise(charge), **settings)
    return one.self_compose(charge.rounds)


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
        _noise(charge),
        [float(k) for k in kept],
        [odds[k] for k in kept],
        pessimistic_estimate=True,
        value_discretization_interval=grid,
    )


def _noise(charge: Charge) -> float:
    """The multiplier of a continuous Gaussian that is no more private than the charge's discrete one."""
    return charge.noise_multiplier * GAUSSIAN_SLACK


def _smallest(fits: Callable[[float], bool], too_small: float, enough: float) -> float:
    """Where a monotone predicate turns true, to `SEARCH_PRECISION`, from above."""
    while enough / too_small > SEARCH_PRECISION:
        middle = math.sqrt(too_small * enough)
        if fits(middle):
            enough = middle
        else:
            too_small = middle
    return enough
