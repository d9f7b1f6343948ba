"""A committed dataset as those see it that compute with its records: an executor's argument."""

from collections.abc import Callable, Iterator

from helper.datasets.segments import Piece
from maskedlark.frozen import frozen


@frozen
class Records:
    """The records of a dataset, to be read when they are needed.

    Attributes:
        count: How many there are.
        pieces: All of them, piece by piece; JobRefused(DATASET_LOST) perhaps only after some pieces.
    """

    count: int
    pieces: Callable[[], Iterator[Piece]]
