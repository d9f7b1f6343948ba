"""Step 2: from one example to two input shares, each alone independent of the label; and their strict codec.

A report offers the helpers several candidate labels and, for each, a mask share. Both helpers see the same features and
candidates; the two mask shares of a candidate add to 1 in the field if it is the real label and to 0 if it is a decoy. In a fake
report every candidate is a decoy, so it adds nothing to any sum.

Source: the paper, sections 4.1.1 (labels, decoys, quantisation) and 4.1.2 (masks), with field elements in place of its masks.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskedlark.errors import InvalidTask, ReportReason, ReportRejected
from maskedlark.field import MODULUS, FieldVector, share
from maskedlark.noise import noise_bytes
from maskedlark.randomness import Randomness, below, shuffle
from maskedlark.task import LabelKind, LabelSpace, Task

SHARE_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """What one browser knows: its features, and the label that came of the impression.

    Attributes:
        features: u8 (num_features,).
        label: A class, or a real value for a label space of values; None makes a fake report.
    """

    features: NDArray[np.uint8] = field(repr=False)
    label: float | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputShares:
    """What one helper reads from its shares of n reports, one row each, in some order.

    Shapes: features u8 (n, d); labels u32 (n, L); mask_shares uint64 (n, L).
    """

    features: NDArray[np.uint8] = field(repr=False)
    labels: NDArray[np.uint32] = field(repr=False)
    mask_shares: FieldVector = field(repr=False)

    def __len__(self) -> int:
        return len(self.features)


class SplitExample(NamedTuple):
    """The two plaintexts of one report, by helper role."""

    share_0: bytes
    share_1: bytes


class _Candidates(NamedTuple):
    labels: NDArray[np.uint32]
    is_real: NDArray[np.uint64]


def split(task: Task, example: Example, randomness: Randomness) -> SplitExample:
    """Add decoys, draw masks and encode both helpers' input shares. Called by the browser.

    Guarantees: each plaintext alone is distributed independently of which candidate is real; both have `task.share_length` bytes.

    Raises:
        InvalidTask: the features or the label do not fit the task; nothing is sent.
    """
    features = example.features
    if features.dtype != np.uint8 or features.shape != (task.num_features,):
        raise InvalidTask(f"the task takes {task.num_features} feature bytes; the example has shape {features.shape} of {features.dtype}")
    if task.feature_epsilon is not None:
        features = noise_bytes(features, task.feature_epsilon, randomness)
    candidates = _candidates(task, example.label, randomness)
    masks = share(candidates.is_real, randomness)
    return SplitExample(
        _encode(features, candidates.labels, masks.share_0),
        _encode(features, candidates.labels, masks.share_1),
    )


def quantise(value: float, labels: LabelSpace, randomness: Randomness) -> int:
    """Privatise a real label: to a neighbouring bucket boundary, then to an integer, each at random and without bias.

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


def decode_shares(task: Task, plaintexts: NDArray[np.uint8]) -> tuple[InputShares, list[ReportReason | None]]:
    """Parse and check n plaintexts at once. Called by a helper.

    Args:
        task: The task that the reports were sealed to.
        plaintexts: u8 (n, share_length): see `plaintext_rows`.

    Returns:
        The shares of all n rows, and for each row None or why it must be dropped.
    """
    num_features, num_candidates = task.num_features, task.num_candidates
    features_end, labels_end = 1 + num_features, 1 + num_features + 4 * num_candidates
    labels = np.ascontiguousarray(plaintexts[:, features_end:labels_end]).view("<u4").astype(np.uint32)
    masks = np.ascontiguousarray(plaintexts[:, labels_end:]).view("<u8").astype(np.uint64)
    ordered = np.sort(labels, axis=1)
    wrong: list[tuple[ReportReason, Any]] = [
        (ReportReason.WRONG_VERSION, plaintexts[:, 0] != SHARE_VERSION),
        (ReportReason.LABEL_OUTSIDE_TASK, ~np.isin(labels, np.array(task.labels.reachable(), np.uint32)).all(axis=1)),
        (ReportReason.LABELS_REPEAT, (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)),
        (ReportReason.MASK_NOT_CANONICAL, (masks >= np.uint64(MODULUS)).any(axis=1)),
    ]
    if task.labels.default_label is not None:
        wrong.append((ReportReason.DEFAULT_LABEL_MISSING, ~(labels == task.labels.default_label).any(axis=1)))
    reasons: list[ReportReason | None] = [None] * len(plaintexts)
    for reason, rows in reversed(wrong):
        for row in np.flatnonzero(rows):
            reasons[row] = reason
    return InputShares(features=plaintexts[:, 1:features_end].copy(), labels=labels, mask_shares=masks), reasons


def check_length(task: Task, plaintext: bytes) -> None:
    """Refuse a plaintext of another length than the task's.

    Raises:
        ReportRejected(WRONG_LENGTH)
    """
    if len(plaintext) != task.share_length:
        raise ReportRejected(ReportReason.WRONG_LENGTH, f"an input share of this task has {task.share_length} bytes, not {len(plaintext)}")


def _encode(features: NDArray[np.uint8], labels: NDArray[np.uint32], mask_shares: FieldVector) -> bytes:
    """The layout: version u8 | features | labels u32 each | mask shares u64 each, little-endian: one length per task."""
    return bytes([SHARE_VERSION]) + features.tobytes() + labels.astype("<u4").tobytes() + mask_shares.astype("<u8").tobytes()


def _candidates(task: Task, label: float | None, randomness: Randomness) -> _Candidates:
    """The candidate labels in random order, and a 1 at the real one."""
    real = None if label is None else _integer_label(task.labels, label, randomness)
    chosen = [] if real is None else [real]
    default = task.labels.default_label
    if default is not None and default != real:
        chosen.append(default)
    others = [other for other in task.labels.reachable() if other not in chosen]
    missing = task.num_candidates - len(chosen)
    for position in range(missing):  # a partial Fisher-Yates draw, without replacement
        pick = position + int(below(len(others) - position, 1, randomness)[0])
        others[position], others[pick] = others[pick], others[position]
    chosen += others[:missing]
    shuffle(chosen, randomness)
    return _Candidates(np.array(chosen, np.uint32), np.array([one == real for one in chosen], np.uint64))


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
