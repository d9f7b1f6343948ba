"""What the releases on one dataset cost, in (epsilon, delta), against each of the two adversaries.

    spent([Charge(mechanism=Mechanism.GAUSSIAN, noise_multiplier=0.73, sampling_rate=1.0, rounds=7,
    epoch_steps=29)], delta=1e-5)

Both helpers keep a list of `Charge`s per dataset, and ask `spent` before each job and each release; the ad
server asks `fitting_noise_multiplier` to plan a job. Adjacent datasets differ in one report's contribution,
which is there or is zeroed; the number of reports, and which exist, is public. (dp-accounting calls the same
pairs of distributions ADD_OR_REMOVE_ONE.)

    adversary                  noise counted                            samples and slots counted as secret
    ad server alone            Gaussian: both helpers'; Laplace: one's  yes, where sizes do not show them
    ad server with one helper  the other helper's                       no

The numbers are those of the *continuous* mechanisms at slightly less noise, which bound the discrete ones
that the helpers draw; docs/explanation/privacy.md has the proofs, and the claim's limits. The bounds
themselves are in composition.py.

>>> from maskedlark.privacy.noise import Mechanism
>>> round_of = Charge(mechanism=Mechanism.LAPLACE, noise_multiplier=2.0, sampling_rate=1.0, rounds=1)
>>> round(spent([round_of], delta=1e-6).colluding, 3)
0.5
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from maskedlark.errors import JobReason, JobRefused
from maskedlark.privacy.charge import GAUSSIAN_SLACK, LAPLACE_SLACK, NOISE_MULTIPLIERS, Charge
from maskedlark.privacy.composition import composed_epsilon
from maskedlark.privacy.noise import Mechanism

__all__ = [
    "GAUSSIAN_SLACK",
    "LAPLACE_SLACK",
    "NOISE_MULTIPLIERS",
    "SEARCH_PRECISION",
    "Charge",
    "Epsilons",
    "composed_epsilon",
    "fitting_noise_multiplier",
    "smallest_fitting",
    "spent",
    "spent_against_ad_server",
]

SEARCH_PRECISION: Final = 1.01
_FIRST_STEP: Final = 1.25

_EXPOSURE_OF_ONE: Final = (
    0.02  # of delta: a charge whose samples show more often than that is counted without sampling
)
_EXPOSURE_OF_ALL: Final = (1e-3, 0.02, 0.5)  # of delta: tried in this order
_LARGEST_EXPONENT: Final = 700.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Epsilons:
    """The epsilons at one delta: against the ad server alone, and with either helper colluding."""

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
    return Epsilons(
        ad_server=spent_against_ad_server(charges, delta), colluding=_spent_colluding(charges, delta)
    )


def _spent_colluding(charges: Sequence[Charge], delta: float) -> float:
    """The second of `spent`'s two epsilons; mostly a closed form."""
    return composed_epsilon((_known(charge) for charge in charges if not charge.is_common), delta)


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
    return _with_exposures(charges, delta - failures) + 2 * failures


def _known(charge: Charge) -> Charge:
    """A charge against an adversary who knows which records a helper samples.

    A coin that a device flips itself it does not know.
    """
    return charge.unsampled() if charge.is_sampled and not charge.is_self_sampled else charge


def _with_exposures(charges: Sequence[Charge], delta: float) -> float:
    """The epsilon of charges whose samples may show.

    For each the smaller of what that costs and of no sampling.

    The releases differ from ones in which no sample ever shows with probability d at most, in either dataset;
    so an (epsilon, delta') of those is an (epsilon, delta' + (1 + e^epsilon) d) of these.
    """
    most = _EXPOSURE_OF_ONE * delta
    hidden = [charge if charge.rounds * charge.exposure <= most else charge.unsampled() for charge in charges]
    exposed = math.fsum(charge.rounds * charge.exposure for charge in hidden)
    if not exposed:
        return composed_epsilon(hidden, delta, noises=math.sqrt(2))
    for part in _EXPOSURE_OF_ALL:
        epsilon = composed_epsilon(hidden, (1 - part) * delta, noises=math.sqrt(2))
        if epsilon < _LARGEST_EXPONENT and exposed * (1 + math.exp(epsilon)) <= part * delta:
            return epsilon
    return composed_epsilon(map(_known, charges), delta, noises=math.sqrt(2))


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
        return (
            Charge(
                mechanism=mechanism,
                noise_multiplier=noise_multiplier,
                sampling_rate=sampling_rate,
                rounds=rounds,
                reports=reports,
            ),
        )

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

    def together(noise_multiplier: float) -> list[Charge]:
        return [*already, *(charges(noise_multiplier) if charges else ())]

    def fits_colluding(noise_multiplier: float) -> bool:
        return _spent_colluding(together(noise_multiplier), delta) <= collusion_epsilon

    def fits_ad_server(noise_multiplier: float) -> bool:
        return epsilon == math.inf or spent_against_ad_server(together(noise_multiplier), delta) <= epsilon

    lowest, highest = NOISE_MULTIPLIERS
    if charges is None or not (fits_colluding(highest) and fits_ad_server(highest)):
        before = spent(already, delta)
        raise JobRefused(
            JobReason.BUDGET_EXHAUSTED,
            f"no noise makes this fit: {before.ad_server:.4g} of {epsilon:.4g} is spent against the ad "
            "server and "
            f"{before.colluding:.4g} of {collusion_epsilon:.4g} against it with one helper, at delta "
            f"{delta:.2g}: "
            "use fewer rounds or another dataset (with unit user, another task)",
        )
    # The budget against collusion first: its bounds are closed forms, where the other's are composed.
    least = lowest if fits_colluding(lowest) else _smallest(fits_colluding, lowest, highest)
    if fits_ad_server(least):
        return least
    step = _FIRST_STEP
    while not fits_ad_server(enough := min(highest, least * step)):
        least, step = enough, step**2
    return _smallest(fits_ad_server, least, enough)


def _smallest(fits: Callable[[float], bool], too_small: float, enough: float) -> float:
    """Where a monotone predicate turns true, to `SEARCH_PRECISION`, from above."""
    while enough / too_small > SEARCH_PRECISION:
        middle = math.sqrt(too_small * enough)
        if fits(middle):
            enough = middle
        else:
            too_small = middle
    return enough
