"""A committed dataset as those see it that compute with its records: an executor's argument."""

from collections.abc import Callable, Iterator, Sequence

from helper.datasets.frames import SealedSegment
from helper.datasets.segments import SegmentSlice
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt


@frozen
class DatasetRecords:
    """The records of a dataset, to be read when they are needed.

    Attributes:
        count: How many there are.
        pieces: All of them, piece by piece, with what ends the waiting for one; JobRefused(DATASET_LOST) or
            HelperUnavailable perhaps only after some pieces.
        sealed: All of them in sealed segments; raises JobRefused(DATASET_LOST) or HelperUnavailable, perhaps
            only when a segment is read.
    """

    count: int
    pieces: Callable[[Interrupt], Iterator[SegmentSlice]]
    sealed: Callable[[Interrupt], Sequence[SealedSegment]]
