"""What the releases on one dataset cost, in (epsilon, delta), against each of the two adversaries.

    spent([Charge(mechanism=Mechanism.GAUSSIAN, noise_multiplier=0.73, sampling_rate=1.0, rounds=7,
    epoch_steps=29)], delta=1e-5)

Each helper asks `spent_in_turn` before it opens a job, with all its planned rounds, and before it charges a
query; not before each round, for the whole job was counted. The ad server asks `smallest_fitting` to plan a
job. `spent` is what one job or query costs, and what several would if nothing that they release could
change the settings of others. Adjacent datasets differ in one report's contribution, which is there or is
zeroed; the number of reports, and which exist, is public. (dp-accounting calls the same pairs of
distributions ADD_OR_REMOVE_ONE.)

    adversary                  noise counted       samples and slots counted as secret
    ad server alone            both helpers'       yes, where sizes do not show them
    ad server with one helper  the other helper's  no

The numbers are those of the *continuous* mechanisms at slightly less noise, which bound the discrete ones
that the helpers draw; docs/explanation/privacy.md has the claim and its limits, privacy-proofs.md the proofs.
The bounds themselves are in composing/.

>>> from maskedlark.privacy.mechanism import Mechanism
>>> round_of = Charge(mechanism=Mechanism.LAPLACE, noise_multiplier=2.0, sampling_rate=1.0, rounds=1)
>>> round(spent([round_of], delta=1e-6).colluding, 3)
0.5
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.privacy.charge import GAUSSIAN_SLACK, LAPLACE_SLACK, NOISE_MULTIPLIERS, Charge
from maskedlark.privacy.composing.composition import (
    adaptive_epsilon,
    are_gaussian_if_known,
    compose_epsilon,
    is_one_setting,
)
from maskedlark.privacy.noise_search import SEARCH_PRECISION, smallest_within

__all__ = [
    "GAUSSIAN_SLACK",
    "LAPLACE_SLACK",
    "NOISE_MULTIPLIERS",
    "SEARCH_PRECISION",
    "Charge",
    "Epsilons",
    "compose_epsilon",
    "smallest_fitting",
    "spent",
    "spent_against_ad_server",
    "spent_in_turn",
]

_ADAPTIVE: Final = 1 / 8  # of delta: for jobs at several settings, which may depend on releases
_FIRST_STEP: Final = 1.25
_HELPERS: Final = 2  # whose noises the ad server alone faces summed

_EXPOSURE_OF_ONE: Final = (
    0.02  # of delta: a charge whose samples show more often than that is counted without sampling
)
_EXPOSURE_OF_ALL: Final = (1e-3, 0.02, 0.5)  # of delta: tried in this order
_LARGEST_EXPONENT: Final = 700.0


@frozen
class Epsilons:
    """The epsilons at one delta: against the ad server alone, and against the ad server with one helper."""

    ad_server: float
    colluding: float


def spent(charges: Sequence[Charge], delta: float) -> Epsilons:
    """Return the total cost of charges whose settings are fixed before anything is released.

    Called by all parties for the charges of one job or query.

    Args:
        charges: In any order; charges at the same settings may be split or merged without changing the cost.
        delta: In [0, 1). At 0 only Laplace noise has a finite cost.

    Guarantees: an upper bound for each adversary; infinity if any charge has no mechanism; 0 for no charges.

    Raises:
        ValueError: `delta` is outside its range.
    """
    return spent_in_turn([charges], delta)


def spent_in_turn(jobs: Sequence[Sequence[Charge]], delta: float) -> Epsilons:
    """Return the total cost of jobs and queries whose settings may depend on earlier releases.

    Called by both helpers before each job and each query, and by the ad server that plans one.

    Args:
        jobs: What each is charged as. The charges of one are fixed when it begins; fewer may be released, and
            in any order (privacy-proofs.md, "Rounds in any order").
        delta: See `spent`.

    Guarantees: as `spent`, for jobs that are chosen adaptively; the same number for one job, for jobs at one
        setting, and for Gaussian releases without sampling.
    """
    charges = [charge for job in jobs for charge in job]
    is_in_turn = _is_in_turn(jobs)
    return Epsilons(
        ad_server=_against_ad_server(charges, delta, is_in_turn=is_in_turn),
        colluding=_colluding(charges, delta, is_in_turn=is_in_turn),
    )


def _is_in_turn(jobs: Sequence[Sequence[Charge]]) -> bool:
    """Return whether some job can depend on what another released."""
    return sum(1 for job in jobs if job) > 1


def _colluding(charges: Sequence[Charge], delta: float, *, is_in_turn: bool) -> float:
    """Return the second of two epsilons, mostly in closed form."""
    known = [_with_known_sample(charge) for charge in charges if not charge.is_common]
    if is_in_turn and not is_one_setting(known):
        return adaptive_epsilon(known, _ADAPTIVE * delta)
    return compose_epsilon(known, (1 - _ADAPTIVE) * delta)


def spent_against_ad_server(jobs: Sequence[Sequence[Charge]], delta: float) -> float:
    """Return the first of `spent_in_turn`'s two epsilons, without the work for the second.

    Arguments, guarantees and errors as there.
    """
    charges = [charge for job in jobs for charge in job]
    return _against_ad_server(charges, delta, is_in_turn=_is_in_turn(jobs))


def _against_ad_server(charges: Sequence[Charge], delta: float, *, is_in_turn: bool) -> float:
    """Return the first of two epsilons."""
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be in [0, 1), not {delta}")
    failures = math.fsum(charge.rounds * charge.delta for charge in charges)
    # Common noise that fails has no epsilon at all: its probability must be paid from delta.
    if failures > delta:
        return math.inf
    # A release that fails with probability d is (0, d)-private in one direction and ln(1 / (1 - d)) <= 2 d in
    # the other.
    rest = delta - failures
    if is_in_turn and not is_one_setting(charges):
        epsilon = _adaptive_with_exposures(charges, _ADAPTIVE * rest)
        if are_gaussian_if_known(charges):
            known = map(_with_known_sample, charges)
            epsilon = min(epsilon, compose_epsilon(known, (1 - _ADAPTIVE) * rest, noises=_HELPERS))
        return epsilon + 2 * failures
    return _with_exposures(charges, (1 - _ADAPTIVE) * rest) + 2 * failures


def _with_known_sample(charge: Charge) -> Charge:
    """Return a charge against an adversary that knows which records a helper samples.

    A coin that a device flips itself it does not know.
    """
    return charge.without_sampling() if charge.is_sampled and not charge.is_self_sampled else charge


def _with_exposures(charges: Sequence[Charge], delta: float) -> float:
    """Return the epsilon of charges whose samples may become known.

    For each the smaller of what that costs and of no sampling.

    The releases differ from ones in which no sample ever shows with probability d at most, in either dataset;
    so an (epsilon, delta') of those is an (epsilon, delta' + (1 + e^epsilon) d) of these.
    """
    hidden, exposed = _hidden(charges, delta)
    if not exposed:
        return compose_epsilon(hidden, delta, noises=_HELPERS)
    # The least part of delta that pays for exposed samples, as the epsilon is counted at the rest.
    for part in _EXPOSURE_OF_ALL:
        epsilon = compose_epsilon(hidden, (1 - part) * delta, noises=_HELPERS)
        if epsilon < _LARGEST_EXPONENT and exposed * (1 + math.exp(epsilon)) <= part * delta:
            return epsilon
    return compose_epsilon(map(_with_known_sample, charges), delta, noises=_HELPERS)


def _adaptive_with_exposures(charges: Sequence[Charge], delta: float) -> float:
    """Return the same for adaptive charges: half of delta is for samples that become known.

    All samples that may show are hidden, or all are known. Which of the charges show too often is found only
    at the end, and so must not decide by itself what each of them costs.
    """
    exposed = math.fsum(charge.rounds * charge.exposure for charge in charges)
    hidden = adaptive_epsilon(charges, delta / 2, noises=_HELPERS)
    if not exposed or (hidden < _LARGEST_EXPONENT and exposed * (1 + math.exp(hidden)) <= delta / 2):
        return hidden
    known = [charge.without_sampling() if charge.exposure else charge for charge in charges]
    return adaptive_epsilon(known, delta / 2, noises=_HELPERS)


def _hidden(charges: Sequence[Charge], delta: float) -> tuple[list[Charge], float]:
    """Return charges without sampling where it may become known, and that probability for the others."""
    most = _EXPOSURE_OF_ONE * delta
    hidden = [
        charge if charge.rounds * charge.exposure <= most else charge.without_sampling() for charge in charges
    ]
    return hidden, math.fsum(charge.rounds * charge.exposure for charge in hidden)


def smallest_fitting(
    charges: Callable[[float], Sequence[Charge]] | None,
    epsilon: float,
    delta: float,
    *,
    already: Sequence[Charge],
    collusion_epsilon: float,
    times: int = 1,
) -> float:
    """Find the smallest noise multiplier, to 1 %, whose charges stay within both budgets.

    Called by the ad server.

    Args:
        charges: What a release at a noise multiplier is charged as, the less the larger it is; None for a
            release without noise.
        epsilon: The dataset's budget against the ad server alone; may be infinite.
        delta: Of both budgets.
        already: What was charged to the dataset before.
        collusion_epsilon: The dataset's budget against the ad server with one helper; may be infinite.
        times: How many such releases there will be, one after another.

    Guarantees: `spent_in_turn([*already, the release, ...], delta)` is within both budgets at the result,
        which lies in `NOISE_MULTIPLIERS`.

    Raises:
        ValueError: a parameter is outside its range.
        JobRefused(BUDGET_EXHAUSTED): no noise is enough.
    """
    if not (epsilon > 0 and collusion_epsilon > 0):
        raise ValueError(f"both budgets must be positive, not {epsilon} and {collusion_epsilon}")

    def together(noise_multiplier: float) -> list[Sequence[Charge]]:
        return [*([one] for one in already), *([charges(noise_multiplier) if charges else ()] * times)]

    @cache
    def colluding(noise_multiplier: float) -> float:
        jobs = together(noise_multiplier)
        composed = [one for job in jobs for one in job]
        return _colluding(composed, delta, is_in_turn=_is_in_turn(jobs))

    @cache
    def ad_server(noise_multiplier: float) -> float:
        return 0.0 if epsilon == math.inf else spent_against_ad_server(together(noise_multiplier), delta)

    lowest, highest = NOISE_MULTIPLIERS
    if charges is None or not (colluding(highest) <= collusion_epsilon and ad_server(highest) <= epsilon):
        before = spent_in_turn([[one] for one in already], delta)
        raise JobRefused(
            JobReason.BUDGET_EXHAUSTED,
            f"no noise makes this fit: {before.ad_server:.4g} of {epsilon:.4g} is spent against the ad "
            f"server and {before.colluding:.4g} of {collusion_epsilon:.4g} against the ad server with one "
            f"helper, at delta {delta:.2g}: "
            "use fewer rounds or another dataset (with unit user, another task)",
        )
    # The budget against collusion first: its bounds are closed forms, where the other's are composed.
    is_any_enough = colluding(lowest) <= collusion_epsilon
    least = lowest if is_any_enough else smallest_within(colluding, collusion_epsilon, lowest, highest)
    if ad_server(least) <= epsilon:
        return least
    # Upwards from what the other budget needs, in growing steps: each try composes distributions, which may
    # take a second.
    step = _FIRST_STEP
    while not ad_server(enough := min(highest, least * step)) <= epsilon:
        least, step = enough, step**2
    return smallest_within(ad_server, epsilon, least, enough)
