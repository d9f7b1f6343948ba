"""The noise of a job whose rounds remove a part of the previous round's noise.

Each computed round draws a fresh random seed, and its noise depends on that seed alone. So two answers never
share noise, whatever happens to an attempt, the weights, the dataset or a ledger that is rolled back. (Noise
from a key of the step and its weights was broken by two attacks on a rolled-back ledger: ADR 9.) The seed is
sealed under a key that only this helper has, and stored with the answer in the transaction that charges it.
The next round reads it there, to reproduce the part that it removes. It is deleted with the answer.
"""

from collections.abc import Callable
from dataclasses import field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from helper.ledger.ledger import Ledger
from helper.ledger.records import key_of
from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt, interruptible
from maskedlark.privacy.correlated import NoiseVector, StepStreams, draw_step_noise
from maskedlark.randomness import STREAM_KEY_BYTES, Randomness, Stream, derive_key, system_randomness
from maskedlark.releases.job import JobSpec

# Two streams of one secret: what the next round removes is drawn again without the rest.
_KEPT: Final = b"step noise kept"
_OWN: Final = b"step noise own"
_NONCE_BYTES: Final = 12


class SeedDamaged(Exception):
    """A seed in the ledger is not the one that this helper wrote for the round. Never sent to a peer."""


@frozen
class StepSeed:
    """What the noise of one computed round is made from, and of no other one.

    Attributes:
        secret: Random bytes.
        sealed: The same, as the ledger keeps them.
    """

    secret: bytes = field(repr=False)
    sealed: bytes = field(repr=False)


class CorrelatedNoise:
    """The correlated noise of one helper's jobs. Safe to call from many threads."""

    def __init__(
        self,
        noise_key: Callable[[bytes], bytes],
        ledger: Ledger,
        randomness: Randomness = system_randomness,
    ) -> None:
        """Seal seeds of `randomness` under `noise_key`, which gives 32 secret bytes a job digest."""
        self._noise_key = noise_key
        self._ledger = ledger
        self._randomness = randomness

    def new_seed(self, job: JobSpec, round_index: int) -> StepSeed:
        """Draw a seed for one computation of a round, a new one each time."""
        # Not of the round's number: a round that is computed again seals another seed under the same key.
        secret, nonce = self._randomness(STREAM_KEY_BYTES), self._randomness(_NONCE_BYTES)
        sealed = nonce + self._cipher(job).encrypt(nonce, secret, _context(round_index))
        return StepSeed(secret=secret, sealed=sealed)

    def of_round(
        self,
        job: JobSpec,
        round_index: int,
        seed: StepSeed,
        *,
        scale: int,
        count: int,
        interrupt: Interrupt,
    ) -> NoiseVector:
        """Return a round's noise from its seed, less a part of the noise of the answer before it.

        Args:
            job: With correlated noise.
            round_index: The job's next one: those before are answered.
            seed: Made for this computation.
            scale: Of the noise, in units.
            count: How many coordinates.
            interrupt: May end the drawing.

        Raises:
            JobRefused(ROUND_OUT_OF_ORDER): the round before is not answered.
            SeedDamaged: the seed of the round before cannot be opened.
        """
        if job.carried is None:
            raise AssertionError("the job's noise is independent")

        def stream(secret: bytes, purpose: bytes) -> Randomness:
            return interruptible(Stream(derive_key(secret, purpose)), interrupt)

        before = self._seed_before(job, round_index)
        streams = StepStreams(
            kept=stream(seed.secret, _KEPT),
            own=stream(seed.secret, _OWN),
            before=stream(before, _KEPT) if before else None,
        )
        return draw_step_noise(job.carried, scale, count, streams)

    def _seed_before(self, job: JobSpec, round_index: int) -> bytes | None:
        """Return the seed of the answer before a round.

        None if that round has no seed. Then no noise is removed, which reveals less than is charged.
        """
        if not round_index:
            return None
        answered = self._ledger.round(key_of(job), round_index - 1)
        if answered is None:
            raise JobRefused(JobReason.ROUND_OUT_OF_ORDER, f"round {round_index - 1} is to be answered first")
        if answered.sealed_seed is None:
            return None
        nonce, sealed = answered.sealed_seed[:_NONCE_BYTES], answered.sealed_seed[_NONCE_BYTES:]
        try:
            return self._cipher(job).decrypt(nonce, sealed, _context(round_index - 1))
        except (InvalidTag, ValueError):
            raise SeedDamaged(f"the seed of round {round_index - 1} cannot be opened") from None

    def _cipher(self, job: JobSpec) -> ChaCha20Poly1305:
        return ChaCha20Poly1305(self._noise_key(job.digest))


def _context(round_index: int) -> bytes:
    """Return the context to which a sealed seed is bound, besides the job."""
    return round_index.to_bytes(8, "little")
