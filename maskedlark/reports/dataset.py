"""Step 5: a dataset, an immutable set of reports that both helpers opened and agree on.

Sealing takes two steps. Each helper *prepares*: it opens every share and says which it admits, with a tag of
what it read. The ad server keeps the reports that both admit with equal tags; each helper *commits* that set,
and none of its reports can enter another dataset of the task. The dataset's id is the digest of the task, the
ids and the tags: both helpers compute the same one if, and only if, they read the same.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from maskedlark.canonical import digest_in_slices
from maskedlark.errors import ReportReason, ReportRejected
from maskedlark.frozen import frozen
from maskedlark.reports.helper_pair_key import VIEW_TAG_BYTES, ViewKey
from maskedlark.reports.input_shares import FOUND_INSIDE, InputShares, decode_shares
from maskedlark.reports.proofs.check import ProofTable, Residues, gather_evidence, residues
from maskedlark.reports.proofs.proving import Binding
from maskedlark.reports.sealing import OpeningKey, share_info
from maskedlark.reports.task import REPORT_ID_BYTES, Task
from maskedlark.reports.upload import SealedShare, SharesOpener

# So many ids are worth other threads.
_SORTED_APART: Final = 1 << 20
# So many ids are in memory a second time while a dataset's id is computed.
_SLICE_ROWS: Final = 1 << 16


@frozen
class ShareForHelper:
    """One report as the ad server passes it to one helper."""

    report_id: bytes
    time_bucket: int
    share: SealedShare


@frozen
class ShareColumns(Sequence[ShareForHelper]):
    """Several `ShareForHelper`, column by column, each made when it is asked for.

    So they come from a database or a message, and go to it or to another process: an object for each report
    takes longer than that.

    Attributes:
        report_ids: One of each report.
        time_buckets: As many.
        key_ids: As many, of the shares.
        ciphertexts: As many, of the shares.
    """

    report_ids: Sequence[bytes] = field(repr=False)
    time_buckets: Sequence[int]
    key_ids: Sequence[int]
    ciphertexts: Sequence[bytes] = field(repr=False)

    @classmethod
    def of(cls, shares: Sequence[ShareForHelper]) -> "ShareColumns":
        """Return the columns of some shares."""
        if isinstance(shares, ShareColumns):
            return shares
        return cls(
            report_ids=[one.report_id for one in shares],
            time_buckets=[one.time_bucket for one in shares],
            key_ids=[one.share.key_id for one in shares],
            ciphertexts=[one.share.ciphertext for one in shares],
        )

    def __len__(self) -> int:
        return len(self.report_ids)

    @overload
    def __getitem__(self, place: int) -> ShareForHelper: ...

    @overload
    def __getitem__(self, place: slice) -> "ShareColumns": ...

    def __getitem__(self, place: int | slice) -> "ShareForHelper | ShareColumns":
        if isinstance(place, slice):
            return ShareColumns(
                report_ids=self.report_ids[place],
                time_buckets=self.time_buckets[place],
                key_ids=self.key_ids[place],
                ciphertexts=self.ciphertexts[place],
            )
        return ShareForHelper(
            report_id=self.report_ids[place],
            time_bucket=self.time_buckets[place],
            share=SealedShare(key_id=self.key_ids[place], ciphertext=self.ciphertexts[place]),
        )


@frozen
class AdmittedSet:
    """What a helper tells the ad server of a sequence of n reports, in the order in which they came.

    Attributes:
        is_admitted: bool (n,).
        view_tags: u8 (n, 16): equal at both helpers if they read the same nonce, features and labels, and in
            a task with proofs only if the report's proof holds; zeros where not admitted.
        dropped: How many were dropped, by reason.
    """

    is_admitted: NDArray[np.bool_]
    view_tags: NDArray[np.uint8]
    dropped: Counter[ReportReason]

    def intersect(self, other: "AdmittedSet") -> NDArray[np.bool_]:
        """Return which reports both helpers admit with equal views. Called by the ad server."""
        same_view = (self.view_tags == other.view_tags).all(axis=1)
        both: NDArray[np.bool_] = self.is_admitted & other.is_admitted & same_view
        return both


@frozen
class PreparedShares:
    """The shares that one helper opened, which stay with it until the dataset is committed.

    Attributes:
        report_ids: u8 (n, 16).
        shares: n rows; rows that are not admitted hold zeros or worse and are never used.
        admitted: The part that is sent to the ad server.
    """

    report_ids: NDArray[np.uint8] = field(repr=False)
    shares: InputShares
    admitted: AdmittedSet

    @classmethod
    def join(cls, parts: "Sequence[PreparedShares]") -> "PreparedShares":
        """Join all parts into one sequence of rows; at least one part. Called by a helper."""
        return cls(
            report_ids=np.concatenate([part.report_ids for part in parts]),
            shares=InputShares.join([part.shares for part in parts]),
            admitted=AdmittedSet(
                is_admitted=np.concatenate([part.admitted.is_admitted for part in parts]),
                view_tags=np.concatenate([part.admitted.view_tags for part in parts]),
                dropped=sum((part.admitted.dropped for part in parts), Counter()),
            ),
        )


class ShareOpener(SharesOpener):
    """Opens and checks one helper's shares of one task.

    Called by a helper; pure but for the keys it holds.
    """

    def __init__(
        self,
        *,
        task: Task,
        role: int,
        opening_keys: Sequence[OpeningKey],
        view_key: ViewKey,
        residues_of: Residues = residues,
    ) -> None:
        """Open shares of one role; `residues_of` may be a faster function of the same results."""
        super().__init__(task=task, role=role, opening_keys=opening_keys, view_key=view_key, info=share_info)
        self._residues_of = residues_of

    def open(self, incoming: Sequence[ShareForHelper]) -> PreparedShares:
        """Open, parse and check a chunk of shares; drop what is wrong, each with its reason.

        Of reports under one id the first that opens is admitted; the caller looks after repeats between
        chunks.
        """
        return self.open_columns(ShareColumns.of(incoming))

    def open_columns(self, incoming: ShareColumns) -> PreparedShares:
        """Open shares that came from another process, as `open` does."""
        # Zeros for what does not open: all rows are decoded at once, and the wrong ones dropped by their
        # reasons.
        plaintexts = [bytes(self._length)] * len(incoming.report_ids)
        reasons: list[ReportReason | None] = [None] * len(plaintexts)
        shares = zip(
            incoming.report_ids, incoming.time_buckets, incoming.key_ids, incoming.ciphertexts, strict=True
        )
        for row, share in enumerate(shares):
            try:
                plaintexts[row] = self._open(*share)
            except ReportRejected as rejection:
                reasons[row] = rejection.reason
        rows = np.frombuffer(bytearray().join(plaintexts), np.uint8).reshape(-1, self._length)
        ids = with_zeros_for_ids(incoming.report_ids)
        decoded = decode_shares(self._task, rows, role=self._role, report_ids=ids, task_id=self._task_id)
        reasons = [first or second for first, second in zip(reasons, decoded.reasons, strict=True)]
        _mark_repeats(incoming.report_ids, reasons)
        is_admitted = np.array([reason is None for reason in reasons], np.bool_)
        return PreparedShares(
            report_ids=np.frombuffer(b"".join(ids), np.uint8).reshape(-1, REPORT_ID_BYTES),
            shares=decoded.shares,
            admitted=AdmittedSet(
                is_admitted=is_admitted,
                view_tags=self._view_tags(ids, plaintexts, decoded.proofs, is_admitted),
                dropped=Counter(reason for reason in reasons if reason is not None),
            ),
        )

    def _view_tags(
        self,
        ids: Sequence[bytes],
        plaintexts: Sequence[bytes],
        proofs: ProofTable | None,
        is_admitted: NDArray[np.bool_],
    ) -> NDArray[np.uint8]:
        """Return the tags of the views that the ad server compares.

        In a task with proofs, tags of the evidence for them.
        """
        chosen = np.flatnonzero(is_admitted)
        length = self._task.view_length
        views = [plaintexts[row][:length] for row in chosen.tolist()]
        # With proofs the tag covers the evidence too: where a proof fails, the helpers' tags differ.
        covered = views
        shape = self._task.proof_shape
        if shape is not None and proofs is not None and len(chosen):
            bindings = [
                Binding(task_id=self._task_id, report_id=ids[row], view=view)
                for row, view in zip(chosen.tolist(), views, strict=True)
            ]
            evidence = gather_evidence(shape, self._role, bindings, proofs.rows(chosen), self._residues_of)
            told, width = evidence.tobytes(), evidence.shape[1]
            covered = [view + told[at * width : (at + 1) * width] for at, view in enumerate(views)]
        tags = np.zeros((len(plaintexts), VIEW_TAG_BYTES), np.uint8)
        found = [
            self._view_key.tag(ids[row], text) for row, text in zip(chosen.tolist(), covered, strict=True)
        ]
        tags[chosen] = np.frombuffer(b"".join(found), np.uint8).reshape(-1, VIEW_TAG_BYTES)
        return tags


@frozen
class OpenedDataset:
    """One helper's opened shares of a committed dataset, in canonical order (ascending report id).

    Attributes:
        dataset_id: 32 bytes, the same at both helpers.
        report_ids: u8 (n, 16), ascending.
        shares: n rows.
    """

    dataset_id: bytes
    report_ids: NDArray[np.uint8] = field(repr=False)
    shares: InputShares

    def __len__(self) -> int:
        return len(self.report_ids)


def with_zeros_for_ids(report_ids: Sequence[bytes]) -> list[bytes]:
    """Return these report ids, with zeros in the place of each that has another length."""
    return [one if len(one) == REPORT_ID_BYTES else bytes(REPORT_ID_BYTES) for one in report_ids]


def as_told(dropped: Counter[ReportReason]) -> Counter[ReportReason]:
    """Count what a helper may tell the ad server about the reports that it dropped.

    Guarantees: what was wrong inside a share is `NOT_OPENED`, like a share that does not open, so asking
        about one report, or about two sets that differ in one, tells nothing of what is in it but that it is
        of no use. The helper's operator sees the true reasons.
    """
    told: Counter[ReportReason] = Counter()
    for reason, count in dropped.items():
        told[ReportReason.NOT_OPENED if reason in FOUND_INSIDE else reason] += count
    return told


def dataset_id(
    task_id: bytes,
    report_ids: NDArray[np.uint8],
    view_tags: NDArray[np.uint8],
    *,
    rows: NDArray[np.intp] | None = None,
) -> bytes:
    """Return the id of a dataset, 32 bytes: a digest of its task, its report ids and their views.

    Of each report u8 (n, 16): those of `rows`, which are in canonical order; all, if they are so themselves.

    Guarantees: two helpers that read different features or labels of any report have different datasets. Jobs
        and transcripts name the dataset, so their blinds do not cancel: an ad server that plants a forged
        share under a person's report id gets noise.
    """
    count = len(report_ids) if rows is None else len(rows)

    def slices(of: NDArray[np.uint8]) -> Iterator[memoryview]:
        for begin in range(0, count, _SLICE_ROWS):
            chosen = slice(begin, begin + _SLICE_ROWS)
            yield np.ascontiguousarray(of[chosen] if rows is None else of[rows[chosen]]).reshape(-1).data

    return digest_in_slices(
        "dataset",
        (len(task_id), (task_id,)),
        (count * REPORT_ID_BYTES, slices(report_ids)),
        (count * VIEW_TAG_BYTES, slices(view_tags)),
    )


def canonical_order(report_ids: NDArray[np.uint8], rows: NDArray[np.intp] | None = None) -> NDArray[np.intp]:
    """Return the rows of u8 (n, 16) ids, or some of them, ordered by their ids as byte strings.

    Many are sorted on all cores, those of each first half byte by themselves.
    """
    # As two big-endian numbers, which have the order of the 16 bytes.
    halves = np.ascontiguousarray(report_ids).view(">u8")
    rows = np.arange(len(report_ids)) if rows is None else rows
    # Below a million ids, starting threads takes longer than the sort.
    if len(rows) < _SORTED_APART:
        return _sort_rows(rows, halves)
    first = report_ids[rows, 0] >> np.uint8(4)
    ends = np.cumsum(np.bincount(first, minlength=16)).tolist()
    order = np.empty(len(rows), np.intp)

    def sort_part(part: int) -> None:
        chosen = rows[first == part]
        order[ends[part] - len(chosen) : ends[part]] = _sort_rows(chosen, halves)

    # Threads will do, for numpy sorts without Python's lock.
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(sort_part, range(16)))
    return order


def _sort_rows(rows: NDArray[np.intp], halves: NDArray[Any]) -> NDArray[np.intp]:
    """Sort some rows by the first halves of their ids, then by the second ones."""
    keys = halves[rows, 0].astype(np.uint64)
    # Unstable, which is faster: equal first halves are put in order below.
    order = np.argsort(keys)
    rows, keys = rows[order], keys[order]
    is_equal = keys[1:] == keys[:-1]
    if is_equal.any():
        # Random ids hardly ever share their first half: only chosen ones make this second sort do work.
        tied = np.flatnonzero(np.append(is_equal, False) | np.append(False, is_equal))
        rows[tied] = rows[tied[np.lexsort((halves[rows[tied], 1], keys[tied]))]]
    return rows


def _mark_repeats(report_ids: Sequence[bytes], reasons: list[ReportReason | None]) -> None:
    """Drop admitted reports under the id of an earlier admitted one; what does not open takes no id."""
    seen: set[bytes] = set()
    for row, report_id in enumerate(report_ids):
        if reasons[row] is None:
            if report_id in seen:
                reasons[row] = ReportReason.DUPLICATE_ID
            seen.add(report_id)
