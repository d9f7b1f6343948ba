"""The ciphertexts of many reports as the bytes of one object, and back.

    content = Ciphertexts.encode(reports)
    Ciphertexts(content).at(3, role=1) == reports[3].shares[1].ciphertext

Layout: a mark, the number of reports, the lengths of all ciphertexts (those for role 0 first), and then the
ciphertexts in the same order; numbers are u32 little-endian. Ids, key ids and times are columns of the table.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from maskedlark.reports.upload import Report
from maskedlark.runtime.objects import ObjectLost

_MARK: Final = b"MLR1"
_NUMBER: Final = np.dtype("<u4")
_ROLES: Final = 2


class Ciphertexts:
    """The ciphertexts in an object whose bytes are known to be those that were put."""

    __slots__ = ("_content", "_count", "_ends")

    def __init__(self, content: bytes) -> None:
        """Read where each ciphertext lies.

        Raises:
            ObjectLost: the bytes are no such object.
        """
        head = len(_MARK) + _NUMBER.itemsize
        if content[: len(_MARK)] != _MARK or len(content) < head:
            raise ObjectLost("an object without reports")
        count = int.from_bytes(content[len(_MARK) : head], "little")
        begins = head + _ROLES * count * _NUMBER.itemsize
        if begins > len(content):
            raise ObjectLost("an object shorter than it declares")
        lengths = np.frombuffer(content, _NUMBER, _ROLES * count, head)
        ends = np.cumsum(np.concatenate(([begins], lengths)), dtype=np.int64).tolist()
        # Checked against the whole length, so that no position can reach beyond the bytes.
        if ends[-1] != len(content):
            raise ObjectLost("an object of a different length than it declares")
        self._content, self._count, self._ends = content, count, ends

    @staticmethod
    def encode(reports: Sequence[Report]) -> bytes:
        """Encode an object with the ciphertexts of these reports, in this order."""
        ciphertexts = [report.shares[role].ciphertext for role in range(_ROLES) for report in reports]
        numbers = np.array([len(reports), *map(len, ciphertexts)], _NUMBER)
        return b"".join([_MARK, numbers.tobytes(), *ciphertexts])

    @property
    def num_bytes(self) -> int:
        """The length of the object."""
        return len(self._content)

    def at(self, position: int, *, role: int) -> bytes:
        """Return the ciphertext for one role of the report at a position.

        Raises:
            ObjectLost: the object has no such report.
        """
        if not 0 <= position < self._count:
            raise ObjectLost("an object without this report")
        place = role * self._count + position
        return self._content[self._ends[place] : self._ends[place + 1]]
