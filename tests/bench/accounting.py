"""The accountant's figures: how fast it composes, and that it is never below the truth.

    make bench-accounting              a table
    make bench-accounting ARGS=--json  one JSON object

Processor seconds of this process, so that a busy machine does not count. "Cold" is with empty caches, after
the libraries are loaded.
"""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from maskedlark.privacy.accounting import Charge, spent, spent_in_turn
from maskedlark.privacy.composing import (
    composed_losses,
    composition,
    merged_charges,
    random_allocation,
    renyi,
)
from maskedlark.privacy.composing.composition import compose_epsilon
from maskedlark.privacy.composing.random_allocation import epoch_ratios
from maskedlark.privacy.correlated import DENOMINATOR, sensitivity, slots_apart
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.sample_size import EXPOSURE, hides, under
from tests import charge_builders
from tests.bench.harness import bench_parser, seconds, show

DELTA: Final = 1e-5
JOBS: Final = {  # the README's: noise multiplier of each helper, steps, epochs
    "0.73, 7 epochs of 29": (0.73, 29, 7),
    "1.5, 3 epochs of 29": (1.5, 29, 3),
    "2, 3 epochs of 15": (2.0, 15, 3),
}
DRAWS: Final = 40_000
PERSON_DRAWS: Final = 1_000_000


def epochs(noise: float, steps: int, count: int) -> Charge:
    """A job of random allocation."""
    return charge_builders.gaussian(noise, rounds=count, epoch_steps=steps)


def forget() -> None:
    """Empty the caches."""
    for cached in (
        composition._of_few,
        composed_losses._losses,
        renyi._epoch_divergences,
        random_allocation.epoch_ratios,
    ):
        cached.cache_clear()


def jobs() -> dict[str, Any]:
    """The README's jobs, and what they take."""
    spent([epochs(3.0, 4, 1)], DELTA)  # loads the libraries
    found: dict[str, Any] = {"epsilons": {}}
    cold, cached = [], []
    for name, job in JOBS.items():
        forget()
        cold.append(seconds(lambda job=job: spent([epochs(*job)], DELTA)))  # type: ignore[misc]
        cached.append(seconds(lambda job=job: spent([epochs(*job)], DELTA)))  # type: ignore[misc]
        cost = spent([epochs(*job)], DELTA)
        found["epsilons"][name] = [round(cost.ad_server, 3), round(cost.colluding, 2)]
    return found | {"seconds_cold": max(cold), "seconds_cached": max(cached)}


def never_below_monte_carlo(seed: int) -> bool:
    """Whether simulated epochs lose no more than the bound (at five standard errors), over a grid, in both
    directions.
    """
    rng = np.random.default_rng(seed)
    for noise in (0.4, 0.8, 1.5, 4.0):
        for steps in (2, 7, 30, 100):
            for count in (1, 5):
                losses = np.zeros((2, DRAWS))
                for _ in range(count):
                    for is_there in (0, 1):
                        y = rng.normal(0.0, noise, (DRAWS, steps))
                        y[:, 0] += is_there
                        losses[is_there] += np.log(np.exp((y - 0.5) / noise**2).mean(axis=1))
                bound = (
                    epoch_ratios(Mechanism.GAUSSIAN, noise, steps).points().losses(1e-3).self_compose(count)
                )
                for epsilon in (0.05, 0.5, 2.0):
                    for sampled, one in [(losses[1], bound.remove), (-losses[0], bound.add)]:
                        gains = np.maximum(-np.expm1(epsilon - sampled), 0)
                        least = gains.mean() - 5 * gains.std() / math.sqrt(DRAWS)
                        if least > one.delta(epsilon):
                            return False
    return True


def bins_never_below_monte_carlo(seed: int) -> bool:
    """Whether simulated jobs of correlated noise lose no more than is charged (at five standard errors),
    over a grid, in both directions.

    The simulation has the exact shifts of all slots, and knows nothing of the bound's few slots far apart.
    """
    rng = np.random.default_rng(seed)
    for steps, count in ((2, 5), (3, 4), (9, 17), (24, 8), (50, 2), (100, 1)):
        for carried in (32, 56, 61):
            for shift in (0.5, 1.0, 2.0, 4.0):
                length = sensitivity(carried, steps=steps, epochs=count)
                apart = slots_apart(carried, steps=steps, epochs=count)
                charged = charge_builders.gaussian(1 / shift, epoch_steps=apart.slots, overlap=apart.overlap)
                removed, added = slot_losses(rng, carried, steps, count, noise=length / shift)
                for epsilon in (0.05, 0.5, 1.0, 2.0, 4.0):
                    gains = np.maximum(-np.expm1(epsilon - np.stack([removed, added])), 0)
                    least = gains.mean(axis=1) - 5 * gains.std(axis=1) / math.sqrt(DRAWS)
                    delta = float(least.max())
                    if delta > 0 and compose_epsilon([charged], delta) < epsilon:
                        return False
    return True


def slot_losses(
    rng: np.random.Generator, carried: int, steps: int, epochs: int, *, noise: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw losses of a whole job with a record of +1 in one secret slot of each epoch: removed, and added."""
    length = steps * epochs
    undone = np.linalg.inv(np.eye(length) - carried / DENOMINATOR * np.eye(length, k=-1))
    shifts = undone @ np.tile(np.eye(steps), (epochs, 1)) / noise
    products = shifts.T @ shifts
    root = np.linalg.cholesky(products + 1e-12 * products.max() * np.eye(steps))
    without = rng.standard_normal((DRAWS, steps)) @ root.T - products.diagonal() / 2
    with_record = without + products[rng.integers(0, steps, DRAWS)]
    removed, ratio = (np.log(np.exp(one).mean(axis=1)) for one in (with_record, without))
    return removed, -ratio


def different(rng: random.Random) -> dict[str, Callable[[], Charge]]:
    """Charges that are never twice the same."""

    def laplace() -> Charge:
        return charge_builders.laplace(rng.uniform(1e3, 1e4))

    def gaussian() -> Charge:
        return charge_builders.gaussian(rng.uniform(1e2, 1e3))

    def sampled() -> Charge:
        noise, rate = rng.uniform(20, 200), rng.uniform(0.01, 0.5)
        return charge_builders.gaussian(noise, rate=rate)

    def mixed() -> Charge:
        return rng.choice((laplace, gaussian, sampled))()

    return {"laplace": laplace, "gaussian": gaussian, "sampled": sampled, "mixed": mixed}


def one_more_after(count: int, rng: random.Random) -> float:
    """The seconds of the slowest charge after so many different ones."""
    slowest = 0.0
    for make in different(rng).values():
        jobs = [[make()] for _ in range(count)]
        spent_in_turn(jobs, DELTA)
        for _ in range(3):
            jobs.append([make()])
            slowest = max(slowest, seconds(lambda jobs=jobs: spent_in_turn(jobs, DELTA)))  # type: ignore[misc]
    return slowest


def never_below_exact(rng: random.Random) -> bool:
    """Whether what is composed the quick way, for many charges, covers the tight way, where that has time for
    all of them.
    """
    for make in different(rng).values():
        charges = tuple(make() for _ in range(30))
        parts = merged_charges.merge(charges, 1)
        exact = (
            composed_losses.loss_distribution_epsilon(parts.precision, parts.others(), DELTA)
            if parts.others()
            else 0.0
        )
        if composition.compose_epsilon(charges, DELTA) < exact * (1 - 1e-3):
            return False
    return True


def under_k_charged() -> bool:
    """Whether a batch that may be under k saves nothing, and a larger one's chance of it is in delta.

    The example of docs/explanation/privacy-charges.md: 2,000 records, k 20, noise 1, 1,000 rounds.
    """
    records, k, noise = 2_000, 20, 1.0
    rounds, known = (
        1_000,
        charge_builders.gaussian(noise, rounds=1_000),
    )
    small = 20 / records
    chance = under(k, others=records - 1, rate=small)
    shows = replace(known, sampling_rate=small, exposure=min(1.0, chance), rounds=rounds)
    hidden = replace(known, sampling_rate=100 / records, rounds=rounds)
    counted = replace(hidden, exposure=EXPOSURE)
    return (
        not hides(dataset_size=records, rate=small, k=k)
        and spent([shows], DELTA).ad_server == spent([known], DELTA).ad_server
        and hides(dataset_size=records, rate=100 / records, k=k)
        and spent([counted], DELTA).ad_server > spent([hidden], DELTA).ad_server
    )


PERSONS: Final = {  # noise, rate, rounds or epochs, steps of an epoch, reports of a person
    "7 epochs of 29, m 2": (0.73, 1.0, 7, 29, 2),
    "q .01, m 16": (4.0, 0.01, 200, 1, 16),
    "q .02, m 5": (3.0, 0.02, 200, 1, 5),
    "q .05, m 2": (1.0, 0.05, 50, 1, 2),
    "3 epochs of 15, m 3": (2.0, 1.0, 3, 15, 3),
}


def user_over_lower_bound(seed: int) -> float:
    """The largest ratio of what persons with several reports cost to a simulation's bound from below."""
    return max(
        spent([person_of(*case)], DELTA).ad_server / person_from_below(*case, seed=seed)
        for case in PERSONS.values()
    )


def person_of(noise: float, rate: float, rounds: int, steps: int, reports: int) -> Charge:
    """A job of which each person has several reports."""
    return Charge(
        mechanism=Mechanism.GAUSSIAN,
        noise_multiplier=noise,
        sampling_rate=rate,
        rounds=rounds,
        epoch_steps=steps,
        reports=reports,
    )


def person_from_below(
    noise: float, rate: float, rounds: int, steps: int, reports: int, *, seed: int
) -> float:
    """An epsilon that is not enough at `DELTA`, at three standard errors; both helpers' noise.

    The losses of a person's reports on one line, removed. Draws at the odds of the tail: noise is drawn
    with the reports in it, where large losses are likely.
    """
    rng, z = np.random.default_rng(seed), noise * math.sqrt(2)
    losses = np.zeros(PERSON_DRAWS)
    for _ in range(rounds):
        y = rng.normal(0.0, z, (PERSON_DRAWS, steps))
        if steps > 1:
            slots = rng.integers(0, steps, (PERSON_DRAWS, reports))
            np.add.at(y, (np.arange(PERSON_DRAWS)[:, None], slots), 1.0)
            losses += log_ratio_of_slots(y, z, reports)
        else:
            y[:, 0] += rng.binomial(reports, rate, PERSON_DRAWS)
            k = np.arange(reports + 1)
            odds = np.array([math.comb(reports, n) * rate**n * (1 - rate) ** (reports - n) for n in k])
            losses += np.log(np.exp((y * k - k * k / 2) / z**2) @ odds)
    low, high = 0.0, float(losses.max())
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        gains = np.maximum(-np.expm1(middle - losses), 0)
        is_more = gains.mean() - 3 * gains.std() / math.sqrt(PERSON_DRAWS) > DELTA
        low, high = (middle, high) if is_more else (low, middle)
    return low


def log_ratio_of_slots(y: NDArray[np.float64], z: float, reports: int) -> NDArray[np.float64]:
    """The exact ratio of an epoch in which each of a person's reports has a slot of its own.

    The mean over all slots is reports! / steps^reports times a coefficient of the product over steps of
    sum over n of u^n e^((n y - n^2 / 2) / z^2) / n!.
    """
    product = np.zeros((len(y), reports + 1))
    product[:, 0] = 1.0
    for step in y.T:
        factors = [np.exp((n * step - n * n / 2) / z**2) / math.factorial(n) for n in range(reports + 1)]
        product = np.stack(
            [sum(product[:, m - n] * factors[n] for n in range(m + 1)) for m in range(reports + 1)], axis=1
        )
    scale = math.lgamma(reports + 1) - reports * math.log(y.shape[1])
    return np.asarray(np.log(product[:, reports]) + scale, dtype=np.float64)


def laplace_both_over_lower_bound() -> float:
    """The largest ratio of what both helpers' Laplace noise costs the ad server to a bound from below.

    The bound composes the exact losses of the sum of two discrete noises, each rounded down to a fine grid.
    """
    return max(
        spent([laplace_release(noise, rounds)], DELTA).ad_server / laplace_from_below(noise, rounds)
        for noise, rounds in ((2.0, 6), (10.0, 50), (30.0, 100), (30.0, 1_000), (100.0, 3_000))
    )


def laplace_release(noise: float, rounds: int) -> Charge:
    """Releases with Laplace noise."""
    return Charge(mechanism=Mechanism.LAPLACE, noise_multiplier=noise, sampling_rate=1.0, rounds=rounds)


def laplace_from_below(noise: float, rounds: int) -> float:
    """An epsilon that no valid bound is under, at `DELTA`."""
    shift = 1 << 10
    scale, step = shift * noise, 1e-4 / max(1.0, noise / 10)
    far = np.abs(np.arange(-int(40 * scale), int(40 * scale) + 1))
    r = math.exp(-1 / scale)
    law = r**far * (far + (1 + r * r) / (1 - r * r))
    law /= law.sum()
    losses = np.floor(np.log(law[shift:] / law[:-shift]) / step).astype(int)
    one = np.bincount(losses - losses.min(), weights=law[shift:])
    size = min(1 << (rounds * len(one)).bit_length(), 1 << 22)
    composed = np.fft.irfft(np.fft.rfft(one, size) ** rounds, size).clip(0)
    # the transform wraps around; what lies further from the mean than half of its length counts for nothing
    window = round(rounds * float(np.arange(len(one)) @ one)) - size // 2
    places = rounds * int(losses.min()) + window + (np.arange(size) - window) % size
    values = step * places
    low, high = 0.0, rounds / noise
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        above = values > middle
        delta = float((composed[above] * -np.expm1(middle - values[above])).sum())
        low, high = (middle, high) if delta > DELTA else (low, middle)
    return low


def figures(seed: int) -> dict[str, Any]:
    """Everything."""
    rng = random.Random(seed)
    return {
        "seed": seed,
        **jobs(),
        "under_k_charged": under_k_charged(),
        "user_over_lower_bound": round(user_over_lower_bound(seed), 3),
        "laplace_both_over_lower_bound": round(laplace_both_over_lower_bound(), 4),
        "allocation_never_below_monte_carlo": never_below_monte_carlo(seed),
        "bins_never_below_monte_carlo": bins_never_below_monte_carlo(seed),
        "seconds_per_charge_after_10000": one_more_after(10_000, rng),
        "never_below_exact": never_below_exact(rng),
    }


def main() -> None:
    """Measure and print."""
    parser = bench_parser(__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the simulations and the settings")
    arguments = parser.parse_args()
    show(figures(arguments.seed), is_json=arguments.json)


if __name__ == "__main__":
    main()
