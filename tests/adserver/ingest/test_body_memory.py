"""Bodies under way share one room.

Who finds none is told when to come again, and all of it is free once they are gone.
"""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from adserver.ingest.body_memory import BodyRoom, NoRoom
from adserver.ingest.http_app import http_app
from adserver.ingest.http_server import HttpServer
from adserver.ingest.intake import Intake
from adserver.ingest.json_error import RETRY_AFTER_S
from adserver.store.database import create_tables, default_url
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from maskedlark.rpc.wire import encode_report
from maskedlark.runtime.database import open_database
from tests.builders import NOW, examples, reports, world
from tests.patience import HANGS_S

ROOM_BYTES = 200_000
WORLD = world()


@pytest.fixture
def room() -> BodyRoom:
    return BodyRoom(ROOM_BYTES)


@pytest.fixture
def port(tmp_path: Path, room: BodyRoom) -> Iterator[int]:
    engine = open_database(default_url(tmp_path))
    create_tables(engine)
    tasks = TaskStore(engine)
    tasks.add(WORLD.bundle, created_at=NOW)
    server = HttpServer(
        http_app(Intake(tasks, ReportStore(engine), lambda: 0.0), tasks, room), "127.0.0.1:0", None
    )
    server.wait_until_started()
    yield server.port
    server.stop()
    engine.dispose()


def half_sent(port: int, declared: int, sent: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=HANGS_S)
    connection.sendall(
        f"POST /v1/reports/batch HTTP/1.1\r\nHost: x\r\nContent-Length: {declared}\r\n\r\n".encode()
        + bytes(sent)
    )
    return connection


def wait_for_free(room: BodyRoom, least: int, most: int) -> None:
    deadline = time.monotonic() + HANGS_S
    while not least <= room.free_bytes <= most:
        assert time.monotonic() < deadline, room.free_bytes
        time.sleep(0.01)


def test_unfinished_bodies_take_no_more_than_the_room_and_give_it_back(port: int, room: BodyRoom) -> None:
    held = half_sent(port, 190_001, 190_000)
    wait_for_free(room, 10_000, 10_000)
    body = b"".join(encode_report(one) for one in reports(WORLD, examples(WORLD.task, 1)))
    url = f"http://127.0.0.1:{port}/v1/reports"
    refused = httpx.post(f"{url}/batch", content=bytes(20_000), timeout=HANGS_S)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, str(RETRY_AFTER_S))
    assert refused.json()["reason"] == "service_unavailable"
    assert httpx.post(url, content=body, timeout=HANGS_S).status_code == 201  # what is small still fits
    held.close()
    wait_for_free(room, ROOM_BYTES, ROOM_BYTES)
    read_now = httpx.post(f"{url}/batch", content=bytes(20_000), timeout=HANGS_S)
    assert read_now.status_code == 400  # it is no batch


def test_a_lie_about_the_length_takes_no_room(port: int, room: BodyRoom) -> None:
    connections = [half_sent(port, 8 << 20, 10) for _ in range(5)]
    wait_for_free(room, ROOM_BYTES - 50, ROOM_BYTES - 50)
    assert room.free_bytes == ROOM_BYTES - 50  # what has come, not what was declared
    for connection in connections:
        connection.close()
    wait_for_free(room, ROOM_BYTES, ROOM_BYTES)
    assert room.free_bytes == ROOM_BYTES


def test_what_does_not_fit_is_not_taken() -> None:
    room = BodyRoom(10)
    with room.hold() as first, room.hold() as second:
        first.take(6)
        with pytest.raises(NoRoom):
            second.take(5)
        second.take(4)
        assert room.free_bytes == 0
    assert room.free_bytes == 10
