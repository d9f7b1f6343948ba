"""Can the ad server alone tell slots or samples from how a helper answers?

Real helpers over gRPC with secret samples. For each round the audit writes down what shows besides the sum:
how many bytes an answer has, how many records the engine works on, and the agreement tags. The first two must
be the same in all rounds, and no bit of a tag may go with who is in a round. Time is what follows from the
work; nothing here looks at a clock.

Two broken builds must be seen: one whose work is not padded, and one whose tags hang on the values alone.
There all rounds without the one record that differs from the others have one tag.
"""

import hmac
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.engine import ExactEngine
from helper.trust.keys import HelperKeys
from maskedlark.releases.job import JobSpec
from maskedlark.reports.helper_pair_key import PairKey
from maskedlark.reports.report import Example
from tests.audit.part import Part
from tests.audit.site import CLIP_NORM, open_site
from tests.builders import random_features

RECORDS: Final = 400
STEPS: Final = 8
EPOCHS: Final = 20
DEVIATIONS_AT_MOST: Final = 6.0
"""How far, of 256 bits, the one that goes most with a record's slots may be from none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What shows of many rounds.

    Attributes:
        answer_bytes: Every length that an answer had.
        records_worked_on: Every number of records that an engine was given.
        batches: Every number of records that took part; not seen, but that it varied.
        tags: How many different tags the rounds had.
        rounds: Of how many.
        deviations: Of the bit of a tag that goes most with whether a record is in a round.
    """

    answer_bytes: set[int]
    records_worked_on: set[int]
    batches: set[int]
    tags: int
    rounds: int
    deviations: float

    @property
    def is_same_work(self) -> bool:
        """Whether all rounds look alike in work and size, though their samples differ."""
        return len(self.answer_bytes) == len(self.records_worked_on) == 1 < len(self.batches)

    @property
    def are_tags_silent(self) -> bool:
        """Whether no tag came twice and no bit of one goes with a slot."""
        return self.tags == self.rounds and self.deviations <= DEVIATIONS_AT_MOST


def hidden(seed: int) -> Part:
    """The part on helpers as they are."""
    found = examine(seed)
    return Part(
        claims={"slots_hidden": found.is_same_work and found.are_tags_silent},
        figures={
            "slots": {
                "answer_bytes": sorted(found.answer_bytes),
                "records_worked_on": sorted(found.records_worked_on),
                "batches": [min(found.batches), max(found.batches)],
                "deviations_of_a_tags_bit": found.deviations,
            }
        },
    )


def shown(seed: int) -> Part:
    """The part on two broken builds: the audit must see each."""
    with unpadded_work():
        unpadded = examine(seed)
    with tags_of_values_alone():
        keyless = examine(seed)
    return Part(
        claims={
            "unpadded_work_caught": not unpadded.is_same_work,
            "tags_of_values_caught": not keyless.are_tags_silent,
        },
        figures={"unpadded_work": sorted(unpadded.records_worked_on), "tags_of_values": keyless.tags},
    )


def examine(seed: int, *, epochs: int = EPOCHS) -> Finding:
    """One job of random allocation, each round at the same weights."""
    with (
        open_site(seed=seed, mechanism="gaussian", clip_norm=CLIP_NORM, max_dataset_size=RECORDS) as site,
        _work_noted() as worked_on,
    ):
        canary, others = (Example(features=random_features(4, site.randomness), label=0) for _ in range(2))
        dataset = site.seal([canary, *[others] * (RECORDS - 1)])
        spec, _ = site.start(dataset, rounds=epochs * STEPS, noise_multiplier=1.0, epoch_steps=STEPS)
        pair = HelperKeys.read(site.folder / "north").pair(site.task, 0)
        sizes, tags, taking_part = set(), [], []
        for index in range(spec.rounds):
            answers = site.shares(spec, index)
            sizes |= {len(answer.encode()) for answer in answers}
            tags.append(answers[0].agreement_tag)
            taking_part.append(spec.draw_sample(pair, index, b"", RECORDS))
        return Finding(
            answer_bytes=sizes,
            records_worked_on=set(worked_on),
            batches={int(one.sum()) for one in taking_part},
            tags=len(set(tags)),
            rounds=spec.rounds,
            deviations=_deviations(tags, np.array(taking_part)),
        )


def _deviations(tags: list[bytes], taking_part: NDArray[np.bool_]) -> float:
    """How far the most telling bit of a tag is from none, of all records, in standard deviations."""
    bits = np.unpackbits(np.frombuffer(b"".join(tags), np.uint8).reshape(len(tags), -1), axis=1)
    counts = taking_part.sum(axis=0)
    is_tried = (counts > 0) & (counts < len(tags))
    inside = taking_part[:, is_tried].astype(np.float64)
    number = inside.sum(axis=0)[:, None]
    excess = inside.T @ (bits - 0.5)
    rest = (bits - 0.5).sum(axis=0)[None, :] - excess
    spread = 0.5 * np.sqrt(1 / number + 1 / (len(tags) - number))
    return float(np.abs((excess / number - rest / (len(tags) - number)) / spread).max())


@contextmanager
def _work_noted() -> Iterator[list[int]]:
    """How many records each engine was given."""
    noted: list[int] = []
    masked_sums = ExactEngine.masked_sums

    def noting(engine: ExactEngine, weights: Any, batches: Iterable[Any], *rest: Any) -> Any:
        given = list(batches)
        noted.append(sum(map(len, given)))
        return masked_sums(engine, weights, given, *rest)

    with patch.object(ExactEngine, "masked_sums", noting):
        yield noted


@contextmanager
def unpadded_work() -> Iterator[None]:
    """Helpers that work on the sampled records only."""
    with patch.object(JobSpec, "records_evaluated", lambda *_: 0):
        yield


@contextmanager
def tags_of_values_alone() -> Iterator[None]:
    """Helpers whose tags hang on neither their key nor the transcript."""

    def tag(_pair: PairKey, _transcript: bytes, values_digest: bytes) -> bytes:
        return hmac.digest(bytes(32), values_digest, sha256)

    with patch.object(PairKey, "agreement_tag", tag):
        yield
