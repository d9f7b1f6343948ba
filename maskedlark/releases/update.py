"""Step 6 of federated training: the release of a round's sum, and what a round costs.

    device   coin of probability q, on its own    yes: the update; no: zeros, with the task's cover rate
    helper   sum of its shares, blind, noise      charged once to the task's budget, answered once

Only the device knows its coin. To every observer an upload is an update with probability
q / (q + (1 - q) c), where c is the cover: a round is charged at that rate, against the ad server alone and
against it with one helper. docs/explanation/privacy-proofs.md has the proof.

A job fixes everything but the weights and the clip bound of each round: how likely a device is drawn, the
noise, the cover, and what devices do with their data. Its digest is part of every round's id, which devices
bind into what they seal. So an update counts in one round of one job, and an ad server that tells devices
other settings than the helpers gets shares that do not open.
"""

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, ClassVar, Final, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from maskedlark.canonical import Bytes16, Bytes32, canonical, digest, encode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.numbers.field import FieldVector, SignedVector
from maskedlark.numbers.fixed_point import check_no_overflow, decode_signed
from maskedlark.privacy.accounting import Charge
from maskedlark.privacy.clip import Clip
from maskedlark.privacy.composing.composition import is_one_setting
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.noise import NoiseSource
from maskedlark.releases.possible_sums import check_length, check_within
from maskedlark.releases.release import (
    AggregateShare,
    blind,
    charge_of,
    noise_of_both,
    units_of_each_helper,
)
from maskedlark.reports.helper_pair_key import PairKey
from maskedlark.reports.task import Task
from maskedlark.reports.updates import UpdateForm

VERSION: Final = 1
MAX_ROUNDS: Final = 1_000_000
MAX_PHASES: Final = 256
MAX_INSTRUCTIONS: Final = 16_384


@canonical
class Phase:
    """Consecutive rounds at the same settings; a schedule is several of them.

    Attributes:
        rounds: How many.
        sampling_rate: Each device is drawn with this probability, by its own coin.
        noise_multiplier: Each helper's noise scale over the sensitivity (of split noise: of both together);
            0 only without noise.
    """

    rounds: Annotated[int, Field(ge=1, le=MAX_ROUNDS)]
    sampling_rate: Annotated[float, Field(gt=0.0, le=1.0)]
    noise_multiplier: Annotated[float, Field(ge=0.0, le=1e6)]

    def charge(self, task: Task, rounds: int) -> Charge:
        """Return the charge of at least one round of a phase. Called by all parties."""
        rate = seen_rate(self.sampling_rate, form_of(task).cover)
        whole = charge_of(task, self.noise_multiplier, rounds=rounds, sampling_rate=rate)
        return replace(whole, is_self_sampled=True)


@canonical
class UpdateJob:
    """What a federated job does in each round.

    Attributes:
        version: The protocol's version.
        job_id: 16 random bytes.
        task_id: The task; its clip bound, cover, mechanism and budgets are not the job's to set.
        phases: The rounds, in order.
        instructions: The model and the strategy, as `maskedlark.federated` spells them: what devices do
            with their data. Helpers do not read them.
    """

    version: Literal[1] = VERSION
    job_id: Bytes16
    task_id: Bytes32
    phases: Annotated[tuple[Phase, ...], Field(min_length=1, max_length=MAX_PHASES)]
    instructions: Annotated[str, Field(max_length=MAX_INSTRUCTIONS)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rounds > MAX_ROUNDS:
            raise ValueError(f"the job has too many rounds: the limit is {MAX_ROUNDS}")
        return self

    @property
    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes: what devices bind."""
        return digest("update job", encode(self))

    @property
    def rounds(self) -> int:
        """The rounds of all phases."""
        return sum(phase.rounds for phase in self.phases)

    def phase(self, round_index: int) -> Phase:
        """Return the settings of a round, from 0.

        Raises:
            JobRefused(ROUND_BEYOND_PLAN)
        """
        left = round_index
        for phase in self.phases:
            if left < phase.rounds:
                return phase
            left -= phase.rounds
        raise JobRefused(
            JobReason.ROUND_BEYOND_PLAN, f"round {round_index} is beyond the {self.rounds} rounds of the job"
        )

    def charges(self, task: Task, rounds: int) -> tuple[Charge, ...]:
        """Return the cost of a job of which only the first so many rounds are released.

        Called by all parties.

        Guarantees: where phases differ, each charge says so, also while only the first one is charged.
        """
        planned = [phase.charge(task, phase.rounds) for phase in self.phases]
        # Of all that is planned: what is released so far may be at one setting by chance of when the job
        # stops.
        is_mixed = not is_one_setting(planned)
        charges, left = [], rounds
        for charge in planned:
            if left > 0:
                charges.append(replace(charge, rounds=min(left, charge.rounds), is_of_mixed_plan=is_mixed))
            left -= charge.rounds
        return tuple(charges)


@canonical
class UpdateRound:
    """One round of a federated job, as devices answer it.

    Attributes:
        job: The job.
        round_index: From 0.
        content_digest: `maskedlark.federated.strategy.Round.digest` of the weights that devices begin with,
            and the round's terms.
        clip_norm: The round's bound on an update, at most the task's.
    """

    job: UpdateJob
    round_index: Annotated[int, Field(ge=0, lt=MAX_ROUNDS)]
    content_digest: Bytes32
    clip_norm: Annotated[float, Field(gt=0.0, le=2.0**10)]

    @property
    def round_id(self) -> bytes:
        """32 bytes that name task, job, settings, index, weights and bound."""
        tail = (
            self.round_index.to_bytes(8, "little"),
            self.content_digest,
            # In hex a float has one exact spelling.
            self.clip_norm.hex().encode("ascii"),
        )
        return digest("update round", self.job.task_id, self.job.digest, *tail)

    @property
    def query_id(self) -> bytes:
        """16 bytes that name the job and the index only: what a ledger charges and answers once."""
        return digest("update release", self.job.job_id, self.round_index.to_bytes(8, "little"))[:16]

    def clip(self, task: Task) -> Clip:
        """Return the bound of a round.

        Raises:
            JobRefused(MALFORMED): it is beyond the task's.
        """
        if self.clip_norm > task.clip_norm:
            raise JobRefused(
                JobReason.MALFORMED,
                f"the round's clip bound is {self.clip_norm:g}, but the task allows at most "
                f"{task.clip_norm:g}",
            )
        return Clip(norm=task.norm, bound=self.clip_norm, frac_bits=task.frac_bits)

    def noise_units(self, task: Task) -> int:
        """Return each helper's noise scale in a round, in units of 2^-frac_bits; equal for every party.

        Raises:
            JobRefused(NOISE_OUT_OF_RANGE, MALFORMED, ROUND_BEYOND_PLAN, UNDECLARED)
        """
        phase = self.job.phase(self.round_index)
        return units_of_each_helper(
            task, phase.noise_multiplier, form_of(task).released_sensitivity(self.clip(task))
        )

    def check(self, task: Task, *, records: int) -> None:
        """Refuse a round that cannot be released.

        Called by all parties, by the ad server before devices are asked.

        Raises:
            JobRefused(UNDECLARED, MALFORMED, ROUND_BEYOND_PLAN, NOISE_OUT_OF_RANGE, OVERFLOW)
        """
        form = form_of(task)
        if self.job.task_id != task.task_id:
            raise JobRefused(JobReason.MALFORMED, "the round belongs to another task")
        phase = self.job.phase(self.round_index)
        if task.mechanism is Mechanism.NONE and phase.noise_multiplier != 0:
            raise JobRefused(
                JobReason.NOISE_OUT_OF_RANGE,
                "the task adds no noise: the noise_multiplier of its rounds must be 0",
            )
        clip = self.clip(task)
        noise = noise_of_both(task, self.noise_units(task), form.length)
        check_no_overflow(records=records, sensitivity=form.released_sensitivity(clip), noise_bound=noise)

    def read_sum(self, task: Task, total: SignedVector, *, records: int) -> "_RoundSum":
        """Decode both helpers' sum. Called by the ad server before it takes a step, and by the simulation.

        Raises:
            JobRefused(SUM_OUT_OF_RANGE): no honest updates have this sum.
        """
        form, clip = form_of(task), self.clip(task)
        self._check_possible(task, total, records=records)
        # A bound of less than 8 units has figures of 0 units: there is only noise to divide.
        units = max(1, form.figure_units(clip))
        values = decode_signed(total[: form.num_parameters], task.frac_bits)
        return _RoundSum(
            values=values,
            weight=float(total[form.num_parameters]) / units if form.has_weight else None,
            excess=float(total[-1]) / units if form.has_clip_count else None,
        )

    def _check_possible(self, task: Task, total: SignedVector, *, records: int) -> None:
        """Refuse a sum that honest updates cannot have: in any coordinate, or in its whole length.

        No helper sees the length of an update: it holds one share of it, which is uniform. So this looks at
        the sum. What a device can add unseen is in docs/explanation/poisoning.md.
        """
        form, clip = form_of(task), self.clip(task)
        scale = self.noise_units(task)
        noise = noise_of_both(task, scale, len(total))
        within, figure = records * clip.sensitivity, records * form.figure_units(clip)
        parameters = total[: form.num_parameters]
        check_within(parameters, least=-within, most=within, noise=noise, records=records)
        if form.has_weight:
            weight = total[form.num_parameters : form.num_parameters + 1]
            check_within(weight, least=0, most=figure, noise=noise, records=records)
        if form.has_clip_count:
            check_within(total[-1:], least=-figure, most=figure, noise=noise, records=records)
        units = 0 if task.mechanism is Mechanism.NONE else scale
        check_length(parameters, most=within, noise_units=units, records=records)


class _RoundSum(NamedTuple):
    """A round's noisy sums, in their own units.

    Attributes:
        values: float64 (num_parameters,): the sum of the weighted updates.
        weight: The noisy sum of weights; None if the task does not release it.
        excess: The noisy number of updates within the bound less that of those clipped; None if the task
            does not count them.
    """

    values: "np.typing.NDArray[np.float64]"
    weight: float | None
    excess: float | None


@canonical
class UpdateSpec:
    """The release of one round's sum over the dataset of its reports.

    Attributes:
        version: The protocol's version.
        dataset_id: The reports that both helpers hold of the round.
        round: The round.
    """

    kind: ClassVar[str] = "update"
    is_query: ClassVar[bool] = True
    rounds: ClassVar[int] = 1

    version: Literal[1] = VERSION
    dataset_id: Bytes32
    round: UpdateRound

    @property
    def release_id(self) -> bytes:
        """See `UpdateRound.query_id`."""
        return self.round.query_id

    @property
    def query_id(self) -> bytes:
        """See `UpdateRound.query_id`."""
        return self.round.query_id

    @property
    def task_id(self) -> bytes:
        """The task's."""
        return self.round.job.task_id

    @property
    def phase(self) -> Phase:
        """The round's settings."""
        return self.round.job.phase(self.round.round_index)

    @property
    def noise_multiplier(self) -> float:
        """The round's."""
        return self.phase.noise_multiplier

    @property
    def transcript(self) -> bytes:
        """The digest from which both helpers derive their blinds."""
        return digest(self.kind, encode(self))

    def check(self, task: Task, *, records: int) -> None:
        """Refuse a round that cannot be released: see `UpdateRound.check`."""
        self.round.check(task, records=records)

    def charges(self, task: Task, rounds: int = 1) -> tuple[Charge, ...]:
        """Return what the release would cost alone; with others of its job see `rounds_by_job`."""
        return (self.phase.charge(task, rounds),) if rounds else ()

    def with_noise(self, task: Task, each_helpers: float) -> Self:
        """Return the same release with other noise: that is another job, which devices did not answer.

        Raises:
            JobRefused(NOISE_OUT_OF_RANGE)
        """
        raise JobRefused(
            JobReason.NOISE_OUT_OF_RANGE,
            f"the noise of a round is its job's, not {each_helpers:g}: {task.name}",
        )


def form_of(task: Task) -> UpdateForm:
    """Return what the task's update reports hold.

    Raises:
        JobRefused(UNDECLARED): its reports hold labels instead.
    """
    if task.updates is None:
        raise JobRefused(
            JobReason.UNDECLARED, "the task declares no updates: its reports contain masked labels"
        )
    return task.updates


def seen_rate(sampling_rate: float, cover: float) -> float:
    """Return the probability that an upload is an update and not cover: the rate that is charged.

    With cover of all it is the sampling rate; with none it is 1, for then whoever uploads was drawn.
    Rounded up.
    """
    drawn, share = Fraction(sampling_rate), Fraction(cover)
    exact = drawn / (drawn + (1 - drawn) * share)
    # Up by more than a quotient in float64 can be off.
    return min(1.0, float(exact) * (1 + 2.0**-50)) if 0 < exact < 1 else 1.0


def rounds_by_job(released: Iterable[UpdateRound]) -> dict[UpdateJob, int]:
    """Return how many rounds each job is charged for: all up to the highest released, skipped ones too.

    Called by all parties. A list that the ad server may leave rounds out of, in any order, costs no more than
    the whole list, which was fixed when the job began (docs/explanation/privacy-proofs.md, "Rounds in any
    order").
    """
    rounds: dict[UpdateJob, int] = {}
    for one in released:
        rounds[one.job] = max(rounds.get(one.job, 0), one.round_index + 1)
    return rounds


def answer_update(
    *, task: Task, spec: UpdateSpec, pair: PairKey, records: int, vector: FieldVector, noise: NoiseSource
) -> AggregateShare:
    """Return one helper's aggregate share of a round.

    Called by a helper, which has summed its shares of the dataset.

    Guarantees: uniform without the other helper's answer to the same spec. With fewer than min_batch_size
    devices in the dataset the sum is of none: noise around zero, of the same shape. How many devices sent a
    report is public.
    """
    summed = vector if records >= task.min_batch_size else np.zeros_like(vector)
    return blind(
        pair=pair,
        release_transcript=spec.transcript,
        vector=summed,
        # Each helper sums other shares; the dataset's id covers the views that both read of every report.
        values_digest=digest("updates", spec.dataset_id),
        noise=noise(task.mechanism, spec.round.noise_units(task), len(vector)),
    )
