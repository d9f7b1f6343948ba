"""Masked sums as exact matrix products in float64: sum over rows of mask_share * value, in the field.

A share is four 16-bit limbs and a value one or two 24-bit limbs, so that every partial sum of a product over
at most 2^12 rows stays below 2^53, where float64 adds integers exactly in any order.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from maskedlark.interrupt import Interrupt, never
from maskedlark.numbers import field
from maskedlark.numbers.field import FieldVector, SignedVector

MAX_ROWS: Final = 1 << 12
_SHARE_BITS: Final = 16
_VALUE_BITS: Final = 24
# Parameters reduced between two looks at whether anybody waits.
_BLOCK: Final = 1 << 18
_MAX_PENDING: Final = 1 << 10  # products below 2^53 that an int64 can add up


class MaskedProducts:
    """A running masked sum of integer rows of magnitude at most `largest` (up to 2^40).

    Not a value: it grows by `add`.
    """

    __slots__ = ("_pending", "_sums", "_total")

    def __init__(self, num_parameters: int, largest: int) -> None:
        parts = 1 if largest <= 1 << _VALUE_BITS else 2
        self._total = np.zeros(num_parameters, np.uint64)
        self._sums: list[NDArray[np.int64]] = [np.zeros((4, num_parameters), np.int64) for _ in range(parts)]
        self._pending = 0

    def add(self, values: SignedVector, shares: FieldVector, interrupt: Interrupt = never) -> None:
        """Add `sum_r shares[r] * values[r]`; what `interrupt` raises leaves nothing that can be used.

        Shapes: values int64 (rows, parameters), at most `MAX_ROWS` rows; shares (rows,).
        """
        limbs = [
            (shares >> np.uint64(_SHARE_BITS * limb)) & np.uint64(2**_SHARE_BITS - 1) for limb in range(4)
        ]
        left = np.stack(limbs).astype(np.float64)
        # The shift keeps the sign in the upper limb: the lower one is never negative.
        parts = (
            [values] if len(self._sums) == 1 else [values & ((1 << _VALUE_BITS) - 1), values >> _VALUE_BITS]
        )
        for position, part in enumerate(parts):
            self._sums[position] += (left @ part.astype(np.float64)).astype(np.int64)
        self._pending += 1
        if self._pending == _MAX_PENDING:
            self._reduce(interrupt)

    def total(self, interrupt: Interrupt = never) -> FieldVector:
        """Return the sum so far; `interrupt` as of `add`."""
        self._reduce(interrupt)
        return self._total

    def _reduce(self, interrupt: Interrupt) -> None:
        """Move the pending sums into the field."""
        for start in range(0, len(self._total), _BLOCK):
            interrupt()
            total = self._total[start : start + _BLOCK]
            for part, sums in enumerate(self._sums):
                for limb, row in enumerate(sums[:, start : start + _BLOCK]):
                    scale = pow(2, _SHARE_BITS * limb + _VALUE_BITS * part, field.MODULUS)
                    total[:] = field.add(
                        total, field.multiply(field.from_signed(row), np.full_like(total, scale))
                    )
        for sums in self._sums:
            sums[:] = 0
        self._pending = 0
