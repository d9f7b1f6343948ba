"""Which report ids came before, of very many in few bytes each.

>>> seen = SeenIds()
>>> ids = np.frombuffer(b"one report's id." b"another one's id" b"one report's id.", np.uint8).reshape(3, 16)
>>> seen.add(ids).tolist()
[False, False, True]
>>> seen.add(ids[1:2]).tolist()
[True]
"""

from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from numpy.typing import NDArray

from maskedlark.randomness import Randomness, system_randomness

_KEY_BYTES: Final = 32


class SeenIds:
    """A set of ids that only grows.

    Eight bytes are kept of an id, of its AES block under a key of this set alone: an id that is new is taken
    for one that came before with probability 2^-64 for each in the set, whoever chose the ids.
    """

    def __init__(self, randomness: Randomness = system_randomness) -> None:
        self._blocks = Cipher(AES256(randomness(_KEY_BYTES)), ECB())  # noqa: S305 # of ids that all differ
        self._runs: list[NDArray[np.uint64]] = []

    def add(self, report_ids: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Take u8 (n, 16) ids; which of them came before, in an earlier call or earlier in this one."""
        hashes = self._hashes(report_ids)
        new, first = np.unique(hashes, return_index=True)
        came = np.ones(len(hashes), np.bool_)
        came[first] = False
        for run in self._runs:
            came |= _is_in(hashes, run)
        self._runs.append(new)
        # Each run is more than twice as long as the next: few are searched, and an id is seldom sorted anew.
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            self._runs[-2:] = [np.sort(np.concatenate(self._runs[-2:]))]
        return came

    def _hashes(self, report_ids: NDArray[np.uint8]) -> NDArray[np.uint64]:
        """Return the first half of each id's block."""
        blocks = self._blocks.encryptor().update(np.ascontiguousarray(report_ids).tobytes())
        return np.frombuffer(blocks, "<u8").reshape(-1, 2)[:, 0].astype(np.uint64)


def _is_in(hashes: NDArray[np.uint64], run: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which of the hashes are in a sorted run."""
    if not len(run):
        return np.zeros(len(hashes), np.bool_)
    # What is above all of the run would be looked up behind its end.
    places = np.minimum(np.searchsorted(run, hashes), len(run) - 1)
    found: NDArray[np.bool_] = run[places] == hashes
    return found
