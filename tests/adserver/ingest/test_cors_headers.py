"""Pages of any origin may read every answer of the intake, also those that never came to the application."""

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from adserver.ingest.cors_headers import HEADERS
from adserver.ingest.http_app import http_app
from adserver.ingest.http_server import HttpServer
from adserver.ingest.intake import Intake
from adserver.store.database import create_tables, default_url
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from maskedlark.canonical import encode
from maskedlark.rpc.wire import report_to_message
from maskedlark.runtime.database import open_database
from tests.builders import NOW, World, examples, reports, world
from tests.patience import HANGS_S

OF = world()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    engine = open_database(default_url(tmp_path))
    create_tables(engine)
    tasks = TaskStore(engine)
    tasks.add(OF.bundle, created_at=NOW)
    server = HttpServer(http_app(Intake(tasks, ReportStore(engine), lambda: NOW), tasks), "127.0.0.1:0", None)
    server.wait_until_started()
    yield f"http://127.0.0.1:{server.port}"
    server.stop()
    engine.dispose()


def is_open(headers: httpx.Headers) -> bool:
    return all(headers.get(name) == value for name, value in HEADERS)


def body(of: World) -> bytes:
    return report_to_message(reports(of, examples(of.task, 1))[0]).SerializeToString()


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", "/v1/reports", "a report", 201),
        ("POST", "/v1/reports", "no report", 400),
        ("POST", "/v1/reports", "too much", 413),
        ("GET", "the task", "", 200),
        ("GET", "/v1/tasks/00", "", 404),
        ("GET", "/nothing", "", 404),
        ("DELETE", "/v1/reports", "", 405),
        ("GET", "/healthz", "", 200),
    ],
)
def test_every_answer_may_be_read(url: str, method: str, path: str, content: str, status: int) -> None:
    bodies = {"a report": body(OF), "no report": b"no report", "too much": bytes(9 << 20), "": b""}
    path = f"/v1/tasks/{OF.task.task_id.hex()}" if path == "the task" else path
    answer = httpx.request(method, url + path, content=bodies[content], timeout=HANGS_S)
    assert answer.status_code == status
    assert is_open(answer.headers)


def test_an_answer_to_what_is_no_request_may_be_read_too(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=HANGS_S) as connection:
        connection.sendall(b"\x00 this is no request\r\n\r\n")
        told = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    assert told.startswith("HTTP/1.1 400")
    assert all(f"{name}: {value}" in told for name, value in HEADERS)


def test_a_bundle_is_sent_once_to_who_keeps_its_etag(url: str) -> None:
    path = f"{url}/v1/tasks/{OF.task.task_id.hex()}"
    first = httpx.get(path, timeout=HANGS_S)
    assert first.content == encode(OF.bundle)
    again = httpx.get(path, headers={"if-none-match": first.headers["etag"]}, timeout=HANGS_S)
    assert (again.status_code, again.content) == (304, b"")
    assert is_open(again.headers)
    other = httpx.get(path, headers={"if-none-match": '"another"'}, timeout=HANGS_S)
    assert other.content == first.content
