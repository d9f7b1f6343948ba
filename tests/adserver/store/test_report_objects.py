"""Ciphertexts of reports in object storage: none lost, none wrong, whatever the store and the process do."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import func, select

from adserver.collecting.object_sweeping import ORPHAN_S, sweep_objects
from adserver.collecting.report_expiry import GRACE_S, SETTLED_S, expire_reports
from adserver.collecting.sealing import DatasetSealer
from adserver.store import reports as reports_module
from adserver.store.datasets import DatasetStore
from adserver.store.report_buckets import ReportBucket
from adserver.store.report_object_format import Ciphertexts
from adserver.store.report_object_reader import ReadsObjects
from adserver.store.report_object_writer import AWAY_S, PutsReports
from adserver.store.reports import ReportStore
from adserver.store.schema import POSITIONS, report_buckets, report_objects, reports
from adserver.store.tasks import TaskStore
from maskedlark.errors import HelperUnavailable, InvalidTask, JobReason, JobRefused
from maskedlark.randomness import seeded
from maskedlark.reports.upload import Report
from maskedlark.runtime.objects import MAX_TRIES, ObjectLost, StoreFailed
from tests.adserver.report_objects_site import OF, OTHER, TASK_ID, URL, Site, by_id, drawn, site_at
from tests.builders import NOW
from tests.patience import HANGS_S
from tests.stores import Faulty, InMemory

OTHER_ID = OTHER.task.task_id


class Down(InMemory):
    """A store that answers nothing."""

    asked = 0

    def put(self, name: str, content: bytes) -> None:
        self.asked += 1
        raise StoreFailed("down")

    def get(self, name: str, most_bytes: int) -> bytes:
        raise StoreFailed("down")


class Hanging(InMemory):
    """A store that answers no put before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = Event()

    def put(self, name: str, content: bytes) -> None:
        assert self.let_go.wait(HANGS_S)
        super().put(name, content)


@pytest.fixture
def site(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with site_at(database_url, monkeypatch) as made:
        yield made


def lost(site: Site) -> str:
    """What sealing says of reports that are lost."""
    with pytest.raises(JobRefused) as refused:
        site.taken()
    assert refused.value.reason is JobReason.REPORTS_LOST
    return str(refused.value)


def taken_or_lost(site: Site) -> list[Report] | None:
    """All waiting reports, or None where an object was cut or swapped each time that it was read."""
    try:
        return by_id(site.taken())
    except JobRefused as refusal:
        if refusal.reason is not JobReason.REPORTS_LOST:
            raise
        return None


def stored_bytes(site: Site) -> int:
    """How many bytes of ciphertexts, or in their place, the database holds."""
    c = reports.c
    with site.engine.connect() as connection:
        asked = select(func.sum(func.length(c.ciphertext_0) + func.length(c.ciphertext_1)))
        return int(connection.execute(asked).scalar_one())


def test_what_is_read_of_an_object_is_what_was_put() -> None:
    made = drawn(50, seed=1)
    found = Ciphertexts(content := Ciphertexts.encode(made))
    assert found.num_bytes == len(content)
    for position, report in enumerate(made):
        assert [found.at(position, role=role) for role in (0, 1)] == [one.ciphertext for one in report.shares]
    for position in (-1, 50):
        with pytest.raises(ObjectLost):
            found.at(position, role=0)


@pytest.mark.parametrize("spoil", [b"", b"MLR1", b"MLR1\xff\xff\xff\xff", b"MLR2\0\0\0\0", b"MLR1\0\0\0\0x"])
def test_bytes_that_are_no_object_of_reports_are_refused(spoil: bytes) -> None:
    with pytest.raises(ObjectLost):
        Ciphertexts(spoil)


def test_a_group_becomes_one_object_and_its_rows_hold_no_ciphertext(site: Site) -> None:
    made = drawn(40, seed=1)
    assert site.intake().add(made) == 40
    assert (site.num_objects(), len(site.memory.objects), stored_bytes(site)) == (1, 1, 40 * 8)
    assert by_id(site.taken()) == by_id(made)


def test_a_group_that_is_not_worth_an_object_becomes_rows_beside_one_that_is(site: Site) -> None:
    few, many, late = drawn(3, seed=1), drawn(40, seed=2), drawn(30, seed=3)
    ReportStore(site.engine).add(late)  # without object storage
    site.intake().add(few)
    site.intake().add(many)
    assert site.num_objects() == 1
    assert by_id(site.taken()) == by_id([*few, *many, *late])


def test_each_task_of_a_group_has_an_object_of_its_own(site: Site) -> None:
    ours, theirs = drawn(40, seed=1), drawn(30, seed=2, task_id=OTHER_ID)
    few = drawn(2, seed=3)
    assert site.intake().add([*ours, *theirs]) == 70
    assert site.num_objects() == 2
    assert site.intake().add([*few, *drawn(30, seed=4, task_id=OTHER_ID)]) == 32
    assert site.num_objects() == 3
    assert by_id(site.taken()) == by_id([*ours, *few])


def test_a_second_upload_is_a_duplicate_and_is_not_put_again(site: Site) -> None:
    made, theirs = drawn(40, seed=1), drawn(30, seed=1, task_id=OTHER_ID)  # with the same ids
    batches = (made[:30], made[:30], made, theirs, made[30:])
    assert [site.intake().add(some) for some in batches] == [30, 0, 10, 30, 0]
    with site.engine.connect() as connection:
        asked = select(report_objects.c.reports).order_by(report_objects.c.object)
        assert connection.execute(asked).scalars().all() == [30, 30]
    assert len(site.memory.objects) == 2
    assert by_id(site.taken()) == by_id(made)


def test_while_the_store_is_down_reports_go_into_the_database_and_none_waits_for_it_again(site: Site) -> None:
    down, made = Down(), [drawn(20, seed=number) for number in range(4)]
    site.goes_to(down)
    intake = site.intake()
    assert [intake.add(some) for some in made[:2]] == [20, 20]
    asked = down.asked
    assert asked  # by the first group only
    site.now_s += AWAY_S
    intake.add(made[2])
    assert down.asked == 2 * asked
    assert site.num_objects() == 0
    site.goes_to(site.memory)
    assert site.intake().add(made[3]) == 20
    assert site.num_objects() == 1
    assert by_id(site.taken()) == by_id([report for some in made for report in some])


def test_a_store_that_hangs_holds_no_report_up_and_what_it_took_later_is_an_orphan(site: Site) -> None:
    hanging, made = Hanging(), [drawn(20, seed=number) for number in range(3)]
    site.goes_to(hanging)
    intake = site.intake()
    site.monkeypatch.setattr("adserver.store.report_object_writer.LONGEST_S", 0.05)
    try:
        assert [intake.add(some) for some in made[:2]] == [20, 20]
        assert not hanging.objects
    finally:
        hanging.let_go.set()
    site.monkeypatch.setattr("adserver.store.report_object_writer.LONGEST_S", HANGS_S)
    site.now_s += AWAY_S
    intake.add(made[2])
    assert by_id(site.taken()) == by_id([report for some in made for report in some])
    assert site.num_objects() == 1


def test_once_a_store_has_failed_the_other_tasks_of_its_group_do_not_ask_it(site: Site) -> None:
    down = Down()
    site.goes_to(down)
    putting = PutsReports(site.bucket, site.bucket.open(), monotonic=lambda: 0.0)
    made = [one for n in range(40) for one in drawn(9, seed=n, task_id=bytes([n]) * 32)]
    assert putting.put({one.digest: one for one in made}) == []
    assert 0 < down.asked <= 4 * MAX_TRIES  # four at once


def test_a_store_that_is_down_while_a_dataset_is_sealed_is_asked_again_later(site: Site) -> None:
    site.intake().add(drawn(40, seed=1))
    site.goes_to(Down())
    with pytest.raises(HelperUnavailable, match="the ad server cannot reach its object storage"):
        site.taken()
    site.goes_to(site.memory)
    assert len(site.taken()) == 40


def test_reports_in_objects_are_read_when_the_option_is_gone(site: Site) -> None:
    made = drawn(60, seed=1)
    site.intake().add(made[:40])
    assert ReportStore(site.engine).add(made[30:]) == 20
    assert by_id(site.taken()) == by_id(made)


def test_an_object_that_is_cut_swapped_or_missing_is_told_by_its_name(site: Site) -> None:
    site.intake().add(drawn(40, seed=1))
    site.intake().add(drawn(40, seed=2))
    first, second = site.memory.objects
    content = site.memory.objects[first]
    for spoilt in (content[:-1], content + b"x", b"", bytes(len(content)), site.memory.objects[second]):
        site.memory.objects[first] = spoilt
        assert first in lost(site)
    del site.memory.objects[first]
    assert first in lost(site)
    site.memory.objects[first] = content
    assert len(site.taken()) == 80  # they waited, all of them


def test_a_row_whose_object_no_row_names_is_told(site: Site) -> None:
    site.intake().add(drawn(40, seed=1))
    with site.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM report_objects")
    assert "has no entry for object 1" in lost(site)


def test_reports_that_expire_while_they_are_sealed_are_not_told_to_be_lost(site: Site) -> None:
    class Expiring(InMemory):
        """Whoever reads an object finds the reports gone, and all rows that name objects."""

        def get(self, name: str, most_bytes: int) -> bytes:
            content = super().get(name, most_bytes)
            expired(site, SETTLED_S)
            return content

    class Reading:
        """A helper that reads all that it is sent."""

        def prepare_dataset(self, _task: bytes, _handle: bytes, pages: Any, **_: object) -> Any:
            return SimpleNamespace(is_admitted=[one for page in pages for one in page])

    site.goes_to(Expiring())
    for seed in range(2):
        site.intake().add(drawn(40, seed=seed))
    expired(site, 0)
    helpers: Any = (Reading(), Reading())
    sealer = DatasetSealer(
        engine=site.engine, helpers=helpers, task=OF.task, clock=lambda: NOW, randomness=seeded(1)
    )
    with pytest.raises(JobRefused) as refused:
        sealer.seal()
    assert refused.value.reason is JobReason.DATASET_CHANGED
    assert site.num_objects() == 0


def expired(site: Site, after_s: float) -> int:
    """How many reports of tasks expire, so long after a day after their end."""
    stores = TaskStore(site.engine), ReportStore(site.engine), DatasetStore(site.engine)
    return expire_reports(*stores, OF.task.expires_at + GRACE_S + after_s)


def test_a_place_that_its_object_does_not_have_is_told(site: Site) -> None:
    site.intake().add(drawn(40, seed=1))
    with pytest.raises(JobRefused, match="object 1 of reports") as refused:
        ReadsObjects(site.engine).ciphertext(POSITIONS + 40, role=0)
    assert refused.value.reason is JobReason.REPORTS_LOST


def test_a_page_of_reports_that_take_turns_reads_each_object_once(site: Site) -> None:
    class Counting(InMemory):
        """Knows what was read."""

        def get(self, name: str, most_bytes: int) -> bytes:
            read.append(name)
            return super().get(name, most_bytes)

    read: list[str] = []
    site.goes_to(Counting())
    for seed in range(3):
        site.intake().add(drawn(40, seed=seed))
    site.monkeypatch.setattr("adserver.store.report_object_reader.HELD_BYTES", 1)
    places = [number * POSITIONS + position for position in range(40) for number in (1, 2, 3)]
    reader = ReadsObjects(site.engine)
    assert len(reader.ciphertexts(places, role=1)) == 120
    assert len(read) == 3
    reader.ciphertexts(places, role=1)
    assert len(read) == 5  # one of them was held


def test_two_hundred_groups_over_a_faulty_bucket_lose_no_report_and_give_no_wrong_byte(site: Site) -> None:
    faulty = Faulty(site.memory, seed=7, fails=0.05, cuts=0.02, swaps=0.02)
    site.goes_to(faulty)
    drawing, intakes = Random(7), (site.intake(), site.intake())
    made = [drawn(drawing.randint(2, 12), seed=number) for number in range(200)]
    for number, some in enumerate(made):
        assert intakes[number % 2].add(some) == len(some)
    expected = by_id([report for some in made for report in some])
    assert site.waiting() == len(expected)
    found = [taken_or_lost(site) for _ in range(5)]
    assert expected in found
    assert all(one in (expected, None) for one in found)
    assert faulty.faults > 20
    site.goes_to(site.memory)
    assert by_id(site.taken()) == expected


@pytest.mark.parametrize(
    ("where", "step"),
    [
        (PutsReports, "places"),
        (reports_module, "insert_new"),
        (PutsReports, "name"),
        (reports_module, "arrive"),
    ],
)
def test_a_process_that_ends_between_put_and_commit_leaves_an_orphan_and_no_report(
    site: Site, monkeypatch: pytest.MonkeyPatch, where: object, step: str
) -> None:
    class Killed(BaseException):
        """Not an error that anything catches."""

    def killed(*_: object) -> None:
        raise Killed

    made = drawn(40, seed=1)
    site.intake().add(made[:20])
    with monkeypatch.context() as patched:
        patched.setattr(where, step, killed)
        with pytest.raises(Killed):
            site.intake().add(made[20:])
    assert (site.waiting(), len(site.memory.objects), site.num_objects()) == (20, 2, 1)
    assert site.intake().add(made) == 20  # the browser sends it again
    assert by_id(site.taken()) == by_id(made)
    assert swept(site, ORPHAN_S - 1) == 0
    assert swept(site, ORPHAN_S) == 1
    assert by_id(site.taken()) == by_id(made)


def swept(site: Site, now_s: float) -> int:
    return sweep_objects(site.engine, site.bucket, site.bucket.open(), now_s)


def test_a_dataset_that_is_sealed_while_two_intakes_put_is_whole(site: Site) -> None:
    made = [drawn(25, seed=number) for number in range(12)]
    intakes = (site.intake(), site.intake())
    intakes[0].add(made[0])
    dataset = DatasetStore(site.engine).begin(TASK_ID, b"first" + bytes(11), limit=10**6, created_at=0.0)
    with ThreadPoolExecutor(4) as threads:
        adding = [threads.submit(intakes[n % 2].add, some) for n, some in enumerate(made[1:])]
        sent = site.sent(dataset.handle)
        assert sum(one.result() for one in adding) == 11 * 25
    assert by_id(sent) == by_id(made[0])
    assert by_id(site.taken()) == by_id([report for some in made for report in some])  # it took them back


def test_the_same_reports_at_two_intakes_at_once_are_stored_once_and_whole(site: Site) -> None:
    made = drawn(100, seed=1)
    batches = [made[start : start + 30] for start in range(0, 80, 10)]
    intakes = (site.intake(), site.intake())
    with ThreadPoolExecutor(4) as threads:
        adding = [threads.submit(intakes[n % 2].add, some) for n, some in enumerate(2 * batches)]
        assert sum(one.result() for one in adding) == 100
    assert by_id(site.taken()) == by_id(made)


def test_objects_of_a_task_that_is_over_go_after_their_rows_and_those_of_others_stay(site: Site) -> None:
    engine, intake = site.engine, site.intake()
    intake.add([*drawn(40, seed=1), *drawn(40, seed=2, task_id=OTHER_ID)])
    assert OTHER.task.expires_at == OF.task.expires_at

    dataset = DatasetStore(engine).begin(TASK_ID, b"h" * 16, limit=10, created_at=0.0)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE datasets SET state = 'committing'")
    expired(site, 0)
    assert expired(site, SETTLED_S) == 30 + 40
    assert site.num_objects() == 1  # ten of its reports may have to be prepared again
    assert len(site.sent(dataset.handle)) == 10
    assert swept(site, ORPHAN_S) == 1
    DatasetStore(engine).finish(dataset)
    assert expired(site, SETTLED_S) == 0
    assert site.num_objects() == 0
    assert swept(site, ORPHAN_S) == 1
    assert not site.memory.objects


def test_a_sweep_leaves_other_databases_objects_alone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.memory.put("elsewhere/0", b"content")
    site.intake().add(drawn(40, seed=1))
    assert swept(site, 10 * ORPHAN_S) == 0
    assert len(site.memory.objects) == 2


def test_a_bucket_is_known_by_its_url_and_only_the_ad_server_makes_it_known(site: Site) -> None:
    assert ReportBucket.of(site.engine, f"{URL}/", may_add=False) == site.bucket
    with pytest.raises(InvalidTask, match="with the same --report-objects"):
        ReportBucket.of(site.engine, "s3://another", may_add=False)
    other = ReportBucket.of(site.engine, "s3://another", may_add=True)
    assert other.folder != site.bucket.folder
    assert ReportBucket.of(site.engine, "s3://another", may_add=True) == other


@pytest.mark.parametrize("url", ["file:///tmp/reports", "memory:///reports"])
def test_what_does_not_keep_objects_for_every_machine_is_refused_for_reports(site: Site, url: str) -> None:
    for may_add in (True, False):
        with pytest.raises(InvalidTask, match="object storage is a URL of s3://, gs://, az://"):
            ReportBucket.of(site.engine, url, may_add=may_add)


@pytest.mark.parametrize("url", ["s3://key:secret@bucket", "s3://bucket/prefix?sig=secret", "secret"])
def test_a_url_with_credentials_is_refused_unread_and_stored_nowhere(site: Site, url: str) -> None:
    with pytest.raises(InvalidTask, match="object storage") as refused:
        ReportBucket.of(site.engine, url, may_add=True)
    assert "secret" not in str(refused.value)
    with site.engine.connect() as connection:
        assert connection.execute(select(report_buckets.c.url)).scalars().all() == [URL]


def test_reports_in_a_bucket_of_before_are_read_beside_those_of_the_new_one(site: Site) -> None:
    made = drawn(80, seed=1)
    site.intake().add(made[:40])
    site.bucket = ReportBucket.of(site.engine, "s3://another", may_add=True)
    site.intake().add(made[40:])
    assert {name.split("/")[0] for name in site.memory.objects} == {
        site.bucket.folder,
        ReportBucket.of(site.engine, URL, may_add=False).folder,
    }
    assert by_id(site.taken()) == by_id(made)


@pytest.mark.parametrize("at_once", [1, 2, 3, 6, 7])
def test_all_rows_of_objects_go_however_many_at_a_time(site: Site, at_once: int) -> None:
    site.monkeypatch.setattr("adserver.store.reports._OBJECTS_AT_ONCE", at_once)
    for seed in range(6):
        site.intake().add(drawn(40, seed=seed))
    assert site.num_objects() == 6
    with site.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM report_states")
    assert ReportStore(site.engine).forget_objects(TASK_ID) == 6
    assert site.num_objects() == 0
