"""A helper answers health while it starts, and nothing else until this machine is checked."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adserver.quickstart.ports import free_ports
from helper.cli.status import fetch_status
from helper.gradient.exact.self_check import SelfCheckFailed
from helper.serving import server, warmup
from helper.serving.server import HelperSettings, serve
from helper.trust.floors import Floors
from helper.trust.keys import HelperKeys
from maskedlark.errors import HelperUnavailable, InvalidTask
from maskedlark.interrupt import Interrupt
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.rpc.transport import make_channel

GRACE_S = 60
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def settings(tmp_path: Path) -> HelperSettings:
    data = tmp_path / "data"
    HelperKeys.generate(name="north", suite=HpkeSuite.X25519_AES128GCM).write(data)
    port, metrics = free_ports(2)
    return HelperSettings(
        data=data,
        listen=f"127.0.0.1:{port}",
        tls=None,
        floors=Floors(),
        port_file=tmp_path / "port",
        metrics_listen=f"127.0.0.1:{metrics}",
    )


class Warming:
    """A warm-up that lasts until the test says so, or until the helper is asked to stop."""

    def __init__(self) -> None:
        self.begun, self.may_end = Event(), Event()

    def __call__(self, interrupt: Interrupt) -> None:
        self.begun.set()
        while not self.may_end.wait(0.01):
            interrupt()


@contextmanager
def starting(settings: HelperSettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Warming, Event]]:
    warming, stop = Warming(), Event()
    monkeypatch.setattr(server, "warm_up", warming)
    thread = Thread(target=serve, args=(settings, stop))
    thread.start()
    assert warming.begun.wait(GRACE_S)
    yield warming, stop
    stop.set()
    thread.join(GRACE_S)
    assert not thread.is_alive()


def health(address: str) -> int:
    with make_channel(address, None) as channel:
        request = health_pb2.HealthCheckRequest()
        return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=GRACE_S).status)


def healthz(settings: HelperSettings) -> tuple[int, bytes]:
    try:
        # our own server
        with urlopen(f"http://{settings.metrics_listen}/healthz", timeout=GRACE_S) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()


def test_a_starting_helper_answers_health_and_refuses_calls_until_it_is_ready(
    settings: HelperSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with starting(settings, monkeypatch) as (warming, _):
        assert health(settings.listen) == NOT_SERVING
        assert healthz(settings) == (503, b"starting\n")
        with pytest.raises(HelperUnavailable, match=r"the server is starting: retry later$"):
            fetch_status(settings.listen, None, deadline_s=GRACE_S)
        assert settings.port_file is not None
        assert not settings.port_file.exists()
        warming.may_end.set()
        while health(settings.listen) != SERVING:
            pass
        assert fetch_status(settings.listen, None, deadline_s=GRACE_S)
        while not settings.port_file.exists():
            pass
        assert healthz(settings) == (200, b"well\n")


def test_a_starting_helper_that_is_asked_to_stop_ends_without_serving(
    settings: HelperSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with starting(settings, monkeypatch) as (_, stop):
        stop.set()
    assert settings.port_file is not None
    assert not settings.port_file.exists()


def test_the_warm_up_refuses_a_machine_whose_proofs_or_products_come_out_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warmup, "residues", lambda *_: 0)
    with pytest.raises(SelfCheckFailed, match="residues"):
        warmup._check_proofs()
    monkeypatch.setattr(warmup, "self_check", _broken)
    with pytest.raises(InvalidTask, match="this machine must not serve: broken"):
        warmup.warm_up()


def _broken(_: Interrupt) -> bytes:
    raise SelfCheckFailed("broken")


def test_a_warm_up_that_is_interrupted_says_nothing_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", warmup.__name__)
    monkeypatch.setattr(warmup, "cache_folder", lambda: tmp_path / "loops")

    def interrupt() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        warmup.warm_up(interrupt)
    assert not list((tmp_path / "loops").glob("complete-*"))
    warmup.warm_up()
    assert len(list((tmp_path / "loops").glob("complete-*"))) == 1
    warmup.warm_up()
    assert caplog.text.count("compiling") == 2  # not where everything is compiled
