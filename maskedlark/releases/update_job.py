"""Step 6 of federated training: a job and one of its rounds, as devices, helpers and the ad server hold them.

A job fixes everything but the weights and the clip bound of each round: how likely a device is drawn, the
noise, the cover, and what devices do with their data. Its digest is part of every round's id, which devices
bind into what they seal. So an update counts in one round of one job, and an ad server that tells devices
other settings than the helpers gets shares that do not open.
"""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from maskedlark.canonical import Bytes16, Bytes32, canonical, digest, encode
from maskedlark.errors import JobReason, JobRefused

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


@canonical
class UpdateJob:
    """What a federated job does in each round.

    Attributes:
        version: The protocol's version.
        job_id: 16 random bytes.
        task_id: The task; its clip bound, cover, mechanism and budgets are not the job's to set.
        phases: The rounds, in order.
        instructions: The model and the strategy, as `maskedlark.federated` spells them: what devices do
            with their data. Helpers do not
            read it.
    """

    version: Literal[1] = VERSION
    job_id: Bytes16
    task_id: Bytes32
    phases: Annotated[tuple[Phase, ...], Field(min_length=1, max_length=MAX_PHASES)]
    instructions: Annotated[str, Field(max_length=MAX_INSTRUCTIONS)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rounds > MAX_ROUNDS:
            raise ValueError(f"a job has at most {MAX_ROUNDS} rounds")
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
            self.clip_norm.hex().encode("ascii"),
        )
        return digest("update round", self.job.task_id, self.job.digest, *tail)

    @property
    def query_id(self) -> bytes:
        """16 bytes that name the job and the index only: what a ledger charges and answers once."""
        return digest("update release", self.job.job_id, self.round_index.to_bytes(8, "little"))[:16]
