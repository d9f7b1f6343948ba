"""The intake's two front doors, fuzzed through their sockets.

Typed answers only, nothing stored but valid reports, and service goes on.
"""

import logging
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, select

from adserver.records.server_settings import IntakeSettings
from adserver.serving import intake_servers
from adserver.serving.intake_servers import Addresses, running_ingest
from adserver.store.database import create_tables, default_url
from adserver.store.schema import reports as stored_reports
from adserver.store.tasks import TaskStore
from maskedlark.errors import ReportRejected
from maskedlark.reports.upload import Report, SealedShare
from maskedlark.rpc.transport import make_channel
from maskedlark.rpc.wire import decode_report, encode_report
from maskedlark.runtime.database import open_database, reading
from protos import ingest_pb2, report_pb2
from tests.builders import NOW, check_report, examples, reports, world
from tests.fuzz.mutations import FUZZ, almost
from tests.patience import HANGS_S

WORLD = world()
GOOD = [encode_report(report) for report in reports(WORLD, examples(WORLD.task, 3))]
BATCH = report_pb2.ReportBatch(reports=map(report_pb2.Report.FromString, GOOD)).SerializeToString()
TASK_PATH = f"/v1/tasks/{WORLD.task.task_id.hex()}".encode()
ANSWERED_S: Final = HANGS_S
ANSWER: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")


@dataclass(frozen=True, kw_only=True)
class Door:
    """A running intake, its database, and somebody honest who calls it."""

    engine: Engine
    addresses: Addresses
    channel: grpc.Channel
    browser: httpx.Client

    def submit(self, messages: list[bytes]) -> tuple[int, int]:
        """Send bytes of any form as the messages of a stream.

        How many are now stored, and how many were rejected.
        """
        call: Any = self.channel.stream_unary(
            "/maskedlark.v1.Ingest/Submit", None, ingest_pb2.SubmitReply.FromString
        )
        reply = call(iter(messages), timeout=ANSWERED_S)
        return reply.accepted + reply.duplicates, sum(reply.rejected.values())

    def say(self, spoken: bytes, *, answers: int = 0) -> bytes:
        """What a TCP connection answers to these bytes, and then to their end, until it closes.

        It may reset. The bytes end once so many answers have come, and no more come for a moment: of those
        that take longer than that, the end may leave none.
        """
        host, port = self.addresses.http.rsplit(":", 1)
        heard = b""
        with (
            socket.create_connection((host, int(port)), timeout=ANSWERED_S) as connection,
            suppress(ConnectionError),
        ):
            connection.sendall(spoken)
            while len(ANSWER.findall(heard)) < answers and (piece := connection.recv(1 << 16)):
                heard += piece
            connection.settimeout(0.05)
            with suppress(TimeoutError):
                while piece := connection.recv(1 << 16):
                    heard += piece
            connection.settimeout(ANSWERED_S)
            with suppress(OSError):  # it may be reset by now
                connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(1 << 16):
                heard += piece
        return heard

    def check_stored(self) -> None:
        """Everything in the database is a report of the task."""
        with reading(self.engine) as connection:
            for row in connection.execute(select(stored_reports)):
                first = SealedShare(key_id=row.key_id_0, ciphertext=row.ciphertext_0)
                second = SealedShare(key_id=row.key_id_1, ciphertext=row.ciphertext_1)
                check_report(
                    WORLD.task,
                    Report(
                        task_id=row.task_id,
                        report_id=row.report_id,
                        time_bucket=row.time_bucket,
                        shares=(first, second),
                    ),
                )

    def check_serves(self) -> None:
        """An honest report is taken at both doors."""
        assert self.submit([GOOD[0]]) == (1, 0)
        assert self.browser.post("/v1/reports", content=GOOD[1]).status_code in (200, 201)
        assert self.browser.get("/healthz").json() == {"status": "ok"}


@contextmanager
def opened(folder: Path) -> Iterator[Door]:
    """An intake with one task."""
    engine = open_database(default_url(folder))
    create_tables(engine)
    TaskStore(engine).add(WORLD.bundle, created_at=NOW)
    with (
        running_ingest(engine, IntakeSettings(), tls=None) as addresses,
        make_channel(addresses.grpc, None) as channel,
        httpx.Client(base_url=f"http://{addresses.http}", timeout=ANSWERED_S) as browser,
    ):
        yield Door(engine=engine, addresses=addresses, channel=channel, browser=browser)
    engine.dispose()


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with opened(tmp_path_factory.mktemp("intake")) as one:
        yield one


def is_report(encoded: bytes) -> bool:
    """Whether bytes are a report that this ad server takes."""
    try:
        check_report(WORLD.task, decode_report(encoded))
    except ReportRejected:
        return False
    return True


def has_a_form(encoded: bytes) -> bool:
    """Whether bytes are a message at all."""
    try:
        report_pb2.Report.FromString(encoded)
    except Exception:  # noqa: BLE001 # protobuf's implementations raise different ones
        return False
    return True


@FUZZ
@given(messages=st.lists(almost(*GOOD), max_size=4))
def test_every_message_of_a_stream_is_counted_for_what_it_is(
    door: Door, caplog: pytest.LogCaptureFixture, messages: list[bytes]
) -> None:
    caplog.clear()
    try:
        told = door.submit(messages)
    except grpc.RpcError as error:
        status: Any = error
        assert (status.code(), all(map(has_a_form, messages))) == (grpc.StatusCode.INVALID_ARGUMENT, False)
    else:
        assert all(map(has_a_form, messages))
        taken = sum(map(is_report, messages))
        assert told == (taken, len(messages) - taken)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    door.check_stored()
    door.check_serves()


@pytest.mark.parametrize("messages", [[b"\xff"], [b"\xff", GOOD[0]], [GOOD[0], b"\xff", GOOD[1]]])
def test_a_server_keeps_nothing_of_calls_that_did_not_parse(
    tmp_path: Path, messages: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for them when it ends, as long as its grace lasts."""
    monkeypatch.setattr(intake_servers, "_DRAIN_S", 2 * HANGS_S)
    with opened(tmp_path) as door:
        for _ in range(10):
            with pytest.raises(grpc.RpcError):
                door.submit(messages)
        ended = time.monotonic()
    assert time.monotonic() - ended < HANGS_S


WORDS: Final = (
    b"",
    b" ",
    b"\x00",
    b"\xff" * 9,
    b"\r\n",
    b"-1",
    b"+5",
    b"0x10",
    b"1e3",
    b"9" * 30,
    b"5, 5",
    "٣".encode(),
    b"a" * 20_000,
)
METHODS: Final = (b"POST", b"GET", b"HEAD", b"PUT", b"OPTIONS", b"CONNECT", b"PRI", b"post", *WORDS)
PATHS: Final = (
    b"/v1/reports", b"/v1/reports/batch", b"/v1/tasks", TASK_PATH, b"/v1/counts", b"/healthz", b"*", b"//",
    b"/v1/tasks/%00%ff", b"/?a=%zz",
    b"http://[::1", b"/../../etc/passwd", b"/\xc3\x28", *WORDS,
)  # fmt: skip
VERSIONS: Final = (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.1 ", b"ICY", *WORDS)
ODD_HEADERS: Final = (
    (b"Host", b"x"), (b"Expect", b"100-continue"), (b"Expect", b"?"), (b"Connection", b"upgrade"),
    (b"Upgrade", b"websocket"),
    (b"Upgrade", b"h2c"), (b"Connection", b"keep-alive, close"), (b"Transfer-Encoding", b"chunked"),
    (b"Transfer-Encoding", b"gzip, chunked"), (b"Transfer-Encoding", b"identity"),
    (b"Content-Encoding", b"gzip"),
    (b"Content-Length", b"0"), (b" folded", b"x"), (b"A:b", b":"), (b"Content-Type", b"application/json"),
    (b"X-For", b"\xff"),
    *((b"Content-Length", word) for word in WORDS), *((word, b"x") for word in WORDS),
    *((b"X", word) for word in WORDS),
)  # fmt: skip
CHUNK_SIZES: Final = (b"0", b"5", b"-1", b"ffffffffffffffffff", b"5;ext=\x00", b" 5", b"0x5", b"zz", b"")


@st.composite
def chunked(draw: st.DrawFn, body: bytes) -> bytes:
    """A body in chunks, right or with sizes that are wrong."""
    middle = draw(st.integers(0, len(body)))
    sent = b""
    for piece in (body[:middle], body[middle:], b""):
        size = b"%x" % len(piece) if draw(st.integers(0, 3)) else draw(st.sampled_from(CHUNK_SIZES))
        sent += size + draw(st.sampled_from((b"\r\n", b"\r\n", b"\n", b""))) + piece + b"\r\n"
    return sent


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One request that is right but for up to three things."""
    parts = {"method": b"POST", "path": b"/v1/reports", "version": b"HTTP/1.1"}
    wrong = draw(
        st.sets(st.sampled_from(("method", "path", "version", "headers", "length", "bytes")), max_size=3)
    )
    for name, values in (("method", METHODS), ("path", PATHS), ("version", VERSIONS)):
        if name in wrong:
            parts[name] = draw(st.sampled_from(values))
    body = draw(st.sampled_from((*GOOD, BATCH, b"")))
    headers = [(b"Host", b"x")]
    if draw(st.booleans()):
        headers.append((b"Transfer-Encoding", b"chunked"))
        body = draw(chunked(body))
    else:
        headers.append(
            (b"Content-Length", draw(st.sampled_from(WORDS)) if "length" in wrong else b"%d" % len(body))
        )
    if "headers" in wrong:
        headers += draw(st.lists(st.sampled_from(ODD_HEADERS), max_size=4))
    head = (
        b" ".join(parts.values())
        + b"\r\n"
        + b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    )
    sent = head + b"\r\n" + body
    return draw(almost(sent)) if "bytes" in wrong else sent


@FUZZ
@given(
    spoken=st.lists(requests(), min_size=1, max_size=3).map(b"".join).filter(lambda one: len(one) < 50_000),
    kept=st.one_of(st.none(), st.floats(0, 1)),
)
def test_a_connection_that_says_anything_gets_answers_that_are_no_failures_and_ends(
    door: Door, caplog: pytest.LogCaptureFixture, spoken: bytes, kept: float | None
) -> None:
    caplog.clear()
    heard = door.say(spoken if kept is None else spoken[: int(kept * len(spoken))])
    statuses = [int(status) for status in ANSWER.findall(heard)]
    assert not heard or statuses
    assert set(statuses) <= {100, 200, 201, 307, 400, 404, 405, 408, 413, 422}
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]
    door.check_stored()
    door.check_serves()


def test_what_requests_are_fuzzed_from_is_taken(door: Door) -> None:
    head = b"POST /v1/reports HTTP/1.1\r\nHost: x\r\n"
    whole = b"Content-Length: %d\r\n\r\n" % len(GOOD[2]) + GOOD[2]
    pieces = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(GOOD[2]) + GOOD[2] + b"\r\n0\r\n\r\n"
    heard = door.say(head + whole + head + pieces, answers=2)
    assert ANSWER.findall(heard) in ([b"201", b"200"], [b"200", b"200"])
