"""No client holds the connections of an HTTP server for good, and no address all of them."""

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from adserver.ingest.http_server import HttpServer
from adserver.ingest.json_error import refusal
from adserver.ingest.slow_client_limits import HttpLimits
from maskedlark.errors import InvalidTask
from maskedlark.rpc.certificates import write_certificate
from maskedlark.rpc.sites import TrustedProxies
from maskedlark.rpc.tls_files import TlsFiles
from tests.patience import HANGS_S

ATTACKER, HONEST = "127.0.0.1", "127.0.0.2"
LONG = 2 << 20
PLACES = 8
SOON = HttpLimits(write_s=0.2, connections=PLACES)
PATIENT = HttpLimits(head_s=HANGS_S, write_s=HANGS_S, connections=PLACES)


def answers() -> Starlette:
    async def short(_request: Request) -> Response:
        return PlainTextResponse("short")

    async def long(_request: Request) -> Response:
        return PlainTextResponse(bytes(LONG))

    async def taken(request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    routes = [Route("/short", short), Route("/long", long), Route("/taken", taken, methods=["POST"])]
    return Starlette(routes=routes)


@contextmanager
def serving(
    limits: HttpLimits, tls: TlsFiles | None = None, proxies: TrustedProxies | None = None
) -> Iterator[int]:
    server = HttpServer(answers(), "127.0.0.1:0", tls, limits=limits, proxies=proxies or TrustedProxies())
    try:
        server.wait_until_started()
        yield server.port
    finally:
        server.stop()


@pytest.fixture
def tls(tmp_path: Path) -> TlsFiles:
    return write_certificate(
        tmp_path, name="https://ads.example", hosts=("127.0.0.1",), now=datetime.now(UTC)
    )


def connected(port: int, source: str = ATTACKER, *, is_tls: bool = False, window: int = 0) -> socket.socket:
    connection = socket.socket()
    connection.settimeout(HANGS_S)
    if window:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    connection.bind((source, 0))
    connection.connect(("127.0.0.1", port))
    if not is_tls:
        return connection
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(connection)


def asked(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


def status(port: int, source: str = HONEST, *headers: str) -> int | None:
    """The status of one request; None if the connection is closed without a word."""
    with connected(port, source) as connection:
        try:
            connection.sendall(asked("/short", *headers))
            said = connection.recv(64)
        except ConnectionError:
            return None
    return int(said.split()[1]) if said else None


def await_that(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANGS_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def await_reset(connection: socket.socket) -> None:
    """Wait until the server has ended a connection from which nothing is read."""
    poll = select.poll()
    poll.register(connection, 0)  # errors and hang-ups only
    found = poll.poll(1_000 * HANGS_S)
    assert found


@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize("last", [(), ("Connection: close",)])
def test_connections_that_pipeline_requests_and_read_no_answer_are_ended(
    tls: TlsFiles, is_tls: bool, last: tuple[str, ...]
) -> None:
    with serving(SOON, tls if is_tls else None) as port, ExitStack() as opened:
        held = [opened.enter_context(connected(port, is_tls=is_tls, window=4096)) for _ in range(PLACES // 2)]
        for one in held:
            one.sendall(4 * asked("/long") + asked("/long", *last))
        for one in held:
            await_reset(one)
        if not is_tls:
            await_that(lambda: status(port, ATTACKER) == 200)


def test_one_long_answer_that_is_not_read_to_its_end_is_ended_too() -> None:
    with serving(SOON) as port, connected(port, window=4096) as one:
        one.sendall(asked("/long", "Connection: close"))
        assert one.recv(1024).startswith(b"HTTP/1.1 200")
        await_reset(one)


@pytest.mark.parametrize("is_tls", [False, True])
def test_an_answer_that_is_read_arrives_whole_however_many_looks_it_takes(
    tls: TlsFiles, is_tls: bool
) -> None:
    limits = HttpLimits(write_s=0.01, least_read_bytes=0, connections=PLACES)
    with serving(limits, tls if is_tls else None) as port:
        with connected(port, is_tls=is_tls, window=65_536) as one:
            one.sendall(3 * asked("/long") + asked("/long", "Connection: close"))
            got = sum(map(len, iter(lambda: one.recv(1 << 20), b"")))
        assert got > 4 * LONG


@pytest.mark.parametrize("is_tls", [False, True])
def test_silent_connections_of_one_address_leave_places_to_the_others(tls: TlsFiles, is_tls: bool) -> None:
    with serving(PATIENT, tls if is_tls else None) as port, ExitStack() as opened:
        for _ in range(4 * PLACES):
            opened.enter_context(connected(port))  # under TLS they do not even begin the handshake
        for _ in range(5):
            with connected(port, HONEST, is_tls=is_tls) as honest:
                honest.sendall(asked("/short", "Connection: close"))
                assert honest.recv(64).startswith(b"HTTP/1.1 200")


def test_an_address_beyond_its_share_is_told_so_and_far_beyond_it_closed() -> None:
    with serving(PATIENT) as port, ExitStack() as opened:
        told = []
        for _ in range(2 * PLACES):
            one = opened.enter_context(connected(port))
            try:
                one.sendall(asked("/short"))
                said = one.recv(64)
            except ConnectionError:
                said = b""
            told.append(said.split()[1].decode() if said else "closed")
        assert told[: PLACES // 2] == ["200"] * (PLACES // 2)
        assert set(told[PLACES // 2 :]) == {"503"}  # these are closed after the answer, and so hold nothing
        silent = [opened.enter_context(connected(port)) for _ in range(2 * PLACES)]
        assert silent[-1].recv(1) == b""
        assert status(port) == 200


def test_what_is_closed_gives_its_places_back() -> None:
    with serving(PATIENT) as port:
        for _ in range(3):
            with ExitStack() as opened:
                held = [opened.enter_context(connected(port)) for _ in range(4 * PLACES)]
                assert held[-1].recv(1) == b""
            await_that(lambda: status(port, ATTACKER) == 200)


def test_a_trusted_proxy_may_keep_more_connections_open_than_an_address_has_places() -> None:
    proxies = TrustedProxies.of([ATTACKER])
    with serving(PATIENT, proxies=proxies) as port, ExitStack() as opened:
        for _ in range(PLACES):
            one = opened.enter_context(connected(port))
            one.sendall(asked("/short"))
            assert one.recv(64).startswith(b"HTTP/1.1 200")
        assert status(port, ATTACKER, "X-Forwarded-For: 192.0.2.7") == 200


@pytest.mark.parametrize("is_trusted", [True, False])
def test_requests_under_way_count_for_the_address_that_a_trusted_proxy_names(is_trusted: bool) -> None:
    proxies = TrustedProxies.of([ATTACKER] if is_trusted else [])
    with serving(PATIENT, proxies=proxies) as port, ExitStack() as opened:

        def hold(source: str) -> None:
            one = opened.enter_context(connected(port, window=4096))
            one.sendall(2 * asked("/long", f"X-Forwarded-For: {source}"))  # the second waits for the first
            assert one.recv(64).startswith(b"HTTP/1.1")

        for number in range(PLACES // 2):
            hold("192.0.2.7" if is_trusted else f"192.0.2.{number}")  # invented ones do not help
        await_that(lambda: status(port, ATTACKER, "X-Forwarded-For: 192.0.2.8, 192.0.2.7") == 503)
        of_others = status(port, ATTACKER, "X-Forwarded-For: 192.0.2.7, 192.0.2.8")
        assert of_others == (200 if is_trusted else 503)


@pytest.mark.parametrize(("bytes_each", "told"), [(1, b"400"), (256, b"200"), (4096, b"200")])
def test_a_body_in_tiny_chunks_is_refused(bytes_each: int, told: bytes) -> None:
    # 6 bytes a chunk kept the event loop busy for 20 microseconds and more: 4 connections, for 12 s.
    chunk = b"%x\r\n%b\r\n" % (bytes_each, bytes(bytes_each))
    head = b"POST /taken HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with serving(PATIENT) as port, connected(port) as one:
        with suppress(ConnectionError):
            one.sendall(head + chunk * 2_000 + b"0\r\n\r\n")
        with suppress(ConnectionResetError):  # it was closed with much unread
            assert one.recv(64).split()[1] == told
            return
    assert told == b"400"


def test_bytes_that_are_no_http_end_an_answer_that_has_begun_without_another_one() -> None:
    ended = threading.Event()

    async def answer_early(_scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"99")]})
        await send({"type": "http.response.body", "body": b"first part", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        ended.set()

    counted: list[int] = []
    server = HttpServer(answer_early, "127.0.0.1:0", None, limits=PATIENT, on_refused=counted.append)
    server.wait_until_started()
    try:
        with connected(server.port) as one:
            one.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
            got = b""
            while not got.endswith(b"first part"):
                got += one.recv(1024)
            one.sendall(b"no length of a chunk\r\n")
            assert one.recv(1024) == b""
        assert ended.wait(HANGS_S)
        assert counted == []
    finally:
        server.stop()


@pytest.mark.parametrize("is_tls", [False, True])
def test_an_address_that_others_reach_is_served_with_tls_alone(tls: TlsFiles, is_tls: bool) -> None:
    if is_tls:
        server = HttpServer(answers(), "0.0.0.0:0", tls)
        server.wait_until_started()
        with connected(server.port, is_tls=True) as connection:
            connection.sendall(asked("/short", "Connection: close"))
            assert connection.recv(64).startswith(b"HTTP/1.1 200")
        server.stop()
    else:
        with pytest.raises(InvalidTask, match="not on loopback"):
            HttpServer(answers(), "0.0.0.0:0", None)


@pytest.mark.parametrize(
    ("code", "is_closed"), [(400, False), (404, False), (429, False), (408, True), (413, True), (503, True)]
)
def test_only_refusals_that_leave_a_body_unread_close_the_connection(code: int, is_closed: bool) -> None:
    assert refusal(code, "no").headers.get("connection") == ("close" if is_closed else None)
