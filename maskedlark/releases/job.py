"""Step 6: a training job, as both helpers hold it.

Canonical bytes that fix everything but the weights of each round.
"""

from dataclasses import replace
from functools import lru_cache
from math import copysign
from operator import not_
from typing import Annotated, ClassVar, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from maskedlark.canonical import Bytes16, Bytes32, canonical, digest, encode
from maskedlark.errors import JobReason, JobRefused
from maskedlark.model.heads import TrainedLoss
from maskedlark.numbers.field import SignedVector
from maskedlark.numbers.fixed_point import check_no_overflow
from maskedlark.privacy import correlated
from maskedlark.privacy.accounting import Charge
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.privacy.composing.random_allocation import MAX_STEPS
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.sample_size import hides, least_batch, work_size
from maskedlark.releases.possible_sums import check_length, check_within
from maskedlark.releases.release import check_holds_labels, noise_of_both, units_of_each_helper
from maskedlark.releases.samples import Samples, check_noise_carries
from maskedlark.reports.helper_pair_key import SAMPLING_DENOMINATOR, PairKey
from maskedlark.reports.task import MAX_CLIP_NORM, MIN_CLIP_NORM, Task

VERSION: Final = 1
MAX_NAMES: Final = 4_096
"""The most parameters that a job can name."""
_ParameterName = Annotated[str, Field(min_length=1, max_length=256)]


@canonical
class JobSpec:
    """What a job computes, each round, over one dataset.

    Attributes:
        version: The protocol's version.
        job_id: 16 random bytes; a helper refuses the same id with another content.
        task_id: The task; its mechanism and budgets are not the job's to set.
        dataset_id: The dataset.
        model_digest: `Model.digest` of the graph, as the job trains it.
        loss: What the gradient is of: a loss, or heads with what each label code means for them.
        rounds: The most rounds that will be asked for; the helpers reserve budget for all of them.
        sampling_numerator: Each round uses each record with probability sampling_numerator / 2^32; with
            epoch_steps it is 2^32 over those, rounded down.
        noise_multiplier: The noise scale divided by the sensitivity: each helper's, or in a task of split
            noise that of the two together; 0 only in a task without noise.
        is_clip_per_layer: Whether each layer's part of a gradient is clipped by itself: of m layers to
            1/sqrt(m) of the bound in L2, to 1/m in L1. On the exact path a layer's weights and bias are
            clipped together, on the general path each tensor.
        is_clip_adaptive: Whether each round names its own clip bound, up to the job's, and tells how many
            values were within it.
        epoch_steps: Random allocation: in each epoch of so many rounds each record takes part in exactly one.
            None for samples that each round draws anew (Poisson).
        is_sample_public: Whether the ad server is taken to know each round's sample, so that sampling saves
            no budget: where a sample may be smaller than k, and on the general path.
        carried: Correlated noise: how many 64ths of a round's noise the next round takes out again; None for
            noise of each round's own. A record's step is then the same in all epochs, and unless
            is_sample_public the job is charged whole as soon as it has answered.
        clip_norm: The job's own bound on a gradient's norm, at most the task's; None: the task's. Noise is a
            multiple of the bound, so the bound changes no charge.
        trained: The parameters that the job trains, some of the model's in its order; None: all. Weights,
            sums and noise are of these alone, and so is the gradient that is clipped; the others keep the
            values of the model's file, which model_digest covers.
    """

    kind: ClassVar[str] = "job"
    is_query: ClassVar[bool] = False

    version: Literal[1] = VERSION
    job_id: Bytes16
    task_id: Bytes32
    dataset_id: Bytes32
    model_digest: Bytes32
    loss: TrainedLoss
    rounds: Annotated[int, Field(ge=1, le=1_000_000)]
    sampling_numerator: Annotated[int, Field(ge=1, le=SAMPLING_DENOMINATOR)]
    noise_multiplier: Annotated[float, Field(ge=0.0, le=1e6)]
    is_clip_per_layer: bool = False
    is_clip_adaptive: bool = False
    # Left out of the canonical bytes where they say nothing new: jobs from before they existed keep their
    # digests.
    epoch_steps: Annotated[int | None, Field(ge=2, le=MAX_STEPS, exclude_if=lambda steps: steps is None)] = (
        None
    )
    is_sample_public: Annotated[bool, Field(exclude_if=not_)] = False
    carried: Annotated[
        int | None, Field(ge=1, lt=correlated.DENOMINATOR, exclude_if=lambda parts: parts is None)
    ] = None
    clip_norm: Annotated[
        float | None, Field(ge=MIN_CLIP_NORM, le=MAX_CLIP_NORM, exclude_if=lambda bound: bound is None)
    ] = None
    trained: Annotated[
        tuple[_ParameterName, ...] | None,
        Field(min_length=1, max_length=MAX_NAMES, exclude_if=lambda names: names is None),
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.is_clip_per_layer and self.is_clip_adaptive:
            raise ValueError("an adaptive clip cannot be per layer: use only one of the two")
        if (
            self.epoch_steps is not None
            and self.sampling_numerator != SAMPLING_DENOMINATOR // self.epoch_steps
        ):
            raise ValueError("sampling_numerator must be 2^32 divided by epoch_steps, rounded down")
        if copysign(1.0, self.noise_multiplier) < 0:  # equal to 0.0, and not in bytes: see `_digest`
            raise ValueError("noise_multiplier must be 0.0, not -0.0")
        if self.carried is not None:
            self._check_carries()
        return self

    @property
    def release_id(self) -> bytes:
        """The job's id."""
        return self.job_id

    @property
    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes."""
        return _digest(self)

    @property
    def samples(self) -> Samples:
        """The way in which its rounds take their samples."""
        return Samples(
            sampling_numerator=self.sampling_numerator,
            epoch_steps=self.epoch_steps,
            is_public=self.is_sample_public,
            carried=self.carried,
        )

    @property
    def sampling_rate(self) -> float:
        """The probability that a record is in a round; exact."""
        return self.samples.rate

    @property
    def is_sample_secret(self) -> bool:
        """True if the secrecy of the samples is counted."""
        return self.sampling_rate < 1 and not self.is_sample_public

    def charges(self, task: Task, rounds: int) -> tuple[Charge, ...]:
        """Return the charges of so many rounds; none for 0. Called by all parties."""
        return (self.charge(task, rounds),) if rounds else ()

    def clip(self, task: Task, bound: float | None = None) -> Clip:
        """Return the bound on one record's value in a round of a job. Called by all parties.

        Args:
            task: The task, whose clip_norm is the largest bound of any job.
            bound: In an adaptive job the round's own; None: the job's, or the task's where the job has none.

        Raises:
            JobRefused(MALFORMED): the job's clip_norm is larger than the task's.
        """
        largest = task.clip_norm if self.clip_norm is None else self.clip_norm
        if largest > task.clip_norm:
            raise JobRefused(
                JobReason.MALFORMED,
                f"the job's clip_norm is {largest:g}, but its task allows at most {task.clip_norm:g}: use a "
                "smaller one, or a task with a larger clip_norm",
            )
        return replace(
            task.clip,
            bound=largest if bound is None else bound,
            is_counted=self.is_clip_adaptive,
            is_per_layer=self.is_clip_per_layer,
        )

    def num_values(self, num_parameters: int) -> int:
        """Return the length of a round's sum."""
        return num_parameters + 1 if self.is_clip_adaptive else num_parameters

    def noise_units(self, task: Task, clip: Clip | None = None) -> int:
        """Return each helper's noise scale (Laplace scale or Gaussian sigma) in units of 2^-frac_bits.

        The same integer for every party.

        Args:
            task: The task.
            clip: The round's, where it is not the largest that the job may have.

        Raises:
            JobRefused(NOISE_OUT_OF_RANGE): no noise in a task that requires it, or more than the field can
                hold.
        """
        return units_of_each_helper(
            task, self.noise_multiplier, (clip or self.clip(task)).released_sensitivity
        )

    def charge(self, task: Task, rounds: int) -> Charge:
        """Return the charge of at least one round of a job. Called by all parties.

        The charge is of the noise that each helper really adds. An epoch of random allocation is charged
        whole once it has begun; so is a job of correlated noise with a secret slot, which is one for all
        epochs.
        """
        if self.carried is not None and not self.is_sample_public:
            rounds = self.rounds
        return self.samples.charge(task, self.noise_multiplier, rounds=rounds)

    def check_sample_hides(self, task: Task, *, records: int) -> None:
        """Refuse to count the secrecy of samples whose size may show which records are in them.

        Called by a helper.

        Raises:
            JobRefused(MALFORMED): saying what fits.
        """
        if task.mechanism is Mechanism.NONE or not self.is_sample_secret:
            return
        k, reports = task.min_batch_size, task.reports_per_user
        if not hides(dataset_size=records, rate=self.sampling_rate, k=k, reports=reports):
            least = least_batch(dataset_size=records, k=k, reports=reports)
            raise JobRefused(
                JobReason.MALFORMED,
                f"a batch of {self.sampling_rate * records:.4g} of {records} reports may be smaller than "
                f"min_batch_size {task.min_batch_size}, which would show who is in it: from {least} on its "
                "secrecy "
                "counts; smaller ones need is_sample_public, and cost what they would if everybody knew them",
            )

    def check_sums_fit(self, task: Task, *, records: int, num_parameters: int) -> None:
        """Refuse a job whose sum, both helpers' noise included, could wrap in the field.

        Called by all parties before it runs.

        Raises:
            JobRefused(UNDECLARED, OVERFLOW, NOISE_OUT_OF_RANGE)
        """
        check_holds_labels(task)
        self._check_carries_in(task)
        bound = self.noise_bound(task, self.num_values(num_parameters))
        check_no_overflow(
            records=records, sensitivity=self.clip(task).released_sensitivity, noise_bound=bound
        )

    def noise_bound(self, task: Task, num_parameters: int) -> int:
        """Bound both helpers' noise in every coordinate of a round, in units of 2^-frac_bits.

        The noise exceeds it with a probability of at most 2^-63, or 2^-61 where it is correlated.

        Raises:
            JobRefused(NOISE_OUT_OF_RANGE)
        """
        units = self.noise_units(task)
        if self.carried is not None:
            return 2 * correlated.tail_of_step(self.carried, units, num_parameters)
        return noise_of_both(task, units, num_parameters)

    def round_units(self, task: Task, clip: Clip | None = None) -> int:
        """Return the deviation of one helper's noise in a round: its scale, or more if noise is correlated.

        Raises:
            JobRefused(NOISE_OUT_OF_RANGE)
        """
        units = self.noise_units(task, clip)
        return units if self.carried is None else correlated.units_of_step(self.carried, units)

    def check_sum_possible(self, task: Task, total: SignedVector, *, records: int) -> None:
        """Refuse a sum that honest reports cannot have. Called by the ad server before it takes a step.

        Reports without proofs can have mask shares that add up to other numbers than 0 and 1, which no single
        helper can see.
        Random ones make the sum uniform in the field, which this notices; a factor that stays within the
        bound goes unnoticed (docs/explanation/poisoning.md).

        A coordinate is bounded by the clip in either norm; where the clip is L2, so is the sum's length.

        Raises:
            JobRefused(SUM_OUT_OF_RANGE)
        """
        most = records * self.clip(task).released_sensitivity
        check_within(total, least=-most, most=most, noise=self.noise_bound(task, len(total)), records=records)
        if task.norm is Norm.L2 and len(total):
            units = 0 if task.mechanism is Mechanism.NONE else self.round_units(task)
            check_length(total, most=most, noise_units=units, records=records)

    def round_transcript(self, *, round_index: int, weights: bytes, numerics: bytes) -> bytes:
        """Return the digest of everything that defines a round: blinds and samples depend on it.

        Args:
            round_index: From 0.
            weights: The encoded weights of the round.
            numerics: The digest of the engine's golden vectors, so that helpers of different numerics never
                mix.
        """
        return digest("round", self.digest, round_index.to_bytes(8, "little"), weights, numerics)

    def draw_sample(
        self, pair: PairKey, round_index: int, round_transcript: bytes, count: int
    ) -> NDArray[np.bool_]:
        """Sample the dataset's records, in canonical order, that take part in a round. Called by a helper.

        Guarantees: with random allocation each record takes part in one round of an epoch, whatever the
            rounds' transcripts are, and with correlated noise in the same one of each epoch. Otherwise each
            takes part with the job's rate, on its own.
        """
        if self.epoch_steps is None:
            return pair.sample(round_transcript, count, self.sampling_numerator)
        epoch, step = divmod(round_index, self.epoch_steps)
        if self.carried is not None:
            epoch = 0  # one slot for all epochs: what a record adds is whole epochs apart
        # From the job and not the transcript: whoever knows the pair's key could else try weights until a
        # record is in.
        return np.asarray(pair.slots(self.digest, epoch, count, self.epoch_steps) == np.uint64(step))

    def records_evaluated(self, task: Task, dataset_size: int) -> int:
        """Return on how many records a round evaluates f, from public settings alone.

        A sample is larger with a probability that is charged (`maskedlark.privacy.sample_size`).
        """
        expected = dataset_size * self.sampling_numerator >> 32
        return work_size(
            expected=expected, least=task.min_batch_size, most=dataset_size, reports=task.reports_per_user
        )

    def _check_carries(self) -> None:
        """Refuse correlated noise where it gains nothing, or where nothing is proven."""
        why = self.samples.why_not_carried(self.rounds)
        if why is not None:
            raise ValueError(why)
        if self.is_clip_adaptive:
            raise ValueError(
                "correlated noise requires the same clip bound in all rounds: leave out the adaptive clip"
            )

    def _check_carries_in(self, task: Task) -> None:
        """Refuse correlated noise in a task that has none, Laplace noise, or too little.

        Called by all parties.

        Raises:
            JobRefused(MALFORMED, NOISE_OUT_OF_RANGE): saying what fits.
        """
        if self.carried is None:
            return
        check_noise_carries(task)
        try:
            correlated.scale_to_keep(self.noise_units(task))
        except ValueError as error:
            raise JobRefused(JobReason.NOISE_OUT_OF_RANGE, str(error)) from None


@lru_cache(maxsize=64)
def _digest(spec: JobSpec) -> bytes:
    """Return the digest, cached as each round needs it several times."""
    return digest("job", encode(spec))
