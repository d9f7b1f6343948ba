"""Where a report goes that is taken in: an update to its round, another one to its task."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine

from adserver.ingest.http_app import http_app
from adserver.ingest.http_server import HttpServer
from adserver.ingest.intake import Intake, IntakeCounts
from adserver.store.database import create_tables, default_url
from adserver.store.reports import ReportStore
from adserver.store.rounds import RoundStore
from adserver.store.tasks import REFUSED_EVERY_S, TaskStore
from maskedlark.errors import ReportReason
from maskedlark.randomness import seeded
from maskedlark.reports.upload import Report
from maskedlark.rpc.wire import report_to_message
from maskedlark.runtime.database import open_database
from protos import report_pb2
from tests.builders import NOW, examples, reports, world
from tests.patience import HANGS_S
from tests.update_builders import FORM, random_vector, update_job, update_reports, update_round, update_world

LABELS, UPDATES = world(), update_world()
ROUND = update_round(UPDATES.task, job=update_job(UPDATES.task))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    opened = open_database(default_url(tmp_path))
    create_tables(opened)
    for of in (LABELS, UPDATES):
        TaskStore(opened).add(of.bundle, created_at=NOW)
    RoundStore(opened).open(ROUND, b"content", now_s=NOW)
    yield opened
    opened.dispose()


class CountedTasks(TaskStore):
    """Counts how often it is asked which tasks are refused."""

    asked = 0

    def list_refused(self) -> frozenset[bytes]:
        self.asked += 1
        return super().list_refused()


def intake(engine: Engine, *, opens_rounds: bool = True) -> Intake:
    rounds = RoundStore(engine) if opens_rounds else None
    return Intake(TaskStore(engine), ReportStore(engine), lambda: 0.0, rounds)


def mixed() -> list[Report]:
    """A report, two updates of an open round, and one of a round that was never opened."""
    vectors = [random_vector(FORM, UPDATES.task.clip, number) for number in range(3)]
    first, second, strange = update_reports(UPDATES, ROUND, vectors, seeded(1, "updates"))
    (report,) = reports(LABELS, examples(LABELS.task, 1))
    return [first, report, replace(strange, round_id=b"?" * 32), second]


def found(engine: Engine) -> tuple[int, int, int]:
    """The updates of the round, and the reports that wait of each task."""
    waiting = [ReportStore(engine).counts(of.task.task_id).waiting for of in (LABELS, UPDATES)]
    return (RoundStore(engine).count(ROUND.round_id), *waiting)  # type: ignore[return-value]  # there are two


def test_updates_among_reports_go_to_their_round_and_each_is_counted_once(engine: Engine) -> None:
    one, sent = intake(engine), [report_to_message(report) for report in mixed()]
    for accepted, duplicates in ((3, 0), (0, 3)):
        counts = one.take_all(iter(sent))
        assert (counts.accepted, counts.duplicates) == (accepted, duplicates)
        assert counts.rejected == {ReportReason.UNKNOWN_ROUND: 1}
        assert found(engine) == (2, 1, 0)
    assert (one.counts.accepted, one.counts.duplicates, one.counts.rejected.total()) == (3, 3, 2)


def test_an_update_that_comes_alone_goes_to_its_round(engine: Engine) -> None:
    one, update = intake(engine), mixed()[0]
    assert [one.take(update), one.take(update)] == [True, False]
    assert found(engine) == (1, 0, 0)
    assert one.counts == IntakeCounts(accepted=1, duplicates=1)


def test_an_intake_without_rounds_stores_no_update(engine: Engine) -> None:
    counts = intake(engine, opens_rounds=False).take_all(map(report_to_message, mixed()))
    assert (counts.accepted, counts.rejected) == (1, {ReportReason.UNKNOWN_ROUND: 3})
    assert found(engine) == (0, 1, 0)


@pytest.mark.parametrize(("opens_rounds", "status"), [(True, 200), (False, 204)])
def test_an_intake_without_rounds_serves_none(engine: Engine, opens_rounds: bool, status: int) -> None:
    rounds = RoundStore(engine) if opens_rounds else None
    app = http_app(intake(engine, opens_rounds=opens_rounds), TaskStore(engine), rounds=rounds)
    server = HttpServer(app, "127.0.0.1:0", None)
    server.wait_until_started()
    try:
        url = f"http://127.0.0.1:{server.port}/v1/tasks/{UPDATES.task.task_id.hex()}/round"
        assert httpx.get(url, timeout=HANGS_S).status_code == status
    finally:
        server.stop()


def test_an_intake_asks_which_tasks_are_refused_once_a_minute_whatever_its_clock_began_at(
    engine: Engine,
) -> None:
    tasks, now_s = CountedTasks(engine), 1e6
    taking = Intake(tasks, ReportStore(engine), lambda: now_s)
    (report,) = reports(LABELS, examples(LABELS.task, 1))
    asked = []
    for seconds in (0.0, REFUSED_EVERY_S - 1.0, REFUSED_EVERY_S):
        now_s = 1e6 + seconds
        taking.take(report)
        asked.append(tasks.asked)
    assert asked == [1, 1, 2]


class Listed(ReportStore):
    """Says how many reports came at a time, and stores none."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.added: list[int] = []

    def add(self, accepted: Sequence[Report]) -> int:
        self.added.append(len(accepted))
        return len(accepted)


class Unchecked(Intake):
    """Takes ciphertexts of any length."""

    def _check(self, report: Report) -> None:
        pass


@pytest.mark.parametrize(
    ("lengths", "added"),
    [
        ([(40, 40)] * 2_005, [1_000, 1_000, 5]),
        ([(1 << 19, 1 << 19)] * 3, [1, 1, 1, 0]),
        ([(1 << 19, (1 << 19) - 1), (1, 0), (9, 9)], [2, 1]),
        ([(1 << 20, 9), (40, 40)], [1, 1]),
    ],
)
def test_a_stream_is_stored_in_transactions_of_a_thousand_reports_or_a_mebibyte(
    engine: Engine, lengths: list[tuple[int, int]], added: list[int]
) -> None:
    store = Listed(engine)
    one = Unchecked(TaskStore(engine), store, lambda: 0.0, None)
    message = report_to_message(reports(LABELS, examples(LABELS.task, 1))[0])

    def sent() -> Iterator[report_pb2.Report]:
        for both in lengths:
            for share, length in zip((message.share_0, message.share_1), both, strict=True):
                share.ciphertext = bytes(length)
            yield message

    assert one.take_all(sent()).accepted == len(lengths)
    assert store.added == added
