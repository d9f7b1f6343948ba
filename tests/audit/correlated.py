"""A canary over whole jobs of correlated noise, against an ad server that grinds job ids.

Each step takes a part of the noise of the step before out again, so a record's steps tell more together than
one by one, most where they are neighbours. The ad server, who has one helper's keys, tries job ids until the
canary's slots are bad, and undoes the correlation: it adds the answers up as the noise was taken out, and
projects on what the canary would do. What it shows stays under the claim; helpers with half of their noise
are caught, and so is a claim that counts the epochs one by one.

The same statistic with both helpers' noise in it is the ad server alone, if it knew the slots; the claim
against it does not count on slots being secret.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import sqrt
from typing import Any, Final
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from helper.releases import correlated_noise
from helper.releases.correlated_noise import CorrelatedNoise
from maskedlark.privacy.accounting import spent
from maskedlark.privacy.correlated import DENOMINATOR, NoiseVector, StepStreams, draw_step_noise, sensitivity
from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import combine
from tests import charge_builders
from tests.audit.bounds import Guesses
from tests.audit.canary import BIAS
from tests.audit.part import Part, is_under
from tests.audit.site import CLIP_NORM, COLLUDING_HELPER, DELTA, Colluder, Site, open_site

RECORDS: Final = 100
STEPS: Final = 4
EPOCHS: Final = 3
"""Of one job, which is one trial."""
TRIALS: Final = 200
CARRIED: Final = 48
NOISE: Final = 1.5
ERROR: Final = 0.05 / 8
_TRIES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What both adversaries show of one build.

    Attributes:
        claimed: What the helpers state of one job: to the ad server alone, and with a helper.
        one_by_one: What a claim would state that counts each epoch by itself, with a helper.
        shown: What the guesses prove, in the order of `claimed`.
        longest: The largest shift of a job's statistic, over the noise: at most that which is charged.
    """

    claimed: tuple[float, float]
    one_by_one: float
    shown: tuple[float, float]
    longest: float


class Recorded(CorrelatedNoise):
    """The noise of a helper that colludes: it is used like any, and the adversary has it too."""

    taken: list[NoiseVector]

    def of_round(self, *arguments: Any, **settings: Any) -> NoiseVector:
        self.taken.append(super().of_round(*arguments, **settings))
        return self.taken[-1]


def honest(seed: int) -> Part:
    """The part on helpers as they are."""
    found = examine(seed)
    return Part(
        claims={
            "correlated_under_claim": is_under(found.shown, found.claimed),
            "epochs_one_by_one_caught": found.shown[1] > found.one_by_one,
        },
        figures={
            "correlated_claimed": found.claimed,
            "correlated_shown": found.shown,
            "correlated_one_by_one": found.one_by_one,
        },
    )


def halved(seed: int) -> Part:
    """The part on helpers with half of the noise that they charge for: the audit must see it."""
    found = examine(seed, is_halved=True)
    return Part(
        claims={"halved_correlated_caught": found.shown[1] > found.claimed[1]},
        figures={"halved_correlated_shown": found.shown},
    )


def examine(seed: int, *, is_halved: bool = False, trials: int = TRIALS) -> Found:
    """Real helpers over gRPC, with the canary and without."""
    with (
        open_site(seed=seed, mechanism="gaussian", clip_norm=CLIP_NORM, max_dataset_size=RECORDS) as site,
        half_of_the_noise() if is_halved else nullcontext(),
    ):
        grinders = [Grinder(site, site.seal_canary(RECORDS, label)) for label in (None, 0)]
        without, with_canary = (np.array([one.trial() for _ in range(trials)]) for one in grinders)
    shown = [
        Guesses.above(with_canary[:, who], without[:, who]).rates(ERROR).gaussian_epsilon(DELTA)
        for who in (0, 1)
    ]
    return Found(
        claimed=grinders[0].claimed,
        one_by_one=one_by_one(),
        shown=(shown[0], shown[1]),
        longest=max(grinder.longest for grinder in grinders) / NOISE,
    )


def one_by_one() -> float:
    """What the epochs would cost, with a helper, if a step's noise were its own."""
    known = charge_builders.gaussian(NOISE / sqrt(EPOCHS))
    return spent([known], DELTA).colluding


class Grinder(Colluder):
    """An ad server that has the keys of one helper."""

    def __init__(self, site: Site, dataset: bytes) -> None:
        super().__init__(site, dataset)
        core = site.cores[COLLUDING_HELPER]
        self._noise = Recorded(core._keys.noise_key, core._ledger)
        self._noise.taken = []
        core.jobs._carried = self._noise
        self.claimed = (0.0, 0.0)
        self.longest = 0.0
        self._undo = np.linalg.inv(
            np.eye(EPOCHS * STEPS) - CARRIED / DENOMINATOR * np.eye(EPOCHS * STEPS, k=-1)
        )

    def trial(self) -> tuple[float, float]:
        """One job: how far both statistics are beyond half of the canary's shift, in that shift."""
        self._site.cores[COLLUDING_HELPER].jobs._carried = self._noise
        spec, shift = max((self._tried() for _ in range(_TRIES)), key=lambda one: float(one[1] @ one[1]))
        started = self._site.open(spec)
        if not any(self.claimed):
            self.claimed = started.epsilon_spent, started.collusion_epsilon_spent
        self._noise.taken.clear()
        sums = np.array([combine(*self._site.shares(spec, i))[BIAS] for i in range(spec.rounds)])
        own = np.array([taken[BIAS] for taken in self._noise.taken])
        length = float(np.linalg.norm(shift))
        self.longest = max(self.longest, length)
        unit = self._site.task.clip.sensitivity
        together, alone = (
            float(shift @ self._undo @ seen) / unit / length - length / 2 for seen in (sums - own, sums)
        )
        return alone, together

    def _tried(self) -> tuple[JobSpec, NDArray[np.float64]]:
        """A job, and what the canary does to its steps once the correlation is undone."""
        spec = self._site.spec(
            self._dataset,
            rounds=EPOCHS * STEPS,
            noise_multiplier=NOISE,
            epoch_steps=STEPS,
            carried=CARRIED,
        )
        is_in = np.zeros(spec.rounds)
        for epoch in range(EPOCHS):
            is_in[epoch * STEPS + int(self._pair.slots(spec.digest, epoch, RECORDS, STEPS)[self._row])] = 1
        return spec, self._undo @ is_in


@contextmanager
def half_of_the_noise() -> Iterator[None]:
    """Helpers whose correlated noise has half of the scale that is charged."""

    def half(carried: int, scale: int, count: int, streams: StepStreams) -> NoiseVector:
        return draw_step_noise(carried, scale // 2, count, streams)

    with patch.object(correlated_noise, "draw_step_noise", half):
        yield


def charged_shift() -> float:
    """The shift over one helper's noise that the helpers charge for."""
    return sensitivity(CARRIED, steps=STEPS, epochs=EPOCHS) / NOISE
