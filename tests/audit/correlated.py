"""A canary over whole jobs of correlated noise, against an ad server that grinds job ids and weights.

Each step takes a part of the noise of the step before out again, so a record's steps tell more together than
one by one. The ad server, who has one helper's keys, tries job ids until the canary's slot is the worst, and
before each round weights until the canary is in it, which never succeeds: a record has one slot for all
epochs. It undoes the correlation: it adds the answers up as the noise was taken out, and projects on what
the canary would do. What it shows stays under the claim; helpers with half of their noise or with slots that
hang on the transcript are caught, and so is a claim that counts the epochs one by one.

The ad server alone faces both noises, takes any job id, and does not know the slot: its statistic is the
likelihood ratio of a whole job, the mean over all slots.
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
from tests.audit.epochs import changed, slots_from_transcript
from tests.audit.part import Part, is_under
from tests.audit.site import CLIP_NORM, COLLUDING_HELPER, DELTA, Colluder, Site, open_site

RECORDS: Final = 200
STEPS: Final = 4
EPOCHS: Final = 3
"""Of one job, which is one trial."""
TRIALS: Final = 250
CARRIED: Final = 48
NOISE: Final = 1.5
ERROR: Final = 0.05 / 8
_TRIES: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What both adversaries show of one build.

    Attributes:
        claimed: What the helpers state of one job: to the ad server alone, and with a helper.
        one_by_one: What a claim would state that counts each epoch by itself, with a helper.
        shown: What the guesses prove, in the order of `claimed`.
        longest: The largest shift of a job's statistic, over the noise: at most that which is charged.
        most: The most rounds of an epoch, and the most different slots of a job, that a record ever had.
    """

    claimed: tuple[float, float]
    one_by_one: float
    shown: tuple[float, float]
    longest: float
    most: int


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
            "one_slot_in_all_epochs": found.most == 1,
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


def ground(seed: int) -> Part:
    """The part on helpers whose slots hang on the transcript: the audit must see it."""
    found = examine(seed, is_ground=True)
    return Part(
        claims={"ground_correlated_slots_caught": found.most > 1 and found.shown[1] > found.claimed[1]},
        figures={"ground_correlated_shown": found.shown, "ground_correlated_most": found.most},
    )


def examine(seed: int, *, is_halved: bool = False, is_ground: bool = False, trials: int = TRIALS) -> Found:
    """Real helpers over gRPC, with the canary and without."""
    with (
        open_site(seed=seed, mechanism="gaussian", clip_norm=CLIP_NORM, max_dataset_size=RECORDS) as site,
        half_of_the_noise() if is_halved else nullcontext(),
        slots_from_transcript() if is_ground else nullcontext(),
    ):
        grinders = [Grinder(site, site.seal_canary(RECORDS, label)) for label in (None, 0)]
        without, with_canary = (np.array([one.trial() for _ in range(trials)]) for one in grinders)
    alone, together = (Guesses.above(with_canary[:, who], without[:, who]).rates(ERROR) for who in (0, 1))
    return Found(
        claimed=grinders[0].claimed,
        one_by_one=one_by_one(),
        shown=(alone.epsilon(DELTA), together.gaussian_epsilon(DELTA)),
        longest=max(grinder.longest for grinder in grinders) / NOISE,
        most=max(grinder.most for grinder in grinders),
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
        self.most = 0
        self._weights = [changed(site.initial_weights, number) for number in range(_TRIES)]
        self._undo = np.linalg.inv(
            np.eye(EPOCHS * STEPS) - CARRIED / DENOMINATOR * np.eye(EPOCHS * STEPS, k=-1)
        )
        self._slots = self._undo @ np.tile(np.eye(STEPS), (EPOCHS, 1))

    def trial(self) -> tuple[float, float]:
        """Two jobs: the log likelihood ratio of one whose slot is secret, and how far the other's statistic
        is beyond half of the canary's shift, in that shift.
        """
        self._site.cores[COLLUDING_HELPER].jobs._carried = self._noise
        unit = self._site.task.clip.sensitivity
        seen, _, _ = self._answers(self._job())
        products = self._undo @ seen / unit @ self._slots - np.square(self._slots).sum(axis=0) / 2
        alone = float(np.log(np.exp(products / (2 * NOISE**2)).mean()))
        worst = max((self._job() for _ in range(_TRIES)), key=lambda spec: float(self._expected(spec)))
        sums, own, is_in = self._answers(worst)
        shift = self._undo @ is_in
        length = float(np.linalg.norm(shift))
        self.longest = max(self.longest, length)
        together = float(shift @ self._undo @ (sums - own)) / unit / length - length / 2
        return alone, together

    def _job(self) -> JobSpec:
        return self._site.spec(
            self._dataset,
            rounds=EPOCHS * STEPS,
            noise_multiplier=NOISE,
            epoch_steps=STEPS,
            carried=CARRIED,
        )

    def _expected(self, spec: JobSpec) -> float:
        """Return the length of the canary's shift, if weights change no slot."""
        slot = int(self._pair.slots(spec.digest, 0, RECORDS, STEPS)[self._row])
        return float(np.linalg.norm(self._slots[:, slot]))

    def _answers(self, spec: JobSpec) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Run a job: the sums, the colluding helper's noise, and in which rounds the canary was."""
        started = self._site.open(spec)
        if not any(self.claimed):
            self.claimed = started.epsilon_spent, started.collusion_epsilon_spent
        self._noise.taken.clear()
        sums, is_in = np.zeros(spec.rounds), np.zeros(spec.rounds)
        for index in range(spec.rounds):
            sent, is_in[index] = self._ground(spec, index, started.numerics_digest)
            sums[index] = combine(*self._site.shares(spec, index, sent))[BIAS]
        own = np.array([taken[BIAS] for taken in self._noise.taken], dtype=np.float64)
        by_epoch = is_in.reshape(EPOCHS, STEPS)
        self.most = max(self.most, int(by_epoch.sum(axis=1).max()), int(by_epoch.any(axis=0).sum()))
        return sums, own, is_in

    def _ground(self, spec: JobSpec, index: int, numerics: bytes) -> tuple[bytes, bool]:
        """Return weights with which the canary is in the round, if some are found; and whether it is."""
        for sent in self._weights:
            script = spec.round_transcript(round_index=index, weights=sent, numerics=numerics)
            if spec.draw_sample(self._pair, index, script, RECORDS)[self._row]:
                return sent, True
        return self._weights[-1], False


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
