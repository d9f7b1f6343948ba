"""The bounds of one connection, step by step, on a loop whose time a test moves."""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any

import h11
import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

from adserver.ingest.slow_client_limits import HttpLimits, _Connection, patient_protocol
from maskedlark.rpc.sites import TrustedProxies
from tests.apart import run_apart

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECES, PIECE_BYTES = 1_024, 256
LIMITS = HttpLimits(head_s=7.0, write_s=20.0, least_read_bytes=100, connections=4)
HEADERS = (("x-one", "1"), ("x-two", "2"))
ENDING = b"\r\nconnection: close\r\ncontent-length: 0\r\nx-one: 1\r\nx-two: 2\r\n\r\n"
BAD, LATE = b"HTTP/1.1 400 Bad Request" + ENDING, b"HTTP/1.1 408 Request Timeout" + ENDING


def pieces_read(connection: h11.Connection, size: int) -> int:
    """How many pieces of so many bytes a body may have; the last one is refused."""
    connection.receive_data(HEAD)
    assert isinstance(connection.next_event(), h11.Request)
    read = 0
    while True:
        connection.receive_data(b"%x\r\n%b\r\n" % (size, bytes(size)))
        try:
            event = connection.next_event()
            while event is h11.NEED_DATA:
                event = connection.next_event()
        except h11.RemoteProtocolError as error:
            assert str(error) == "a body in too many pieces"  # noqa: PT017
            return read
        assert isinstance(event, h11.Data)
        read += 1
        if read > 3 * PIECES:
            return read


@pytest.mark.parametrize(
    ("size", "most"),
    [(1, 1_028), (128, 2 * PIECES), (255, 255 * PIECES), (256, 3 * PIECES), (700, 3 * PIECES)],
)
def test_a_body_has_a_thousand_pieces_and_one_more_for_each_256_bytes(size: int, most: int) -> None:
    read = pieces_read(_Connection(h11.SERVER), size)
    assert read == most if most <= 2 * PIECES else read > 3 * PIECES


def test_each_body_of_a_connection_is_counted_by_itself() -> None:
    connection = _Connection(h11.SERVER)
    for _ in range(3):
        connection.receive_data(HEAD + b"1\r\na\r\n" * 600 + b"0\r\n\r\n")
        events: list[Any] = [connection.next_event()]
        while not isinstance(events[-1], h11.EndOfMessage):
            events.append(connection.next_event())
        assert sum(isinstance(event, h11.Data) for event in events) == 600
        connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
        connection.send(h11.EndOfMessage())
        connection.start_next_cycle()


class Timer:
    """What was to be called, until it is cancelled."""

    def __init__(self, after_s: float, call: Callable[[], None]) -> None:
        self.after_s, self.call, self.is_on = after_s, call, True

    def cancel(self) -> None:
        self.is_on = False


class Loop:
    """Timers that a test looks at; tasks are not run."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.tasks: list[Any] = []

    def call_later(self, after_s: float, call: Callable[[], None], *_: Any) -> Timer:
        self.timers.append(Timer(after_s, call))
        return self.timers[-1]

    def create_task(self, task: Any, **_: Any) -> Any:
        self.tasks.append(task)
        return asyncio.Future(loop=_LOOP)

    def on(self, after_s: float) -> list[Timer]:
        """The timers of this length that are set."""
        return [one for one in self.timers if one.is_on and one.after_s == after_s]


class Socket:
    def __init__(self, peer: str) -> None:
        self.options: list[tuple[Any, ...]] = []
        self.peer = peer

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 8

    def getpeername(self) -> tuple[str, int]:
        return self.peer, 9

    def setsockopt(self, *option: Any) -> None:
        self.options.append(option)


class Transport(asyncio.Transport):
    """A connection whose other side reads as a test says."""

    def __init__(self, peer: str = "192.0.2.1", *, has_socket: bool = True) -> None:
        self.socket = Socket(peer)
        super().__init__({"socket": self.socket} if has_socket else {})
        self.unread, self.sent = 0, b""
        self.is_shut = self.is_aborted = False
        self.marks: Any = None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.marks = (high, low)

    def get_write_buffer_size(self) -> int:
        return self.unread

    def write(self, data: Any) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.is_shut

    def close(self) -> None:
        self.is_shut = True

    def abort(self) -> None:
        self.is_aborted = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


_LOOP = asyncio.new_event_loop()


class Client:
    """One connection to a server with the limits above."""

    def __init__(self, protocol: type[Any], transport: Transport | None = None) -> None:
        config = uvicorn.Config(PlainTextResponse("hello"), http=protocol, ws="none", log_config=None)
        self.loop, self.transport = Loop(), transport or Transport()
        self.protocol = protocol(config, ServerState(), {}, self.loop)
        self.protocol.connection_made(self.transport)

    def look(self) -> None:
        """Let the interval pass in which something is to be read."""
        (timer,) = self.loop.on(LIMITS.write_s)
        timer.cancel()
        timer.call()


class Refused(list[int]):
    """The statuses of what did not come to the application, and a protocol that counts them."""

    def __init__(self, proxies: TrustedProxies | None = None) -> None:
        super().__init__()
        self.protocol = patient_protocol(
            LIMITS, proxies or TrustedProxies(), on_refused=self.append, headers=HEADERS
        )


def test_a_head_that_does_not_come_in_time_is_told_so_once() -> None:
    refused = Refused()
    client = Client(refused.protocol)
    assert client.transport.marks == (1, 0)
    (deadline,) = client.loop.on(LIMITS.head_s)
    client.protocol.data_received(b"GET / HT")
    assert client.loop.on(LIMITS.head_s) == [deadline]  # it goes on, whatever comes of the head
    deadline.call()
    assert (client.transport.sent, client.transport.is_shut, refused) == (LATE, True, [408])
    deadline.call()  # when it is closing, nothing more is said
    assert (client.transport.sent, refused) == (LATE, [408])


def test_a_head_that_is_there_ends_the_wait_and_nothing_is_late_any_more() -> None:
    refused = Refused()
    client = Client(refused.protocol)
    (deadline,) = client.loop.on(LIMITS.head_s)
    client.protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert client.loop.on(LIMITS.head_s) == []
    assert not deadline.is_on
    deadline.call()
    assert (client.transport.sent, client.transport.is_shut, refused) == (b"", False, [])
    for task in client.loop.tasks:
        task.close()


def test_what_is_no_http_is_told_so_with_the_headers_of_every_answer() -> None:
    refused = Refused()
    client = Client(refused.protocol)
    client.protocol.data_received(b"no request\r\n\r\n")
    assert (client.transport.sent, client.transport.is_shut, refused) == (BAD, True, [400])


def test_a_head_may_have_64_kib() -> None:
    for length, status in (((64 << 10) - 100, []), ((64 << 10) + 1, [400])):
        refused = Refused()
        Client(refused.protocol).protocol.data_received(b"GET / HTTP/1.1\r\nx: " + b"a" * length)
        assert refused == status


@pytest.mark.parametrize(
    ("unread", "looks"),
    [
        ([0, 0, 0, 0], None),
        ([500, 500], 2),
        ([500, 401], 2),
        ([500, 400, 300, 200, 100, 0, 0], None),  # each time as much as it must
        ([500, 400, 301], 3),
        ([0, 99, 99], 3),
        ([0, 99, 0, 99, 0], None),
    ],
)
def test_a_connection_that_does_not_read_enough_is_reset(unread: list[int], looks: int | None) -> None:
    client = Client(Refused().protocol)
    for number, size in enumerate(unread, start=1):
        if size == 0:
            client.protocol.resume_writing()  # asyncio says so when all was taken
        client.transport.unread = size
        client.look()
        assert client.transport.is_aborted is (number == looks)
    reset = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert client.transport.socket.options == ([] if looks is None else [reset])
    assert len(client.loop.on(LIMITS.write_s)) == (looks is None)


def test_what_is_closed_and_still_here_after_an_interval_is_reset() -> None:
    client = Client(Refused().protocol, Transport(has_socket=False))
    client.transport.close()
    client.look()
    assert not client.transport.is_aborted
    client.look()
    assert client.transport.is_aborted


def test_a_lost_connection_sets_no_timer_off_and_gives_its_place_back() -> None:
    refused = Refused()
    for _ in range(9):
        client = Client(refused.protocol)
        client.protocol.connection_lost(None)
        assert not any(one.is_on for one in client.loop.timers)
        assert asked(client) == 200
    assert refused == []


def asked(client: Client, forwarded: str = "") -> int:
    """The status of a request through this connection's application."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"x-forwarded-for", forwarded.encode())] if forwarded else []
    run_apart(client.protocol.app({"type": "http", "headers": headers}, None, send))
    return int(sent[0]["status"])


def test_a_site_has_half_of_the_places_and_is_told_so_beyond() -> None:
    refused = Refused()
    clients = [Client(refused.protocol) for _ in range(3)]
    assert [asked(one) for one in clients] == [200, 200, 503]
    assert asked(Client(refused.protocol, Transport("198.51.100.1"))) == 200
    assert refused == [503]


def test_a_trusted_proxys_connections_take_no_place_but_its_requests_do() -> None:
    refused = Refused(TrustedProxies.of(["192.0.2.1"]))
    clients = [Client(refused.protocol) for _ in range(9)]
    assert [asked(one, "203.0.113.5") for one in clients] == [200] * 9
    assert refused == []
