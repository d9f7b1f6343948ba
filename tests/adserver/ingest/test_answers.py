"""What the front door answers, byte for byte: statuses, headers and bodies, without a socket."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from anyio import to_thread
from sqlalchemy import Engine
from sqlalchemy.exc import TimeoutError as NoConnectionInTime
from starlette.types import ASGIApp, Message

from adserver.ingest.body_memory import ROOM_BYTES, BodyRoom
from adserver.ingest.http_app import (
    MAX_BATCH_BYTES,
    _answer_refusal,
    _answer_rejection,
    counting_answers,
    http_app,
)
from adserver.ingest.intake import Intake, IntakeCounts
from adserver.ingest.json_error import json_error
from adserver.ingest.task_pages import TASKS_A_PAGE, TaskPages
from adserver.records.local_plan import LocalPlan
from adserver.store.database import create_tables, default_url
from adserver.store.jobs import JobStore
from adserver.store.paging import PageMarker
from adserver.store.reports import ReportStore
from adserver.store.rounds import RoundStore
from adserver.store.tasks import TaskStore
from maskedlark.canonical import digest, encode
from maskedlark.encoding.fit import FitSettings, fit
from maskedlark.errors import HelperUnavailable, ReportReason
from maskedlark.federated.local_job import LocalUpdate
from maskedlark.federated.spam import SpamTest
from maskedlark.randomness import seeded
from maskedlark.rpc.wire import encode_report, report_to_message
from maskedlark.runtime.database import open_database
from protos import report_pb2
from tests.apart import run_apart
from tests.builders import NOW, examples, reports, world
from tests.local_jobs import LocalJobs
from tests.maskedlark.federated.local_world import DRAWS_ID, LINE_ID, PARAMETERS, draws_job, line_job
from tests.update_builders import update_job, update_round, update_world

KNOWN, UPDATES = world(), update_world()
REPORTS = reports(KNOWN, examples(KNOWN.task, 3))
ENCODED = encode(KNOWN.bundle)
TASK = f"/v1/tasks/{KNOWN.task.task_id.hex()}"
JSON, OCTETS = "application/json", "application/octet-stream"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    opened = open_database(default_url(tmp_path))
    create_tables(opened)
    for of in (KNOWN, UPDATES):
        TaskStore(opened).add(of.bundle, created_at=NOW)
    yield opened
    opened.dispose()


def app_of(engine: Engine, **how: Any) -> ASGIApp:
    tasks = TaskStore(engine)
    return http_app(Intake(tasks, ReportStore(engine), lambda: 0.0, how.get("rounds")), tasks, **how)


def ask(app: ASGIApp, method: str, path: str, **how: Any) -> httpx.Response:
    async def once() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://ads.example") as client:
            return await client.request(method, path, **how)

    return run_apart(once())


def seen(answer: httpx.Response) -> tuple[int, Any]:
    return answer.status_code, answer.json()


def test_reports_alone_and_in_batches(engine: Engine) -> None:
    app = app_of(engine)
    body = encode_report(REPORTS[0])
    assert seen(ask(app, "POST", "/v1/reports", content=body)) == (201, {"result": "accepted"})
    assert seen(ask(app, "POST", "/v1/reports", content=body)) == (200, {"result": "duplicate"})
    wrong = replace(REPORTS[1], time_bucket=0)
    batch = report_pb2.ReportBatch(
        reports=[report_to_message(one) for one in (REPORTS[0], REPORTS[1], REPORTS[1], wrong)]
    )
    counts = {"accepted": 1, "duplicates": 2, "rejected": {"outside_task_period": 1}}
    assert seen(ask(app, "POST", "/v1/reports/batch", content=batch.SerializeToString())) == (200, counts)
    total = {"accepted": 2, "duplicates": 3, "rejected": {"outside_task_period": 1}}
    assert seen(ask(app, "GET", "/v1/counts")) == (200, total)


@pytest.mark.parametrize(
    ("declared", "status"),
    [("9", 400), (str(MAX_BATCH_BYTES), 400), (str(MAX_BATCH_BYTES + 1), 413), ("x", 413)],
)
def test_a_declared_length(engine: Engine, declared: str, status: int) -> None:
    answer = ask(
        app_of(engine),
        "POST",
        "/v1/reports/batch",
        content=b"no batch!",
        headers={"content-length": declared},
    )
    assert answer.status_code == status


@pytest.mark.parametrize(("more", "status"), [(0, 400), (1, 413)])
def test_the_length_that_comes_undeclared(engine: Engine, more: int, status: int) -> None:
    async def pieces() -> Any:
        yield bytes(MAX_BATCH_BYTES)
        yield bytes(more)

    room = BodyRoom()
    answer = ask(app_of(engine, room=room), "POST", "/v1/reports/batch", content=pieces())
    assert answer.status_code == status
    assert room.free_bytes == ROOM_BYTES


def test_a_task_and_whether_a_client_has_it(engine: Engine) -> None:
    app, tag = app_of(engine), f'"{digest("etag", ENCODED).hex()}"'
    answer = ask(app, "GET", TASK)
    assert (answer.status_code, answer.content) == (200, ENCODED)
    headers = {"etag": tag, "cache-control": "no-cache"}
    assert {name: answer.headers[name] for name in headers} == headers
    assert answer.headers["content-type"] == JSON
    known = ask(app, "GET", TASK, headers={"if-none-match": f'"other", {tag}'})
    assert (known.status_code, known.content) == (304, b"")
    assert {name: known.headers[name] for name in headers} == headers
    assert ask(app, "GET", TASK, headers={"if-none-match": '"other"'}).status_code == 200


def test_an_encoder(engine: Engine) -> None:
    encoder = fit({name: ["1", "2"] for name in "abcd"}, FitSettings())
    of = world(encoder=encoder.digest)
    TaskStore(engine).add(of.bundle, created_at=NOW, encoder=encoder)
    answer = ask(app_of(engine), "GET", f"/v1/tasks/{of.task.task_id.hex()}/encoder")
    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (
        200,
        encode(encoder),
        JSON,
    )


def test_an_open_round(engine: Engine) -> None:
    rounds, path = RoundStore(engine), f"/v1/tasks/{UPDATES.task.task_id.hex()}/round"
    app = app_of(engine, rounds=rounds)
    none = ask(app, "GET", path)
    assert (none.status_code, none.content) == (204, b"")
    one = update_round(UPDATES.task, job=update_job(UPDATES.task))
    rounds.open(one, b"content", now_s=NOW)
    answer, encoded = ask(app, "GET", path), encode(one)
    assert answer.content == len(encoded).to_bytes(4, "little") + encoded + b"content"
    assert (answer.status_code, answer.headers["content-type"]) == (200, OCTETS)


@pytest.mark.parametrize(
    ("path", "reason", "message"),
    [
        ("/v1/tasks/zz", "not_found", "the task id must be hexadecimal"),
        ("/v1/tasks/00", "not_found", "no such task"),
        ("/v1/tasks/00/encoder", "not_found", "no such task, or it names no encoder"),
        ("/v1/local/zz", "not_found", "the job id must be hexadecimal"),
        ("/v1/local/00", "not_found", "no such job"),
        ("/nowhere", "not_found", "Not Found"),
    ],
)
def test_what_is_not_here(engine: Engine, jobs: LocalJobs, path: str, reason: str, message: str) -> None:
    answer = ask(app_of(engine, local=jobs.intake()), "GET", path)
    assert seen(answer) == (404, {"error": "RequestRefused", "reason": reason, "message": message})


def test_a_place_that_no_page_gave_and_an_answer_for_a_page(engine: Engine) -> None:
    app = app_of(engine)
    refused = ask(app, "GET", "/v1/tasks?after=nonsense")
    assert (refused.status_code, refused.json()["reason"]) == (400, "bad_request")
    listed = ask(app, "GET", "/v1/tasks")
    assert listed.headers["content-type"] == JSON
    assert b'"next":null' in listed.content
    assert b": " not in listed.content


@pytest.mark.parametrize(
    ("found", "shown", "is_more"), [(99, 99, False), (100, 100, False), (101, 100, True)]
)
def test_a_page_ends_with_a_next_one_only_if_there_is_more(found: int, shown: int, is_more: bool) -> None:
    asked: list[dict[str, Any]] = []

    def list_items(**how: Any) -> list[Any]:
        asked.append(how)
        places = [PageMarker(at=float(number), key=bytes([number])) for number in range(found)]
        return [
            SimpleNamespace(task_id=one.key, name="é", origin="https://ads.example", place=one)
            for one in places
        ]

    before = PageMarker(at=1.0, key=b"k")
    page = TaskPages(SimpleNamespace(list_items=list_items)).read(before)  # type: ignore[arg-type]
    assert asked == [{"limit": TASKS_A_PAGE + 1, "before": before}]
    assert page.count(b'"task_id"') == shown
    assert (b'"next":null' not in page) is is_more
    assert page.startswith('{"tasks":[{"task_id":"00","name":"é","origin":"https://ads.example"}'.encode())


def test_the_health_of_a_server(engine: Engine) -> None:
    def raise_away() -> None:
        raise HelperUnavailable("the database is away")

    assert seen(ask(app_of(engine), "GET", "/healthz")) == (200, {"status": "ok"})
    away = ask(app_of(engine, check_well=raise_away), "GET", "/healthz")
    body = {"error": "RequestRefused", "reason": "service_unavailable", "message": "the database is away"}
    assert seen(away) == (503, body)
    looked: list[bytes] = []
    tasks: Any = SimpleNamespace(get=looked.append, list_refused=frozenset)
    app = http_app(Intake(tasks, ReportStore(engine), lambda: 0.0), tasks)
    assert ask(app, "GET", "/healthz").status_code == 200
    assert looked == [b""]


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (400, {}),
        (404, {}),
        (408, {"connection": "close"}),
        (413, {"connection": "close"}),
        (422, {}),
        (503, {"connection": "close", "retry-after": "2"}),
    ],
)
def test_errors_have_one_shape(status: int, headers: dict[str, str]) -> None:
    answer = json_error("Kind", "reason", "message", status)
    assert answer.body == b'{"error":"Kind","reason":"reason","message":"message"}'
    given = {"content-length", "content-type"}
    assert {name: value for name, value in answer.headers.items() if name not in given} == headers


@pytest.mark.parametrize("path", ["/v1/tasks", "/v1/counts"])
def test_every_answer_is_counted_by_its_status_once(engine: Engine, path: str) -> None:
    counted: list[int] = []
    app = counting_answers(app_of(engine), counted.append)
    for method, status in (("GET", 200), ("DELETE", 405)):
        assert ask(app, method, path).status_code == status
        assert counted.pop() == status
    assert counted == []


def test_a_client_that_leaves_in_the_midst_of_a_body_frees_its_room(engine: Engine) -> None:
    room, sent = BodyRoom(), list[Message]()
    coming: list[Message] = [
        {"type": "http.request", "body": b"abc", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        return coming.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/reports",
        "headers": [],
        "query_string": b"",
        "root_path": "",
    }
    run: Callable[..., Awaitable[None]] = app_of(engine, room=room)
    run_apart(run(scope, receive, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 400
    assert room.free_bytes == ROOM_BYTES


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/tasks"),
        ("GET", TASK),
        ("GET", f"{TASK}/encoder"),
        ("GET", f"{TASK}/round"),
        ("GET", "/v1/local"),
        ("GET", f"/v1/local/{DRAWS_ID.hex()}"),
        ("POST", f"/v1/local/{DRAWS_ID.hex()}"),
        ("GET", "/healthz"),
    ],
    ids=["tasks", "task", "encoder", "round", "local jobs", "local job", "a draw", "health"],
)
def test_a_database_that_is_away_is_unavailable(
    engine: Engine, jobs: LocalJobs, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    def raise_away(*_: object, **__: object) -> Any:
        raise NoConnectionInTime

    for cls, name in (
        (TaskStore, "list_items"),
        (TaskStore, "get_encoded"),
        (TaskStore, "encoder"),
        (TaskStore, "get"),
        (RoundStore, "newest_open"),
        (JobStore, "newest_ids"),
        (JobStore, "get"),
    ):
        monkeypatch.setattr(cls, name, raise_away)
    answer = ask(app_of(engine, local=jobs.intake(), rounds=RoundStore(engine)), method, path)
    assert (answer.status_code, answer.json()["reason"]) == (503, "service_unavailable")
    assert answer.headers["retry-after"] == "2"


@pytest.mark.parametrize("threads", [None, 3])
def test_reports_that_come_one_by_one_wait_for_threads_of_their_own(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, threads: int | None
) -> None:
    run, limiters = to_thread.run_sync, list[Any]()

    async def recorded(look_up: Any, *, limiter: Any = None) -> Any:
        limiters.append(limiter)
        return await run(look_up, limiter=limiter)

    monkeypatch.setattr(to_thread, "run_sync", recorded)
    app = app_of(engine, storing_threads=threads)
    batch = report_pb2.ReportBatch(reports=[report_to_message(REPORTS[1])]).SerializeToString()
    assert ask(app, "POST", "/v1/reports", content=encode_report(REPORTS[0])).status_code == 201
    assert ask(app, "POST", "/v1/reports/batch", content=batch).status_code == 200
    assert [None if one is None else one.total_tokens for one in limiters] == [threads, None]


@pytest.mark.parametrize("answer", [_answer_rejection, _answer_refusal])
def test_what_is_no_refusal_is_raised_on(answer: Callable[[Any, Exception], Awaitable[Any]]) -> None:
    async def once() -> None:
        await answer(None, ValueError("a bug"))

    with pytest.raises(ValueError, match="a bug"):
        run_apart(once())


# --- jobs without helpers


def update(number: int, value: int = 1) -> bytes:
    vector = np.full(PARAMETERS, value, np.int64)
    return LocalUpdate(update_id=number.to_bytes(16, "big"), position=0, vector=vector).encode()


def test_updates_of_jobs_without_helpers_over_http(engine: Engine, jobs: LocalJobs) -> None:
    local = jobs.intake()
    app, path = app_of(engine, local=local), f"/v1/local/{DRAWS_ID.hex()}"
    listed = ask(app, "GET", "/v1/local").json()
    assert list(listed) == ["jobs"]
    assert set(listed["jobs"]) == {LINE_ID.hex(), DRAWS_ID.hex()}
    assert seen(ask(app, "POST", path, content=update(1))) == (201, {"result": "accepted"})
    assert seen(ask(app, "POST", path, content=update(1))) == (200, {"result": "duplicate"})
    assert ask(app, "POST", path, content=update(2) + b"\0").status_code == 413
    short = ask(app, "POST", path, content=update(3)[:-1])
    assert (short.status_code, short.json()["reason"]) == (422, "wrong_length")
    assert ask(app, "POST", "/v1/local/00", content=b"").status_code == 404
    assert ask(app, "GET", path).headers["content-type"] == OCTETS
    jobs.store.cancel(DRAWS_ID)
    over = ask(app, "GET", path)
    assert (over.status_code, over.content) == (204, b"")


def test_what_a_device_downloads(jobs: LocalJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    local = jobs.intake(seeded(1))
    drawn = SimpleNamespace(returns=5, instance=np.array([1, -2], np.int64))
    monkeypatch.setattr(jobs.instances, "draw", lambda job_id, randomness: drawn)
    written = encode(draws_job())
    content = (5).to_bytes(8, "little") + (1).to_bytes(8, "little") + (-2).to_bytes(8, "little", signed=True)
    assert local.download(DRAWS_ID) == len(written).to_bytes(4, "little") + written + content
    written = encode(line_job())
    monkeypatch.setattr(jobs.rounds, "find_round", lambda *_: SimpleNamespace(encode=lambda: b"round"))
    assert local.download(LINE_ID) == len(written).to_bytes(4, "little") + written + b"round"
    monkeypatch.setattr(jobs.rounds, "find_round", lambda *_: None)
    assert local.download(LINE_ID) is None


@pytest.mark.parametrize("is_tested", [False, True])
def test_updates_are_tested_for_spam_where_the_job_says_so(
    jobs: LocalJobs, monkeypatch: pytest.MonkeyPatch, is_tested: bool
) -> None:
    stored, given = jobs.get(DRAWS_ID), list[Any]()
    stored = replace(stored, plan=LocalPlan(local=draws_job(), is_tested=is_tested))
    made = object()
    monkeypatch.setattr(jobs.store, "get", lambda _: stored)
    monkeypatch.setattr(SpamTest, "calibrate", lambda *_, **__: made)
    monkeypatch.setattr(jobs.instances, "replace", lambda *_, test: given.append(test))
    local = jobs.intake()
    assert local.take(DRAWS_ID, update(1))
    assert given == [made if is_tested else None]


# --- counting


def test_counts_add_up_and_are_logged_once_a_minute(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    intake, logged = Intake(TaskStore(engine), ReportStore(engine), lambda: now_s), list[float]()
    monkeypatch.setattr(intake, "log_counts", lambda: logged.append(now_s))
    intake._count(IntakeCounts(accepted=2))
    for now_s in (159.9, 160.0, 200.0, 219.9, 220.0):  # noqa: B007 # the clock shows it
        intake._count(IntakeCounts(duplicates=1))
    assert logged == [160.0, 220.0]
    assert (intake.counts.accepted, intake.counts.duplicates) == (2, 5)


def test_rejections_are_named_in_alphabetical_order() -> None:
    reasons = (ReportReason.WRONG_TASK, ReportReason.MALFORMED, ReportReason.WRONG_TASK)
    counts = sum(
        (IntakeCounts(rejected=type(IntakeCounts().rejected)([one])) for one in reasons), IntakeCounts()
    )
    assert list(counts.by_reason().items()) == [("malformed", 1), ("wrong_task", 2)]
