"""The masked sum of a round over the pieces of a dataset.

Sums are exact and the digest of the values depends on no order, so pieces are summed as they come from disk,
however the records are cut, and the helpers agree although each cuts its own dataset. Only the general engine
needs all records of a round at once, in canonical order.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from helper.datasets.segments import SEGMENT_RECORDS, Piece
from helper.gradient.engine import Batch, GradientEngine, Interrupt, MaskedSum, OrderFree
from maskedlark.model.weights import QuantisedTensor
from maskedlark.releases.round import Evaluated
from maskedlark.reports.report import join_shares

_BATCH_BYTES: Final = 32 << 20


def summed(
    engine: GradientEngine,
    weights: tuple[QuantisedTensor, ...],
    pieces: Iterable[Piece],
    evaluated: Evaluated,
    interrupt: Interrupt,
) -> MaskedSum:
    """The engine's masked sum over the evaluated records of a dataset. Called by a helper once a round."""
    if isinstance(engine, OrderFree):
        return engine.masked_sums(weights, _batches(pieces, evaluated, interrupt), interrupt)
    parts, ranks = [], []
    for piece in pieces:
        interrupt()
        parts.append(evaluated.of(piece.shares, piece.ranks))
        ranks.append(piece.ranks[evaluated.is_evaluated[piece.ranks]])
    together = parts[0] if len(parts) == 1 else join_shares(parts).rows(np.argsort(np.concatenate(ranks)))
    return engine.masked_sum(weights, together, interrupt)


def _batches(pieces: Iterable[Piece], evaluated: Evaluated, interrupt: Interrupt) -> Iterator[Batch]:
    """The evaluated records in batches that are worth an engine's while, at least one, perhaps empty."""
    waiting: list[Batch] = []
    yielded = 0
    for piece in pieces:
        interrupt()
        waiting.append(evaluated.of(piece.shares, piece.ranks))
        records, row = sum(map(len, waiting)), waiting[0].features.shape[1] + 12 * waiting[0].labels.shape[1]
        if records >= SEGMENT_RECORDS or records * row >= _BATCH_BYTES:
            yield join_shares(waiting) if len(waiting) > 1 else waiting[0]
            yielded += 1
            waiting = []
    if waiting and (any(map(len, waiting)) or not yielded):
        yield join_shares(waiting) if len(waiting) > 1 else waiting[0]
