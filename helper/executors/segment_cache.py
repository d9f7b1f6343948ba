"""The segments that a worker keeps opened in memory, up to a number of bytes."""

from collections import OrderedDict

from helper.datasets.segments import SegmentRows


class SegmentCache:
    """Opened segments by their names; the least recently used make room. Used by one thread at a time."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._held: OrderedDict[bytes, SegmentRows] = OrderedDict()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """The bytes that they take."""
        return self._num_bytes

    def get(self, name: bytes) -> SegmentRows | None:
        """Return a segment, if it is still cached."""
        rows = self._held.get(name)
        if rows is not None:
            self._held.move_to_end(name)
        return rows

    def put(self, name: bytes, rows: SegmentRows) -> None:
        """Keep a segment. One that is larger than the room is not kept, and pushes nothing out."""
        size = _num_bytes(rows)
        if name in self._held or size > self._capacity:
            return
        self._held[name] = rows
        self._num_bytes += size
        while self._num_bytes > self._capacity:
            _, gone = self._held.popitem(last=False)
            self._num_bytes -= _num_bytes(gone)


def _num_bytes(rows: SegmentRows) -> int:
    return sum(column.nbytes for column in rows.columns)
