"""Charges by what bounds them: equal ones merged, and of many different ones a dearer few."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np

from maskedlark.frozen import frozen
from maskedlark.privacy.charge import GAUSSIAN_SLACK, NOISE_MULTIPLIERS, Charge
from maskedlark.privacy.mechanism import Mechanism

_RATES: Final = (2.0**-40, 1 - 2.0**-24)
"""Between these losses are computed in doubles: a lower rate counts as the lowest, a higher one as 1."""
_MAX_CLASSES: Final = 24  # of sampled Gaussians, whose divergences take a third of a millisecond each
_MAX_EPOCHS: Final = 8  # different settings of random allocation are computed: a tenth of a second each
_RATIOS: Final = (1.01, 1.05, 1.25, 2.0, 8.0, 2.0**20)
Key: TypeAlias = tuple[Mechanism, float, float, int, int]
"""A mechanism, noise multiplier, sampling rate, steps an epoch, and reports of one person."""


def setting(charge: Charge) -> Key | None:
    """Return all settings but the number of rounds; one value for all unsampled Gaussians."""
    if charge.mechanism is Mechanism.GAUSSIAN and not charge.is_sampled:
        return None
    noise = -charge.noise_multiplier if charge.is_common else charge.noise_multiplier
    return charge.mechanism, noise, charge.sampling_rate, charge.epoch_steps, charge.reports


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
    laplace: dict[Key, int]
    sampled: dict[Key, int]
    epochs: dict[Key, int]
    is_noiseless: bool

    @property
    def is_laplace(self) -> bool:
        """True if no epoch is Gaussian."""
        return all(key[0] is not Mechanism.GAUSSIAN for key in self.epochs)

    def others(self) -> tuple[Charge, ...]:
        """Return all charges but the unsampled Gaussians, in canonical order."""
        return _charges({**self.laplace, **self.sampled, **self.epochs})

    def fewer(self) -> "ChargeParts":
        """Return parts that cost the same or more, with few distinct sampled Gaussians and epochs."""
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

    def without_sampling(self) -> "ChargeParts":
        """Return the parts against an observer that knows each sample."""
        shown = replace(self, laplace=_at_rate_1(self.laplace))
        precision, laplace = shown._without_slots([*self.epochs, *self.sampled])
        return replace(self, precision=precision, laplace=laplace, sampled={}, epochs={})

    def _without_slots(self, keys: Iterable[Key]) -> tuple[float, dict[Key, int]]:
        """Return the precision and the Laplace releases, treating some sampled ones as if known."""
        rounds = {**self.epochs, **self.sampled}
        precisions, laplace = [self.precision], Counter(self.laplace)
        for key in keys:
            mechanism, noise, _, _, reports = key
            if mechanism is Mechanism.GAUSSIAN:
                precisions.append(rounds[key] * (reports / (noise * GAUSSIAN_SLACK)) ** 2)
            else:
                laplace[mechanism, noise, 1.0, 1, 1] += rounds[key]
        return math.fsum(precisions), dict(laplace)


def merge(charges: Iterable[Charge], noises: float) -> ChargeParts:
    """Merge charges, looking once at each: this is all that is done for each of thousands."""
    smallest, largest = NOISE_MULTIPLIERS
    plain: Counter[float] = Counter()
    laplace: Counter[Key] = Counter()
    sampled: Counter[Key] = Counter()
    epochs: Counter[Key] = Counter()
    is_noiseless = False
    for charge in charges:
        mechanism, noise, rate = (
            charge.mechanism,
            charge.noise_multiplier,
            _round_rate_up(charge.sampling_rate),
        )
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
    return ChargeParts(
        precision=precision, laplace=laplace, sampled=sampled, epochs=epochs, is_noiseless=is_noiseless
    )


def _round_rate_up(rate: float) -> float:
    """Return a rate that costs at least as much and that doubles can represent."""
    lowest, highest = _RATES
    return max(rate, lowest) if rate <= highest else 1.0


def _at_rate_1(laplace: dict[Key, int]) -> dict[Key, int]:
    """Return sampled Laplace releases against an observer that knows each sample."""
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


def as_one_report(noise: float, rate: float, reports: int) -> tuple[float, float]:
    """Bound a sampled Gaussian release of several reports by one of a single report: noise, rate.

    Whenever any of a person's reports is in a sample, all of them are.
    """
    if reports == 1:
        return noise, rate
    return noise / reports, _round_rate_up(
        min(1.0, -math.expm1(reports * math.log1p(-rate)) * (1 + 2.0**-40))
    )


def _on_a_grid(sampled: dict[Key, int]) -> dict[Key, int]:
    """Round sampled Gaussians to less noise and a higher rate on a grid.

    On the finest grid that leaves few different ones.
    """
    if len(sampled) <= _MAX_CLASSES:
        return sampled
    settings = np.array([as_one_report(key[1], key[2], key[4]) for key in sampled])
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
