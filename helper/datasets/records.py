"""A committed dataset as those see it that compute with its records: an executor's argument."""

from collections.abc import Callable, Iterator, Sequence

from helper.datasets.frames import SealedSegment
from helper.datasets.segments import SegmentSlice
from helper.datasets.update_vault import SealedUpdates, StoredUpdate
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt


@frozen
class DatasetRecords:
    """The records of a dataset, to be read when they are needed.

    Attributes:
        count: How many there are.
        pieces: All of them, piece by piece, with what ends the waiting for one; JobRefused(DATASET_LOST) or
            HelperUnavailable perhaps only after some pieces.
        sealed: All of them in sealed segments, or None where they lie in another form; raises
            JobRefused(DATASET_LOST) or HelperUnavailable, perhaps only when a segment is read.
    """

    count: int
    pieces: Callable[[Interrupt], Iterator[SegmentSlice]]
    sealed: Callable[[Interrupt], Sequence[SealedSegment] | None]


@frozen
class Updates:
    """The shares of the updates of a round's dataset, to be read when they are needed.

    Attributes:
        shares: All of them, one at a time; JobRefused(DATASET_LOST) or HelperUnavailable perhaps only after
            some.
        sealed: All of them in sealed parts of at most so many; raises the same, perhaps only when a part is
            read.
    """

    shares: Callable[[], Iterator[StoredUpdate]]
    sealed: Callable[[int], Sequence[SealedUpdates]]
