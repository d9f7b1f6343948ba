"""The intake while its database is away: senders are told to come again, and nothing is lost."""

import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError

from adserver.ingest.json_error import RETRY_AFTER_S
from adserver.records.server_settings import IntakeSettings
from adserver.serving.intake_servers import Addresses, running_ingest
from adserver.store.database import create_tables, default_url
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from browser_sim.delivery import connect, deliver
from browser_sim.endpoint import Protection
from browser_sim.sealed_batch import SealedBatch
from maskedlark.errors import HelperUnavailable
from maskedlark.rpc.transport import make_channel
from maskedlark.rpc.wire import encode_report, report_to_message
from maskedlark.runtime.database import open_database
from protos import ingest_pb2_grpc, report_pb2
from tests.builders import NOW, examples, reports, world
from tests.patience import HANGS_S

WORLD = world()
SOME = reports(WORLD, examples(WORLD.task, 6))


@dataclass(slots=True, kw_only=True)
class Site:
    """A running intake whose database can be taken away."""

    engine: Engine
    addresses: Addresses
    is_away: threading.Event = field(default_factory=threading.Event)

    def stored(self) -> int:
        return ReportStore(self.engine).counts(WORLD.task.task_id).waiting

    def url(self, path: str) -> str:
        return f"http://{self.addresses.http}{path}"

    def submit(self) -> int:
        with make_channel(self.addresses.grpc, None) as channel:
            reply = ingest_pb2_grpc.IngestStub(channel).Submit(map(report_to_message, SOME), timeout=HANGS_S)
        return int(reply.accepted)

    def fail(self, *_: object) -> None:
        if self.is_away.is_set():
            cause = sqlite3.OperationalError("unable to open database file")
            cause.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise OperationalError("SELECT", None, cause)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    engine = open_database(default_url(tmp_path))
    create_tables(engine)
    TaskStore(engine).add(WORLD.bundle, created_at=NOW)
    with running_ingest(engine, IntakeSettings(), tls=None) as addresses:
        opened = Site(engine=engine, addresses=addresses)
        event.listen(engine, "before_cursor_execute", opened.fail)
        yield opened
    engine.dispose()


@pytest.mark.parametrize("way", ["http", "grpc"])
def test_a_sender_outlasts_a_database_that_is_away_and_loses_nothing(
    site: Site, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    waited: list[float] = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            site.is_away.clear()

    site.is_away.set()
    address = site.url("") if way == "http" else site.addresses.grpc
    with connect(address, Protection(insecure=True)) as sender:
        receipt = deliver(sender, map(SealedBatch.of, (SOME[:3], SOME[3:])), pause=pause)
    assert (receipt.accepted, receipt.duplicates, receipt.rejected, receipt.resent, len(waited)) == (
        6,
        0,
        {},
        1,
        2,
    )
    assert site.stored() == len(SOME)
    assert "a bug" not in caplog.text
    assert "the database does not answer" in caplog.text


def post(site: Site, path: str, body: bytes) -> httpx.Response:
    return httpx.post(site.url(path), content=body, timeout=HANGS_S)


BATCH = report_pb2.ReportBatch(reports=map(report_to_message, SOME)).SerializeToString()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/reports", encode_report(SOME[0])),
        ("/v1/reports/batch", BATCH),
        ("/v1/tasks", None),
        (f"/v1/tasks/{WORLD.task.task_id.hex()}", None),
        ("/healthz", None),
    ],
    ids=["report", "batch", "tasks", "task", "healthz"],  # without the ids, which are random
)
def test_over_http_a_database_that_is_away_is_503_with_a_moment_to_come_again(
    site: Site, path: str, body: bytes | None
) -> None:
    def ask() -> httpx.Response:
        return httpx.get(site.url(path), timeout=HANGS_S) if body is None else post(site, path, body)

    site.is_away.set()
    refused = ask()
    assert (refused.status_code, refused.headers["retry-after"]) == (503, str(RETRY_AFTER_S))
    assert (refused.json()["error"], refused.json()["reason"]) == ("RequestRefused", "service_unavailable")
    site.is_away.clear()
    assert ask().status_code in (200, 201)
    assert site.stored() == {"/v1/reports": 1, "/v1/reports/batch": len(SOME)}.get(path, 0)


def test_over_grpc_a_database_that_is_away_is_unavailable(site: Site) -> None:
    site.is_away.set()
    with pytest.raises(grpc.RpcError) as refused:
        site.submit()
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    site.is_away.clear()
    assert site.submit() == len(SOME)


def test_grpc_health_says_that_the_database_is_away(site: Site) -> None:
    site.is_away.set()
    with make_channel(site.addresses.grpc, None) as channel:
        told = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=HANGS_S)
    assert told.status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_a_database_that_another_process_holds_locked_is_away(site: Site, tmp_path: Path) -> None:
    def hurry(connection: Any, *_: object) -> None:
        connection.execute("PRAGMA busy_timeout=50").close()

    site.engine.dispose()
    event.listen(site.engine, "connect", hurry)
    other = sqlite3.connect(site.engine.url.database or "", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert post(site, "/v1/reports", encode_report(SOME[0])).status_code == 503
    other.execute("ROLLBACK")
    other.close()
    assert post(site, "/v1/reports", encode_report(SOME[0])).status_code == 201


def test_health_says_that_the_disk_is_full(tmp_path: Path) -> None:
    def check_disk() -> None:
        raise HelperUnavailable("the disk has 0 bytes free")

    engine = open_database(default_url(tmp_path))
    create_tables(engine)
    with (
        running_ingest(engine, IntakeSettings(), tls=None, check_disk=check_disk) as addresses,
        make_channel(addresses.grpc, None) as channel,
    ):
        answer = httpx.get(f"http://{addresses.http}/healthz", timeout=HANGS_S)
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=HANGS_S)
    engine.dispose()
    assert (answer.status_code, "0 bytes free" in answer.text) == (503, True)
    assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
