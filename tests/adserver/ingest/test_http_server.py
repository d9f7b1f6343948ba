"""How an HTTP server listens, is set, starts and stops."""

import socket
from contextlib import closing
from typing import Any

import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from adserver.ingest.http_server import HttpServer
from adserver.ingest.shared_listener import SharedListener
from maskedlark.errors import InvalidTask
from maskedlark.rpc.fair_quota import FairQuota
from maskedlark.rpc.sites import TrustedProxies
from tests.patience import HANGS_S

APP = PlainTextResponse("hello")


def server_at(address: str, **how: Any) -> HttpServer:
    return HttpServer(APP, address, None, **how)


def listener(places: int) -> SharedListener:
    made = SharedListener(socket.AF_INET, FairQuota(places), TrustedProxies())
    made.listen_at("127.0.0.1", 0)
    return made


def connected(to: SharedListener) -> socket.socket:
    return socket.create_connection(to.getsockname(), timeout=HANGS_S)


def test_a_listener_can_listen_again_at_once_and_holds_little_of_what_is_not_read() -> None:
    with closing(listener(4)) as one:
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 1
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 128 << 10
        assert (one.type, one.proto) == (socket.SOCK_STREAM, socket.IPPROTO_TCP)


def test_what_a_site_opens_beyond_its_share_is_closed_and_a_closed_one_gives_its_place_back() -> None:
    with closing(listener(4)) as one:
        opened = [connected(one) for _ in range(4)]
        accepted = [one.accept() for _ in range(2)]
        assert [address for _, address in accepted] == [each.getsockname() for each in opened[:2]]
        one.setblocking(False)
        with pytest.raises(BlockingIOError):
            one.accept()
        assert [each.recv(1) for each in opened[2:]] == [b"", b""]
        first = accepted[0][0]
        assert (first.family, first.type, first.proto) == (one.family, one.type, one.proto)
        first.sendall(b"x")
        assert opened[0].recv(1) == b"x"
        first.close()
        with closing(connected(one)) as another, closing(one.accept()[0]) as its:
            its.sendall(b"y")
            assert another.recv(1) == b"y"
        for each in (*opened, accepted[1][0]):
            each.close()


def test_after_64_refusals_the_loop_turns_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[int] = []

    class Refused:
        def close(self) -> None:
            refused.append(1)

    with closing(listener(0)) as one:
        monkeypatch.setattr(socket.socket, "accept", lambda _: (Refused(), ("192.0.2.1", 9)))
        with pytest.raises(BlockingIOError):
            one.accept()
    assert len(refused) == 64


@pytest.mark.parametrize("address", ["127.0.0.1:nothing", "127.0.0.1:70000", "127.0.0.1", "127.0.0.1:-1"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidTask, match=f"cannot listen on {address}: expected host:port"):
        server_at(address)


def test_a_port_that_is_taken_is_refused_and_is_free_once_its_server_has_stopped() -> None:
    first = server_at("127.0.0.1:0")
    first.wait_until_started()
    address = f"127.0.0.1:{first.port}"
    with pytest.raises(InvalidTask, match="another program uses the port"):
        server_at(address)
    first.stop()
    second = server_at(address)
    second.wait_until_started()
    second.stop()
    assert second.port == first.port


def test_a_server_listens_on_ipv6_where_it_is_asked_to() -> None:
    server = server_at("[::1]:0")
    server.wait_until_started()
    assert server._socket.family == socket.AF_INET6
    server.stop()


def test_a_server_that_does_not_start_says_so_and_lets_go_of_its_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: None)
    server = server_at("127.0.0.1:0")
    with pytest.raises(InvalidTask, match="did not start"):
        server.wait_until_started()
    server.stop()
    assert server._socket.fileno() == -1


def test_a_server_says_nothing_of_itself_and_logs_no_request() -> None:
    server = server_at("127.0.0.1:0", headers=(("x-one", "1"),))
    server.wait_until_started()
    config = server._server.config
    server.stop()
    wanted: dict[str, object] = {
        "ws": "none",
        "lifespan": "off",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "date_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": 30,
        "timeout_graceful_shutdown": 10,
        "headers": [("x-one", "1")],
        "is_ssl": False,
        "log_level": "warning",
        "loop": "asyncio",
    }
    assert {name: getattr(config, name) for name in wanted} == wanted
    assert server._thread.daemon
    assert server._thread.name == "http"
