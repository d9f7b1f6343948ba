"""What the ad server's operator sees.

Intake, jobs, batches; and that what is refused at either door is counted.
"""

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import grpc
import httpx
import pytest
from sqlalchemy import Engine

from adserver.collecting.report_expiry import GRACE_S, SETTLED_S, expire_reports
from adserver.ingest import http_server
from adserver.ingest.http_app import MAX_BATCH_BYTES
from adserver.ingest.json_error import RETRY_AFTER_S
from adserver.ingest.slow_client_limits import HttpLimits
from adserver.records.job_record import Stop
from adserver.records.job_state import JobEvent
from adserver.records.round_figures import RoundFigures
from adserver.records.server_settings import IntakeSettings
from adserver.serving import intake_servers
from adserver.serving.intake_servers import Addresses, running_ingest
from adserver.serving.metrics import AdserverMetrics
from adserver.store.database import create_tables, default_url
from adserver.store.datasets import DatasetStore
from adserver.store.leases import JobLeases
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from maskedlark.rpc.stream_timeouts import Patience
from maskedlark.rpc.transport import make_channel
from maskedlark.rpc.wire import encode_report, report_to_message
from maskedlark.runtime.database import open_database
from protos import ingest_pb2_grpc
from tests.adserver.job_world import Site, plan_for, sealed
from tests.builders import NOW, examples, reports, world
from tests.patience import HANGS_S, connect

OF = sealed()
WORLD = world(min_batch_size=4)
SOME = reports(WORLD, examples(WORLD.task, 3))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    opened = open_database(default_url(tmp_path))
    create_tables(opened)
    TaskStore(opened).add(WORLD.bundle, created_at=NOW)
    yield opened
    opened.dispose()


@pytest.fixture
def metrics(engine: Engine) -> AdserverMetrics:
    return AdserverMetrics(engine, lambda: NOW)


IDLE_S = 3.0
"""After which a peer that says nothing is ended: more than what is honest takes on a busy machine."""


@pytest.fixture
def addresses(engine: Engine, metrics: AdserverMetrics) -> Iterator[Addresses]:
    with running_ingest(engine, IntakeSettings(), tls=None, metrics=metrics) as opened:
        yield opened


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, OF)
    yield made
    made.engine.dispose()


@pytest.fixture
def of_jobs(site: Site) -> AdserverMetrics:
    return AdserverMetrics(site.engine, site.clock)


def leases_of(site: Site) -> JobLeases:
    return JobLeases(site.engine, site.clock, owner="one", lease_s=10.0)


def value(metrics: AdserverMetrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, labels) or 0.0


def test_reports_and_batches_are_counted(addresses: Addresses, metrics: AdserverMetrics) -> None:
    for report in (*SOME, SOME[0], replace(SOME[1], task_id=bytes(32))):
        httpx.post(f"http://{addresses.http}/v1/reports", content=encode_report(report), timeout=HANGS_S)
    task = WORLD.task.task_id.hex()[:12]
    assert value(metrics, "adserver_reports_total", outcome="accepted") == 3
    assert value(metrics, "adserver_reports_total", outcome="duplicate") == 1
    assert value(metrics, "adserver_reports_total", outcome="wrong_task") == 1
    assert value(metrics, "adserver_reports_waiting", task=task) == 3
    assert value(metrics, "adserver_batch_fill", task=task) == 0.75
    assert value(metrics, "adserver_http_responses_total", status="201") == 3
    assert value(metrics, "adserver_jobs", state="queued") == 0


def test_expired_reports_are_counted(engine: Engine, metrics: AdserverMetrics) -> None:
    ReportStore(engine).add(SOME)
    for later_s in (0.0, SETTLED_S):
        expire_reports(
            TaskStore(engine),
            ReportStore(engine),
            DatasetStore(engine),
            WORLD.task.expires_at + GRACE_S + later_s,
        )
    task = WORLD.task.task_id.hex()[:12]
    assert value(metrics, "adserver_reports_expired", task=task) == 3
    assert value(metrics, "adserver_reports_waiting", task=task) == 0


def test_the_oldest_queued_job_says_how_long_ago_it_was_submitted(
    site: Site, of_jobs: AdserverMetrics
) -> None:
    assert value(of_jobs, "adserver_queue_age_seconds") == 0
    for number, waits_s in ((1, 30.0), (2, 12.0)):
        site.submit(plan_for(OF, job_id=bytes([number]) * 16))
        site.clock.now_s += waits_s
    assert (
        value(of_jobs, "adserver_jobs", state="queued"),
        value(of_jobs, "adserver_queue_age_seconds"),
    ) == (2, 42)
    leases_of(site).claim()
    assert (
        value(of_jobs, "adserver_jobs", state="running"),
        value(of_jobs, "adserver_queue_age_seconds"),
    ) == (1, 12)


def test_rounds_of_all_jobs_are_counted(site: Site, of_jobs: AdserverMetrics) -> None:
    for number, rounds in ((1, 3), (2, 1)):
        job_id = site.submit(plan_for(OF, job_id=bytes([number]) * 16))
        leases = leases_of(site)
        assert leases.claim() is not None
        for done in range(1, rounds + 1):
            leases.record(job_id, RoundFigures(rounds_done=done, finished_at_s=1.0))
        leases.let_go(job_id, JobEvent.FINISH)
    assert value(of_jobs, "adserver_rounds_total") == 4


def test_stopped_jobs_are_counted_by_reason_until_somebody_resumes_or_cancels_them(
    site: Site, of_jobs: AdserverMetrics
) -> None:
    ends = (
        (JobEvent.REFUSE, "overflow"),
        (JobEvent.REFUSE, "overflow"),
        (JobEvent.FAIL, "workers_lost"),
        (JobEvent.FINISH, "budget_spent"),
    )
    jobs = []
    for number, (event, reason) in enumerate(ends, 1):
        jobs.append(site.submit(plan_for(OF, job_id=bytes([number]) * 16)))
        leases = leases_of(site)
        assert leases.claim() is not None
        leases.let_go(jobs[-1], event, Stop(reason=reason, cause="a cause"))

    def stopped() -> dict[str, float]:
        return {
            reason: value(of_jobs, "adserver_jobs_stopped", reason=reason)
            for reason in ("overflow", "workers_lost", "budget_spent")
        }

    assert stopped() == {"overflow": 2, "workers_lost": 1, "budget_spent": 1}
    site.store.resume(jobs[0])
    site.store.cancel(jobs[2])
    assert stopped() == {"overflow": 1, "workers_lost": 0, "budget_spent": 1}


def test_a_job_that_waits_for_a_helper_has_not_stopped(site: Site, of_jobs: AdserverMetrics) -> None:
    job_id = site.submit(plan_for(OF, job_id=bytes([1]) * 16))
    leases = leases_of(site)
    assert leases.claim() is not None
    leases.wait(job_id, Stop(reason="helper_unavailable", cause="down"))
    assert value(of_jobs, "adserver_jobs", state="waiting") == 1
    assert value(of_jobs, "adserver_jobs_stopped", reason="helper_unavailable") == 0


def test_bodies_over_the_limit_are_refused_and_counted(
    addresses: Addresses, metrics: AdserverMetrics
) -> None:
    host, port = addresses.http.rsplit(":", 1)
    for path in ("/v1/reports", "/v1/reports/batch"):
        with socket.create_connection((host, int(port)), timeout=HANGS_S) as connection:
            connection.sendall(
                f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_BATCH_BYTES + 1}\r\n\r\n".encode()
            )
            assert connection.recv(64).startswith(b"HTTP/1.1 413")
    assert value(metrics, "adserver_http_responses_total", status="413") == 2
    assert httpx.get(f"http://{addresses.http}/healthz", timeout=HANGS_S).status_code == 200


def test_frames_that_are_no_http_end_the_connection_only_and_are_counted(
    addresses: Addresses, metrics: AdserverMetrics
) -> None:
    host, port = addresses.http.rsplit(":", 1)
    for frames in (b"\xff" * 100 + b"\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 100_000):
        with socket.create_connection((host, int(port)), timeout=HANGS_S) as connection:
            connection.sendall(frames)
            try:
                answer = connection.recv(64)
            except ConnectionError:
                continue
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert [value(metrics, "adserver_http_responses_total", status=status) for status in ("400", "404")] == [
        2,
        1,
    ]
    assert httpx.get(f"http://{addresses.http}/healthz", timeout=HANGS_S).status_code == 200


@pytest.mark.parametrize("is_second", [False, True])
@pytest.mark.parametrize("begun", [b"P", b"POST /v1/reports HTTP/1.1\r\nHost: "])
def test_a_connection_that_never_makes_a_request_is_ended_and_counted(
    engine: Engine, metrics: AdserverMetrics, monkeypatch: pytest.MonkeyPatch, begun: bytes, is_second: bool
) -> None:
    monkeypatch.setattr(http_server, "LIMITS", HttpLimits(head_s=IDLE_S if is_second else 1.0))
    with running_ingest(engine, IntakeSettings(), tls=None, metrics=metrics) as addresses:
        host, port = addresses.http.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=HANGS_S) as connection:
            if is_second:
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            connection.sendall(begun)
            assert b"HTTP/1.1 408" in b"".join(iter(lambda: connection.recv(4096), b""))
        assert value(metrics, "adserver_http_responses_total", status="408") == 1


def test_who_makes_requests_may_pause_between_them_for_longer_than_a_request_may_take(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "LIMITS", HttpLimits(head_s=IDLE_S))
    with (
        running_ingest(engine, IntakeSettings(), tls=None) as addresses,
        httpx.Client(timeout=HANGS_S) as kept,
    ):
        assert kept.get(f"http://{addresses.http}/healthz").status_code == 200
        assert not Event().wait(IDLE_S + 0.2)
        assert kept.get(f"http://{addresses.http}/healthz").status_code == 200


def test_a_request_among_too_many_connections_is_told_to_come_again_and_counted(
    engine: Engine, metrics: AdserverMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "LIMITS", HttpLimits(connections=6))  # three of one address
    with running_ingest(engine, IntakeSettings(), tls=None, metrics=metrics) as addresses:
        host, port = addresses.http.rsplit(":", 1)
        others = [connect((host, int(port))) for _ in range(3)]
        refused = httpx.post(
            f"http://{addresses.http}/v1/reports", content=encode_report(SOME[0]), timeout=HANGS_S
        )
        assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        assert refused.headers["retry-after"] == str(RETRY_AFTER_S)
        assert (refused.json()["error"], refused.json()["reason"]) == (
            "RequestRefused",
            "service_unavailable",
        )
        assert value(metrics, "adserver_http_responses_total", status="503") == 1
        others.pop().close()
        assert (
            httpx.post(
                f"http://{addresses.http}/v1/reports", content=encode_report(SOME[0]), timeout=HANGS_S
            ).status_code
            == 201
        )
        for other in others:
            other.close()


def test_a_browser_that_stops_in_its_stream_is_ended_and_counted(
    engine: Engine, metrics: AdserverMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_servers, "_WITH_BROWSERS", Patience(idle_s=IDLE_S))

    def stopping() -> Iterator[object]:
        yield report_to_message(SOME[0])
        over.wait(HANGS_S)

    over = Event()
    with (
        running_ingest(engine, IntakeSettings(), tls=None, metrics=metrics) as addresses,
        make_channel(addresses.grpc, None) as channel,
    ):
        with pytest.raises(grpc.RpcError) as ended:
            ingest_pb2_grpc.IngestStub(channel).Submit(stopping(), timeout=HANGS_S)
        over.set()
        assert ended.value.code() is grpc.StatusCode.CANCELLED
        assert (
            ingest_pb2_grpc.IngestStub(channel)
            .Submit(iter([report_to_message(SOME[1])]), timeout=HANGS_S)
            .accepted
            == 1
        )
    assert value(metrics, "maskedlark_slow_clients_total") == 1
