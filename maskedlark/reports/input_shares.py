"""What one helper reads from its shares of reports: the strict codec of the plaintexts that `report` makes.

    decoded = decode_shares(task, plaintexts, role=role, report_ids=ids, task_id=task_id)
    decoded.shares.rows(...)        # of the rows without a reason to drop them

Every row of a chunk is decoded, and one that is wrong has its reason: nothing depends on the others.
"""

from collections.abc import Sequence
from dataclasses import field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskedlark.errors import ReportReason
from maskedlark.frozen import frozen
from maskedlark.numbers.field import MODULUS, FieldVector
from maskedlark.reports.proofs.check import ProofTable
from maskedlark.reports.proofs.proven_report import read_proofs, value_shares
from maskedlark.reports.task import VIEW_NONCE_BYTES, Task
from maskedlark.reports.task_kinds import LabelKind

SHARE_VERSION: Final = 1
PROVEN_SHARE_VERSION: Final = 2
"""The first byte of a plaintext: 2 in a task whose reports prove their form."""
FOUND_INSIDE: Final = frozenset(
    {
        ReportReason.WRONG_VERSION,
        ReportReason.LABEL_OUTSIDE_TASK,
        ReportReason.LABELS_REPEAT,
        ReportReason.KEY_OUTSIDE_TASK,
        ReportReason.MASK_NOT_CANONICAL,
        ReportReason.DEFAULT_LABEL_MISSING,
    }
)
"""What is wrong with a share once it is open.

Only the helper may know which of them it was: see `dataset.as_told`.
"""


@frozen
class MeasuredShares:
    """What one helper reads of a task's measurement from its shares of n reports.

    Shapes: keys u32 (n, K); value_shares uint64 (n, W), see `Measurement.columns`.
    """

    keys: NDArray[np.uint32] = field(repr=False)
    value_shares: FieldVector = field(repr=False)


@frozen
class InputShares:
    """What one helper reads from its shares of n reports, one row each, in some order.

    Shapes: features u8 (n, d); labels u32 (n, L); mask_shares uint64 (n, L); measured n rows, or None in a
        task without measurement.
    """

    features: NDArray[np.uint8] = field(repr=False)
    labels: NDArray[np.uint32] = field(repr=False)
    mask_shares: FieldVector = field(repr=False)
    measured: MeasuredShares | None = None

    def __len__(self) -> int:
        return len(self.features)

    def rows(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> "InputShares":
        """Return these rows."""
        measured = self.measured
        return InputShares(
            features=self.features[chosen],
            labels=self.labels[chosen],
            mask_shares=self.mask_shares[chosen],
            measured=measured
            and MeasuredShares(keys=measured.keys[chosen], value_shares=measured.value_shares[chosen]),
        )

    @classmethod
    def join(cls, parts: "Sequence[InputShares]") -> "InputShares":
        """Concatenate the rows of at least one part; all are of one task."""
        measured = [part.measured for part in parts if part.measured is not None]
        return cls(
            features=np.concatenate([part.features for part in parts]),
            labels=np.concatenate([part.labels for part in parts]),
            mask_shares=np.concatenate([part.mask_shares for part in parts]),
            measured=MeasuredShares(
                keys=np.concatenate([one.keys for one in measured]),
                value_shares=np.concatenate([one.value_shares for one in measured]),
            )
            if measured
            else None,
        )


class _View(NamedTuple):
    features: NDArray[np.uint8]
    labels: NDArray[np.uint32]
    keys: NDArray[np.uint32]
    wrong: list[tuple[ReportReason, Any]]


@frozen
class _DecodedShares:
    """What a helper finds in n plaintexts.

    Attributes:
        shares: n rows; those with a reason hold anything.
        reasons: For each row None, or why it must be dropped.
        proofs: In a task with proofs, what the helper's tags must cover.
    """

    shares: InputShares
    reasons: list[ReportReason | None]
    proofs: ProofTable | None = None


def decode_shares(
    task: Task, plaintexts: NDArray[np.uint8], *, role: int, report_ids: Sequence[bytes], task_id: bytes
) -> _DecodedShares:
    """Parse and check n plaintexts at once. Called by a helper.

    Args:
        task: The task that the reports were sealed to.
        plaintexts: u8 (n, plaintext_length of the role).
        role: The helper's.
        report_ids: Of the n reports, 16 bytes each.
        task_id: The task's, so that it is computed once for many chunks.
    """
    view = _read_view(task, plaintexts)
    behind = plaintexts[:, task.view_length :]
    shape, proofs = task.proof_shape, None
    if shape is None:
        elements = np.ascontiguousarray(behind).view("<u8").astype(np.uint64)
        is_canonical = np.asarray((elements < np.uint64(MODULUS)).all(axis=1), np.bool_)
        values = elements[:, task.num_candidates :]
    else:
        proofs, is_canonical = read_proofs(shape, task_id, report_ids, role, behind)
        elements = proofs.elements
        values = (
            elements[:, :0] if task.measurement is None else value_shares(shape, task.measurement, elements)
        )
    reasons: list[ReportReason | None] = [None] * len(plaintexts)
    # Backwards, so that the first reason in the list is the one that stays.
    for reason, is_wrong in reversed([*view.wrong, (ReportReason.MASK_NOT_CANONICAL, ~is_canonical)]):
        for row in np.flatnonzero(is_wrong):
            reasons[row] = reason
    shares = InputShares(
        features=view.features,
        labels=view.labels,
        # Copies, here and of the features: a view would keep the plaintexts of the whole chunk in memory.
        mask_shares=elements[:, : task.num_candidates].copy(),
        measured=None if task.measurement is None else MeasuredShares(keys=view.keys, value_shares=values),
    )
    return _DecodedShares(shares=shares, reasons=reasons, proofs=proofs)


def _read_view(task: Task, plaintexts: NDArray[np.uint8]) -> _View:
    """Read the part that both helpers read alike, and what is wrong with it."""
    start = 1 + VIEW_NONCE_BYTES
    labels_start = start + task.num_features
    keys_start = labels_start + 4 * task.num_candidates
    labels = np.ascontiguousarray(plaintexts[:, labels_start:keys_start]).view("<u4").astype(np.uint32)
    keys = np.ascontiguousarray(plaintexts[:, keys_start : task.view_length]).view("<u4").astype(np.uint32)
    version = PROVEN_SHARE_VERSION if task.proof else SHARE_VERSION
    wrong: list[tuple[ReportReason, Any]] = [
        (ReportReason.WRONG_VERSION, plaintexts[:, 0] != version),
        *wrong_views(task, labels, keys),
    ]
    return _View(features=plaintexts[:, start:labels_start].copy(), labels=labels, keys=keys, wrong=wrong)


def wrong_views(
    task: Task, labels: NDArray[np.uint32], keys: NDArray[np.uint32]
) -> list[tuple[ReportReason, NDArray[np.bool_]]]:
    """Return, for each reason, which of n views hold labels or keys that no report of the task has."""
    # Sorted, so that equal labels are neighbours: comparing all pairs would take L^2 a report.
    ordered = np.sort(labels, axis=1)
    is_outside = (
        labels >= task.labels.size  # a million classes are not listed
        if task.labels.kind is LabelKind.CLASSES
        else ~np.isin(labels, np.array(task.labels.reachable(), np.uint32))
    )
    wrong: list[tuple[ReportReason, NDArray[np.bool_]]] = [
        (ReportReason.LABEL_OUTSIDE_TASK, np.asarray(is_outside.any(axis=1), np.bool_)),
        (ReportReason.LABELS_REPEAT, (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)),
        (ReportReason.KEY_OUTSIDE_TASK, np.asarray((keys >= task.key_sizes).any(axis=1), np.bool_)),
    ]
    if task.labels.default_label is not None:
        is_missing = ~(labels == task.labels.default_label).any(axis=1)
        wrong.append((ReportReason.DEFAULT_LABEL_MISSING, is_missing))
    return wrong
