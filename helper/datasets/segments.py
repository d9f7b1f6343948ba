"""What a segment holds: the records that were opened one after the other, column by column.

A dataset is a sequence of segments of at most `SEGMENT_RECORDS` records, in the order in which they came.
Each record knows its rank, its place in the canonical order, so that nothing is ever sorted on disk: sums and
the digests of values do not depend on an order, and what does is put in order by ranks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any, Final, Self, overload

import numpy as np
from numpy.typing import NDArray

from maskedlark.frozen import frozen
from maskedlark.reports.dataset import OpenedDataset
from maskedlark.reports.input_shares import InputShares, MeasuredShares
from maskedlark.reports.task import REPORT_ID_BYTES

SEGMENT_RECORDS: Final = 1 << 16
SEGMENT_BYTES: Final = 32 << 20
"""The most that the records of one segment take, but for a record that is larger by itself."""
NOT_CHOSEN: Final = np.uint32(0xFFFFFFFF)
"""The rank of a record that is not in the dataset."""
SHAPE_BYTES: Final = 4 * 8

Column = NDArray[Any]


@frozen
class RowShape:
    """How many entries each part of a record has.

    Attributes:
        features: Bytes.
        candidates: Labels, and as many mask shares.
        keys: Of a measurement.
        columns: Value shares of a measurement; 0 in a task without one.
    """

    features: int
    candidates: int
    keys: int
    columns: int

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """Decode what `encoded` gave."""
        features, candidates, keys, columns = np.frombuffer(encoded, "<u8").tolist()
        return cls(features=features, candidates=candidates, keys=keys, columns=columns)

    @property
    def encoded(self) -> bytes:
        """`SHAPE_BYTES` bytes, for the header of what has records of this shape."""
        return np.array([self.features, self.candidates, self.keys, self.columns], "<u8").tobytes()

    @property
    def widths(self) -> tuple[int, ...]:
        """Bytes of a record in each column; report ids come first."""
        plain = (REPORT_ID_BYTES, self.features, 4 * self.candidates, 8 * self.candidates)
        return (*plain, 4 * self.keys, 8 * self.columns) if self.columns else plain

    @property
    def segment_records(self) -> int:
        """The number of records of every segment but the last one."""
        return max(1, min(SEGMENT_RECORDS, SEGMENT_BYTES // sum(self.widths)))

    def empty(self, records: int) -> "SegmentRows":
        """Allocate so many records."""
        measured = MeasuredShares(
            keys=np.empty((records, self.keys), np.uint32),
            value_shares=np.empty((records, self.columns), np.uint64),
        )
        return SegmentRows(
            report_ids=np.empty((records, REPORT_ID_BYTES), np.uint8),
            shares=InputShares(
                features=np.empty((records, self.features), np.uint8),
                labels=np.empty((records, self.candidates), np.uint32),
                mask_shares=np.empty((records, self.candidates), np.uint64),
                measured=measured if self.columns else None,
            ),
        )


@frozen
class SegmentRows:
    """Some records: u8 (n, 16) report ids, and n rows of shares."""

    report_ids: NDArray[np.uint8] = field(repr=False)
    shares: InputShares

    def __len__(self) -> int:
        return len(self.report_ids)

    @property
    def shape(self) -> RowShape:
        """The shape of a record."""
        shares, measured = self.shares, self.shares.measured
        return RowShape(
            features=shares.features.shape[1],
            candidates=shares.labels.shape[1],
            keys=measured.keys.shape[1] if measured else 0,
            columns=measured.value_shares.shape[1] if measured else 0,
        )

    @property
    def columns(self) -> list[Column]:
        """The arrays, in the order of `RowShape.widths`."""
        shares, measured = self.shares, self.shares.measured
        plain: list[Column] = [self.report_ids, shares.features, shares.labels, shares.mask_shares]
        return [*plain, measured.keys, measured.value_shares] if measured else plain

    def rows(self, chosen: NDArray[np.bool_] | NDArray[np.intp] | slice) -> "SegmentRows":
        """Return these records."""
        # By places, which copies: a view by slice would keep all rows in memory.
        places = np.arange(len(self))[chosen] if isinstance(chosen, slice) else chosen
        return SegmentRows(report_ids=self.report_ids[places], shares=self.shares.rows(places))

    def chosen(self, ranks: NDArray[np.uint32]) -> "SegmentSlice":
        """Return the records of a segment that are in the dataset, by rank."""
        chosen = np.flatnonzero(ranks != NOT_CHOSEN)
        # No two ranks are equal, so that an unstable sort has one result too.
        order = chosen[np.argsort(ranks[chosen])]
        return SegmentSlice(ranks=ranks[order].astype(np.intp), rows=self.rows(order))

    @staticmethod
    def join(parts: Sequence["SegmentRows"]) -> "SegmentRows":
        """Concatenate the records of at least one part."""
        into = parts[0].shape.empty(sum(map(len, parts)))
        start = 0
        for part in parts:
            into.put(slice(start, start + len(part)), part)
            start += len(part)
        return into

    def put(self, places: NDArray[np.intp] | slice, others: "SegmentRows") -> None:
        """Write other records over those at some places."""
        for ours, theirs in zip(self.columns, others.columns, strict=True):
            ours[places] = theirs


@frozen
class SegmentSlice:
    """Records of a dataset that are held together.

    Attributes:
        ranks: (m,) the place of each in the canonical order, ascending.
        rows: m records.
    """

    ranks: NDArray[np.intp] = field(repr=False)
    rows: SegmentRows

    @classmethod
    def whole(cls, dataset: OpenedDataset) -> Self:
        """Return a dataset in one piece."""
        rows = SegmentRows(report_ids=dataset.report_ids, shares=dataset.shares)
        return cls(ranks=np.arange(len(dataset)), rows=rows)

    @property
    def shares(self) -> InputShares:
        """The records' shares."""
        return self.rows.shares


class Ids(Sequence[bytes]):
    """Report ids u8 (n, 16) as byte strings, each made when it is asked for.

    All at once take ten times as much.
    """

    def __init__(self, report_ids: NDArray[np.uint8]) -> None:
        # Void items: numpy's byte strings lose the zeros at their end.
        self._ids = np.ascontiguousarray(report_ids).view(f"V{REPORT_ID_BYTES}").ravel()

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, place: int) -> bytes: ...

    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...

    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        found: bytes | list[bytes] = self._ids[place].tolist()
        return found


def put_together(dataset_id: bytes, pieces: Iterable[SegmentSlice], records: int) -> OpenedDataset:
    """Combine all pieces of a dataset, in canonical order.

    Raises:
        ValueError: there are no records, or not as many.
    """
    into: SegmentRows | None = None
    found = 0
    for piece in pieces:
        is_all = len(piece.ranks) == records
        if is_all and np.array_equal(piece.ranks, np.arange(records)):  # and in order: nothing to copy
            into = piece.rows
        else:
            into = piece.rows.shape.empty(records) if into is None else into
            into.put(piece.ranks, piece.rows)
        found += len(piece.ranks)
    if into is None or found != records:
        raise ValueError("a dataset does not hold as many records as it says")
    return OpenedDataset(dataset_id=dataset_id, report_ids=into.report_ids, shares=into.shares)
