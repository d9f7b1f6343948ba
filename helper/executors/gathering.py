"""The batches of an order: the sampled records of a worker's segments, and others behind them.

    gathered(held, evaluated, work, interrupt)      # batches of `work` records together

Which records an order takes is secret, and so is how many. Others fill it up to the work that it is padded
to: they stand behind the sampled ones in the same batches, with mask shares of zero. Each record is copied
once, from its segment to its place in a batch.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from helper.datasets.segments import SegmentRows
from helper.executors.summing import batch_records
from helper.gradient.engine import Batch, Interrupt
from maskedlark.frozen import frozen
from maskedlark.releases.round import Evaluated
from maskedlark.reports.input_shares import InputShares


@frozen
class _Stretch:
    """Records of one segment that follow each other in an order.

    Attributes:
        shares: The segment's.
        start: The place of its first record among those of all segments.
        low: Where the stretch begins in the order.
        high: Where it ends.
    """

    shares: InputShares
    start: int
    low: int
    high: int


def gather(
    held: Sequence[SegmentRows], evaluated: Evaluated, work: int, interrupt: Interrupt
) -> Iterator[Batch]:
    """Yield the evaluated records of some segments, then as many others as `work` still needs.

    How many batches there are, and of how many records each, follows from `work` alone, unless more records
    are evaluated. There is at least one batch, perhaps an empty one.

    Args:
        held: The segments, at least one.
        evaluated: Their flags, those of one segment behind those of the other.
        work: On how many records to spend time.
        interrupt: Called before each batch.
    """
    sampled = np.flatnonzero(evaluated.is_evaluated)
    others = np.flatnonzero(~evaluated.is_evaluated)[: max(0, work - len(sampled))]
    places = np.concatenate((sampled, others))
    counts = (evaluated.counts & evaluated.is_evaluated)[places]
    stretches = [*_stretches(held, sampled, 0), *_stretches(held, others, len(sampled))]
    size = batch_records(held[0].shares)
    for start in range(0, max(1, len(places)), size):
        interrupt()
        yield _batch(stretches, places, counts, range(start, min(start + size, len(places))))


def _stretches(held: Sequence[SegmentRows], places: NDArray[np.intp], first: int) -> list[_Stretch]:
    """Return the segments of ascending positions, which follow each other from `first` on."""
    starts = np.cumsum([0, *map(len, held)])
    cuts = (first + np.searchsorted(places, starts)).tolist()
    return [
        _Stretch(shares=rows.shares, start=start, low=low, high=high)
        for rows, start, (low, high) in zip(held, starts.tolist(), pairwise(cuts), strict=False)
    ]


def _batch(
    stretches: Sequence[_Stretch], places: NDArray[np.intp], counts: NDArray[np.bool_], part: range
) -> Batch:
    """Return the records of a part of the order; mask shares that do not count are zero."""
    like = stretches[0].shares
    batch = Batch(
        features=np.empty((len(part), like.features.shape[1]), np.uint8),
        labels=np.empty((len(part), like.labels.shape[1]), np.uint32),
        mask_shares=np.empty((len(part), like.mask_shares.shape[1]), np.uint64),
    )
    for one in stretches:
        low, high = max(one.low, part.start), min(one.high, part.stop)
        if low <= high:  # also of none: a segment without a sampled record takes no less time
            rows, into = places[low:high] - one.start, slice(low - part.start, high - part.start)
            # all places exist: any mode but "raise" writes to `out` at once, and not to a copy of it first
            one.shares.features.take(rows, axis=0, out=batch.features[into], mode="clip")
            one.shares.labels.take(rows, axis=0, out=batch.labels[into], mode="clip")
            one.shares.mask_shares.take(rows, axis=0, out=batch.mask_shares[into], mode="clip")
    np.multiply(batch.mask_shares, counts[part.start : part.stop, None], out=batch.mask_shares)
    return batch
