"""Sealing a dataset: both helpers end with the same reports, whatever fails in between, and no report is in
two datasets.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, event

from adserver.collecting.sealing import DatasetSealer
from adserver.peers.retrying import Backoff
from adserver.records.dataset_state import DatasetState
from adserver.store.database import create_tables, default_url
from adserver.store.datasets import DatasetStore
from adserver.store.reports import ReportCounts, ReportStore
from adserver.store.tasks import TaskStore
from maskedlark.errors import HelperUnavailable, InvalidTask, JobReason, JobRefused, ReportReason
from maskedlark.randomness import Stream, seeded
from maskedlark.reports.report import Example
from maskedlark.reports.upload import Report, SealedShare
from maskedlark.runtime.database import open_database
from tests import builders
from tests.adserver.fake_helper import FakeHelper, serving, unavailable
from tests.builders import NOW, World, world
from tests.maskedlark.reports.malicious import malformed
from tests.maskedlark.reports.sealed import sealed

_KNOWN = world()


@dataclass
class Broker:
    """An ad server's store with two fake helpers, and its one task."""

    of: World
    engine: Engine
    fakes: tuple[FakeHelper, FakeHelper]
    sealer: DatasetSealer
    randomness: Stream

    def receive(self, count: int) -> list[Report]:
        made = builders.reports(
            self.of, builders.examples(self.of.task, count, self.randomness), self.randomness
        )
        assert ReportStore(self.engine).add(made) == count
        return sorted(
            made, key=lambda report: report.report_id
        )  # as they are stored: those of one transaction by their ids

    def counts(self) -> ReportCounts:
        return ReportStore(self.engine).counts(self.of.task.task_id)

    def store(self) -> DatasetStore:
        return DatasetStore(self.engine)


def _engine(url: str, of: World) -> Engine:
    engine = open_database(url)
    create_tables(engine)
    TaskStore(engine).add(of.bundle, created_at=NOW)
    return engine


def _broker(url: str, of: World = _KNOWN) -> Iterator[Broker]:
    engine = _engine(url, of)
    first, second = (
        FakeHelper(role=role, keys=of.keys[role], registered={of.task.task_id: of.task}) for role in (0, 1)
    )
    with serving(first, second) as (client_0, client_1):
        sealer = DatasetSealer(
            engine=engine,
            helpers=(client_0, client_1),
            task=of.task,
            clock=lambda: NOW,
            randomness=seeded(3, "handles"),
        )
        yield Broker(
            of=of, engine=engine, fakes=(first, second), sealer=sealer, randomness=seeded(4, "reports")
        )
    engine.dispose()


@pytest.fixture
def broker(database_url: str) -> Iterator[Broker]:
    yield from _broker(database_url)


def _tampered(report: Report, role: int) -> Report:
    flipped = bytes([report.shares[role].ciphertext[0] ^ 1]) + report.shares[role].ciphertext[1:]
    share = replace(report.shares[role], ciphertext=flipped)
    return replace(report, shares=(share, report.shares[1]) if role == 0 else (report.shares[0], share))


def test_both_helpers_hold_the_same_reports_and_everything_is_counted(broker: Broker) -> None:
    received = broker.receive(40)
    dataset = broker.sealer.seal()
    assert (dataset.state, dataset.received, dataset.size, dataset.view_mismatch) == (
        DatasetState.COMMITTED,
        40,
        40,
        0,
    )
    assert dataset.dataset_id == broker.of.datasets(received)[0].dataset_id
    assert broker.fakes[0].committed == broker.fakes[1].committed
    assert broker.fakes[0].used() == {report.report_id for report in received}
    assert broker.counts() == ReportCounts(waiting=0, sealed=40, dropped=0)
    assert broker.store().all() == [dataset]
    assert broker.store().find((dataset.dataset_id or b"").hex()[:8]) == dataset


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    faults=st.lists(
        st.sampled_from(["good", "spoilt 0", "spoilt 1", "spoilt both", "views differ"]),
        min_size=2,
        max_size=12,
    )
)
def test_a_dataset_is_exactly_the_reports_that_both_helpers_can_read_alike(
    tmp_path_factory: pytest.TempPathFactory, faults: list[str]
) -> None:
    for broker in _broker(default_url(tmp_path_factory.mktemp("faults"))):
        made = builders.reports(_KNOWN, builders.examples(_KNOWN.task, len(faults)))
        spoilt = [_with_fault(report, fault) for report, fault in zip(made, faults, strict=True)]
        ReportStore(broker.engine).add(spoilt)
        count = Counter(faults)
        good = {report.report_id for report, fault in zip(made, faults, strict=True) if fault == "good"}
        if len(good) < _KNOWN.task.min_batch_size:
            with pytest.raises(JobRefused, match="min_batch_size") as refusal:
                broker.sealer.seal()
            at_0 = count["spoilt 0"] + count["spoilt both"]
            assert ("(not_opened)" in str(refusal.value)) == bool(at_0 or count["spoilt 1"])
            assert not at_0 or f"helper 0 dropped {at_0} (not_opened)" in str(refusal.value)
            assert broker.counts() == ReportCounts(waiting=len(faults), sealed=0, dropped=0)
            continue
        dataset = broker.sealer.seal()
        assert broker.fakes[0].used() == broker.fakes[1].used() == good
        assert (dataset.size, dataset.view_mismatch) == (len(good), count["views differ"])
        assert [dropped[ReportReason.NOT_OPENED] for dropped in dataset.dropped] == [
            count["spoilt 0"] + count["spoilt both"],
            count["spoilt 1"] + count["spoilt both"],
        ]
        assert broker.counts() == ReportCounts(waiting=0, sealed=len(good), dropped=len(faults) - len(good))


def _with_fault(report: Report, fault: str) -> Report:
    if fault == "views differ":
        return _two_faced(report)
    for role in (0, 1):
        if fault in (f"spoilt {role}", "spoilt both"):
            report = _tampered(report, role)
    return report


def _two_faced(report: Report) -> Report:
    """The same id, but the two helpers read different features: the browser cheats."""
    other = builders.reports(
        _KNOWN, [Example(features=np.full(4, 9, np.uint8), label=1.0)], _FixedId(report.report_id)
    )[0]
    return replace(report, shares=(report.shares[0], other.shares[1]))


class _FixedId:
    """Randomness whose 16-byte draws are a given report id."""

    def __init__(self, report_id: bytes) -> None:
        self._report_id = report_id
        self._stream = seeded(11)

    def __call__(self, count: int) -> bytes:
        return self._report_id if count == 16 else self._stream(count)


def test_a_report_whose_proof_fails_is_counted_as_not_proven_at_both_helpers(tmp_path: Path) -> None:
    of = world(proof=True)
    shape = of.task.proof_shape
    assert shape is not None
    wrong = []
    for number, name in enumerate(("weight 2", "weight 1000", "another seed")):
        parts = dict(malformed(shape, seeded(number)))[name]
        report_id = bytes([number]) * 16
        view = builders.split(of.task, builders.examples(of.task, 1)[0], seeded(number), report_id).share_0
        tails = [view[: of.task.view_length] + part.tail() for part in parts]
        wrong.append(sealed(of.bundle, tails, report_id))
    for broker in _broker(default_url(tmp_path), of):
        received = broker.receive(20)
        assert ReportStore(broker.engine).add(wrong) == 3
        dataset = broker.sealer.seal()
        assert (dataset.received, dataset.size, dataset.view_mismatch) == (23, 20, 0)
        assert dataset.dropped == (
            Counter({ReportReason.NOT_PROVEN: 3}),
            Counter({ReportReason.NOT_PROVEN: 3}),
        )
        assert broker.fakes[0].used() == {report.report_id for report in received}
        assert broker.counts() == ReportCounts(waiting=0, sealed=20, dropped=3)


def test_reports_are_taken_oldest_first_and_each_once(broker: Broker) -> None:
    received = broker.receive(25)
    sizes = [broker.sealer.seal(max_reports=10).size for _ in range(3)]
    assert sizes == [10, 10, 5]
    first = next(iter(broker.fakes[0].committed.values()))
    assert set(first) == {report.report_id for report in received[:10]}
    assert len(broker.fakes[0].used()) == 25
    with pytest.raises(JobRefused, match="is waiting to be sealed") as refusal:
        broker.sealer.seal()
    assert refusal.value.reason is JobReason.DATASET_EMPTY


def test_a_dataset_is_no_larger_than_its_task_allows(tmp_path: Path) -> None:
    for broker in _broker(default_url(tmp_path), world(max_dataset_size=8)):
        broker.receive(12)
        assert broker.sealer.seal(max_reports=100).size == 8


def test_fewer_reports_than_the_minimum_wait_on_unless_asked_for(broker: Broker) -> None:
    broker.receive(1)
    with pytest.raises(JobRefused, match="min_batch_size of 2"):
        broker.sealer.seal()
    assert broker.counts() == ReportCounts(waiting=1, sealed=0, dropped=0)
    assert broker.sealer.seal(is_small_allowed=True).size == 1


def test_a_helper_down_during_a_commit_gets_the_same_dataset_by_the_next_run(broker: Broker) -> None:
    broker.receive(20)
    broker.fakes[1].commit_failures.append(unavailable())
    with pytest.raises(HelperUnavailable):
        broker.sealer.seal()
    assert [one.state for one in broker.store().all()] == [DatasetState.COMMITTING]
    broker.receive(5)
    dataset = broker.sealer.seal()
    assert (dataset.state, dataset.size) == (DatasetState.COMMITTED, 20)
    assert list(broker.fakes[0].committed) == list(broker.fakes[1].committed) == [dataset.dataset_id]
    assert broker.counts() == ReportCounts(waiting=5, sealed=20, dropped=0)


def test_a_helper_that_forgot_the_preparation_prepares_again_and_commits_the_same(broker: Broker) -> None:
    received = broker.receive(20)
    ReportStore(broker.engine).add(
        [_tampered(builders.reports(_KNOWN, builders.examples(_KNOWN.task, 1), seeded(99))[0], 0)]
    )
    broker.fakes[1].commit_failures.append(unavailable())
    with pytest.raises(HelperUnavailable):
        broker.sealer.seal()
    broker.fakes[1].prepared.clear()
    dataset = broker.sealer.seal()
    assert dataset.dataset_id == broker.of.datasets(received)[0].dataset_id
    assert broker.fakes[1].used() == {report.report_id for report in received}


def test_a_helper_that_no_longer_admits_what_it_admitted_stops_the_commit_and_a_person_can_give_it_up(
    broker: Broker,
) -> None:
    broker.receive(20)
    broker.fakes[1].commit_failures.append(unavailable())
    with pytest.raises(HelperUnavailable):
        broker.sealer.seal()
    broker.fakes[1].prepared.clear()
    broker.fakes[1].keys = builders.helper_keys(key_id=7)
    broker.fakes[1].keys = replace(broker.fakes[1].keys, agreement=broker.of.keys[1].agreement)
    with pytest.raises(JobRefused, match="abandon") as refusal:
        broker.sealer.seal()
    assert refusal.value.reason is JobReason.DATASET_CHANGED
    store = broker.store()
    store.give_back(store.all()[0])
    assert store.all() == []
    assert broker.counts() == ReportCounts(waiting=20, sealed=0, dropped=0)


def test_a_helper_that_refuses_to_prepare_leaves_the_reports_waiting(broker: Broker) -> None:
    broker.receive(20)
    broker.fakes[0].registered.clear()
    with pytest.raises(JobRefused) as refusal:
        broker.sealer.seal()
    assert refusal.value.reason is JobReason.UNKNOWN_TASK
    assert broker.counts() == ReportCounts(waiting=20, sealed=0, dropped=0)
    assert broker.store().all() == []


def test_a_run_that_died_while_preparing_is_forgotten_by_the_next(broker: Broker) -> None:
    broker.receive(20)
    dead = broker.store().begin(_KNOWN.task.task_id, bytes(16), limit=15, created_at=NOW)
    assert dead.received == 15
    assert broker.sealer.seal().size == 20
    assert [one.state for one in broker.store().all()] == [DatasetState.COMMITTED]


def test_of_two_runs_over_the_same_reports_the_one_that_lost_them_commits_nothing(broker: Broker) -> None:
    broker.receive(20)
    taken: list[Any] = []

    def steal(role: int, count: int, _total: int) -> None:
        if role == 0 and not taken:
            taken.append(broker.store().begin(_KNOWN.task.task_id, bytes(16), limit=20, created_at=NOW))

    with pytest.raises(JobRefused) as refusal:
        replace(broker.sealer, progress=steal).seal()
    assert refusal.value.reason is JobReason.DATASET_CHANGED
    assert broker.fakes[0].committed == {}
    assert [one.handle for one in broker.store().all()] == [bytes(16)]


def test_shares_stream_in_messages_far_below_grpcs_limit(tmp_path: Path) -> None:
    seen: list[tuple[int, int, int]] = []
    for broker in _broker(default_url(tmp_path), world(num_features=3_000)):
        broker.receive(600)
        dataset = replace(broker.sealer, progress=lambda *told: seen.append(told)).seal()
        assert dataset.size == 600
        assert broker.fakes[0].prepare_chunks > 2
        assert 100_000 < broker.fakes[0].largest_message_bytes < 1 << 20
    assert [sum(count for role, count, _ in seen if role == one) for one in (0, 1)] == [600, 600]


def test_no_page_of_shares_holds_a_lock_while_it_is_sent(broker: Broker) -> None:
    broker.receive(3)
    store = broker.store()
    dataset = store.begin(_KNOWN.task.task_id, bytes(16), limit=3, created_at=NOW)
    begun: list[str] = []
    event.listen(broker.engine, "before_cursor_execute", lambda *called: begun.append(called[2]))
    pages = ReportStore(broker.engine).share_pages(_KNOWN.task, dataset.handle, 0)
    next(pages)
    assert not [statement for statement in begun if statement == "BEGIN IMMEDIATE"]
    assert broker.receive(2)  # a writer gets in between two pages
    assert list(pages) == []


def test_shares_go_to_the_helper_of_their_role(broker: Broker) -> None:
    received = broker.receive(5)
    dataset = broker.store().begin(_KNOWN.task.task_id, bytes(16), limit=5, created_at=NOW)
    for role in (0, 1):
        (page,) = ReportStore(broker.engine).share_pages(_KNOWN.task, dataset.handle, role)
        assert list(page) == builders.shares_for(received, role)


def test_a_committed_dataset_can_not_be_given_up(broker: Broker) -> None:
    broker.receive(5)
    dataset = broker.sealer.seal()
    broker.store().give_back(dataset)
    assert broker.store().all() == [dataset]


def test_a_dataset_given_up_while_it_is_committed_is_reported(broker: Broker) -> None:
    broker.receive(5)
    broker.fakes[0].commit_failures.append(unavailable())
    with pytest.raises(HelperUnavailable):
        broker.sealer.seal()
    dataset = broker.store().all()[0]
    broker.store().give_back(dataset)
    with pytest.raises(JobRefused) as refusal:
        broker.store().finish(dataset)
    assert refusal.value.reason is JobReason.DATASET_CHANGED


def test_a_helper_that_restarts_while_it_commits_is_asked_again(broker: Broker) -> None:
    broker.receive(5)
    broker.fakes[0].commit_failures += [unavailable(), unavailable()]
    sealer = replace(broker.sealer, backoff=Backoff(first_s=0.01, longest_s=0.02, give_up_after_s=30.0))
    assert sealer.seal().state is DatasetState.COMMITTED
    assert broker.fakes[0].committed == broker.fakes[1].committed


def test_a_helpers_refusal_to_commit_is_raised_as_it_is(broker: Broker) -> None:
    broker.receive(5)
    broker.fakes[0].commit_failures.append(InvalidTask("the task is not served any more"))
    with pytest.raises(InvalidTask, match="not served any more"):
        broker.sealer.seal()


def test_drops_are_counted_at_the_helper_and_under_the_reason_that_they_had(broker: Broker) -> None:
    broker.receive(4)
    odd = builders.reports(_KNOWN, builders.examples(_KNOWN.task, 1), seeded(77))[0]
    ReportStore(broker.engine).add(
        [replace(odd, shares=(SealedShare(key_id=9, ciphertext=odd.shares[0].ciphertext), odd.shares[1]))]
    )
    dataset = broker.sealer.seal()
    assert (dataset.size, dataset.dropped[0], dataset.dropped[1]) == (
        4,
        Counter({ReportReason.UNKNOWN_KEY: 1}),
        Counter(),
    )


def _junk_under_the_id_of(report: Report) -> list[Report]:
    """What opens at no helper, under a report's id."""
    first, second = report.shares
    [other] = builders.reports(_KNOWN, builders.examples(_KNOWN.task, 1), seeded(99))
    return [
        _tampered(_tampered(report, 0), 1),
        replace(report, time_bucket=report.time_bucket + 1),
        replace(report, shares=(second, first)),
        replace(report, shares=(replace(first, key_id=9), replace(second, key_id=9))),
        replace(report, shares=other.shares),
    ]


def test_junk_that_came_first_under_a_reports_id_keeps_it_out_of_no_dataset(broker: Broker) -> None:
    made = builders.reports(_KNOWN, builders.examples(_KNOWN.task, 6))
    junk = [one for report in made for one in _junk_under_the_id_of(report)]
    store = ReportStore(broker.engine)
    assert store.add(junk) == len(junk)
    assert (store.add(made), store.add(made)) == (6, 0)
    dataset = broker.sealer.seal()
    assert dataset.size == 6
    assert broker.fakes[0].used() == {report.report_id for report in made}


def test_a_report_whose_id_junk_brought_into_an_earlier_dataset_gets_into_a_later_one(broker: Broker) -> None:
    late, *others = builders.reports(_KNOWN, builders.examples(_KNOWN.task, 10))
    store = ReportStore(broker.engine)
    store.add([*others[:5], *_junk_under_the_id_of(late)])
    assert broker.sealer.seal().size == 5
    assert store.add([late, *others[5:]]) == 5
    assert broker.sealer.seal().size == 5
    assert late.report_id in broker.fakes[0].used()
