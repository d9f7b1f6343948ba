import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskedlark import canonical
from maskedlark.errors import InvalidTask, ReportReason
from maskedlark.federated.strategies.dp_fedavg import DpFedAvg
from maskedlark.reports.task import MAX_DATASET_SIZE, LabelSpace, Task, TaskBundle, _reachable
from maskedlark.reports.task_kinds import LabelKind
from maskedlark.rpc.transport import MAX_MESSAGE_BYTES
from protos import helper_pb2 as pb
from tests.builders import NOW, bundle, helper_keys, settings, world
from tests.refusals import refused
from tests.update_builders import update_settings

WORLD = world()
KEYS = WORLD.keys


def build(**changes: Any) -> Task:
    helpers = (KEYS[0].identity("north"), KEYS[1].identity("south"))
    return canonical.build(Task, {**settings(helpers=helpers), **changes})


def respell(**changes: Any) -> bytes:
    """The canonical JSON of the world's task with raw changes, written canonically."""
    plain = json.loads(canonical.encode(WORLD.task))
    plain.update(changes)
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def test_a_task_survives_its_canonical_bytes() -> None:
    assert canonical.decode(Task, canonical.encode(WORLD.task)) == WORLD.task


def test_the_id_names_every_setting() -> None:
    ids = {
        build(**change).task_id
        for change in ({}, {"name": "x"}, {"clip_norm": 1.5}, {"min_batch_size": 3}, {"salt": bytes(16)})
    }
    assert len(ids) == 5
    assert all(len(one) == 32 for one in ids)


def test_the_largest_dataset_is_chosen_in_one_message() -> None:
    assert build(max_dataset_size=MAX_DATASET_SIZE).max_dataset_size == 33_000_000
    request = pb.CommitRequest(
        task_id=bytes(32), handle=bytes(16), chosen=bytes(-(-MAX_DATASET_SIZE // 8)), dataset_id=bytes(32)
    )
    assert request.ByteSize() <= MAX_MESSAGE_BYTES


@given(
    st.dictionaries(
        st.text(max_size=8), st.none() | st.booleans() | st.integers() | st.text(max_size=8), max_size=4
    )
)
def test_unknown_fields_are_refused(extra: dict[str, Any]) -> None:
    unknown = {name: value for name, value in extra.items() if name not in settings(helpers=())}
    if not unknown or set(unknown) == {"version"}:
        return
    with pytest.raises(InvalidTask):
        canonical.decode(Task, respell(**unknown))


def labels(kind: str, size: int, **more: int) -> dict[str, Any]:
    return {"labels": {"kind": kind, "size": size, "num_buckets": None, "default_label": None, **more}}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 2}, "version"),
        ({"origin": ""}, "origin"),
        ({"salt": "00"}, "salt"),
        ({"num_features": 0}, "num_features"),
        ({"num_features": 65_537}, "num_features"),
        ({"num_features": True}, "num_features"),
        ({"num_features": 4.0}, "num_features"),
        ({"num_decoys": 0}, "num_decoys: "),
        ({"num_decoys": 2}, "num_decoys is at most"),
        ({"fake_report_rate": 1.0}, "fake_report_rate"),
        ({"fake_report_rate": -0.1}, "fake_report_rate"),
        ({"feature_epsilon": 0.0}, "feature_epsilon"),
        ({"min_batch_size": 0}, "min_batch_size: "),
        ({"min_batch_size": 1 << 21}, "min_batch_size is at most"),
        ({"mechanism": "uniform"}, "mechanism: "),
        ({"mechanism": "laplace"}, "goes with norm"),
        ({"norm": "l1", "mechanism": "gaussian"}, "goes with norm"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": 1e9}, "clip_norm"),
        ({"frac_bits": 15}, "frac_bits"),
        ({"frac_bits": 41}, "frac_bits"),
        ({"epsilon": 0.0}, " epsilon"),
        ({"collusion_epsilon": -1.0}, "collusion_epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"max_dataset_size": MAX_DATASET_SIZE + 1}, "max_dataset_size"),
        ({"time_bucket_s": 0}, "time_bucket_s"),
        ({"expires_at": NOW - 86_400}, "expires_at is after"),
        (labels("classes", 1), "labels.size"),
        (labels("classes", 2, num_buckets=1), "goes with labels of kind values"),
        (labels("values", 9), "goes with labels of kind values"),
        (labels("values", 9, num_buckets=9), "num_buckets is at most"),
        (labels("classes", 2, default_label=2), "default_label"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidTask, match=reason):
        canonical.decode(Task, respell(**changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"unit": "report", "reports_per_user": 2, "updates": None}, "reports_per_user goes with unit user"),
        ({"unit": "report"}, "updates go with unit user, and one report"),
        ({"reports_per_user": 2}, "updates go with unit user, and one report"),
        ({"norm": "l1", "mechanism": "none"}, "updates go with norm l2"),
        ({"norm": "l1", "mechanism": "laplace"}, "updates go with norm l2"),
        ({"proof": True}, "updates go with no proof"),
        ({"feature_epsilon": 1.0}, "updates go with no measurement"),
        ({"fake_report_rate": 0.5}, "updates go with no measurement"),
    ],
)
def test_settings_that_do_not_go_with_a_unit_or_with_updates_are_refused(
    changes: dict[str, Any], reason: str
) -> None:
    helpers = WORLD.task.helpers
    assert canonical.build(Task, settings(helpers=helpers, **update_settings())).updates is not None
    with pytest.raises(InvalidTask, match=reason):
        canonical.build(Task, settings(helpers=helpers, **update_settings(**changes)))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_refused(number: str) -> None:
    encoded = canonical.encode(WORLD.task).replace(b'"clip_norm":1.0', b'"clip_norm":' + number.encode())
    with pytest.raises(InvalidTask, match=r"clip_norm: .* finite"):
        canonical.decode(Task, encoded)


def test_any_other_spelling_of_the_same_task_is_refused() -> None:
    encoded = canonical.encode(WORLD.task)
    plain = json.loads(encoded)
    others = [
        encoded + b" ",
        b" " + encoded,
        json.dumps(plain).encode(),
        json.dumps(dict(reversed(plain.items())), separators=(",", ":")).encode(),
        encoded.replace(b'"clip_norm":1.0', b'"clip_norm":1'),
        encoded.replace(b'"clip_norm":1.0', b'"clip_norm":1.00'),
        encoded.replace(b'"delta":', b'"delta":0.5,"delta":'),
        encoded.replace(b'"name":"conversions"', b'"name":"\\u0063onversions"'),
        encoded.replace(WORLD.task.salt.hex().encode(), WORLD.task.salt.hex().upper().encode()),
    ]
    for other in others:
        assert other != encoded
        with pytest.raises(InvalidTask):
            canonical.decode(Task, other)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_raise_anything_else(encoded: bytes) -> None:
    with pytest.raises(InvalidTask):
        canonical.decode(Task, encoded)


def test_bytes_over_the_limit_and_deep_nesting_are_refused() -> None:
    for encoded in (b"[" * 60_000, b" " * 70_000, b'{"a":' * 10_000):
        with pytest.raises(InvalidTask):
            canonical.decode(Task, encoded)


def test_two_helpers_with_one_key_are_refused() -> None:
    same = KEYS[0].identity("north")
    with pytest.raises(InvalidTask, match="different keys"):
        build(helpers=(same, same))


@pytest.mark.parametrize("name", ["verify_key", "agreement_key"])
def test_two_helpers_share_neither_of_their_keys(name: str) -> None:
    first, second = (keys.identity(which) for keys, which in zip(KEYS, ("north", "south"), strict=True))
    with pytest.raises(InvalidTask, match="different keys"):
        build(helpers=(first, replace(second, **{name: getattr(first, name)})))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"samplin_rate": 0.5}, "DpFedAvg: samplin_rate: no such setting, did you mean sampling_rate?;"),
        ({"local": {"epoch": 1}}, "DpFedAvg: local.epoch: no such setting, did you mean epochs?;"),
        (
            {"quantile": {"x": 1}},
            "DpFedAvg: quantile.x: no such setting, there are initial, learning_rate, quantile;",
        ),
    ],
)
def test_a_setting_that_does_not_exist_is_named_first_with_what_was_meant(
    settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidTask) as refused:
        canonical.build(DpFedAvg, settings)
    assert str(refused.value).startswith(told)


def test_messages_name_the_setting_and_never_echo_its_value() -> None:
    with pytest.raises(InvalidTask) as error:
        build(clip_norm="a-secret-looking-value")
    assert "clip_norm" in str(error.value)
    assert "a-secret-looking-value" not in str(error.value)


@given(st.integers(2, 60), st.integers(1, 59))
def test_reachable_values_are_the_integers_next_to_bucket_boundaries(size: int, num_buckets: int) -> None:
    if num_buckets > size - 1:
        return
    labels = LabelSpace(kind=LabelKind.VALUES, size=size, num_buckets=num_buckets)
    reachable = labels.reachable()
    assert reachable == tuple(sorted(set(reachable)))
    assert labels.num_reachable == len(reachable)
    assert {0, size - 1} <= set(reachable)
    for boundary in labels.boundaries():
        assert any(abs(boundary - value) < 1 for value in reachable)


def test_time_buckets_outside_the_period_are_refused() -> None:
    task = WORLD.task
    task.check_time_bucket(task.time_bucket(NOW))
    task.check_time_bucket(task.time_bucket(task.expires_at - 1))
    for unix_s in (0, task.starts_at - task.time_bucket_s, task.expires_at, task.expires_at + 10**9):
        with refused(ReportReason.OUTSIDE_TASK_PERIOD):
            task.check_time_bucket(task.time_bucket(unix_s))


def test_a_bundle_verifies_and_survives_its_bytes() -> None:
    WORLD.bundle.verify()
    assert canonical.decode(TaskBundle, canonical.encode(WORLD.bundle)) == WORLD.bundle


def test_a_bundle_with_a_missing_or_swapped_signature_is_refused() -> None:
    stranger = (helper_keys(), helper_keys())
    good = WORLD.bundle
    bad = [
        TaskBundle(
            task=good.task, signatures=(good.signatures[1], good.signatures[0]), key_lists=good.key_lists
        ),
        TaskBundle(task=good.task, signatures=(good.signatures[0], bytes(64)), key_lists=good.key_lists),
        TaskBundle(
            task=good.task, signatures=good.signatures, key_lists=(good.key_lists[1], good.key_lists[0])
        ),
        TaskBundle(
            task=good.task, signatures=good.signatures, key_lists=bundle(good.task, stranger).key_lists
        ),
        TaskBundle(task=build(name="other"), signatures=good.signatures, key_lists=good.key_lists),
    ]
    for one in bad:
        with pytest.raises(InvalidTask, match="helper"):
            one.verify()


@pytest.mark.parametrize(("num_buckets", "held"), [(2, (0, 4, 5, 9)), (3, (0, 3, 6, 9)), (9, range(10))])
def test_the_default_of_values_is_next_to_a_boundary(num_buckets: int, held: Sequence[int]) -> None:
    values = {"kind": "values", "size": 10, "num_buckets": num_buckets}
    for label in range(12):
        if label in held:
            assert canonical.build(LabelSpace, {**values, "default_label": label}).default_label == label
        else:
            with pytest.raises(InvalidTask, match="default_label is a label of the space"):
                canonical.build(LabelSpace, {**values, "default_label": label})


def test_a_million_classes_are_counted_without_a_list_of_them() -> None:
    before = _reachable.cache_info()
    labels = LabelSpace(kind=LabelKind.CLASSES, size=1 << 20, default_label=(1 << 20) - 1)
    assert labels.num_reachable == 1 << 20
    with pytest.raises(InvalidTask, match="default_label"):
        canonical.build(LabelSpace, {"kind": "classes", "size": 1 << 20, "default_label": 1 << 20})
    assert _reachable.cache_info() == before


def test_labels_are_counted_as_they_are_listed() -> None:
    for size in (2, 3, 10):
        assert LabelSpace(kind=LabelKind.CLASSES, size=size).num_reachable == size
        values = LabelSpace(kind=LabelKind.VALUES, size=size, num_buckets=1)
        assert values.num_reachable == len(values.reachable()) == 2


def test_classes_have_a_boundary_at_each_of_them() -> None:
    labels = LabelSpace(kind=LabelKind.CLASSES, size=4)
    assert list(labels.boundaries()) == [0, 1, 2, 3]
    assert labels.reachable() == (0, 1, 2, 3)
