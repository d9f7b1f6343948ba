import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from maskedlark.errors import HelperUnavailable, InvalidTask
from maskedlark.observability.endpoint import OperatorEndpoint, Starting
from maskedlark.observability.metrics_access import MetricsAccess
from maskedlark.rpc.tls_files import TlsFiles
from tests.forged import holder
from tests.patience import HANGS_S


def fetch(address: str, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://{address}{path}", timeout=HANGS_S) as answer:  # our own server
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_and_health_are_served() -> None:
    registry = CollectorRegistry()
    Counter("things", "Things.", registry=registry).inc(3)
    with OperatorEndpoint("127.0.0.1:0", registry, lambda: None) as endpoint:
        assert "things_total 3.0" in fetch(endpoint.address, "/metrics")[1]
        assert fetch(endpoint.address, "/healthz") == (200, "well\n")
        assert fetch(endpoint.address, "/elsewhere")[0] == 404


@pytest.mark.parametrize(
    ("error", "traced"), [(RuntimeError("a detail"), True), (HelperUnavailable("a detail"), False)]
)
def test_a_service_that_is_not_well_says_so_and_logs_why_with_the_trace_of_a_bug(
    caplog: pytest.LogCaptureFixture, error: Exception, traced: bool
) -> None:
    def check() -> None:
        raise error

    with OperatorEndpoint("127.0.0.1:0", CollectorRegistry(), check) as endpoint:
        assert fetch(endpoint.address, "/healthz") == (503, "not well\n")
    assert "a detail" in caplog.text
    assert ("Traceback" in caplog.text) is traced


def test_a_service_that_is_starting_says_so_and_logs_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    def check() -> None:
        raise Starting

    with OperatorEndpoint("127.0.0.1:0", CollectorRegistry(), check) as endpoint:
        assert fetch(endpoint.address, "/healthz") == (503, "starting\n")
    assert not caplog.records


def test_metrics_that_cannot_be_had_are_a_failed_scrape_and_the_next_one_is_answered(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    registry, failures = CollectorRegistry(), list[RuntimeError]()

    class Held(Collector):
        def collect(self) -> Iterator[Metric]:
            if failures:
                raise failures.pop()
            yield GaugeMetricFamily("held", "Things.", 3)

    registry.register(Held())
    failures.append(RuntimeError("the database is away"))
    with OperatorEndpoint("127.0.0.1:0", registry, lambda: None) as endpoint:
        assert fetch(endpoint.address, "/metrics") == (503, "not well\n")
        assert "held 3.0" in fetch(endpoint.address, "/metrics")[1]
    assert "the database is away" in caplog.text
    assert (
        "Exception occurred during processing of request" not in capfd.readouterr().err
    )  # as the HTTP server says of what it meets


@pytest.mark.parametrize(
    "address", ["0.0.0.0:0", "192.0.2.1:0", ":0", "localhost", "127.0.0.1:what", "127.0.0.1:99999"]
)  # refused
def test_it_listens_on_loopback_only(address: str) -> None:
    with pytest.raises(InvalidTask):
        OperatorEndpoint(address, CollectorRegistry(), lambda: None)


def test_beyond_loopback_it_listens_in_the_way_that_its_operator_chose(tmp_path: Path) -> None:
    mine = holder("localhost")
    files = mine.files(tmp_path, trusted=b"")
    with pytest.raises(InvalidTask, match="TLS files"):
        OperatorEndpoint("0.0.0.0:0", CollectorRegistry(), lambda: None, access=MetricsAccess.TLS)
    open_to = dict[MetricsAccess, TlsFiles | None]({MetricsAccess.PLAINTEXT: None, MetricsAccess.TLS: files})
    for access, tls in open_to.items():
        registry = CollectorRegistry()
        Counter("things", "Things.", registry=registry).inc(3)
        with OperatorEndpoint(
            "0.0.0.0:0", registry, lambda: None, access=access, tls=tls, total_s=0.4
        ) as endpoint:
            port = endpoint.address.rpartition(":")[2]
            if access is MetricsAccess.PLAINTEXT:
                assert "things_total 3.0" in fetch(f"127.0.0.1:{port}", "/metrics")[1]
                continue
            with connected(f"127.0.0.1:{port}") as in_plaintext, suppress(ConnectionError):
                in_plaintext.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                assert b"HTTP" not in in_plaintext.recv(100)
            with connected(f"127.0.0.1:{port}") as silent:  # a handshake that does not come holds nobody up
                trusting = ssl.create_default_context(cadata=mine.pem.decode())
                with urlopen(
                    f"https://localhost:{port}/metrics", timeout=HANGS_S, context=trusting
                ) as answer:
                    assert b"things_total 3.0" in answer.read()
                assert silent.recv(1) == b""


def connected(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=HANGS_S)


def is_open(dripping: socket.socket) -> bool:
    """Send one byte more, and see whether the other side ends the connection within the socket's timeout."""
    try:
        dripping.sendall(b"G")
        return dripping.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def test_a_request_that_drips_is_ended() -> None:
    with (
        OperatorEndpoint("127.0.0.1:0", CollectorRegistry(), lambda: None, total_s=0.2) as endpoint,
        connected(endpoint.address) as dripping,
    ):
        dripping.settimeout(0.02)
        while is_open(dripping):  # each byte comes well within the time that one may take
            pass
        assert not is_open(dripping)
        await_served(endpoint.address)


def test_an_answer_that_is_not_read_is_ended() -> None:
    registry = CollectorRegistry()
    Counter("things", "Things. " * (1 << 20), registry=registry)
    with (
        OperatorEndpoint("127.0.0.1:0", registry, lambda: None, total_s=0.2, connections=1) as endpoint,
        socket.socket() as unread,
    ):
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread.settimeout(HANGS_S)
        host, port = endpoint.address.rsplit(":", 1)
        unread.connect((host, int(port)))
        unread.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        with suppress(ConnectionResetError):  # a busy machine may end the answer before its first byte
            assert b"HTTP/1.0 200 OK\r".startswith(unread.recv(16))
        await_served(endpoint.address)


def test_connections_beyond_the_places_are_closed_and_the_next_one_after_them_is_served() -> None:
    with OperatorEndpoint("127.0.0.1:0", CollectorRegistry(), lambda: None, connections=2) as endpoint:
        with ExitStack() as opened:
            held = [opened.enter_context(connected(endpoint.address)) for _ in range(3)]
            assert held[-1].recv(1) == b""
        await_served(endpoint.address)


def await_served(address: str) -> None:
    """Wait until health is answered."""
    deadline = time.monotonic() + HANGS_S
    while time.monotonic() < deadline:
        try:
            assert fetch(address, "/healthz")[0] == 200
        except (OSError, HTTPException):
            time.sleep(0.01)
        else:
            return
    raise AssertionError("health was not answered")
