"""What clients are told while a server ends, and who asks it for health."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from maskedlark.errors import HelperUnavailable
from maskedlark.observability.serving import ServerSettings, WatchedServer
from maskedlark.rpc.faults import calling
from maskedlark.rpc.transport import make_channel
from protos import helper_pb2 as pb
from protos import helper_pb2_grpc
from tests.patience import HANGS_S

GRACE_S = 2 * HANGS_S
"""Who waits for all of it hangs."""


@dataclass(slots=True, kw_only=True)
class Slow(helper_pb2_grpc.HelperServicer):
    """Answers status once it may."""

    begun: Event = field(default_factory=Event)
    may_end: Event = field(default_factory=Event)

    def GetStatus(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusReply:  # noqa: N802 # gRPC's name
        self.begun.set()
        assert self.may_end.wait(GRACE_S)
        return pb.StatusReply(name="slow")


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.may_end.set()


@pytest.fixture
def server(slow: Slow) -> WatchedServer:
    watched = WatchedServer(ServerSettings(listen="127.0.0.1:0", tls=None, threads=4), CollectorRegistry())
    helper_pb2_grpc.add_HelperServicer_to_server(slow, watched.server)
    watched.start()
    return watched


@pytest.fixture
def channel(server: WatchedServer) -> Iterator[grpc.Channel]:
    with make_channel(f"127.0.0.1:{server.port}", None) as made:
        yield made


def health(channel: grpc.Channel) -> Any:
    return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=HANGS_S).status


def test_a_server_that_drains_says_so_takes_nothing_new_and_finishes_what_it_began(
    server: WatchedServer, slow: Slow, channel: grpc.Channel
) -> None:
    stub = helper_pb2_grpc.HelperStub(channel)
    assert health(channel) == health_pb2.HealthCheckResponse.SERVING
    under_way = stub.GetStatus.future(pb.StatusRequest(), timeout=GRACE_S)
    assert slow.begun.wait(HANGS_S)
    draining = Thread(target=server.drain, args=(GRACE_S,))
    draining.start()
    while health(channel) == health_pb2.HealthCheckResponse.SERVING:  # until the thread has begun
        assert draining.is_alive()
    assert health(channel) == health_pb2.HealthCheckResponse.NOT_SERVING
    with make_channel(f"127.0.0.1:{server.port}", None) as newcomer:
        assert health(newcomer) == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(HelperUnavailable), calling("helper"):
            helper_pb2_grpc.HelperStub(newcomer).GetStatus(pb.StatusRequest(), timeout=HANGS_S)
    slow.may_end.set()
    assert under_way.result().name == "slow"
    draining.join(HANGS_S)
    assert not draining.is_alive()


def test_a_server_that_is_not_well_says_so_until_it_is(caplog: pytest.LogCaptureFixture) -> None:
    failures = [RuntimeError("the database is away")]

    def check() -> None:
        if failures:
            raise failures[0]

    watched = WatchedServer(
        ServerSettings(listen="127.0.0.1:0", tls=None, threads=4), CollectorRegistry(), check
    )
    watched.start()
    with make_channel(f"127.0.0.1:{watched.port}", None) as channel:
        assert health(channel) == health_pb2.HealthCheckResponse.NOT_SERVING
        failures.clear()
        ends = monotonic() + HANGS_S
        while health(channel) == health_pb2.HealthCheckResponse.NOT_SERVING:
            assert monotonic() < ends
            sleep(0.05)
        assert health(channel) == health_pb2.HealthCheckResponse.SERVING
    watched.drain(1)
    assert caplog.text.count("the database is away") == 1


def test_a_server_with_nothing_under_way_ends_at_once(server: WatchedServer, channel: grpc.Channel) -> None:
    assert health(channel) == health_pb2.HealthCheckResponse.SERVING
    draining = Thread(target=server.drain, args=(GRACE_S,))
    draining.start()
    draining.join(HANGS_S)
    assert not draining.is_alive()


def test_a_call_that_does_not_end_is_ended_after_the_grace(
    server: WatchedServer, slow: Slow, channel: grpc.Channel
) -> None:
    stub = helper_pb2_grpc.HelperStub(channel)
    under_way = stub.GetStatus.future(pb.StatusRequest(), timeout=GRACE_S)
    assert slow.begun.wait(HANGS_S)
    server.drain(0.2)
    with pytest.raises(grpc.RpcError):
        under_way.result()
    slow.may_end.set()
