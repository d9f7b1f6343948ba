"""Many calls that say nothing, from one tenant or from nobody known: everybody else is served on.

The patience of these servers is longer than the tests: it is the peers' shares of the threads that others are
served by.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from helper.serving.metrics import HelperMetrics
from helper.serving.service import HelperService
from maskedlark import canonical
from maskedlark.errors import HelperUnavailable
from maskedlark.observability.serving import ServerSettings, WatchedServer
from maskedlark.rpc.certificates import write_certificate
from maskedlark.rpc.faults import calling
from maskedlark.rpc.stream_timeouts import Patience
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import make_channel
from protos import helper_pb2 as pb
from protos import helper_pb2_grpc
from tests.builders import shares_for
from tests.helper.parties import WEIGHTS, Scene
from tests.helper.serving.test_helper_service import Wire
from tests.patience import HANGS_S
from tests.silent_streams import silent_streams

THREADS = 16
HALF = THREADS // 2
FOREVER = Patience(first_s=600.0, idle_s=600.0)


@dataclass(frozen=True, kw_only=True)
class Site:
    """A helper, the ad server whose task it serves, and two others that it trusts."""

    scene: Scene
    address: str
    ours: TlsFiles
    evil: TlsFiles
    other: TlsFiles


@contextmanager
def a_site(folder: Path, patience: Patience = FOREVER, **how: Any) -> Iterator[Site]:
    """A helper that serves over mutual TLS; `how` is of its core, if it is not the usual one."""
    scene = Scene(folder / "scene")
    if how:
        scene.restart(**how)
    names = ("north", scene.task.origin, "https://evil.example", "https://other.example")
    helper, *tenants = (certificate(folder / str(place), name) for place, name in enumerate(names))
    helper.trusted_authorities.write_bytes(b"".join(one.certificate.read_bytes() for one in tenants))
    for one in tenants:
        one.trusted_authorities.write_bytes(helper.certificate.read_bytes())
    metrics = HelperMetrics(scene.cores[0])
    watched = WatchedServer(
        ServerSettings(listen="localhost:0", tls=helper, threads=THREADS, patience=patience), metrics.registry
    )
    helper_pb2_grpc.add_HelperServicer_to_server(HelperService(scene.cores[0], None, metrics), watched.server)
    watched.start()
    ours, evil, other = tenants
    yield Site(scene=scene, address=f"localhost:{watched.port}", ours=ours, evil=evil, other=other)
    watched.drain(0.1)


def certificate(folder: Path, name: str) -> TlsFiles:
    folder.mkdir()
    return write_certificate(folder, name=name, hosts=("localhost",), now=datetime.now(UTC))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with a_site(tmp_path) as made:
        yield made


def check_served(site: Site) -> None:
    """All that an ad server does: health, status, a task, a dataset, a job's round."""
    scene = site.scene
    dataset = scene.seal(30)
    spec = scene.job(dataset)
    scene.start(spec)
    with make_channel(site.address, site.ours) as channel, calling("helper"):
        stub = helper_pb2_grpc.HelperStub(channel)
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=HANGS_S)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        assert stub.GetStatus(pb.StatusRequest(), timeout=HANGS_S).name
        request = pb.RegisterTaskRequest(task=canonical.encode(scene.task))
        assert stub.RegisterTask(request, timeout=HANGS_S).signature == scene.bundle.signatures[0]
        wire = Wire(stub=stub)
        *_, totals = wire.prepare(scene.task_id, [shares_for(scene.reports(5, seed=9), 0)])
        assert totals.totals.admitted == 5
        assert wire.round(spec, 0, WEIGHTS)


@pytest.mark.parametrize("method", ["PrepareDataset", "RunRound", "CommitDataset"])
def test_a_thousand_silent_streams_of_one_tenant_keep_nobody_else_waiting(site: Site, method: str) -> None:
    with silent_streams(
        site.address, site.evil, method=f"/maskedlark.v1.Helper/{method}", count=1_000, expected_open=HALF
    ) as silence:
        check_served(site)
        assert silence.num_open == HALF
        assert set(silence.ended) == {"RESOURCE_EXHAUSTED"}


def test_silent_streams_that_come_again_when_refused_keep_nobody_waiting(site: Site) -> None:
    with silent_streams(
        site.address,
        site.evil,
        method="/maskedlark.v1.Helper/PrepareDataset",
        count=500,
        expected_open=HALF,
        is_stubborn=True,
    ):
        check_served(site)


def test_two_silent_tenants_leave_room_for_the_third(site: Site) -> None:
    method = "/maskedlark.v1.Helper/PrepareDataset"
    with (
        silent_streams(site.address, site.evil, method=method, count=100, expected_open=HALF),
        silent_streams(site.address, site.other, method=method, count=100, expected_open=HALF // 2),
    ):
        check_served(site)


@pytest.mark.parametrize("method", ["/maskedlark.v1.Helper/GetStatus", "/grpc.health.v1.Health/Check"])
def test_silent_calls_for_status_leave_status_and_health_to_others(site: Site, method: str) -> None:
    with silent_streams(site.address, site.evil, method=method, count=200, expected_open=4):
        check_served(site)


def test_a_tenant_with_its_full_share_is_told_to_come_again_and_has_status(site: Site) -> None:
    with (
        silent_streams(
            site.address,
            site.evil,
            method="/maskedlark.v1.Helper/PrepareDataset",
            count=HALF + 1,
            expected_open=HALF,
        ),
        make_channel(site.address, site.evil) as channel,
    ):
        stub = helper_pb2_grpc.HelperStub(channel)
        with pytest.raises(HelperUnavailable, match="as many calls open") as refused, calling("helper"):
            stub.CommitDataset(pb.CommitRequest(), timeout=HANGS_S)
        assert refused.value.retry_after_s == 1.0
        assert stub.GetStatus(pb.StatusRequest(), timeout=HANGS_S).name
