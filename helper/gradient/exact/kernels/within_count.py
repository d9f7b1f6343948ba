"""How many values a round left unclipped, as one more masked coordinate: what an adaptive clip bound follows.

A value is within the bound if its factor is its coefficient (`clipping`); that is a comparison of numbers
that are the same on every machine, so the two helpers agree on it as on everything else.
"""

from typing import Final

import numpy as np

from helper.gradient.exact.kernels.clipping import Masking
from helper.gradient.exact.kernels.masking import Hashed, hash_keys
from helper.gradient.exact.kernels.rows import Real
from maskedlark.numbers.field import FieldVector, add, multiply, subtract, total
from maskedlark.privacy.clip import Clip

_KEYS_LAYER: Final = 1 << 20
"""Beyond the layers of any model."""


class WithinCount:
    """The coordinate of one thread's part of a round. Not a value: it grows by `add`."""

    __slots__ = ("_clip", "_keys", "_sum")

    def __init__(self, clip: Clip, labels: int) -> None:
        self._clip = clip
        self._keys = hash_keys(_KEYS_LAYER, Hashed.VALUES, 1, labels)[0]
        self._sum = np.zeros(1, np.uint64)

    def add(self, masking: Masking, coefficients: Real) -> None:
        """Count a block, and hash what was counted. Shapes: coefficients (records, labels)."""
        if not self._clip.is_counted:
            return
        within = (masking.factors == coefficients).astype(np.uint64)
        np.add(
            masking.hashes,
            (self._keys ^ (within - np.uint64(1))).sum(axis=1, dtype=np.uint64),  # ~key where it is not
            out=masking.hashes,
        )
        # Both passes go over all records, whichever are within: a selection would show how many are in the
        # time.
        for counted, into in ((within, add), (within ^ np.uint64(1), subtract)):  # no value is left out
            self._sum = into(self._sum, total((masking.shares * counted).reshape(-1, 1)))

    def append_to(self, vector: FieldVector) -> FieldVector:
        """Append the coordinate to the vector, if there is one."""
        if not self._clip.is_counted:
            return vector
        return np.append(vector, multiply(self._sum, np.full(1, self._clip.count_units, np.uint64)))
