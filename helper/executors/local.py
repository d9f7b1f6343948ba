"""The executor of one machine: processes open shares, threads of the engine sum, scans run in the caller."""

from collections.abc import Sequence
from typing import Self

import numpy as np

from helper.datasets.records import DatasetRecords
from helper.executors.executor import Adding, Gradient, Scoring, SummedUpdates
from helper.executors.processes import OpeningPool
from helper.executors.summing import sum_batches, sum_updates
from helper.gradient.engine import Interrupt, MaskedSum
from helper.gradient.scoring import Scores, score
from maskedlark.model.heads import classes_scored
from maskedlark.releases.round import Evaluated
from maskedlark.reports.dataset import PreparedShares, ShareForHelper, ShareOpener
from maskedlark.runtime.prefetch import AT_ONCE


class LocalExecutor:
    """An `Executor` of this machine's processors. One per helper; closed with it."""

    def __init__(self, opening_workers: int | None = None) -> None:
        """Prepare for so many processes that open shares; by default one a core."""
        self._pool = OpeningPool(opening_workers)

    def opens_at_once(self) -> int:
        """See `Executor`; a chunk is for all processes, and while it is answered for they open another."""
        return AT_ONCE

    def open(self, opener: ShareOpener, incoming: Sequence[ShareForHelper]) -> PreparedShares:
        """See `Executor`."""
        return self._pool.open(opener, incoming)

    def masked_sum(
        self, gradient: Gradient, records: DatasetRecords, evaluated: Evaluated, interrupt: Interrupt
    ) -> MaskedSum:
        """See `Executor`."""
        return sum_batches(gradient.engine, gradient.weights, records.pieces(interrupt), evaluated, interrupt)

    def scan(self, scoring: Scoring, records: DatasetRecords, interrupt: Interrupt) -> Scores:
        """See `Executor`."""
        bins = np.empty(records.count, np.int64)
        choices = np.empty(records.count, np.int64) if classes_scored(scoring.model, scoring.loss) else None
        for piece in records.pieces(interrupt):
            found = score(
                scoring.model,
                scoring.loss,
                scoring.weights,
                piece.shares.features,
                scoring.num_bins,
                interrupt=interrupt,
            )
            bins[piece.ranks] = found.bins
            if choices is not None and found.choices is not None:
                choices[piece.ranks] = found.choices
        return Scores(bins=bins, choices=choices)

    def add_up(self, adding: Adding, updates: DatasetRecords, interrupt: Interrupt) -> SummedUpdates:
        """See `Executor`."""
        rows = (piece.rows for piece in updates.pieces(interrupt))
        return sum_updates(adding, rows, interrupt)

    def close(self) -> None:
        """See `Executor`."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
