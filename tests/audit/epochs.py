"""A canary over whole epochs of random allocation, against an ad server that grinds weights.

Before each round the ad server, who has one helper's keys, tries weights until the canary is in the round's
sample. Slots hang on nothing that a round brings, so it never succeeds: each record takes part once an epoch,
which is what both epsilons count. A build in which the transcript enters the slots is caught: there the
canary is in most rounds.

Both adversaries know everything but the canary's contribution, and fix their thresholds before they look. The
ad server alone faces both noises and does not know the slot: its statistic is the likelihood ratio of a whole
epoch. With a helper it knows the slot, and takes that helper's noise off.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Final
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import combine
from maskedlark.reports.helper_pair_key import PairKey
from tests.audit.bounds import Guesses
from tests.audit.canary import BIAS
from tests.audit.part import Part, is_under
from tests.audit.site import CLIP_NORM, COLLUDING_HELPER, DELTA, Colluder, RecordedNoise, Site, open_site

RECORDS: Final = 400
STEPS: Final = 8
EPOCHS: Final = 2
"""Of one trial."""
TRIALS: Final = 150
NOISE: Final = 0.8
ERROR: Final = 0.05 / 8
_TRIES: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One job of whole epochs.

    Attributes:
        most: The most rounds of an epoch that the canary was in.
        alone: The log likelihood ratio to the ad server alone.
        together: The sum of the canary's coordinate over its rounds, less what is expected half way, in units
            of the sensitivity, to the ad server with a helper.
    """

    most: int
    alone: float
    together: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What both adversaries show of one build.

    Attributes:
        most: The most rounds of an epoch that a record was ever in.
        claimed: What the helpers state of one trial: to the ad server alone, and with a helper.
        shown: What the guesses prove, in the same order.
    """

    most: int
    claimed: tuple[float, float]
    shown: tuple[float, float]


def honest(seed: int) -> Part:
    """The part on helpers as they are."""
    found = examine(seed)
    return Part(
        claims={
            "once_an_epoch": found.most == 1,
            "epochs_under_claim": is_under(found.shown, found.claimed),
        },
        figures={"epochs_claimed": found.claimed, "epochs_shown": found.shown},
    )


def ground(seed: int) -> Part:
    """The part on helpers whose slots hang on the transcript: the audit must see it."""
    found = examine(seed, is_ground=True)
    return Part(
        claims={"ground_slots_caught": found.most > 1 and found.shown[1] > found.claimed[1]},
        figures={"ground_slots_shown": found.shown, "ground_slots_most_an_epoch": found.most},
    )


def examine(seed: int, *, is_ground: bool = False, trials: int = TRIALS) -> Found:
    """Real helpers over gRPC, with the canary and without."""
    with (
        open_site(seed=seed, mechanism="gaussian", clip_norm=CLIP_NORM, max_dataset_size=RECORDS) as site,
        slots_from_transcript() if is_ground else nullcontext(),
    ):
        claims, guessed = [], []
        for label in (None, 0):
            dataset = site.seal_canary(RECORDS, label)
            claims.append(
                site.start(dataset, rounds=EPOCHS * STEPS, noise_multiplier=NOISE, epoch_steps=STEPS)[1]
            )
            guessed.append(Grinder(site, dataset).trials(trials))
    without, with_canary = guessed
    shown = [
        Guesses.above([getattr(one, who) for one in with_canary], [getattr(one, who) for one in without])
        for who in ("alone", "together")
    ]
    return Found(
        most=max(one.most for one in (*without, *with_canary)),
        claimed=(claims[0].epsilon_spent, claims[0].collusion_epsilon_spent),
        shown=(shown[0].rates(ERROR).epsilon(DELTA), shown[1].rates(ERROR).gaussian_epsilon(DELTA)),
    )


class Grinder(Colluder):
    """An ad server that has the keys of one helper."""

    def __init__(self, site: Site, dataset: bytes) -> None:
        super().__init__(site, dataset)
        self._weights = [changed(site.initial_weights, number) for number in range(_TRIES)]

    def trials(self, count: int) -> list[Trial]:
        """So many trials, one after the other in one job."""
        spec, started = self._site.start(
            self._dataset, rounds=count * EPOCHS * STEPS, noise_multiplier=NOISE, epoch_steps=STEPS
        )
        noise = self._site.cores[COLLUDING_HELPER].jobs._noise
        assert isinstance(noise, RecordedNoise)
        noise.taken.clear()
        is_in = np.zeros(spec.rounds, np.bool_)
        sums = np.zeros(spec.rounds)
        for index in range(spec.rounds):
            sent, is_in[index] = self._ground(spec, index, started.numerics_digest)
            total = combine(*self._site.shares(spec, index, sent))
            sums[index] = total[BIAS]
        unit = self._site.task.clip.sensitivity
        own = np.array([taken[BIAS] for taken in noise.taken])
        assert len(own) == spec.rounds
        seen, less, places = (
            one.reshape(count, EPOCHS, STEPS) for one in (sums / unit, (sums - own) / unit, is_in)
        )
        return [_trial(*one) for one in zip(seen, less, places, strict=True)]

    def _ground(self, spec: JobSpec, index: int, numerics: bytes) -> tuple[bytes, bool]:
        """Weights with which the canary is in the round, if some are found; and whether it is."""
        for sent in self._weights:
            script = spec.round_transcript(round_index=index, weights=sent, numerics=numerics)
            if spec.draw_sample(self._pair, index, script, RECORDS)[self._row]:
                return sent, True
        return self._weights[-1], False


def _trial(seen: NDArray[np.float64], less: NDArray[np.float64], is_in: NDArray[np.bool_]) -> Trial:
    """What the rounds of whole epochs say: (epochs, steps) each, with both noises and with one."""
    variance = 2 * NOISE**2
    ratios = np.exp((seen - 0.5) / variance).mean(axis=1)
    return Trial(
        most=int(is_in.sum(axis=1).max()),
        alone=float(np.log(ratios).sum()),
        together=float((less - 0.5)[is_in].sum()),
    )


def changed(encoded: bytes, number: int) -> bytes:
    """Other weights, of the same length, that are as good: the lowest bits of the first one differ."""
    return encoded[:1] + bytes([encoded[1] ^ number]) + encoded[2:]


@contextmanager
def slots_from_transcript() -> Iterator[None]:
    """Helpers whose slots hang on the round's transcript, and so on weights that the ad server sends."""

    def sampled(
        job: JobSpec, pair: PairKey, round_index: int, round_transcript: bytes, count: int
    ) -> NDArray[np.bool_]:
        assert job.epoch_steps is not None
        epoch, step = divmod(round_index, job.epoch_steps)
        return np.asarray(pair.slots(round_transcript, epoch, count, job.epoch_steps) == np.uint64(step))

    with patch.object(JobSpec, "draw_sample", sampled):
        yield
