"""Sealing, first step: open the shares that the ad server streams in, and say which are admitted.

Nothing is used up by preparing. What was opened stays in this process's memory until it is committed or
pushed out; all preparations together have a bounded room there, which is taken before shares are opened.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Self

import numpy as np

from helper.datasets.proofs import compiled_residues
from helper.datasets.shelves import Handle, PreparedShelf
from helper.executors.processes import OpeningPool
from helper.ledger.ledger import Ledger
from helper.trust.tasks import ServedTask
from maskedlark.errors import JobReason, JobRefused, ReportReason
from maskedlark.frozen import frozen
from maskedlark.reports.dataset import (
    AdmittedSet,
    PreparedShares,
    ShareForHelper,
    ShareOpener,
    canonical_order,
    dataset_id,
    join_prepared,
)
from maskedlark.reports.proofs.check import residues
from maskedlark.reports.sealing import OpeningKey

MAX_CHUNK_BYTES: Final = 4 << 20
"""Of plaintext in one chunk; a message of the wire's limit with honest shares holds less."""
_ID_AND_TAG_BYTES: Final = 33
_SEEN_BYTES: Final = 128
"""Of one report id in a set, and on its way to the ledger."""


@frozen
class PreparedTotals:
    """What a helper says of a whole preparation.

    Attributes:
        received: Reports that came.
        admitted: Of these, how many can be in the dataset.
        admitted_digest: 32 bytes: the id that the dataset would have if all of them were chosen.
        dropped: The others, by their true reasons, which stay here: the ad server is told `as_told` of them.
    """

    received: int
    admitted: int
    admitted_digest: bytes
    dropped: Counter[ReportReason]


class Preparation:
    """One stream of chunks.

    Used by one thread, in a `with` block, at whose end everything is lost and freed that was not finished.
    """

    def __init__(
        self,
        *,
        served: ServedTask,
        handle: Handle,
        opening_keys: Sequence[OpeningKey],
        pool: OpeningPool,
        ledger: Ledger,
        shelf: PreparedShelf,
    ) -> None:
        self._task = served.task
        self._handle = handle
        self._opener = ShareOpener(
            task=served.task,
            role=served.role,
            opening_keys=opening_keys,
            pair=served.pair,
            residues_of=compiled_residues if served.task.proof else residues,
        )
        self._pool = pool
        self._ledger = ledger
        self._shelf = shelf
        self._chunks: list[PreparedShares] = []
        self._seen: set[bytes] = set()
        self._received = 0
        self._held_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shelf.give_back(self._held_bytes, self._handle.owner)
        self._held_bytes = 0
        self._forget_chunks()

    def add(self, incoming: Sequence[ShareForHelper]) -> AdmittedSet:
        """Open one chunk; the reports that came before, or that another dataset used, are dropped too.

        Raises:
            JobRefused(DATASET_TOO_LARGE, TOO_LARGE): more reports than the task or this helper allows in all,
            or in one chunk.
            HelperUnavailable: other preparations take all the room there is at the moment.
        """
        self._check_size(len(incoming))
        self._take_room(len(incoming))
        opened = self._pool.open(self._opener, incoming)
        ids: list[bytes] = opened.report_ids.view("V16").ravel().tolist()
        kept = _without(opened, [self._is_repeat(report_id) for report_id in ids], ReportReason.DUPLICATE_ID)
        candidates = [
            report_id
            for report_id, is_admitted in zip(ids, kept.admitted.is_admitted, strict=True)
            if is_admitted
        ]
        used = self._ledger.used_among(self._handle.task_id, candidates)
        kept = _without(kept, [report_id in used for report_id in ids], ReportReason.ALREADY_USED)
        self._chunks.append(kept)
        self._received += len(incoming)
        return kept.admitted

    def finish(self) -> PreparedTotals:
        """Keep what was opened under the handle, for the commit. Called once, after the last chunk."""
        self._seen.clear()
        prepared = join_prepared(self._chunks or [self._opener.open([])])
        self._forget_chunks()
        self._shelf.put(self._handle, prepared, self._held_bytes)
        self._held_bytes = 0  # they are the shelf's now
        ids, tags = (
            rows[prepared.admitted.is_admitted] for rows in (prepared.report_ids, prepared.admitted.view_tags)
        )
        order = canonical_order(ids)
        return PreparedTotals(
            received=self._received,
            admitted=len(ids),
            admitted_digest=dataset_id(self._handle.task_id, ids[order], tags[order]),
            dropped=prepared.admitted.dropped,
        )

    def _is_repeat(self, report_id: bytes) -> bool:
        """Whether an id came before, in whatever chunk."""
        if report_id in self._seen:
            return True
        self._seen.add(report_id)
        return False

    def _forget_chunks(self) -> None:
        self._chunks.clear()
        self._seen.clear()

    def _take_room(self, count: int) -> None:
        """Room for so many reports more, twice.

        They are copied once into one table, and once more into the dataset's order.
        """
        needed = count * (2 * (self._task.share_length + _ID_AND_TAG_BYTES) + _SEEN_BYTES)
        self._shelf.take(needed, held=self._held_bytes, owner=self._handle.owner)
        self._held_bytes += needed

    def _check_size(self, count: int) -> None:
        if self._received + count > self._task.max_dataset_size:
            raise JobRefused(
                JobReason.DATASET_TOO_LARGE,
                f"a dataset of this task has at most {self._task.max_dataset_size} reports: seal several",
            )
        if count * self._task.share_length > MAX_CHUNK_BYTES:
            raise JobRefused(
                JobReason.TOO_LARGE, f"a chunk of {count} reports is over {MAX_CHUNK_BYTES} bytes when opened"
            )


def _without(prepared: PreparedShares, is_dropped: Sequence[bool], reason: ReportReason) -> PreparedShares:
    """The same rows, but those that are dropped are no longer admitted, and their tags no longer told."""
    before = prepared.admitted
    newly = before.is_admitted & np.array(is_dropped, np.bool_)
    if not newly.any():
        return prepared
    admitted = AdmittedSet(
        is_admitted=before.is_admitted & ~newly,
        view_tags=np.where(newly[:, None], np.uint8(0), before.view_tags),
        dropped=before.dropped + Counter({reason: int(newly.sum())}),
    )
    return replace(prepared, admitted=admitted)
