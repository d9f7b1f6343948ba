"""Step 2: from one example to two input shares, each alone independent of the label and values.

Their plaintexts are made here, and read in `maskedlark.reports.input_shares`.

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
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.numbers.field import ELEMENT_BYTES, FieldVector, from_signed, share_rows, to_bytes
from maskedlark.privacy.noise import noise_bytes
from maskedlark.randomness import Randomness, each_below, shuffle
from maskedlark.reports.input_shares import PROVEN_SHARE_VERSION, SHARE_VERSION
from maskedlark.reports.proofs.proven_report import proven_plaintexts
from maskedlark.reports.proofs.proving import Binding
from maskedlark.reports.task import VIEW_NONCE_BYTES, LabelSpace, Task
from maskedlark.reports.task_kinds import LabelKind


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


class SplitExample(NamedTuple):
    """The two plaintexts of one report, by helper role."""

    share_0: bytes
    share_1: bytes


class _Measured(NamedTuple):
    keys: NDArray[np.uint32]
    values: NDArray[np.int64]


_NOTHING_MEASURED: Final = _Measured(np.empty(0, np.uint32), np.empty(0, np.int64))


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
    reachable = task.labels.reachable()
    parts = [
        _parts(task, reachable, example, source) for example, source in zip(examples, sources, strict=True)
    ]
    shape = task.proof_shape
    if shape is None:
        return _share(task, parts, sources)
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


def _parts(task: Task, reachable: tuple[int, ...], example: Example, randomness: Randomness) -> _Parts:
    """Build the parts of an example's plaintexts; `reachable` are the task's labels, computed once."""
    features = example.features
    if features.dtype != np.uint8 or features.shape != (task.num_features,):
        raise InvalidTask(
            f"the task takes {task.num_features} feature bytes; the example has shape {features.shape} of "
            f"{features.dtype}"
        )
    # Before the view is made: the helpers, and the tag of the view, see the noised features only.
    if task.feature_epsilon is not None:
        features = noise_bytes(features, task.feature_epsilon, randomness)
    labels, is_real = _candidates(task, reachable, example.label, randomness)
    return _Parts(features=features, labels=labels, is_real=is_real, measured=_read_measured(task, example))


def _share(task: Task, parts: Sequence[_Parts], sources: Sequence[Randomness]) -> list[SplitExample]:
    """Build both plaintexts of each report in a task without proofs."""
    secrets = np.array([one.is_real for one in parts], np.uint64)
    if task.measurement is not None:
        values = np.array([one.measured.values for one in parts])
        secrets = np.concatenate([secrets, from_signed(values)], axis=1)
    shares = share_rows(secrets, sources)
    views = [_view(SHARE_VERSION, one, source) for one, source in zip(parts, sources, strict=True)]
    both = zip(views, _encode(shares.share_0), _encode(shares.share_1), strict=True)
    return [SplitExample(view + share_0, view + share_1) for view, share_0, share_1 in both]


def _encode(table: FieldVector) -> list[bytes]:
    """Return the bytes of each row."""
    encoded, width = to_bytes(table), table.shape[1] * ELEMENT_BYTES
    return [encoded[start : start + width] for start in range(0, len(encoded), width)]


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
    # Rationals: rounding at random has the value as its expectation exactly, which floats would miss.
    position = Fraction(value) * (len(boundaries) - 1) / (labels.size - 1)
    boundary = boundaries[_round_at_random(position, randomness)]
    return _round_at_random(boundary, randomness)


def _view(version: int, parts: _Parts, randomness: Randomness) -> bytes:
    """Encode what both helpers read: version u8 | nonce | features | labels u32 | keys u32, little-endian.

    The nonce is drawn here, and the same in both shares. It makes a view impossible to guess: without it, the
    ad server could seal a guess of a person's features to one helper under the same report id, and learn from
    equal view tags that the guess was right.
    """
    nonce, labels = randomness(VIEW_NONCE_BYTES), pack(f"<{len(parts.labels)}I", *parts.labels)
    keys = parts.measured.keys.astype("<u4").tobytes()
    return b"".join((bytes((version,)), nonce, parts.features.tobytes(), labels, keys))


def _read_measured(task: Task, example: Example) -> _Measured:
    """Return the keys, and the values as they are shared.

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
    if (keys < 0).any() or (keys >= task.key_sizes).any():
        raise InvalidTask("the code of a key is not below the size that the task declares")
    # The count of reports: 0 in a fake one, like all of its values, so that no sum counts it.
    values = [1]
    for value, held in zip(declared.values, measured.values, strict=True):
        # A fake report encodes the least value and is multiplied by 0 below, so that its work is that of a
        # real one.
        values += value.encode(value.low if example.label is None else value.within(held))
    return _Measured(keys.astype(np.uint32), np.array(values, np.int64) * (example.label is not None))


def _candidates(
    task: Task, reachable: tuple[int, ...], label: float | None, randomness: Randomness
) -> _Candidates:
    """Return the candidate labels in random order, and a 1 at the real one."""
    real = None if label is None else _integer_label(task.labels, label, randomness)
    chosen = [] if real is None else [real]
    default = task.labels.default_label
    # The default is always a candidate, or a report without it would show that a conversion happened.
    if default is not None and default != real:
        chosen.append(default)
    others = [other for other in reachable if other not in chosen]
    missing = task.num_candidates - len(chosen)
    bounds = range(len(others), len(others) - missing, -1)
    for position, drawn in enumerate(each_below(bounds, randomness)):  # Fisher-Yates, without replacement
        pick = position + drawn
        others[position], others[pick] = others[pick], others[position]
    chosen += others[:missing]
    # The real label was put first, and the order of candidates is in the clear.
    shuffle(chosen, randomness)
    return _Candidates(labels=chosen, is_real=[int(one == real) for one in chosen])


def _integer_label(labels: LabelSpace, label: float, randomness: Randomness) -> int:
    match labels.kind:
        case LabelKind.VALUES:
            return quantise(label, labels, randomness)
        case LabelKind.CLASSES:
            if not (0 <= label < labels.size and label == int(label)):
                raise InvalidTask(f"a label is not one of the classes 0..{labels.size - 1}")
            return int(label)


def _round_at_random(value: Fraction, randomness: Randomness) -> int:
    """Round a rational to its floor or ceiling at random, with expectation exactly the value."""
    floor = value.numerator // value.denominator
    remainder = value.numerator - floor * value.denominator
    # A uniform integer below a denominator of any size, by rejection.
    bits = value.denominator.bit_length()
    while True:
        drawn = int.from_bytes(randomness((bits + 7) // 8), "little") & ((1 << bits) - 1)
        if drawn < value.denominator:
            return floor + (drawn < remainder)
