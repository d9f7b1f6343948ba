"""Each alert of the chart: its cause happens to a real service, and Prometheus' evaluator fires it."""

import socket
import sqlite3
import ssl
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError

from adserver.collecting.report_expiry import GRACE_S, SETTLED_S, expire_reports
from adserver.peers.client import HelperClient
from adserver.records.job_record import Stop
from adserver.records.job_state import JobEvent
from adserver.records.server_settings import IntakeSettings
from adserver.serving.intake_metrics import IntakeMetrics
from adserver.serving.intake_servers import running_ingest
from adserver.serving.metrics import AdserverMetrics
from adserver.store.database import create_tables, default_url
from adserver.store.datasets import DatasetStore
from adserver.store.leases import JobLeases
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from helper.core import HelperCore
from helper.serving.metrics import HelperMetrics
from helper.serving.service import HelperService
from maskedlark.errors import JobRefused
from maskedlark.observability.endpoint import OperatorEndpoint
from maskedlark.observability.serving import ServerSettings, WatchedServer
from maskedlark.randomness import seeded
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import make_channel
from maskedlark.rpc.wire import encode_report
from maskedlark.runtime.database import open_database
from protos import helper_pb2 as pb
from protos import helper_pb2_grpc
from tests.adserver.job_world import Site, plan_for, sealed
from tests.alerts.prometheus import ALERTS, Target, promtool_path
from tests.builders import NOW, examples, reports, share_to_message, world
from tests.forged import holder
from tests.helper.parties import MODEL, NUM_VALUES, WEIGHTS, Scene
from tests.patience import HANGS_S

pytestmark = pytest.mark.usefixtures("promtool")


@pytest.fixture(scope="module")
def promtool() -> str:
    return promtool_path()


@dataclass
class Tried:
    """A service under watch, and what brings an alert's cause about; called once a minute."""

    target: Target
    cause: Callable[[], object]
    minutes: int = 1


class Stage:
    """Starts services, and ends them with the test."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.stack = stack
        self.scene = Scene(folder)

    def helper(self, core: HelperCore | None = None, tls: TlsFiles | None = None) -> tuple[Target, str]:
        """Serve a helper as `lark-helper serve` does; its metrics, and its address."""
        core = core or self.scene.cores[0]
        metrics = HelperMetrics(core)
        watched = WatchedServer(ServerSettings(listen="127.0.0.1:0", tls=tls, threads=4), metrics.registry)
        helper_pb2_grpc.add_HelperServicer_to_server(HelperService(core, None, metrics), watched.server)
        watched.start()
        self.stack.callback(watched.drain, 1)
        endpoint = self.stack.enter_context(OperatorEndpoint("127.0.0.1:0", metrics.registry, lambda: None))
        return Target(endpoint.address, "helper"), f"127.0.0.1:{watched.port}"

    def starts_a_job(self, address: str, dataset: bytes) -> Callable[[], None]:
        """Return an ad server that tries to start a job."""
        client = self.stack.enter_context(HelperClient(address, None, HANGS_S))

        spec = self.scene.job(dataset)

        def start() -> None:
            with suppress(JobRefused):
                client.start_job(spec, MODEL)
                client.run_round(spec, 0, WEIGHTS, NUM_VALUES)

        return start

    def party_down(self) -> Tried:
        target, _ = self.helper()
        return Tried(target, self.stack.close, minutes=3)

    def certificate_ends(self) -> Tried:
        """The certificate is renewed each time but the last; the evaluator's time goes on by itself."""
        folder = self.folder / "tls"
        files = holder("localhost", days=90).files(folder, trusted=holder(days=90).pem)
        target, _ = self.helper(tls=files)
        return Tried(target, lambda: holder("localhost", days=13).files(folder, trusted=holder(days=90).pem))

    def handshakes_refused(self) -> Tried:
        files = holder("localhost", days=90).files(self.folder / "tls", trusted=holder(days=90).pem)
        target, address = self.helper(tls=files)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

        def knock() -> None:
            host, port = address.split(":")
            for _ in range(70):
                with (
                    suppress(OSError),
                    socket.create_connection((host, int(port)), timeout=HANGS_S) as plain,
                    context.wrap_socket(plain) as secured,
                ):
                    secured.recv(1)

        return Tried(target, knock)

    def ledger_rolled_back(self) -> Tried:
        dataset = self.scene.seal()
        self.scene.cores[0].witness.receipt()
        self.scene.cores[0]._ledger.close()
        for path in self.scene.parties[0].data.glob("ledger*"):
            path.unlink()
        target, address = self.helper(self.scene.parties[0].open())
        return Tried(target, self.starts_a_job(address, dataset))

    def dataset_lost(self) -> Tried:
        dataset = self.scene.seal()
        self.scene.cores[0]._ledger.close()
        for path in (self.scene.parties[0].data / "datasets").rglob("*"):
            if path.is_file():
                path.unlink()
        target, address = self.helper(self.scene.parties[0].open())
        return Tried(target, self.starts_a_job(address, dataset))

    def internal_errors(self) -> Tried:
        dataset = self.scene.seal()
        target, address = self.helper()

        def broken(*_: object, **__: object) -> None:
            raise RuntimeError("a bug")

        self.scene.cores[0].jobs.start = broken  # type: ignore[method-assign, assignment]  # the bug
        return Tried(target, self.starts_a_job(address, dataset))

    def messages_malformed(self) -> Tried:
        target, address = self.helper()
        channel = self.stack.enter_context(make_channel(address, None))
        send = channel.unary_unary("/maskedlark.v1.Helper/GetStatus", bytes, bytes)

        def babble() -> None:
            for _ in range(15):
                with suppress(grpc.RpcError):
                    send(b"\xff\xff", timeout=HANGS_S)

        return Tried(target, babble, minutes=3)

    def reports_dropped(self) -> Tried:
        target, address = self.helper()
        channel = self.stack.enter_context(make_channel(address, None))
        stub = helper_pb2_grpc.HelperStub(channel)

        def prepare() -> None:
            """Send five reports, one of which another clock has dated."""
            shares = [
                pb.HelperShare(
                    report_id=report.report_id,
                    time_bucket=report.time_bucket + (number == 0),
                    share=share_to_message(report.shares[0]),
                )
                for number, report in enumerate(self.scene.reports(5))
            ]
            header = pb.PrepareRequest.Header(task_id=self.scene.task_id, handle=b"h" * 16)
            sent = (
                pb.PrepareRequest(header=header),
                pb.PrepareRequest(chunk=pb.PrepareRequest.Chunk(shares=shares)),
                pb.PrepareRequest(end=pb.PrepareRequest.End()),
            )
            list(stub.PrepareDataset(iter(sent), timeout=HANGS_S))

        return Tried(target, prepare)

    def preparing_memory(self) -> Tried:
        core = self.scene.parties[0].open(max_preparing_bytes=1000)
        target, _ = self.helper(core)

        def fill() -> None:
            for owner, num_bytes in (("one", 700), ("other", 250)):
                core.datasets.prepared.take(num_bytes, held=0, owner=owner)

        return Tried(target, fill)

    def site(self) -> tuple[Site, Target]:
        """An ad server's store of jobs, and its metrics."""
        made = Site(self.folder, sealed())
        self.stack.callback(made.engine.dispose)
        registry = AdserverMetrics(made.engine, made.clock).registry
        endpoint = self.stack.enter_context(OperatorEndpoint("127.0.0.1:0", registry, lambda: None))
        return made, Target(endpoint.address, "adserver")

    def claimed_job(self) -> tuple[Target, JobLeases, bytes]:
        """An ad server's metrics, and a job that it works at."""
        site, target = self.site()
        job_id = site.submit(plan_for(site.of))
        leases = JobLeases(site.engine, site.clock, owner="one", lease_s=10.0)
        assert leases.claim() is not None
        return target, leases, job_id

    def helpers_disagree(self) -> Tried:
        target, leases, job_id = self.claimed_job()
        stop = Stop(reason="helpers_disagree", cause="the sums differ")
        return Tried(target, lambda: leases.let_go(job_id, JobEvent.REFUSE, stop))

    def jobs_wait(self) -> Tried:
        site, target = self.site()
        site.submit(plan_for(site.of))

        def wait() -> None:
            site.clock.now_s += 7 * 3600

        return Tried(target, wait)

    def helper_away(self) -> Tried:
        target, leases, job_id = self.claimed_job()
        stop = Stop(reason="helper_unavailable", cause="no server is listening there")
        return Tried(target, lambda: leases.wait(job_id, stop))

    def store(self) -> tuple[Engine, Any]:
        """An ad server's store of reports, with a task."""
        engine = open_database(default_url(self.folder))
        self.stack.callback(engine.dispose)
        create_tables(engine)
        made = world(min_batch_size=4)
        TaskStore(engine).add(made.bundle, created_at=NOW)
        return engine, made

    def reports_expire(self) -> Tried:
        engine, made = self.store()
        ReportStore(engine).add(reports(made, examples(made.task, 3)))
        registry = AdserverMetrics(engine, lambda: NOW).registry
        endpoint = self.stack.enter_context(OperatorEndpoint("127.0.0.1:0", registry, lambda: None))

        def expire() -> None:
            for later_s in (0.0, SETTLED_S):
                stores = TaskStore(engine), ReportStore(engine), DatasetStore(engine)
                expire_reports(*stores, made.task.expires_at + GRACE_S + later_s)

        return Tried(Target(endpoint.address, "adserver"), expire)

    def intake_unavailable(self) -> Tried:
        engine, made = self.store()
        metrics, numbers = IntakeMetrics(), count(1)
        intake = self.stack.enter_context(running_ingest(engine, IntakeSettings(), tls=None, metrics=metrics))
        endpoint = self.stack.enter_context(OperatorEndpoint("127.0.0.1:0", metrics.registry, lambda: None))

        def upload() -> None:
            [report] = reports(made, examples(made.task, 1), seeded(next(numbers), "an upload"))
            httpx.post(f"http://{intake.http}/v1/reports", content=encode_report(report), timeout=HANGS_S)

        def upload_without_a_database() -> None:
            if not event.contains(engine, "before_cursor_execute", take_away):
                event.listen(engine, "before_cursor_execute", take_away)
            upload()

        upload()
        return Tried(Target(endpoint.address, "intake"), upload_without_a_database, minutes=8)


def take_away(*_: object) -> None:
    """Answer a statement as a database whose file is gone does."""
    cause = sqlite3.OperationalError("unable to open database file")
    cause.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
    raise OperationalError("SELECT", None, cause)


CAUSES: dict[str, Callable[[Stage], Tried]] = {
    "PartyDown": Stage.party_down,
    "CertificateEnds": Stage.certificate_ends,
    "HandshakesRefused": Stage.handshakes_refused,
    "LedgerRolledBack": Stage.ledger_rolled_back,
    "DatasetLost": Stage.dataset_lost,
    "HelpersDisagree": Stage.helpers_disagree,
    "InternalErrors": Stage.internal_errors,
    "MessagesMalformed": Stage.messages_malformed,
    "ReportsDropped": Stage.reports_dropped,
    "IntakeUnavailable": Stage.intake_unavailable,
    "JobsWait": Stage.jobs_wait,
    "HelperAway": Stage.helper_away,
    "ReportsExpire": Stage.reports_expire,
    "PreparingMemory": Stage.preparing_memory,
}


def test_every_alert_is_tried() -> None:
    assert [rule["alert"] for rule in ALERTS] == list(CAUSES)


@pytest.mark.parametrize("alert", CAUSES)
def test_a_cause_fires_its_alert_and_no_other(alert: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        tried = CAUSES[alert](Stage(tmp_path, stack))
        tried.target.scrape()
        for _ in range(tried.minutes):
            tried.cause()
            tried.target.scrape()
    assert tried.target.fired(tmp_path) == (set(), {alert})
