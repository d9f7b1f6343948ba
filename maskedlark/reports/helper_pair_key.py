"""The key that only the two helpers share, and all that they draw from it without exchanging a message.

Each helper computes the same X25519 secret from its own private key and the other's public key, which the
task names. From it and a public context both derive: the tag by which the ad server sees that they read the
same features and labels of a report, the blind of a round, the minibatch of a round, and the tag by which the
ad server sees that they summed the same values.
"""

from functools import partial
from math import isqrt
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from numpy.typing import NDArray

from maskedlark.errors import InvalidTask
from maskedlark.hmac_sha256 import HmacKey, hmac_sha256
from maskedlark.never_pickled import NeverPickled
from maskedlark.numbers.field import BLOCK, FieldVector, negate, random_vector
from maskedlark.randomness import Randomness, Stream, below, derive_key
from maskedlark.reports.task import Task

SAMPLING_DENOMINATOR: Final = 1 << 32
VIEW_TAG_BYTES: Final = 16


class ViewKey(NeverPickled):
    """The part of a pair's secret that tags views; workers that open shares receive it. Its repr hides it."""

    __slots__ = ("_key", "_secret")

    def __init__(self, secret: bytes) -> None:
        self._secret, self._key = secret, HmacKey(secret)

    def __repr__(self) -> str:
        return "ViewKey(<redacted>)"

    def secret_bytes(self) -> bytes:
        """Return the key, for a worker of the same helper and nothing else."""
        return self._secret

    def for_own_process(self) -> tuple[Any, ...]:
        """Pickle the key for the helper's own process pool."""
        return partial(ViewKey, self._secret), ()

    def tag(self, report_id: bytes, view: bytes) -> bytes:
        """Return 16 bytes that show the ad server whether the helpers' views of one report are equal.

        They tell nothing else; a view is the features and labels.
        """
        return self._key.tag(report_id + view)[:VIEW_TAG_BYTES]


class PairKey(NeverPickled):
    """The secret of the two helpers of one task. Redacted in its repr; its methods are the only use of it.

    It stays in the helper's own process.
    """

    __slots__ = ("_role", "_secret")

    def __init__(self, *, secret: bytes, role: int) -> None:
        self._secret = secret
        self._role = role

    def __repr__(self) -> str:
        return f"PairKey(role={self._role}, secret=<redacted>)"

    @classmethod
    def agree(cls, private_key: X25519PrivateKey, task: Task, role: int) -> "PairKey":
        """Agree with the other helper of a task. Called by a helper; no message is exchanged.

        Raises:
            InvalidTask: the other helper's agreement key is not a usable X25519 key.
        """
        ours, theirs = task.helpers[role], task.helpers[1 - role]
        if ours.agreement_key != private_key.public_key().public_bytes_raw():
            raise InvalidTask(f"the task's helper {role} has another agreement key than this helper")
        try:
            shared = private_key.exchange(X25519PublicKey.from_public_bytes(theirs.agreement_key))
        except ValueError:
            raise InvalidTask(f"the agreement key of helper {1 - role} is not a usable X25519 key") from None
        # A key for each task: what was drawn in one says nothing of another.
        return cls(secret=derive_key(shared, b"pair", task.task_id), role=role)

    @property
    def view_key(self) -> ViewKey:
        """A key that tags views, and can do nothing else."""
        return ViewKey(derive_key(self._secret, b"view"))

    def blind(self, transcript: bytes, count: int) -> FieldVector:
        """Return a uniform vector that the helper of role 0 adds and the helper of role 1 subtracts.

        It cancels in the sum.

        If the two helpers were shown different transcripts, the sum is uniform and tells nothing.
        """
        vector = random_vector(count, Stream(derive_key(self._secret, b"blind", transcript)))
        for start in range(0, count if self._role else 0, BLOCK):  # in place: it may be as large as memory
            part = vector[start : start + BLOCK]
            part[...] = negate(part)
        return vector

    def sample(self, transcript: bytes, count: int, sampling_numerator: int) -> NDArray[np.bool_]:
        """Sample `count` records, in canonical order, independently (Poisson) for this round.

        Each with rate numerator / 2^32.

        Guarantees: independent of the records' content; equal at both helpers; unpredictable to anyone else.
        """
        words = np.frombuffer(Stream(derive_key(self._secret, b"sample", transcript))(4 * count), dtype="<u4")
        # In 64 bits: the numerator of a rate of 1 is 2^32.
        return words.astype(np.uint64) < np.uint64(sampling_numerator)

    def padding(self, transcript: bytes, count: int, wanted: int) -> NDArray[np.bool_]:
        """Choose `wanted` of the `count` records that a round does not sample, to fill up its work.

        Guarantees: any of the records as likely as any other; equal at both helpers; unpredictable to anyone
            else, also to a sender that chose report ids to place its records.
        """
        if not 0 < wanted < count:
            return np.full(count, wanted > 0)
        words = np.frombuffer(Stream(derive_key(self._secret, b"padding", transcript))(4 * count), "<u4")
        # Eight standard deviations more than wanted: if too few lie below all the same, all are looked at.
        bound = min(
            SAMPLING_DENOMINATOR - 1, (wanted + 8 * isqrt(wanted) + 64) * SAMPLING_DENOMINATOR // count
        )
        low = words[words < np.uint32(bound)]  # the least are nearly always among these few
        last = np.partition(low if len(low) >= wanted else words, wanted - 1)[wanted - 1]
        is_chosen: NDArray[np.bool_] = words < last
        # Words may repeat: of the last one's equals, the first in canonical order make up the number.
        alike = np.flatnonzero(words == last)
        is_chosen[alike[: wanted - int(np.count_nonzero(is_chosen))]] = True
        return is_chosen

    def slots(self, job_digest: bytes, epoch: int, count: int, steps: int) -> NDArray[np.uint64]:
        """Allocate each of `count` records, in canonical order, to a random step of an epoch.

        Drawn from the pair's key, the job (whose digest binds task and dataset) and the epoch, and from
        nothing that a round brings: whatever weights are sent, a record takes part once an epoch.

        Guarantees: independent and uniform below `steps`, by rejection; equal at both helpers; unpredictable
            to anyone else.
        """
        context = job_digest + epoch.to_bytes(8, "little")
        return below(steps, count, Stream(derive_key(self._secret, b"slots", context)))

    def common_noise(self, transcript: bytes) -> Randomness:
        """Return a fresh stream of bytes that both helpers draw alike and no other party can predict.

        For noisy decisions on data that both helpers see in clear.
        """
        return Stream(derive_key(self._secret, b"common noise", transcript))

    def agreement_tag(self, transcript: bytes, values_digest: bytes) -> bytes:
        """Return 32 bytes, equal at the two helpers if they summed the same values in the same round.

        They tell nothing else.
        """
        return hmac_sha256(derive_key(self._secret, b"agreement"), transcript + values_digest)
