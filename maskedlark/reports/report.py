"""Step 2: from one example to two input shares, each alone independent of the label and values.

And their strict codec.

A report offers the helpers several candidate labels and, for each, a mask share. Both helpers see the same
features and candidates; the two mask shares of a candidate add to 1 in the field if it is the real label and
to 0 if it is a decoy. In a fake report every candidate is a decoy, so it adds nothing to any sum.

Source: the paper, sections 4.1.1 (labels, decoys, quantisation) and 4.1.2 (masks), with field elements in
place of its masks.
"""

from collections.abc import Sequence
from dataclasses import field
from fractions import Fraction
from struct import pack
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskedlark.errors import InvalidTask, ReportReason
from maskedlark.frozen import frozen
from maskedlark.numbers.field import MODULUS, FieldVector, from_signed, share, to_bytes
from maskedlark.privacy.noise import noise_bytes
from maskedlark.randomness import Randomness, each_below, shuffle
from maskedlark.reports.measurement import MAX_CODE
from maskedlark.reports.proofs.check import ProofTable
from maskedlark.reports.proofs.proven_report import proven_plaintexts, read_proofs, value_shares
from maskedlark.reports.proofs.proving import Binding
from maskedlark.reports.task import VIEW_NONCE_BYTES, LabelSpace, Task
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
class MeasuredValues:
    """What one browser knows of a task's measurement.

    Attributes:
        keys: One code for each declared key.
        values: One number for each declared value; a fake report counts as zeros, whatever they are.
    """

    keys: tuple[int, ...] = field(repr=False)
    values: tuple[int, ...] = field(repr=False)


@frozen
class Example:
    """What one browser knows: its features, and the label that came of the impression.

    Attributes:
        features: u8 (num_features,).
        label: A class, or a real value for a label space of values; None makes a fake report.
        measured: For a task with a measurement.
    """

    features: NDArray[np.uint8] = field(repr=False)
    label: float | None = field(repr=False)
    measured: MeasuredValues | None = field(default=None, repr=False)


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
        """These rows."""
        measured = self.measured
        return InputShares(
            features=self.features[chosen],
            labels=self.labels[chosen],
            mask_shares=self.mask_shares[chosen],
            measured=measured
            and MeasuredShares(keys=measured.keys[chosen], value_shares=measured.value_shares[chosen]),
        )


class SplitExample(NamedTuple):
    """The two plaintexts of one report, by helper role."""

    share_0: bytes
    share_1: bytes


class _Measured(NamedTuple):
    keys: NDArray[np.uint32]
    values: NDArray[np.int64]


_NOTHING_MEASURED: Final = _Measured(np.empty(0, np.uint32), np.empty(0, np.int64))


class _View(NamedTuple):
    features: NDArray[np.uint8]
    labels: NDArray[np.uint32]
    keys: NDArray[np.uint32]
    wrong: list[tuple[ReportReason, Any]]


class _Candidates(NamedTuple):
    labels: list[int]
    is_real: list[int]


class _Parts(NamedTuple):
    features: NDArray[np.uint8]
    labels: list[int]
    is_real: list[int]
    measured: _Measured


def split(
    task: Task,
    examples: Sequence[Example],
    sources: Sequence[Randomness],
    *,
    report_ids: Sequence[bytes],
    task_id: bytes,
) -> list[SplitExample]:
    """Add decoys, draw masks and encode both helpers' input shares. Called by the browser.

    Each example draws from its own source, and becomes what it becomes alone. In a task with proofs the
    plaintexts also prove that the masks and values have the form of the task; a proof is of its report id
    alone. `task_id` is the task's, computed once for many reports.

    Guarantees: given the candidate labels, each plaintext alone is distributed independently of which one is
        real, if any, and of all values; in a task with proofs, as far as AES-256 and SHA-256 hide. A role's
        plaintexts have `task.plaintext_length(role)` bytes. Which candidates are offered can favour some
        labels: with a default label, n classes and m < n - 1 decoys, a set {default, y, ...} comes (n - 1) /
        m times as often from a real y as from a real default. Use all classes where that matters
        (docs/explanation/pitfalls.md); two classes always are all.

    Raises:
        InvalidTask: the features, label, keys or values do not fit the task; nothing is sent.
    """
    if not examples:
        return []
    parts = [_parts(task, example, source) for example, source in zip(examples, sources, strict=True)]
    shape = task.proof_shape
    if shape is None:
        return [_shared(task, one, source) for one, source in zip(parts, sources, strict=True)]
    bindings = [
        Binding(task_id=task_id, report_id=report_id, view=_view(PROVEN_SHARE_VERSION, one, source))
        for report_id, one, source in zip(report_ids, parts, sources, strict=True)
    ]
    plaintexts = proven_plaintexts(
        shape,
        bindings,
        masks=[one.is_real for one in parts],
        columns=[one.measured.values.tolist() for one in parts],
        measurement=task.measurement,
        sources=sources,
    )
    return [SplitExample(*both) for both in plaintexts]


def _parts(task: Task, example: Example, randomness: Randomness) -> _Parts:
    """What an example's plaintexts are made of."""
    features = example.features
    if features.dtype != np.uint8 or features.shape != (task.num_features,):
        raise InvalidTask(
            f"the task takes {task.num_features} feature bytes; the example has shape {features.shape} of "
            f"{features.dtype}"
        )
    if task.feature_epsilon is not None:
        features = noise_bytes(features, task.feature_epsilon, randomness)
    labels, is_real = _candidates(task, example.label, randomness)
    return _Parts(features=features, labels=labels, is_real=is_real, measured=_measured(task, example))


def _shared(task: Task, parts: _Parts, randomness: Randomness) -> SplitExample:
    """Both plaintexts in a task without proofs."""
    secret = np.array(parts.is_real, np.uint64)
    if task.measurement is not None:
        secret = np.concatenate([secret, from_signed(parts.measured.values)])
    shares = share(secret, randomness)
    view = _view(SHARE_VERSION, parts, randomness)
    return SplitExample(view + to_bytes(shares.share_0), view + to_bytes(shares.share_1))


def quantise(value: float, labels: LabelSpace, randomness: Randomness) -> int:
    """Privatise a real label.

    To a neighbouring bucket boundary, then to an integer, each at random and without bias.

    Guarantees: the expectation of the result is `value`, exactly.

    Raises:
        InvalidTask: the value is not in [0, size - 1].
    """
    if not 0.0 <= value <= labels.size - 1:  # also false for NaN
        raise InvalidTask(f"a label value lies outside 0..{labels.size - 1}")
    boundaries = labels.boundaries()
    position = Fraction(value) * (len(boundaries) - 1) / (labels.size - 1)
    boundary = boundaries[_round_at_random(position, randomness)]
    return _round_at_random(boundary, randomness)


@frozen
class DecodedShares:
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
) -> DecodedShares:
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
    for reason, is_wrong in reversed([*view.wrong, (ReportReason.MASK_NOT_CANONICAL, ~is_canonical)]):
        for row in np.flatnonzero(is_wrong):
            reasons[row] = reason
    shares = InputShares(
        features=view.features,
        labels=view.labels,
        mask_shares=elements[:, : task.num_candidates].copy(),
        measured=None if task.measurement is None else MeasuredShares(keys=view.keys, value_shares=values),
    )
    return DecodedShares(shares=shares, reasons=reasons, proofs=proofs)


def _read_view(task: Task, plaintexts: NDArray[np.uint8]) -> _View:
    """The part that both helpers read alike, and what is wrong with it."""
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
    """Which of n views hold labels or keys that no report of the task has: for each reason bool (n,)."""
    ordered = np.sort(labels, axis=1)
    is_outside = (
        labels >= task.labels.size  # a million classes are not listed
        if task.labels.kind is LabelKind.CLASSES
        else ~np.isin(labels, np.array(task.labels.reachable(), np.uint32))
    )
    wrong: list[tuple[ReportReason, NDArray[np.bool_]]] = [
        (ReportReason.LABEL_OUTSIDE_TASK, np.asarray(is_outside.any(axis=1), np.bool_)),
        (ReportReason.LABELS_REPEAT, (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)),
        (ReportReason.KEY_OUTSIDE_TASK, np.asarray((keys >= _key_sizes(task)).any(axis=1), np.bool_)),
    ]
    if task.labels.default_label is not None:
        is_missing = ~(labels == task.labels.default_label).any(axis=1)
        wrong.append((ReportReason.DEFAULT_LABEL_MISSING, is_missing))
    return wrong


def join_shares(parts: Sequence[InputShares]) -> InputShares:
    """The rows of at least one part, one after the other; all are of one task."""
    measured = [part.measured for part in parts if part.measured is not None]
    return InputShares(
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


def _view(version: int, parts: _Parts, randomness: Randomness) -> bytes:
    """Version u8 | nonce | features | labels u32 | keys u32, little-endian: what both helpers read alike.

    The nonce is drawn here, and the same in both shares. It makes a view impossible to guess: without it, the
    ad server could seal a guess of somebody's features to one helper under the same report id, and learn from
    equal view tags that it guessed right.
    """
    nonce, labels = randomness(VIEW_NONCE_BYTES), pack(f"<{len(parts.labels)}I", *parts.labels)
    keys = parts.measured.keys.astype("<u4").tobytes()
    return b"".join((bytes((version,)), nonce, parts.features.tobytes(), labels, keys))


def _measured(task: Task, example: Example) -> _Measured:
    """The keys, and the values as they are shared.

    Count first; nothing at all in a task without measurement.
    """
    declared, measured = task.measurement, example.measured
    if declared is None or measured is None:
        if declared is not None or measured is not None:
            raise InvalidTask("an example holds keys and values if, and only if, the task has a measurement")
        return _NOTHING_MEASURED
    if (len(measured.keys), len(measured.values)) != (len(declared.keys), len(declared.values)):
        raise InvalidTask(f"the task declares {len(declared.keys)} keys and {len(declared.values)} values")
    keys = np.array(measured.keys, np.int64)
    if (keys < 0).any() or (keys >= _key_sizes(task)).any():
        raise InvalidTask("the code of a key is not below the size that the task declares")
    values = [1]
    for value, held in zip(declared.values, measured.values, strict=True):
        values += value.encoded(value.low if example.label is None else value.within(held))
    return _Measured(keys.astype(np.uint32), np.array(values, np.int64) * (example.label is not None))


def _key_sizes(task: Task) -> NDArray[np.int64]:
    """For each key, what its codes are below: int64 (K,)."""
    keys = task.measurement.keys if task.measurement else ()
    return np.array([MAX_CODE + 1 if key.size is None else key.size for key in keys], np.int64)


def _candidates(task: Task, label: float | None, randomness: Randomness) -> _Candidates:
    """The candidate labels in random order, and a 1 at the real one."""
    real = None if label is None else _integer_label(task.labels, label, randomness)
    chosen = [] if real is None else [real]
    default = task.labels.default_label
    if default is not None and default != real:
        chosen.append(default)
    others = [other for other in task.labels.reachable() if other not in chosen]
    missing = task.num_candidates - len(chosen)
    bounds = range(len(others), len(others) - missing, -1)
    for position, drawn in enumerate(each_below(bounds, randomness)):  # Fisher-Yates, without replacement
        pick = position + drawn
        others[position], others[pick] = others[pick], others[position]
    chosen += others[:missing]
    shuffle(chosen, randomness)
    return _Candidates(labels=chosen, is_real=[int(one == real) for one in chosen])


def _integer_label(labels: LabelSpace, label: float, randomness: Randomness) -> int:
    if labels.kind is LabelKind.VALUES:
        return quantise(label, labels, randomness)
    if not (0 <= label < labels.size and label == int(label)):
        raise InvalidTask(f"a label is not one of the classes 0..{labels.size - 1}")
    return int(label)


def _round_at_random(value: Fraction, randomness: Randomness) -> int:
    """The floor or the ceiling of a rational, with expectation exactly the value."""
    floor = value.numerator // value.denominator
    remainder = value.numerator - floor * value.denominator
    # A uniform integer below a denominator of any size, by rejection.
    bits = value.denominator.bit_length()
    while True:
        drawn = int.from_bytes(randomness((bits + 7) // 8), "little") & ((1 << bits) - 1)
        if drawn < value.denominator:
            return floor + (drawn < remainder)
