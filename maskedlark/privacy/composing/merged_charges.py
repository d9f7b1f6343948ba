"""Charges by what bounds them: equal ones merged, and of many different ones a dearer few."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from maskedlark.frozen import frozen
from maskedlark.privacy.charge import GAUSSIAN_SLACK, NOISE_MULTIPLIERS, Charge, continuous
from maskedlark.privacy.composing.random_allocation import LEAST_NOISE
from maskedlark.privacy.mechanism import Mechanism

# Between these losses are computed in doubles: a lower rate counts as the lowest, a higher one as 1.
_RATES: Final = (2.0**-40, 1 - 2.0**-24)
_MAX_CLASSES: Final = 24  # whose divergences take a third of a millisecond each, or some milliseconds
_MAX_EPOCHS: Final = 8  # different settings of random allocation are computed: a tenth of a second each
_RATIOS: Final = (1.01, 1.05, 1.25, 2.0, 8.0, 2.0**20)


class Setting(NamedTuple):
    """The settings of a charge but for the number of rounds; see `Charge`."""

    mechanism: Mechanism
    noise: float
    rate: float = 1.0
    steps: int = 1
    reports: int = 1
    noises: int = 1
    is_of_labels: bool = False

    @classmethod
    def of(cls, charge: Charge) -> "Setting | None":
        """Return all settings but the number of rounds; one value for all unsampled Gaussians."""
        if charge.mechanism is Mechanism.GAUSSIAN and not charge.is_sampled:
            return None
        noise = -charge.noise_multiplier if charge.is_common else charge.noise_multiplier
        return cls(
            charge.mechanism,
            noise,
            charge.sampling_rate,
            charge.epoch_steps,
            charge.reports,
            is_of_labels=charge.is_of_labels,
        )

    def as_single_reports(self) -> "Setting":
        """Return what bounds a Gaussian release with a person's m reports if it is charged m times.

        Noise of variance s^2 is the sum of m noises of s^2 / m. Released one by one, each with one of the
        reports added where that is in the sample or slot, they show more than their sum.
        """
        return self._replace(noise=self.noise / math.sqrt(self.reports), reports=1)


@frozen
class ChargeParts:
    """Charges, equal ones merged, by what bounds them.

    Attributes:
        precision: Of all unsampled Gaussian releases: the sum of 1 / noise^2.
        laplace: Rounds by settings, without epochs.
        sampled: The same of sampled Gaussian releases.
        epochs: The same of random allocation.
        is_noiseless: Whether one has no noise, or too little to count.
    """

    precision: float
    laplace: dict[Setting, int]
    sampled: dict[Setting, int]
    epochs: dict[Setting, int]
    is_noiseless: bool

    @property
    def is_laplace(self) -> bool:
        """True if no epoch is Gaussian."""
        return all(key.mechanism is not Mechanism.GAUSSIAN for key in self.epochs)

    def others(self) -> tuple[Charge, ...]:
        """Return all charges but the unsampled Gaussians, in canonical order."""
        return _charges({**self.laplace, **self.sampled, **self.epochs})

    def fewer(self) -> "ChargeParts":
        """Return parts that cost the same or more, with few distinct sampled Gaussians and epochs."""
        by_size = sorted(self.epochs, key=lambda key: (self.epochs[key] / key.noise**2, key), reverse=True)
        kept, rest = by_size[:_MAX_EPOCHS], by_size[_MAX_EPOCHS:]
        precision, laplace = self._without_slots(rest)
        return replace(
            self,
            precision=precision,
            laplace={
                **{key: rounds for key, rounds in laplace.items() if key.noises == 1},
                **_on_a_grid({key: rounds for key, rounds in laplace.items() if key.noises > 1}),
            },
            sampled=_on_a_grid(self.sampled),
            epochs={key: self.epochs[key] for key in kept},
        )

    def singly(self) -> "ChargeParts":
        """Return parts that cost the same or more, each sampled Gaussian charged for one report at a time."""
        single: Counter[Setting] = Counter()
        for key, rounds in self.sampled.items():
            single[key.as_single_reports()] += rounds * key.reports
        return replace(self, sampled=single)

    def without_sampling(self) -> "ChargeParts":
        """Return the parts against an observer that knows each sample."""
        shown = replace(self, laplace=_at_rate_1(self.laplace))
        precision, laplace = shown._without_slots([*self.epochs, *self.sampled])
        return replace(self, precision=precision, laplace=laplace, sampled={}, epochs={})

    def _without_slots(self, keys: Iterable[Setting]) -> tuple[float, dict[Setting, int]]:
        """Return the precision and the Laplace releases, treating some sampled ones as if known."""
        rounds = {**self.epochs, **self.sampled}
        precisions, laplace = [self.precision], Counter(self.laplace)
        for key in keys:
            if key.mechanism is Mechanism.GAUSSIAN:
                shift = 2 * key.reports if key.is_of_labels else key.reports
                precisions.append(rounds[key] * (shift / (key.noise * GAUSSIAN_SLACK)) ** 2)
            else:
                laplace[key._replace(rate=1.0, steps=1)] += rounds[key]
        return math.fsum(precisions), dict(laplace)


def merge(charges: Iterable[Charge], noises: int) -> ChargeParts:
    """Merge charges, looking once at each: this is all that is done for each of thousands.

    Args:
        charges: The charges.
        noises: How many noises like the one that a charge names are summed, unless that one is common.
    """
    smallest, largest = NOISE_MULTIPLIERS
    plain: Counter[float] = Counter()
    laplace: Counter[Setting] = Counter()
    sampled: Counter[Setting] = Counter()
    epochs: Counter[Setting] = Counter()
    is_noiseless = False
    for charge in charges:
        mechanism, noise, rate = (
            charge.mechanism,
            charge.noise_multiplier,
            _round_rate_up(charge.sampling_rate),
        )
        steps, reports = charge.epoch_steps, charge.reports
        is_gaussian = mechanism is Mechanism.GAUSSIAN
        summed = charge.noises if charge.is_common else max(noises, charge.noises)
        if is_gaussian:
            noise, summed = noise * math.sqrt(summed), 1
        rounds = charge.rounds
        if charge.overlap:
            # What the slots have in common hides nothing; the rest is an epoch. Of a person's reports one at
            # a time, as in `as_single_reports`, which loses nothing of the former.
            noise, rounds, reports = noise / math.sqrt(reports), rounds * reports, 1
            shift = math.sqrt(charge.overlap) * (2 if charge.is_of_labels else 1)
            plain[min(noise / shift, largest)] += rounds
            noise /= math.sqrt(1 - charge.overlap)
        if reports > 1 and (not is_gaussian or (steps == 1 and rate == 1)):
            # all of a person's reports together, as one shift, without sampling
            noise, rate, steps, reports = noise / reports, 1.0, 1, 1
        is_of_labels = charge.is_of_labels
        if is_of_labels and is_gaussian and (steps > 1 or rate < 1):
            noise, rounds, reports = noise / math.sqrt(reports), rounds * reports, 1
        elif is_of_labels:
            # From one contribution to its negative: twice the shift, without sampling.
            noise, rate, steps, is_of_labels = noise / 2, 1.0, 1, False
        noise = min(noise, largest)
        if summed > 1 and continuous(mechanism, noise, summed) < LEAST_NOISE:
            summed = 1  # the ratios of so little noise are not computed; that of one noise is a bound
        if noise < smallest:
            is_noiseless = True
        elif steps > 1:
            key = Setting(
                mechanism, noise, steps=steps, reports=reports, noises=summed, is_of_labels=is_of_labels
            )
            epochs[key] += rounds
        elif not is_gaussian:
            laplace[Setting(mechanism, noise, rate, noises=summed)] += rounds
        elif rate < 1:
            key = Setting(mechanism, noise, rate, reports=reports, is_of_labels=is_of_labels)
            sampled[key] += rounds
        else:
            plain[noise] += rounds
    precision = math.fsum(count / (noise * GAUSSIAN_SLACK) ** 2 for noise, count in plain.items())
    return ChargeParts(
        precision=precision, laplace=laplace, sampled=sampled, epochs=epochs, is_noiseless=is_noiseless
    )


def _round_rate_up(rate: float) -> float:
    """Return a rate that costs at least as much and that doubles can represent."""
    lowest, highest = _RATES
    return max(rate, lowest) if rate <= highest else 1.0


def _at_rate_1(laplace: dict[Setting, int]) -> dict[Setting, int]:
    """Return sampled Laplace releases against an observer that knows each sample."""
    shown: Counter[Setting] = Counter()
    for key, rounds in laplace.items():
        shown[key._replace(rate=1.0)] += rounds
    return shown


def _charges(rounds: dict[Setting, int]) -> tuple[Charge, ...]:
    return tuple(
        Charge(
            mechanism=key.mechanism,
            noise_multiplier=key.noise,
            sampling_rate=key.rate,
            rounds=rounds[key],
            epoch_steps=key.steps,
            reports=key.reports,
            noises=key.noises,
            is_of_labels=key.is_of_labels,
        )
        for key in sorted(rounds)
    )


def _on_a_grid(sampled: dict[Setting, int]) -> dict[Setting, int]:
    """Round charges of one mechanism to less noise and a higher rate on a grid.

    On the finest grid that leaves few different ones.
    """
    if len(sampled) <= _MAX_CLASSES:
        return sampled
    one = next(iter(sampled))
    single = [key.as_single_reports() for key in sampled]
    rounds = [count * key.reports for key, count in sampled.items()]
    noises, rates = np.array([key.noise for key in single]), np.array([key.rate for key in single])
    merged: Counter[Setting] = Counter()
    for ratio in _RATIOS:
        step = math.log(ratio)
        # A logarithm and its exponential may be a few roundings off: the factor brings the noise below the
        # true grid point, and the minimum keeps it from ever exceeding what was charged. The same upwards for
        # the rate.
        less = np.minimum(np.exp(step * np.floor(np.log(noises) / step)) * (1 - 2.0**-50), noises)
        higher = np.minimum(
            1.0, np.maximum(np.exp(step * np.ceil(np.log(rates) / step)) * (1 + 2.0**-50), rates)
        )
        merged = Counter()
        for noise, rate, count in zip(less.tolist(), higher.tolist(), rounds, strict=True):
            is_computed = continuous(one.mechanism, noise, one.noises) >= LEAST_NOISE
            noises_summed = one.noises if is_computed else 1
            merged[
                Setting(one.mechanism, noise, rate, noises=noises_summed, is_of_labels=one.is_of_labels)
            ] += count
        if len(merged) <= _MAX_CLASSES:
            break
    return merged
