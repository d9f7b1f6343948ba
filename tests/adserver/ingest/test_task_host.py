"""Tasks: made only when both helpers agree and sign, kept as the bytes that browsers verify."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine

from adserver.collecting.key_refresh import refresh_keys
from adserver.collecting.task_creation import create_task
from adserver.collecting.task_settings import (
    check_labels,
    label_space,
    measurement_from,
    norm_for,
    note_on_labels,
    num_decoys,
    period,
)
from adserver.peers.client import HelperClient
from adserver.store.database import create_tables, default_url
from adserver.store.tasks import TaskStore
from maskedlark.encoding.encoder import Encoder
from maskedlark.encoding.fit import FitSettings, fit
from maskedlark.errors import HelperUnavailable, InvalidTask, JobReason, JobRefused
from maskedlark.privacy.clip import Norm
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.sealing import OpeningKey
from maskedlark.reports.task import Task
from maskedlark.reports.task_kinds import LabelKind
from maskedlark.runtime.database import open_database
from tests.adserver.fake_helper import FakeHelper, serving
from tests.builders import NOW, settings, world


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    opened = open_database(default_url(tmp_path))
    create_tables(opened)
    yield opened
    opened.dispose()


def test_a_created_task_has_the_helpers_own_identities_and_both_signatures(engine: Engine) -> None:
    fakes = FakeHelper(role=0), FakeHelper(role=1)
    with serving(*fakes) as (first, second):
        bundle = create_task((first, second), settings())
    bundle.verify()
    assert bundle.task.helpers == (fakes[0].keys.identity("helper 0"), fakes[1].keys.identity("helper 1"))
    assert list(fakes[0].registered) == list(fakes[1].registered) == [bundle.task.task_id]
    store = TaskStore(engine)
    assert store.add(bundle, created_at=NOW) == bundle.task.task_id
    assert store.get(bundle.task.task_id) == TaskStore(engine).get(bundle.task.task_id) == bundle


def test_a_helpers_new_key_reaches_the_bundle_that_browsers_are_served(engine: Engine) -> None:
    fakes = FakeHelper(role=0), FakeHelper(role=1)
    store = TaskStore(engine)
    with serving(*fakes) as (first, second):
        task_id = store.add(create_task((first, second), settings()), created_at=NOW)
        assert refresh_keys(store, (first, second)) == 0
        fakes[1].keys = replace(fakes[1].keys, opening=OpeningKey.generate(key_id=9))
        assert refresh_keys(store, (first, second)) == 1
    served = TaskStore(engine).get(task_id)
    assert served is not None
    served.verify()
    assert [lists.key_list.keys[0].key_id for lists in served.key_lists] == [fakes[0].keys.opening.key_id, 9]
    with HelperClient("127.0.0.1:1", None, 1.0) as away:
        assert refresh_keys(store, (away, away)) == 0  # what is served stays


def test_the_same_operator_twice_is_no_task() -> None:
    fake = FakeHelper(role=0)
    with serving(fake, fake) as (first, second), pytest.raises(InvalidTask, match="are one helper"):
        create_task((first, second), settings())
    assert fake.registered == {}


def test_a_setting_out_of_range_is_refused_before_a_helper_signs() -> None:
    fakes = FakeHelper(role=0), FakeHelper(role=1)
    with serving(*fakes) as (first, second), pytest.raises(InvalidTask, match="epsilon"):
        create_task((first, second), settings(epsilon=-1.0))
    assert fakes[0].registered == fakes[1].registered == {}


def test_helpers_on_different_software_get_a_task() -> None:
    """Two operators run what they run.

    Whether their numerics fit is compared for each job, before anything is charged.
    """
    fakes = FakeHelper(role=0), FakeHelper(role=1, numerics_digest=b"\x01" * 32)
    with serving(*fakes) as (first, second):
        create_task((first, second), settings()).verify()


def test_a_refusal_of_one_helper_is_the_refusal_of_the_task() -> None:
    def floor(_: Task) -> None:
        raise JobRefused(JobReason.TASK_REFUSED, "epsilon is over this helper's floor")

    with (
        serving(FakeHelper(role=0), FakeHelper(role=1, floor=floor)) as (first, second),
        pytest.raises(JobRefused, match="floor"),
    ):
        create_task((first, second), settings())


def test_a_signature_by_another_key_is_no_countersignature() -> None:
    def spoil(reply: Any) -> Any:
        if hasattr(reply, "signature"):
            reply.signature = bytes(64)
        return reply

    with (
        serving(FakeHelper(role=0), FakeHelper(role=1, spoil=spoil)) as (first, second),
        pytest.raises(InvalidTask, match="helper 1"),
    ):
        create_task((first, second), settings())


def test_a_helper_that_is_down_makes_no_task() -> None:
    fake = FakeHelper(role=0)
    with (
        serving(fake) as (first,),
        HelperClient("127.0.0.1:1", None, 1.0) as gone,
        pytest.raises(HelperUnavailable),
    ):
        create_task((first, gone), settings())
    assert fake.registered == {}


def test_an_unsigned_task_is_not_stored(engine: Engine) -> None:
    known = world()
    unsigned = replace(known.bundle, signatures=(known.bundle.signatures[0], bytes(64)))
    with pytest.raises(InvalidTask):
        TaskStore(engine).add(unsigned, created_at=NOW)
    assert TaskStore(engine).all() == []


def test_a_task_is_stored_once(engine: Engine) -> None:
    known, store = world(), TaskStore(engine)
    added = [store.add(known.bundle, created_at=NOW + later) for later in range(2)]
    assert added == [known.task.task_id] * 2
    assert [one.created_at for one in store.all()] == [NOW]


def test_tasks_are_found_by_the_start_of_their_id_and_listed_oldest_first(engine: Engine) -> None:
    store, bundles = TaskStore(engine), [world().bundle for _ in range(3)]
    for age, bundle in enumerate(bundles):
        store.add(bundle, created_at=NOW + age)
    assert [one.bundle for one in store.all()] == bundles
    assert store.find(bundles[1].task.task_id.hex()[:20]).bundle == bundles[1]
    assert store.get(bytes(32)) is None
    with pytest.raises(JobRefused) as refusal:
        store.find("")
    assert refusal.value.reason is JobReason.UNKNOWN_TASK


@given(size=st.integers(2, 50))
def test_all_decoys_are_all_other_labels(size: int) -> None:
    labels = label_space(classes=size, max_value=None, num_buckets=None, default_label=None)
    assert num_decoys("all", labels) == size - 1
    assert num_decoys("1", labels) == 1


def test_a_default_label_is_a_number_or_the_name_of_a_class_of_the_encoder() -> None:
    encoder = fit({"x": ["0", "1", "2"], "y": ["left", "bought", "left"]}, FitSettings(label="y"))

    def default(typed: int | str | None, of: Encoder | None = encoder) -> int | None:
        return label_space(classes=2, default_label=typed, encoder=of).default_label

    assert [default("left"), default("bought"), default(1), default(None)] == [0, 1, 1, None]
    for wrong in ("sold", 2, -1):
        with pytest.raises(InvalidTask, match=r"expected 0 \(left\), 1 \(bought\), or a class's name"):
            default(wrong)
    with pytest.raises(InvalidTask, match="expected a number, without an encoder"):
        default("left", None)


def test_with_an_encoder_without_a_label_a_task_is_measured_alone_or_says_its_labels() -> None:
    encoder = fit({"x": ["0", "1", "2"]}, FitSettings())
    alone = label_space(classes=None, default_label=None, encoder=encoder, is_measured=True)
    assert (alone.kind, alone.size, alone.default_label) == (LabelKind.CLASSES, 2, 0)
    assert note_on_labels(alone, encoder) == ""
    with pytest.raises(InvalidTask, match=r"no labels and no measurement: fit .* --label"):
        label_space(classes=None, default_label=None, encoder=encoder)
    for classes, max_value, default in ((2, None, None), (3, None, 0), (None, 5, 0)):
        declared = label_space(classes=classes, max_value=max_value, default_label=default, encoder=encoder)
        check_labels(declared, encoder)
        assert "only pages that give labels as numbers can report" in note_on_labels(declared, encoder)
        assert note_on_labels(declared, None) == ""
    with pytest.raises(InvalidTask, match="exactly one"):
        label_space(classes=None, default_label=1, encoder=encoder)


@given(max_value=st.integers(1, 200))
def test_values_have_a_bucket_for_each_integer_unless_fewer_are_asked_for(max_value: int) -> None:
    labels = label_space(classes=None, max_value=max_value, num_buckets=None, default_label=0)
    assert (labels.kind, labels.size, labels.num_buckets) == (LabelKind.VALUES, max_value + 1, max_value)
    assert num_decoys("all", labels) == max_value
    coarse = label_space(classes=None, max_value=max_value, num_buckets=1, default_label=0)
    assert coarse.reachable() == (0, max_value)


@pytest.mark.parametrize("labels", [(None, None), (2, 5)])
def test_labels_are_of_one_kind(labels: tuple[int | None, int | None]) -> None:
    with pytest.raises(InvalidTask, match="exactly one"):
        label_space(classes=labels[0], max_value=labels[1], num_buckets=None, default_label=None)


@pytest.mark.parametrize("typed", ["few", "-1", "1.5", ""])
def test_decoys_are_a_number_or_all(typed: str) -> None:
    with pytest.raises(InvalidTask, match="decoys"):
        num_decoys(typed, label_space(classes=2, max_value=None, num_buckets=None, default_label=None))


def test_each_noise_comes_with_the_norm_that_it_is_calibrated_in() -> None:
    assert {mechanism: norm_for(mechanism) for mechanism in Mechanism} == {
        Mechanism.GAUSSIAN: Norm.L2,
        Mechanism.LAPLACE: Norm.L1,
        Mechanism.NONE: Norm.L2,
    }


@given(now=st.floats(0, 1e10), bucket=st.integers(1, 86_400), days=st.floats(1, 400))
def test_a_period_begins_with_the_present_bucket_and_lasts_its_days(
    now: float, bucket: int, days: float
) -> None:
    lasting = period(now=now, time_bucket_s=bucket, days=days, starts_at=None, expires_at=None)
    assert lasting.starts_at % bucket == 0
    assert lasting.starts_at // bucket == int(now // bucket)
    assert lasting.expires_at == lasting.starts_at + int(days * 86_400)
    typed = period(now=now, time_bucket_s=bucket, days=days, starts_at=5, expires_at=9)
    assert (typed.starts_at, typed.expires_at) == (5, 9)


def fitted() -> Encoder:
    return fit({"a": ["1", "2"], "b": ["x", None], "c": ["3", "4"], "d": ["5", "6"]}, FitSettings())


def test_an_encoder_is_kept_beside_the_task_that_names_it(engine: Engine) -> None:
    encoder, store = fitted(), TaskStore(engine)
    named = world(encoder=encoder.digest).bundle
    for wrong in (None, fit({"a": ["1"]}, FitSettings())):
        with pytest.raises(InvalidTask, match="digest differs from the task's"):
            store.add(named, created_at=NOW, encoder=wrong)
    with pytest.raises(InvalidTask, match="digest differs from the task's"):
        store.add(world().bundle, created_at=NOW, encoder=encoder)
    store.add(named, created_at=NOW, encoder=encoder)
    store.add(world(encoder=encoder.digest, name="another").bundle, created_at=NOW, encoder=encoder)
    assert TaskStore(engine).encoder(named.task.task_id) == encoder
    assert store.encoder(bytes(32)) is None
    plain = store.add(world().bundle, created_at=NOW)
    assert store.encoder(plain) is None


def test_a_measurement_may_leave_out_how_many_categories_it_lists(tmp_path: Path) -> None:
    path = tmp_path / "measurement.json"
    path.write_text('{"min_cell_count": 2, "keys": [{"name": "k", "categories": ["a", "b", "other"]}]}')
    declared = measurement_from(path)
    assert declared is not None
    assert declared.keys[0].size == 3
    path.write_text('{"min_cell_count": 2, "keys": [{"name": "k", "size": 2, "categories": ["a"]}]}')
    with pytest.raises(InvalidTask, match="key k lists 1 categories, but its size is 2"):
        measurement_from(path)
