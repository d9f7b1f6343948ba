"""The masked sum of a round over the pieces of a dataset.

Sums are exact and the digest of the values depends on no order, so pieces are summed as they come from disk,
however the records are cut, and the helpers agree although each cuts its own dataset. Only the general engine
needs all records of a round at once, in canonical order.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from helper.datasets.segments import SEGMENT_RECORDS, Ids, SegmentRows, SegmentSlice
from helper.executors.executor import Adding, SummedUpdates
from helper.gradient.engine import Batch, GradientEngine, Interrupt, MaskedSum, OrderFree
from maskedlark.model.weights import QuantisedTensor
from maskedlark.releases.round import Evaluated
from maskedlark.reports.input_shares import InputShares
from maskedlark.reports.updates import UpdateSum

_BATCH_BYTES: Final = 32 << 20


def sum_batches(
    engine: GradientEngine,
    weights: tuple[QuantisedTensor, ...],
    pieces: Iterable[SegmentSlice],
    evaluated: Evaluated,
    interrupt: Interrupt,
) -> MaskedSum:
    """Return the engine's masked sum over the evaluated records. Called by a helper once a round."""
    if isinstance(engine, OrderFree):
        return engine.masked_sums(weights, _batches(pieces, evaluated, interrupt), interrupt)
    parts, ranks = [], []
    for piece in pieces:
        interrupt()
        parts.append(evaluated.of(piece.shares, piece.ranks))
        ranks.append(piece.ranks[evaluated.is_evaluated[piece.ranks]])
    # In canonical order, on which float64 sums of the general engine depend.
    together = (
        parts[0] if len(parts) == 1 else InputShares.join(parts).rows(np.argsort(np.concatenate(ranks)))
    )
    return engine.masked_sum(weights, together, interrupt)


def _batches(pieces: Iterable[SegmentSlice], evaluated: Evaluated, interrupt: Interrupt) -> Iterator[Batch]:
    """Yield the evaluated records in efficient batches, at least one, perhaps empty.

    How many batches there are, and of how many records each, follows from the number of evaluated records
    alone. So the time of a round does not tell in which segments the sampled ones are.
    """
    waiting: list[Batch] = []
    yielded = False
    for piece in pieces:
        interrupt()
        waiting.append(evaluated.of(piece.shares, piece.ranks))
        size = batch_records(waiting[0])
        if len(piece.ranks) == len(evaluated.is_evaluated) or sum(map(len, waiting)) < size:
            continue  # of a dataset in one piece all is one batch
        together = InputShares.join(waiting)
        for start in range(0, len(together) - size + 1, size):
            yield together.rows(np.arange(start, start + size))
            yielded = True
        waiting = [together.rows(np.arange(len(together) // size * size, len(together)))]
    if any(map(len, waiting)) or not yielded:
        yield InputShares.join(waiting) if len(waiting) > 1 else waiting[0]


def sum_updates(adding: Adding, parts: Iterable[SegmentRows], interrupt: Interrupt) -> SummedUpdates:
    """Add a federated round's shares, in the memory of a few segments."""
    summed = UpdateSum(form=adding.form, role=adding.role, task_id=adding.task_id)
    records = 0
    for rows in parts:
        for report_id, payload in zip(Ids(rows.report_ids)[:], rows.shares.features, strict=True):
            interrupt()
            summed.add(report_id, payload.tobytes())
        records += len(rows)
    return SummedUpdates(vector=summed.total(), records=records)


def batch_records(batch: Batch) -> int:
    """Return how many records like these make an efficient batch."""
    row: int = batch.features.shape[1] + 12 * batch.labels.shape[1]
    return min(SEGMENT_RECORDS, -(-_BATCH_BYTES // row))
