"""The noise of a job whose rounds take a part of each other's noise out again, made anew and never stored.

Each round's streams come from this helper's own key, the job, the round's index, *its weights* and the
numerics. So a round asked for with other weights has other noise, whatever became of the first attempt: two
answers can never show the difference of two sums without noise, not even if a ledger was rolled back. Which
weights a round has is decided when it is charged and answered, in one transaction, for good: what the next
round takes out is the noise of that answer.

The other helper does not know the key, nor does the ad server: that it chooses weights helps it as little as
choosing the input of a pseudorandom function does.
"""

from collections.abc import Callable
from typing import Final

from helper.ledger.ledger import Ledger
from maskedlark.errors import JobReason, JobRefused
from maskedlark.interrupt import Interrupt, interruptible
from maskedlark.privacy.correlated import NoiseVector, StepStreams, correlated_noise
from maskedlark.randomness import Randomness, Stream, derive_key
from maskedlark.releases.job import JobSpec

_KEPT: Final = b"step noise kept"
_OWN: Final = b"step noise own"


class CarriedNoise:
    """The correlated noise of one helper's jobs. Safe to call from many threads."""

    def __init__(self, noise_key: Callable[[bytes], bytes], ledger: Ledger) -> None:
        """Noise under `noise_key`, 32 secret bytes for a job's digest."""
        self._noise_key = noise_key
        self._ledger = ledger

    def of_round(
        self,
        job: JobSpec,
        round_index: int,
        *,
        weights_digest: bytes,
        numerics: bytes,
        scale: int,
        count: int,
        interrupt: Interrupt,
    ) -> NoiseVector:
        """The noise of a round at some weights; the same bytes whenever it is asked for again.

        Args:
            job: With correlated noise.
            round_index: The job's next one: those before are answered.
            weights_digest: Of the round's weights.
            numerics: Of the engine. If they changed since the round before, what is taken out was never
                added: more noise, not less.
            scale: Of the noise, in units.
            count: How many coordinates.
            interrupt: May end the drawing.

        Raises:
            JobRefused(ROUND_OUT_OF_ORDER): the round before is not answered.
        """
        if job.carried is None:
            raise AssertionError("the job's noise is independent")
        key = self._noise_key(job.digest)

        def stream(purpose: bytes, index: int, weights: bytes) -> Randomness:
            context = index.to_bytes(8, "little") + weights + numerics
            return interruptible(Stream(derive_key(key, purpose, context)), interrupt)

        before = None
        if round_index:
            answered = self._ledger.round(job.job_id, round_index - 1)
            if answered is None:
                raise JobRefused(
                    JobReason.ROUND_OUT_OF_ORDER, f"round {round_index - 1} is to be answered first"
                )
            before = stream(_KEPT, round_index - 1, answered.weights_digest)
        streams = StepStreams(
            kept=stream(_KEPT, round_index, weights_digest),
            own=stream(_OWN, round_index, weights_digest),
            before=before,
        )
        return correlated_noise(job.carried, scale, count, streams)
