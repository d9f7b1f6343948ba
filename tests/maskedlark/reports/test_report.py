from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from maskedlark.errors import InvalidTask, ReportReason
from maskedlark.numbers import field
from maskedlark.numbers.field import MODULUS
from maskedlark.randomness import seeded
from maskedlark.reports.input_shares import InputShares
from maskedlark.reports.report import Example, _round_at_random, quantise
from maskedlark.reports.task import LabelSpace, Task
from maskedlark.reports.task_kinds import LabelKind
from tests.builders import decode_shares, split, world

TWO = world().task
TEN = world(labels={"kind": "classes", "size": 10}, num_decoys=3).task
ALL = world(labels={"kind": "classes", "size": 10}, num_decoys=9).task
DEFAULTED = world(labels={"kind": "classes", "size": 10, "default_label": 4}, num_decoys=2).task
VALUES = world(
    labels={"kind": "values", "size": 101, "num_buckets": 7, "default_label": 0}, num_decoys=2
).task
FEATURES = np.array([0, 1, 128, 255], np.uint8)


def rows(plaintext: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(plaintext, np.uint8).reshape(1, -1)


def read(task: Task, plaintext: bytes) -> InputShares:
    shares, reasons = decode_shares(task, rows(plaintext))
    assert reasons == [None]
    return shares


def real_labels(task: Task, label: float | None, seed: int) -> list[int]:
    """The candidates whose masks add to 1; all others must add to 0."""
    one, other = (
        read(task, plaintext)
        for plaintext in split(task, Example(features=FEATURES, label=label), seeded(seed))
    )
    assert (one.features == FEATURES).all()
    assert (other.features == FEATURES).all()
    assert (one.labels == other.labels).all()
    masks = field.reconstruct(one.mask_shares, other.mask_shares)[0].tolist()
    assert set(masks) <= {0, 1}
    return [int(label) for label, mask in zip(one.labels[0], masks, strict=True) if mask]


@pytest.mark.parametrize("task", [TWO, TEN, ALL, DEFAULTED])
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_the_real_label_is_the_one_whose_masks_add_to_one(task: Task, data: st.DataObject, seed: int) -> None:
    label = data.draw(st.integers(0, task.labels.size - 1))
    assert real_labels(task, label, seed) == [label]


@given(st.integers(0, 2**32))
def test_a_fake_report_has_decoys_only(seed: int) -> None:
    for task in (TWO, TEN, ALL, DEFAULTED, VALUES):
        assert real_labels(task, None, seed) == []


@given(st.floats(0, 100), st.integers(0, 2**32))
def test_a_real_value_is_reported_as_a_reachable_integer_next_to_its_bucket(value: float, seed: int) -> None:
    (reported,) = real_labels(VALUES, value, seed)
    boundaries = VALUES.labels.boundaries()
    below = max(b for b in boundaries if b <= Fraction(value))
    above = min(b for b in boundaries if b >= Fraction(value))
    assert reported in VALUES.labels.reachable()
    assert below - 1 < reported < above + 1


@pytest.mark.parametrize("value", [0.0, 3.3, 14.2857, 50.0, 99.9, 100.0])
def test_quantisation_is_unbiased(value: float) -> None:
    randomness = seeded(11, str(value))
    draws = np.array([quantise(value, VALUES.labels, randomness) for _ in range(20_000)], np.float64)
    step = 100 / 7
    assert abs(draws.mean() - value) < 5 * (step / 2 + 0.5) / np.sqrt(len(draws))


@pytest.mark.parametrize("value", [-0.001, 100.001, float("nan"), float("inf")])
def test_values_outside_the_space_are_refused_before_anything_is_sealed(value: float) -> None:
    with pytest.raises(InvalidTask, match=r"outside 0\.\.100"):
        split(VALUES, Example(features=FEATURES, label=value), seeded(1))


@pytest.mark.parametrize("label", [-1, 2, 0.5, float("nan"), float("inf")])
def test_labels_that_are_no_class_are_refused(label: float) -> None:
    with pytest.raises(InvalidTask, match="not one of the classes"):
        split(TWO, Example(features=FEATURES, label=label), seeded(1))


@pytest.mark.parametrize(
    "features", [FEATURES[:3], np.zeros(5, np.uint8), FEATURES.astype(np.float32), FEATURES.reshape(2, 2)]
)
def test_features_that_do_not_fit_the_task_are_refused(features: NDArray[np.uint8]) -> None:
    with pytest.raises(InvalidTask, match="4 feature bytes"):
        split(TWO, Example(features=features, label=0), seeded(1))


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_every_report_of_a_defaulted_space_offers_the_default(seed: int) -> None:
    for label in (None, 0, 4, 9):
        share = read(
            DEFAULTED, split(DEFAULTED, Example(features=FEATURES, label=label), seeded(seed)).share_0
        )
        assert 4 in share.labels[0]
        assert len(set(share.labels[0].tolist())) == 3


def test_all_plaintexts_of_a_task_have_one_length() -> None:
    for task in (TWO, TEN, ALL, DEFAULTED, VALUES):
        lengths = {
            len(p)
            for label in (None, 0, 1)
            for p in split(task, Example(features=FEATURES, label=label), seeded(label or 5))
        }
        assert lengths == {task.share_length}


def test_the_position_of_the_real_label_and_one_helpers_masks_tell_nothing() -> None:
    """Over many reports of a fixed label the real one is at either place equally often, and each share's
    bytes are uniform."""
    randomness = seeded(21)
    positions: Counter[int] = Counter()
    masks = []
    for _ in range(4_000):
        plaintexts = split(TWO, Example(features=FEATURES, label=1), randomness)
        share = read(TWO, plaintexts.share_1)
        positions[share.labels[0].tolist().index(1)] += 1
        masks.append(share.mask_shares)
    assert abs(positions[0] - 2_000) < 5 * np.sqrt(1_000)
    for place in (0, 1):
        column = np.concatenate(masks)[:, place].astype(np.float64) / MODULUS
        assert abs(column.mean() - 0.5) < 5 / np.sqrt(12 * 4_000)


def test_decoys_of_a_space_without_default_are_uniform_over_the_other_labels() -> None:
    randomness = seeded(22)
    seen: Counter[int] = Counter()
    for _ in range(3_000):
        share = read(TEN, split(TEN, Example(features=FEATURES, label=7), randomness).share_0)
        seen.update(label for label in share.labels[0].tolist() if label != 7)
    for label in set(range(10)) - {7}:
        assert abs(seen[label] - 1_000) < 5 * np.sqrt(1_000 * 2 / 3)


def test_local_noise_changes_features_alike_at_both_helpers_and_stays_in_bytes() -> None:
    task = world(feature_epsilon=1.0).task
    both = [
        read(task, plaintext) for plaintext in split(task, Example(features=FEATURES, label=1), seeded(5))
    ]
    assert (both[0].features == both[1].features).all()
    noisy = [
        read(task, split(task, Example(features=FEATURES, label=1), seeded(s)).share_0).features[0].tolist()
        for s in range(20)
    ]
    assert len({tuple(one) for one in noisy}) > 10


def forge(
    task: Task, *, version: int = 1, labels: list[int] | None = None, masks: list[int] | None = None
) -> NDArray[np.uint8]:
    labels = labels if labels is not None else list(range(task.num_candidates))
    masks = masks if masks is not None else [0] * task.num_candidates
    body = np.array(labels, "<u4").tobytes() + np.array(masks, "<u8").tobytes()
    return rows(bytes([version]) + bytes(16 + task.num_features) + body)


@pytest.mark.parametrize(
    ("task", "plaintext", "reason"),
    [
        (TWO, forge(TWO, version=2), ReportReason.WRONG_VERSION),
        (TWO, forge(TWO, labels=[0, 2]), ReportReason.LABEL_OUTSIDE_TASK),
        (TWO, forge(TWO, labels=[0, 2**32 - 1]), ReportReason.LABEL_OUTSIDE_TASK),
        (VALUES, forge(VALUES, labels=[0, 14, 16]), ReportReason.LABEL_OUTSIDE_TASK),
        (TWO, forge(TWO, labels=[1, 1]), ReportReason.LABELS_REPEAT),
        (DEFAULTED, forge(DEFAULTED, labels=[0, 1, 2]), ReportReason.DEFAULT_LABEL_MISSING),
        (TWO, forge(TWO, masks=[0, MODULUS]), ReportReason.MASK_NOT_CANONICAL),
        (TWO, forge(TWO, masks=[2**64 - 1, 0]), ReportReason.MASK_NOT_CANONICAL),
    ],
)
def test_each_malformed_plaintext_has_its_reason(
    task: Task, plaintext: NDArray[np.uint8], reason: ReportReason
) -> None:
    good = forge(
        task,
        labels=list(task.labels.reachable()[: task.num_candidates]) if task is not DEFAULTED else [4, 1, 2],
    )
    _, reasons = decode_shares(task, np.concatenate([good, plaintext, good]))
    assert reasons == [None, reason, None]


def test_label_space_of_values_reaches_what_quantisation_draws() -> None:
    labels = LabelSpace(kind=LabelKind.VALUES, size=11, num_buckets=4)
    randomness = seeded(4)
    drawn = {quantise(value, labels, randomness) for value in np.linspace(0, 10, 400)}
    assert drawn == set(labels.reachable())


@pytest.mark.parametrize(("denominator", "taken"), [(2, 1), (3, 1), (255, 1), (256, 2), (65_537, 3)])
def test_rounding_at_random_takes_the_bytes_of_its_denominator(denominator: int, taken: int) -> None:
    asked: list[int] = []

    def ones(count: int) -> bytes:
        asked.append(count)
        return b"\x01" + bytes(count - 1)

    assert _round_at_random(Fraction(2 * denominator + 1, denominator), ones) == 2
    assert asked == [taken]
