"""Sealing, first step: open the shares that the ad server streams in, and say which are admitted.

Shares of reports of labels and of federated rounds are prepared alike: how they open is the caller's to say.
Preparing uses nothing up. Opened shares leave memory segment by segment (`helper.datasets.segment_writer`);
ids and tags stay until the commit or an eviction. All preparations share a bounded quota of memory, which is
taken before shares are opened.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import field, replace
from typing import Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from helper.datasets.duplicate_filter import SeenIds
from helper.datasets.frames import Ranks
from helper.datasets.prefetch_quota import MOST_CHUNKS, PrefetchQuota
from helper.datasets.preparation_cache import Handle, PreparationCache
from helper.datasets.preparation_quota import PreparationQuota
from helper.datasets.segment_writer import SegmentPlan, SegmentWriter
from helper.datasets.segments import NOT_CHOSEN, Ids, SegmentRows
from helper.datasets.vault import Vault
from helper.ledger.ledger import Ledger
from maskedlark.errors import JobReason, JobRefused, ReportReason
from maskedlark.frozen import frozen
from maskedlark.reports.dataset import (
    AdmittedSet,
    PreparedShares,
    ShareColumns,
    ShareForHelper,
    canonical_order,
    dataset_id,
)
from maskedlark.reports.helper_pair_key import VIEW_TAG_BYTES
from maskedlark.reports.task import REPORT_ID_BYTES
from maskedlark.runtime.prefetch import AT_ONCE, ahead

OpenChunk: TypeAlias = Callable[[Sequence[ShareForHelper]], PreparedShares]
"""`ShareOpener.open` of a task or `RoundOpener.open` of a round, wherever it runs."""

MAX_CHUNK_BYTES: Final = 4 << 20
"""Of plaintext in one chunk; a message of the wire's limit with honest shares holds less."""


@frozen
class PreparedTotals:
    """What a helper says of a whole preparation.

    Attributes:
        received: Reports that came.
        admitted: Of these, how many can be in the dataset.
        admitted_digest: 32 bytes: the id that the dataset would have if all of them were chosen.
        dropped: The others, by their true reasons, which stay here: the ad server receives `as_told` of them.
    """

    received: int
    admitted: int
    admitted_digest: bytes
    dropped: Counter[ReportReason]


@frozen
class PreparedReports:
    """A finished preparation, until it is committed or forgotten.

    Attributes:
        writer: Has the shares of the admitted reports, in the order in which they came.
        report_ids: u8 (n, 16), of all that came, in that order.
        view_tags: u8 (n, 16), zeros where not admitted.
        is_admitted: bool (n,).
        order: The admitted reports' rows, in canonical order.
    """

    writer: SegmentWriter = field(repr=False)
    report_ids: NDArray[np.uint8] = field(repr=False)
    view_tags: NDArray[np.uint8] = field(repr=False)
    is_admitted: NDArray[np.bool_]
    order: NDArray[np.intp] = field(repr=False)

    def chosen(self, is_chosen: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Return the rows of some admitted reports, in canonical order."""
        return self.order[is_chosen[self.order]]

    def ranks(self, rows: NDArray[np.intp]) -> Ranks:
        """Return each written record's position among these rows, which are in canonical order."""
        ranks = np.full(len(self.is_admitted), NOT_CHOSEN, np.uint32)
        ranks[rows] = np.arange(len(rows), dtype=np.uint32)
        return ranks[self.is_admitted]

    def discard(self) -> None:
        """Discard the shares, once the preparation is forgotten."""
        self.writer.remove()


class Preparation:
    """One stream of chunks.

    Used by one thread, and by one that reads chunks ahead, in a `with` block, at whose end everything is lost
    and freed that was not finished.
    """

    def __init__(
        self,
        *,
        handle: Handle,
        most_reports: int,
        share_length: int,
        open_shares: OpenChunk,
        head_start: PrefetchQuota,
        ledger: Ledger,
        shelf: PreparationCache,
        vault: Vault,
        plan: SegmentPlan,
    ) -> None:
        """Prepare under a handle at most so many reports, each of so many bytes when it is opened."""
        self._handle = handle
        self._most_reports = most_reports
        self._share_length = share_length
        self._plan = plan
        self._open_shares = open_shares
        self._ledger = ledger
        self._shelf = shelf
        self._vault = vault
        self._writer: SegmentWriter | None = None
        self._rows = _AdmittedRows()
        self._seen = SeenIds()
        self._received = 0
        self._room = PreparationQuota(
            shelf=shelf,
            head_start=head_start,
            owner=handle.owner,
            share_length=share_length,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # First: it wakes the thread that reads ahead, which begins nothing more.
        self._room.end()
        if self._writer is not None:
            self._writer.remove()
            self._writer = None

    def add(self, incoming: Sequence[ShareForHelper]) -> AdmittedSet:
        """Open one chunk; the reports that came before, or that another dataset used, are dropped too.

        Raises:
            JobRefused(DATASET_TOO_LARGE, TOO_LARGE): more reports than the task or this helper allows in all,
            or in one chunk.
            JobRefused(QUOTA_EXCEEDED): the ad server holds as much at this helper as its operator allows.
            HelperUnavailable: other preparations take all the room there is at the moment, or the disk is
                full.
        """
        (admitted,) = map(self._taken, map(self._open, self._with_room([incoming])))
        return admitted

    def add_all(self, chunks: Iterable[Sequence[ShareForHelper]]) -> Generator[AdmittedSet, None, None]:
        """`add` for each chunk, in order; while the caller has an answer, the next chunks are opened.

        Chunks are read by another thread, and no answer waits for a later chunk. To be closed before this
        preparation is left (`contextlib.closing`).
        """
        with closing(ahead(self._with_room(chunks), self._open, AT_ONCE + MOST_CHUNKS)) as opened:
            yield from map(self._taken, opened)

    def _with_room(self, chunks: Iterable[Sequence[ShareForHelper]]) -> Iterator[Sequence[ShareForHelper]]:
        """Yield each chunk once there is memory for it; a chunk after the end takes none."""
        source = iter(chunks)
        while self._room.await_turn() and (incoming := next(source, None)) is not None:
            self._check_size(len(incoming))
            if not self._room.begin(len(incoming), self._begun_bytes(incoming)):
                return
            self._received += len(incoming)
            yield incoming

    def _begun_bytes(self, incoming: Sequence[ShareForHelper]) -> int:
        """Return the bytes of a chunk, as it came and opened."""
        ciphertexts = ShareColumns.of(incoming).ciphertexts
        return sum(map(len, ciphertexts)) + len(incoming) * self._share_length

    def _open(self, incoming: Sequence[ShareForHelper]) -> PreparedShares:
        try:
            return self._open_shares(incoming)
        except BaseException:
            self._room.finish_chunk()
            raise

    def _taken(self, opened: PreparedShares) -> AdmittedSet:
        """Keep what was opened, but for repeats and used reports. Called chunk by chunk, in order."""
        try:
            return self._retain(opened)
        finally:
            self._room.finish_chunk()

    def _retain(self, opened: PreparedShares) -> AdmittedSet:
        ids = opened.report_ids
        if not len(ids):
            return opened.admitted  # nothing is kept of it, however many come
        is_admitted, came = opened.admitted.is_admitted, np.zeros(len(ids), np.bool_)
        came[is_admitted] = self._seen.add(ids[is_admitted])  # junk under an id displaces no report
        kept = _without(opened, came, ReportReason.DUPLICATE_ID)
        # Looked up chunk by chunk, and decided only by the commit: another dataset may use them until then.
        used = self._ledger.find_used(self._handle.task_id, Ids(ids[kept.admitted.is_admitted])[:])
        if used:
            is_used = np.array([report_id in used for report_id in Ids(ids)[:]], np.bool_)
            kept = _without(kept, is_used, ReportReason.ALREADY_USED)
        self._keep(kept)
        return kept.admitted

    def finish(self) -> PreparedTotals:
        """Keep what was opened under the handle, for the commit. Called once, after the last chunk."""
        self._seen = SeenIds()  # every report has come: its memory is free
        if self._writer is None:
            self._keep(self._open_shares([]))
        report_ids, view_tags, is_admitted = (
            self._rows.report_ids,
            self._rows.view_tags,
            self._rows.is_admitted,
        )
        order = canonical_order(report_ids, np.flatnonzero(is_admitted))
        totals = PreparedTotals(
            received=self._received,
            admitted=len(order),
            admitted_digest=dataset_id(self._handle.task_id, report_ids, view_tags, rows=order),
            dropped=self._rows.dropped,
        )
        writer, self._writer = self._writer, None
        if writer is None:
            raise AssertionError("a preparation has a writer once something was kept")
        prepared = PreparedReports(
            writer=writer,
            report_ids=report_ids,
            view_tags=view_tags,
            is_admitted=is_admitted,
            order=order,
        )
        self._shelf.put(self._handle, prepared, self._room.hand_over())
        return totals

    def _keep(self, opened: PreparedShares) -> None:
        """Write the admitted shares, and release the memory of those that left it."""
        is_admitted = opened.admitted.is_admitted
        rows = SegmentRows(report_ids=opened.report_ids, shares=opened.shares)
        if self._writer is None:
            self._writer = self._vault.begin(rows.shape, self._handle.owner, self._plan)
        before = self._writer.waiting
        # Mostly all are admitted, and nothing is copied.
        self._vault.add(self._writer, rows if is_admitted.all() else rows.rows(is_admitted))
        self._rows.add(opened.report_ids, opened.admitted)
        # What waited before and what came, less what still waits, has left memory.
        self._room.left_memory(
            before + len(is_admitted) - self._writer.waiting, dropped=int((~is_admitted).sum())
        )

    def _check_size(self, count: int) -> None:
        if self._received + count > self._most_reports:
            raise JobRefused(
                JobReason.DATASET_TOO_LARGE,
                f"a dataset of this task has at most {self._most_reports} reports: seal several",
            )
        # Before it is opened: what a chunk takes is known from the task, not from its bytes.
        if count * self._share_length > MAX_CHUNK_BYTES:
            raise JobRefused(
                JobReason.TOO_LARGE, f"a chunk of {count} reports is over {MAX_CHUNK_BYTES} bytes when opened"
            )


class _AdmittedRows:
    """The ids, tags and admissions of n reports, in the order in which they came; add all, then read."""

    def __init__(self) -> None:
        # Bytes that grow, and no list of arrays: a report takes as many, however small its chunk is.
        self._ids, self._tags, self._is_admitted = bytearray(), bytearray(), bytearray()
        self.dropped: Counter[ReportReason] = Counter()

    def __len__(self) -> int:
        return len(self._is_admitted)

    def add(self, report_ids: NDArray[np.uint8], admitted: AdmittedSet) -> None:
        """Append a chunk: u8 (m, 16) ids and what was found of them."""
        self._ids += np.ascontiguousarray(report_ids).tobytes()
        self._tags += np.ascontiguousarray(admitted.view_tags).tobytes()
        self._is_admitted += admitted.is_admitted.tobytes()
        self.dropped += admitted.dropped

    @property
    def report_ids(self) -> NDArray[np.uint8]:
        """u8 (n, 16)."""
        return np.frombuffer(self._ids, np.uint8).reshape(-1, REPORT_ID_BYTES)

    @property
    def view_tags(self) -> NDArray[np.uint8]:
        """u8 (n, 16), zeros where not admitted."""
        return np.frombuffer(self._tags, np.uint8).reshape(-1, VIEW_TAG_BYTES)

    @property
    def is_admitted(self) -> NDArray[np.bool_]:
        """Bool (n,)."""
        return np.frombuffer(self._is_admitted, np.bool_)


def _without(prepared: PreparedShares, is_dropped: NDArray[np.bool_], reason: ReportReason) -> PreparedShares:
    """Return these rows with the dropped ones no longer admitted and without their tags."""
    before = prepared.admitted
    newly = before.is_admitted & is_dropped
    if not newly.any():
        return prepared
    admitted = AdmittedSet(
        is_admitted=before.is_admitted & ~newly,
        view_tags=np.where(newly[:, None], np.uint8(0), before.view_tags),
        dropped=before.dropped + Counter({reason: int(newly.sum())}),
    )
    return replace(prepared, admitted=admitted)
