"""A discovery: the question which codes of some keys occur at all, and a helper's answer to it.

It makes the domains of a later query. Both helpers read the keys and draw the same noise on the counts; a
code is released if its noisy count is far enough above k.
"""

from dataclasses import replace
from hashlib import sha256
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from maskedlark.canonical import Bytes16, Bytes32, canonical
from maskedlark.errors import JobReason, JobRefused
from maskedlark.interrupt import Interrupt, interruptible, never
from maskedlark.privacy.accounting import Charge
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import beyond_bits, noise_vector
from maskedlark.randomness import Randomness
from maskedlark.releases.counting import (
    COUNT_UNITS,
    VERSION,
    Condition,
    CountingQuery,
    Multiplier,
    count_charge,
    key_index,
    measurement_of,
)
from maskedlark.releases.grouping import matching, shares_of_measurement
from maskedlark.releases.release import AggregateShare, blind
from maskedlark.reports.helper_pair_key import PairKey
from maskedlark.reports.input_shares import InputShares
from maskedlark.reports.measurement import MAX_KEYS, Name
from maskedlark.reports.task import Task


@canonical
class DiscoverySpec(CountingQuery):
    """Which codes of some keys occur in at least min_cell_count of a dataset's reports, released once.

    Attributes:
        version: The protocol's version.
        query_id: 16 random bytes.
        task_id: The task.
        dataset_id: The dataset.
        keys: The keys.
        where: All of these hold of a counted report.
        max_codes: The most codes of one key in the answer; of more, those with the largest noisy counts.
        noise_multiplier: The noise scale on counts divided by their sensitivity; 0 only in a task without
            noise.
        delta: The probability that the answer shows a code because of one report; part of the task's delta.
    """

    kind: ClassVar[str] = "discovery"

    version: Literal[1] = VERSION
    query_id: Bytes16
    task_id: Bytes32
    dataset_id: Bytes32
    keys: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAX_KEYS)]
    where: Annotated[tuple[Condition, ...], Field(max_length=MAX_KEYS)] = ()
    max_codes: Annotated[int, Field(ge=1, le=1 << 16)]
    noise_multiplier: Multiplier
    delta: Annotated[float, Field(ge=2.0**-60, lt=0.5)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.keys)) != len(self.keys) or len({one.key for one in self.where}) != len(self.where):
            raise ValueError("keys must be distinct")
        return self

    @property
    def count_lists(self) -> int:
        """A report has one code of each key."""
        return len(self.keys)

    @property
    def count_multiplier(self) -> float:
        """The noise multiplier on the counts, which is the only one."""
        return self.noise_multiplier

    @property
    def num_values(self) -> int:
        """The length of the answer: for each key how many codes, then room for the most."""
        return len(self.keys) * (1 + self.max_codes)

    def check(self, task: Task, *, records: int) -> None:
        """Refuse a discovery that cannot be answered. Called by all parties before anything is charged.

        Raises:
            JobRefused(UNDECLARED, NOISE_OUT_OF_RANGE)
        """
        measurement = self.check_conditions(task)
        # delta is the chance that one report shows a code; several of one person may lift it together.
        if task.reports_per_user > 1:
            raise JobRefused(
                JobReason.UNDECLARED,
                "discovery hides only one report per person, but this task allows several: give "
                "the key's domain instead",
            )
        for name in self.keys:
            key_index(measurement, name)
        self.count_noise_units(task)

    def margin(self, mechanism: Mechanism, scale: int) -> int:
        """Return what the noise on a count exceeds only with a probability within delta, in count units.

        The probability is delta over the number of keys.

        See `beyond_bits`: both helpers come to the same number.
        """
        numerator, denominator = self.delta.as_integer_ratio()
        return beyond_bits(mechanism, scale, (denominator * len(self.keys) // numerator).bit_length())

    def charges(self, task: Task, rounds: int = 1) -> tuple[Charge, ...]:
        """Return the charge of a discovery: one set of noisy counts. Called by all parties."""
        return (count_charge(task, self.noise_multiplier, delta=self.delta),) * rounds

    def with_noise(self, task: Task, each_helpers: float) -> Self:
        """Return this discovery with this noise, which is common to both helpers."""
        return replace(self, noise_multiplier=each_helpers)


def answer_discovery(
    *,
    task: Task,
    spec: DiscoverySpec,
    pair: PairKey,
    role: int,
    shares: InputShares,
    interrupt: Interrupt = never,
) -> AggregateShare:
    """Return one helper's share of the codes that occur: see `DiscoverySpec.num_values`. Called by a helper.

    Both helpers find the same codes; role 0 adds them to the blind and role 1 adds nothing, so that only the
    sum of equal queries says anything. A helper that is asked something else than the other one gives a
    uniform vector.

    `interrupt` is called for each key and each batch of noise; what it raises ends the work.

    Guarantees: a code that only one report holds is in the answer with probability at most delta.
    """
    measurement, measured = measurement_of(task), shares_of_measurement(task, shares)
    matches = matching(measurement, measured, spec.where)
    common = interruptible(pair.common_noise(spec.transcript), interrupt)
    found: list[NDArray[np.int64]] = []
    for name in spec.keys:
        interrupt()
        found.append(_discover(task, spec, common, measured.keys[matches, key_index(measurement, name)]))
    answer = np.concatenate(found).astype(np.uint64)
    return blind(
        pair=pair,
        release_transcript=spec.transcript,
        vector=answer if role == 0 else np.zeros_like(answer),
        values_digest=sha256(answer.astype("<u8").tobytes()).digest(),
        # The counts were noised before they were compared; a list of codes takes no noise.
        noise=np.zeros(len(answer), np.int64),
    )


def _discover(
    task: Task, spec: DiscoverySpec, common: Randomness, codes: NDArray[np.uint32]
) -> NDArray[np.int64]:
    """Return the number of codes, the codes in ascending order, then zeros. Shape (1 + max_codes,)."""
    present, records = np.unique(codes, return_counts=True)
    scale = spec.count_noise_units(task)
    noisy = records.astype(np.int64) * COUNT_UNITS + noise_vector(task.mechanism, scale, len(present), common)
    margin = max(spec.margin(task.mechanism, scale), spec.cell_margin(task))
    least = measurement_of(task).min_cell_count * COUNT_UNITS + margin
    # Stable: both helpers break ties alike, or their tags would differ.
    by_size = np.argsort(-noisy, kind="stable")[: spec.max_codes]
    shown = np.sort(present[by_size[noisy[by_size] >= least]]).astype(np.int64)
    # Of one length, whatever occurs: how many codes there are is in the blinded numbers only.
    found = np.zeros(1 + spec.max_codes, np.int64)
    found[0], found[1 : 1 + len(shown)] = len(shown), shown
    return found
