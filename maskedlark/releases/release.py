"""The common part of every release: its noise, each helper's answer, and the addition of two answers.

A release is one round of a job, or the answer to a query, a discovery or an evaluation. A *spec* describes
it; each kind of spec has a module, and implements `ReleaseSpec` or `QueryLike`. The table of the kinds is
`maskedlark.releases.kinds`. Helpers answer all of them in helper/releases/answering.py.
"""

import math
from collections.abc import Sequence
from dataclasses import field
from typing import ClassVar, Protocol, Self, TypeVar

import numpy as np

from maskedlark.canonical import digest, encode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.numbers.field import (
    BLOCK,
    FieldVector,
    SignedVector,
    add,
    from_bytes,
    from_signed,
    reconstruct,
    to_signed,
)
from maskedlark.privacy.accounting import Charge, smallest_fitting
from maskedlark.privacy.mechanism import Mechanism, NoiseDivision
from maskedlark.privacy.noise import MIN_SCALE, noise_scale, split_scale, tail_bound
from maskedlark.reports.helper_pair_key import PairKey
from maskedlark.reports.task import Task

TAG_BYTES = 32


class ReleaseSpec(Protocol):
    """What a job and every kind of query offer to ledgers and budgets.

    Attributes:
        kind: The kind's name, as ledgers and the wire spell it.
        is_query: Whether it is answered once, and not in rounds.
        rounds: The most rounds that will be asked for; 1 of a query.
    """

    kind: ClassVar[str]
    is_query: ClassVar[bool]

    @property
    def release_id(self) -> bytes:
        """16 random bytes; a helper refuses the same id with another content."""

    @property
    def task_id(self) -> bytes:
        """The task."""

    @property
    def dataset_id(self) -> bytes:
        """The dataset."""

    @property
    def rounds(self) -> int:
        """See the class."""

    @property
    def noise_multiplier(self) -> float:
        """The noise scale divided by the sensitivity."""

    def charges(self, task: Task, rounds: int) -> tuple[Charge, ...]:
        """Return the charges of so many of its rounds; none for 0 rounds."""


class QueryLike(ReleaseSpec, Protocol):
    """What every kind of query offers besides."""

    @property
    def query_id(self) -> bytes:
        """The release's id, which is the query's: each query is one release."""

    def check(self, task: Task, *, records: int) -> None:
        """Refuse a query that cannot be answered. Called by all parties before anything is charged.

        Raises:
            JobRefused(UNDECLARED, DOMAIN_TOO_LARGE, NOISE_OUT_OF_RANGE, OVERFLOW)
        """

    def with_noise(self, task: Task, each_helpers: float) -> Self:
        """Return the same query with the noise multiplier that leaves each helper this one."""


class AnsweredOnce:
    """What the kinds of query have in common: one answer, under their own id."""

    __slots__ = ()

    kind: ClassVar[str]
    is_query: ClassVar[bool] = True
    rounds: ClassVar[int] = 1
    query_id: bytes

    @property
    def transcript(self) -> bytes:
        """The digest from which both helpers derive their blinds and common noise."""
        return digest(self.kind, encode(self))

    @property
    def release_id(self) -> bytes:
        """The query's id."""
        return self.query_id


Q = TypeVar("Q", bound=QueryLike)


@frozen
class AggregateShare:
    """One helper's answer to a release.

    Attributes:
        vector: (P,) uniform to anyone without the other helper's share.
        agreement_tag: 32 bytes; the ad server compares the two helpers'.
    """

    vector: FieldVector = field(repr=False)
    agreement_tag: bytes

    def encode(self) -> bytes:
        """Encode the stored and sent form: the tag, then 8 bytes an element."""
        # joined from the array's own memory: as large as the model, and copied once
        return b"".join((self.agreement_tag, np.ascontiguousarray(self.vector, "<u8").data))

    @classmethod
    def decode(cls, encoded: bytes, count: int) -> "AggregateShare":
        """Parse a helper's answer. Called by the ad server.

        Raises:
            JobRefused(MALFORMED)
        """
        try:
            return cls(vector=from_bytes(encoded[TAG_BYTES:], count), agreement_tag=encoded[:TAG_BYTES])
        except ValueError as error:
            raise JobRefused(
                JobReason.MALFORMED, f"an aggregate share is not {count} field elements: {error}"
            ) from None


def blind(
    *,
    pair: PairKey,
    release_transcript: bytes,
    vector: FieldVector,
    values_digest: bytes,
    noise: SignedVector,
) -> AggregateShare:
    """Return the answer that leaves a helper, of any release: share plus blind plus noise, and a tag.

    Called by a helper. Two tags are equal if both helpers summed the same values; one tag alone says nothing.

    Guarantees: uniform without the other helper's answer to the same transcript.
    """
    if len(noise) != len(vector):
        raise AssertionError("every coordinate must have its own noise")
    share = pair.blind(release_transcript, len(vector))
    # In blocks and in place: the vector has 8 bytes a parameter, and a second copy would double a round's
    # memory.
    for start in range(0, len(share), BLOCK):
        part = slice(start, start + BLOCK)
        share[part] = add(add(vector[part], share[part]), from_signed(noise[part]))
    return AggregateShare(
        vector=share,
        agreement_tag=pair.agreement_tag(release_transcript, values_digest),
    )


def combine(first: AggregateShare, second: AggregateShare) -> SignedVector:
    """Add both helpers' answers: the noisy result, in the units of the release.

    Called by the ad server.

    Raises:
        JobRefused(HELPERS_DISAGREE): the helpers did not sum the same values; the sum is garbage and must not
            be used.
    """
    # Sums of different values differ by masked garbage, which looks like any other vector: only the tags
    # tell.
    if first.agreement_tag != second.agreement_tag:
        raise JobRefused(
            JobReason.HELPERS_DISAGREE,
            "the two helpers did not sum the same values: they have different weights, data or "
            "numerics versions",
        )
    return to_signed(reconstruct(first.vector, second.vector))


def units_of_each_helper(task: Task, noise_multiplier: float, sensitivity: int) -> int:
    """Return each helper's noise scale, in units, for any release: the same integer for every party.

    Raises:
        JobRefused(NOISE_OUT_OF_RANGE): no noise in a task that requires it, or more than the field can hold.
    """
    try:
        scale = noise_scale(task.mechanism, noise_multiplier, sensitivity)
    except ValueError as error:
        raise JobRefused(JobReason.NOISE_OUT_OF_RANGE, str(error)) from None
    match task.noise:
        case NoiseDivision.FULL:
            return scale
        case NoiseDivision.SPLIT:
            # Below MIN_SCALE the accountant's continuous mechanism no longer bounds the discrete one.
            half = split_scale(scale)
            if half < MIN_SCALE:
                raise JobRefused(
                    JobReason.NOISE_OUT_OF_RANGE,
                    f"each half of the noise has {half} units, under {MIN_SCALE}: use more frac_bits",
                )
            return half


def noise_of_both(task: Task, units: int, count: int) -> int:
    """Bound both helpers' noise in every coordinate, in units.

    The noise exceeds it with a probability of at most 2^-63.

    Args:
        task: Its mechanism counts.
        units: Each helper's noise scale.
        count: How many coordinates.
    """
    return 2 * tail_bound(task.mechanism, units, count)


def deviation_of_both(mechanism: Mechanism) -> float:
    """Return the standard deviation of both helpers' noise in a coordinate, in scales of one helper's.

    Of two Gaussians, or of two Laplace of variance 2 each.
    """
    match mechanism:
        case Mechanism.NONE:
            return 0.0
        case Mechanism.GAUSSIAN:
            return math.sqrt(2)
        case Mechanism.LAPLACE:
            return 2.0


def multiplier_of_each_helper(task: Task, noise_multiplier: float) -> float:
    """Return the noise multiplier that a release leaves to each helper.

    All of it, or 1/sqrt(2) in a task of split noise.
    """
    match task.noise:
        case NoiseDivision.FULL:
            return noise_multiplier
        case NoiseDivision.SPLIT:
            return noise_multiplier / math.sqrt(2)


def multiplier_for_each_helper(task: Task, needed: float) -> float:
    """Return the release's noise multiplier that leaves each helper what is needed.

    The inverse of `multiplier_of_each_helper`, rounded up.
    """
    match task.noise:
        case NoiseDivision.FULL:
            return needed
        case NoiseDivision.SPLIT:
            # Over both roundings, so that dividing by sqrt(2) again never gives less than what is needed.
            return needed * math.sqrt(2) * (1 + 2.0**-50)


def check_noise_fits_task(task: Task, noise_multiplier: float, *, whose: str) -> None:
    """Refuse a release that asks for noise in a task that adds none.

    Raises:
        JobRefused(NOISE_OUT_OF_RANGE)
    """
    if task.mechanism is Mechanism.NONE and noise_multiplier != 0:
        raise JobRefused(
            JobReason.NOISE_OUT_OF_RANGE, f"the task adds no noise: the {whose}'s noise_multiplier must be 0"
        )


def check_holds_labels(task: Task) -> None:
    """Refuse a job or an evaluation of labels where reports hold updates. Called by all parties.

    Raises:
        JobRefused(UNDECLARED)
    """
    if task.updates is not None:
        raise JobRefused(
            JobReason.UNDECLARED,
            "the reports of this task contain updates and no labels: submit a job with --strategy",
        )


def charge_of(task: Task, noise_multiplier: float, *, rounds: int = 1, sampling_rate: float = 1.0) -> Charge:
    """Return the charge of rounds with a noise multiplier, with the noise that each helper really adds."""
    is_noisy = task.mechanism is not Mechanism.NONE
    return Charge(
        mechanism=task.mechanism,
        noise_multiplier=multiplier_of_each_helper(task, noise_multiplier) if is_noisy else 0.0,
        sampling_rate=sampling_rate,
        rounds=rounds,
        reports=task.reports_per_user,
    )


def fitting(task: Task, spec: Q, *, epsilon: float, already: Sequence[Charge] = ()) -> Q:
    """Return the same query with the least noise that keeps both budgets of its dataset.

    Called by the ad server, and by a helper to advise.

    Args:
        task: Its mechanism, delta and collusion budget count.
        spec: Its noise multipliers are replaced.
        epsilon: What the query and `already` may cost together against the ad server.
        already: What was charged to the dataset before.

    Raises:
        JobRefused(BUDGET_EXHAUSTED): no noise is enough.
    """
    if task.mechanism is Mechanism.NONE:
        return spec.with_noise(task, 0.0)
    least = smallest_fitting(
        lambda each: spec.with_noise(task, each).charges(task, 1),
        epsilon,
        task.delta,
        already=already,
        collusion_epsilon=task.collusion_epsilon,
    )
    return spec.with_noise(task, least)
