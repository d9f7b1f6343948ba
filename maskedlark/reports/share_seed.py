"""Role 0's share as a 32-byte seed.

The browser sends the seed, and helper 0 expands it to the share's field elements.

    seed = randomness(SEED_BYTES)                                    # the browser, once for each sealing
    share_0 = expand_share(seed, task_id, report_id, 0, length)      # the browser, and later helper 0
    share_1 = subtract(secret, share_0)                              # the browser

A seed is fresh for each sealing. A seed that is used twice shows helper 1 the difference of two secrets, and
a seed that can be guessed shows it the secret. Because share 0 is expanded from a seed, share 1 hides the
secret computationally (AES-256), not unconditionally.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from maskedlark.hmac_sha256 import hmac_sha256
from maskedlark.numbers.field import ELEMENT_BYTES, MODULUS, FieldVector, random_vector
from maskedlark.randomness import Stream

SEED_BYTES: Final = 32
# Room for one more block, which the cipher asks for.
_SLACK_WORDS: Final = 2
_DOMAIN: Final = b"maskedlark/v1 share\0"
_FROM_ZERO: Final = CTR(bytes(16))


def expand_share(seed: bytes, task_id: bytes, report_id: bytes, role: int, length: int) -> FieldVector:
    """Expand a seed to `length` field elements.

    Called by the browser and by the helper that opened it.

    The elements are the little-endian 8-byte words of the AES-256-CTR stream under a key that HKDF-Expand
    makes of the seed, with "maskedlark/v1 share", 0, task id, report id and role as info. A seed is uniform
    already, so nothing is extracted first (RFC 5869, section 3.3). Words at or above the modulus are skipped,
    and reading goes on.

    Guarantees: canonical elements; the elements of a shorter length are the first ones of a longer length.
    """
    return random_vector(length, Stream(_stream_key(seed, task_id, report_id, role)))


def expand_shares(
    seeds: Sequence[bytes], task_id: bytes, report_ids: Sequence[bytes], role: int, length: int
) -> FieldVector:
    """Expand n seeds as `expand_share` does, one row each: uint64 (n, length).

    Called by a helper for a chunk of reports.
    """
    zeros = bytes(ELEMENT_BYTES * length)
    streams = [
        _encryptor(seed, task_id, report_id, role).update(zeros)
        for seed, report_id in zip(seeds, report_ids, strict=True)
    ]
    table = np.frombuffer(b"".join(streams), "<u8").astype(np.uint64).reshape(len(streams), length)
    is_short = (table >= np.uint64(MODULUS)).any(axis=1)  # about one element in 2^32 is skipped
    for row in np.flatnonzero(is_short).tolist():
        table[row] = expand_share(seeds[row], task_id, report_ids[row], role, length)
    return table


class Expander:
    """`expand_share` of many seeds, one after the other, into one array that is kept.

    Called by a helper that adds shares as they come. Fresh memory for each of them takes longer than the
    expansion: the kernel clears it page by page.
    """

    def __init__(self, *, task_id: bytes, role: int, length: int) -> None:
        self._task_id = task_id
        self._role = role
        self._length = length
        self._zeros = bytes(ELEMENT_BYTES * length)
        self._words = np.empty(length + _SLACK_WORDS, "<u8")

    def expand(self, seed: bytes, report_id: bytes) -> FieldVector:
        """Expand a seed as `expand_share` does; the next call overwrites the result."""
        into = self._words.data.cast("B")
        _encryptor(seed, self._task_id, report_id, self._role).update_into(self._zeros, into)
        found = self._words[: self._length]
        if (found >= np.uint64(MODULUS)).any():  # about one element in 2^32 is skipped
            return expand_share(seed, self._task_id, report_id, self._role, self._length)
        return found


def _encryptor(seed: bytes, task_id: bytes, report_id: bytes, role: int) -> CipherContext:
    """Return the key stream of a seed."""
    # A key makes one stream only, so its counter may begin at zero.
    return Cipher(AES256(_stream_key(seed, task_id, report_id, role)), _FROM_ZERO).encryptor()


def _stream_key(seed: bytes, task_id: bytes, report_id: bytes, role: int) -> bytes:
    return hmac_sha256(seed, b"".join((_DOMAIN, task_id, report_id, bytes((role, 1)))))
