"""One preparation of a federated round: devices' shares are opened as they come, and written down at once.

    with updates.prepare(task_id, handle, encoded_round, caller) as preparation:
        preparation.add(shares)                       # for each chunk: what is admitted
        totals = preparation.finish()

It is the way of `helper.datasets.preparing`, but for where shares lie: a preparation keeps ids and tags only,
which take room in memory before a share is opened, whether it is admitted or not.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from dataclasses import field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from helper.datasets.admitted_rows import AdmittedRows
from helper.datasets.preparation_cache import Handle, PreparationCache
from helper.datasets.preparation_quota import HELD_BYTES, ON_DISK
from helper.datasets.preparing import MAX_CHUNK_BYTES, PreparedTotals
from helper.datasets.update_vault import UpdateWriter
from helper.ledger.ledger import Ledger
from helper.trust.tasks import ServedTask
from maskedlark.errors import JobReason, JobRefused, ReportReason, ReportRejected
from maskedlark.frozen import frozen
from maskedlark.reports.dataset import (
    AdmittedSet,
    ShareForHelper,
    canonical_order,
    dataset_id,
    with_zeros_for_ids,
)
from maskedlark.reports.helper_pair_key import VIEW_TAG_BYTES
from maskedlark.reports.task import REPORT_ID_BYTES
from maskedlark.reports.update_sealing import UpdateOpener


@frozen
class PreparedUpdates:
    """A finished preparation.

    Attributes:
        spool: The admitted shares, in order.
        report_ids: u8 (n, 16), of all that came, in order.
        view_tags: u8 (n, 16), zeros where not admitted.
        is_admitted: bool (n,).
    """

    spool: UpdateWriter = field(repr=False)
    report_ids: NDArray[np.uint8] = field(repr=False)
    view_tags: NDArray[np.uint8] = field(repr=False)
    is_admitted: NDArray[np.bool_]

    def discard(self) -> None:
        """Discard the shares, once the preparation is forgotten."""
        self.spool.remove()


class UpdatePreparation:
    """One stream of chunks of a round.

    Used by one thread, in a `with` block, at whose end the file and the room of one that is unfinished go.
    """

    def __init__(
        self,
        *,
        served: ServedTask,
        opener: UpdateOpener,
        ledger: Ledger,
        spool: UpdateWriter,
        handle: Handle,
        shelf: PreparationCache,
        payload_bytes: int,
    ) -> None:
        self._task = served.task
        self._task_id = served.task_id
        self._opener = opener
        self._ledger = ledger
        self._spool = spool
        self._handle = handle
        self._shelf = shelf
        self._on_disk = -(-payload_bytes // ON_DISK)
        self._taken_bytes = 0
        self._seen: set[bytes] = set()
        self._rows = AdmittedRows()
        self._is_finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_finished:
            self._shelf.give_back(self._taken_bytes, self._handle.owner)
            self._spool.remove()

    def add(self, incoming: Sequence[ShareForHelper]) -> AdmittedSet:
        """Open one chunk, and drop what is wrong, each with its reason.

        Raises:
            JobRefused(DATASET_TOO_LARGE, TOO_LARGE): more reports than the task or this helper allows in all,
                or in one chunk.
            JobRefused(QUOTA_EXCEEDED): the ad server holds as much at this helper as its operator allows.
            HelperUnavailable: other preparations take all the room there is at the moment.
        """
        if len(self._rows) + len(incoming) > self._task.max_dataset_size:
            raise JobRefused(
                JobReason.DATASET_TOO_LARGE,
                f"a round of this task has at most {self._task.max_dataset_size} reports",
            )
        if sum(len(item.share.ciphertext) for item in incoming) > MAX_CHUNK_BYTES:
            raise JobRefused(JobReason.TOO_LARGE, f"a chunk of shares has at most {MAX_CHUNK_BYTES} bytes")
        self._take(len(incoming) * HELD_BYTES)
        used = self._ledger.find_used(self._task_id, [item.report_id for item in incoming])
        tags = np.zeros((len(incoming), VIEW_TAG_BYTES), np.uint8)
        is_admitted = np.zeros(len(incoming), np.bool_)
        dropped: Counter[ReportReason] = Counter()
        for row, item in enumerate(incoming):
            try:
                tags[row] = np.frombuffer(self._open(item, used), np.uint8)
                is_admitted[row] = True
            except ReportRejected as rejection:
                dropped[rejection.reason] += 1
        ids = b"".join(with_zeros_for_ids([item.report_id for item in incoming]))
        admitted = AdmittedSet(is_admitted=is_admitted, view_tags=tags, dropped=dropped)
        self._rows.add(np.frombuffer(ids, np.uint8).reshape(-1, REPORT_ID_BYTES), admitted)
        return admitted

    def add_all(self, chunks: Iterable[Sequence[ShareForHelper]]) -> Generator[AdmittedSet, None, None]:
        """`add` for each chunk, in order."""
        yield from map(self.add, chunks)

    def finish(self) -> PreparedTotals:
        """Keep what was opened under the handle, for the commit. Called once, after the last chunk."""
        self._spool.finish()
        ids, tags, is_admitted = self._rows.report_ids, self._rows.view_tags, self._rows.is_admitted
        prepared = PreparedUpdates(spool=self._spool, report_ids=ids, view_tags=tags, is_admitted=is_admitted)
        self._is_finished = True  # the file and the room are the shelf's now
        self._shelf.put(self._handle, prepared, self._taken_bytes)
        order = canonical_order(ids, np.flatnonzero(is_admitted))
        return PreparedTotals(
            received=len(ids),
            admitted=len(order),
            admitted_digest=dataset_id(self._task_id, ids, tags, rows=order),
            dropped=self._rows.dropped,
        )

    def _open(self, item: ShareForHelper, used: set[bytes]) -> bytes:
        """Open one share and write it down; its view tag."""
        opened = self._opener.open(item.report_id, item.time_bucket, item.share)
        if item.report_id in self._seen:
            raise ReportRejected(ReportReason.DUPLICATE_ID, "the report came before")
        if item.report_id in used:
            raise ReportRejected(ReportReason.ALREADY_USED, "the report is in another dataset")
        self._seen.add(item.report_id)
        self._take(self._on_disk)
        self._spool.add(item.report_id, opened.payload)
        return opened.view_tag

    def _take(self, num_bytes: int) -> None:
        """Take room in memory; see `PreparationCache.take` for its refusals."""
        self._shelf.take(num_bytes, held=self._taken_bytes, owner=self._handle.owner)
        self._taken_bytes += num_bytes
