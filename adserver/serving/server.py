"""The ad server's life: start everything, say where it listens, drain, stop."""

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from typing import Any, Final

from sqlalchemy import Engine

from adserver.collecting.key_refresh import key_refresher
from adserver.collecting.report_expiry import report_expirer
from adserver.ingest.grpc_service import IngestService
from adserver.ingest.http_app import counting_answers, http_app
from adserver.ingest.http_server import HttpServer
from adserver.ingest.intake import Intake
from adserver.ingest.local_app import LocalIntake
from adserver.peers.client import HelperClient
from adserver.peers.opening import Peers
from adserver.records.dashboard_settings import DashboardSettings
from adserver.serving.metrics import AdserverMetrics
from adserver.store.database import Clock
from adserver.store.job_folder import remove_unfinished_of_jobs
from adserver.store.local.jobs import LocalJobs
from adserver.store.local.schema import default_local_url, open_local
from adserver.store.reports import ReportStore
from adserver.store.rounds import RoundStore
from adserver.store.tasks import TaskStore
from adserver.training.worker import JobWorker
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.observability.endpoint import OperatorEndpoint
from maskedlark.observability.serving import ServerSettings, WatchedServer
from maskedlark.rpc.patience import Patience
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.runtime.disk import check_room
from maskedlark.runtime.durable_file import write_durably
from maskedlark.runtime.hardening import forbid_core_files
from maskedlark.runtime.ownership import check_data_folder, check_own
from maskedlark.runtime.signals import wait_for
from protos import ingest_pb2_grpc

_LOG = logging.getLogger(__name__)
_GRPC_THREADS: Final = 64
_WITH_BROWSERS: Final = Patience(idle_s=30.0, total_s=120.0)
_DRAIN_S: Final = 10.0


@frozen
class Addresses:
    """Where a running ad server listens, as host:port."""

    grpc: str
    http: str

    def encode(self) -> bytes:
        """The content of the addresses file."""
        return (json.dumps({"grpc": self.grpc, "http": self.http}) + "\n").encode()


@contextmanager
def running_ingest(
    engine: Engine,
    *,
    grpc_listen: str,
    http_listen: str,
    tls: TlsFiles | None,
    metrics: AdserverMetrics | None = None,
    check_disk: Callable[[], object] = lambda: None,
    local: LocalIntake | None = None,
) -> Iterator[Addresses]:
    """Both front doors, open until the block ends; requests that have begun by then are finished.

    Browsers need no certificate. `check_disk` raises when the disk is full, and is asked with health. `local`
    takes updates of jobs without helpers.

    Raises:
        InvalidTask: an address is taken, or may not be used without TLS.
    """
    tasks = TaskStore(engine)
    rounds = RoundStore(engine)
    intake = Intake(tasks, ReportStore(engine), time.monotonic, rounds)
    metrics = metrics or AdserverMetrics(engine)
    metrics.watch_intake(lambda: intake.counts)
    settings = ServerSettings(
        listen=grpc_listen, tls=tls, threads=_GRPC_THREADS, is_open=True, patience=_WITH_BROWSERS
    )

    def check_well() -> None:
        tasks.get(b"")  # one look into the database
        check_disk()

    with ExitStack() as stack:
        stack.callback(intake.log_counts)
        watched = WatchedServer(settings, metrics.registry, check_well)
        ingest_pb2_grpc.add_IngestServicer_to_server(IngestService(intake), watched.server)
        stack.callback(watched.drain, _DRAIN_S)
        app = counting_answers(
            http_app(intake, tasks, check_well=check_well, rounds=rounds, local=local), metrics.count_http
        )
        http = HttpServer(app, http_listen, tls, on_refused=metrics.count_http)
        stack.callback(http.stop)
        watched.start()
        http.wait_until_started()
        yield Addresses(grpc=_with_port(grpc_listen, watched.port), http=_with_port(http_listen, http.port))


@frozen
class AdserverSettings:
    """How an ad server's process runs.

    Attributes:
        data_dir: Where jobs keep their files.
        grpc_listen: host:port, port 0 for any.
        http_listen: The same.
        addresses_file: Gets the addresses as JSON, in one step, once both answer.
        dashboard: Where the dashboard and the admin API are, or None.
        metrics_listen: host:port on loopback of /metrics and /healthz, or None.
        refresh_keys_s: How often the helpers are asked for their HPKE keys.
        local_database: URL of the database of jobs without helpers; None: SQLite in the data folder.
    """

    data_dir: Path
    grpc_listen: str
    http_listen: str
    addresses_file: Path | None
    dashboard: DashboardSettings | None = None
    metrics_listen: str | None = None
    refresh_keys_s: float = 60.0
    local_database: str | None = None


def serve(engine: Engine, peers: Peers, settings: AdserverSettings, *, clock: Clock, stop: Event) -> None:
    """Take reports in and run jobs until `stop` is set.

    Then drain: finish what has begun, and leave jobs where they can resume.

    Args:
        engine: The database, with its tables.
        peers: The helpers, and this server's TLS files.
        settings: How.
        clock: Unix seconds.
        stop: Ends it.

    Raises:
        InvalidTask: the data folder or the TLS key is another user's or open to others, or an address is
            taken.
    """
    forbid_core_files()  # before the TLS key is read
    check_data_folder(settings.data_dir)
    if peers.tls is not None:
        check_own(peers.tls.private_key)
    remove_unfinished_of_jobs(settings.data_dir)

    def check_disk() -> None:
        check_room(settings.data_dir)

    def check_well() -> None:
        TaskStore(engine).all()
        check_disk()

    with ExitStack() as stack:
        helpers = peers.open(stack, engine)
        metrics = AdserverMetrics(engine, clock)
        local = open_local(settings.local_database or default_local_url(settings.data_dir))
        stack.callback(local.dispose)
        addresses = stack.enter_context(
            running_ingest(
                engine,
                grpc_listen=settings.grpc_listen,
                http_listen=settings.http_listen,
                tls=peers.tls,
                metrics=metrics,
                check_disk=check_disk,
                local=LocalIntake(LocalJobs(local, clock)),
            )
        )
        if settings.metrics_listen is not None:
            stack.enter_context(OperatorEndpoint(settings.metrics_listen, metrics.registry, check_well))
        _start_work(stack, engine, helpers, settings, clock)
        if settings.dashboard is not None:
            _open_dashboard(
                stack,
                settings.dashboard,
                engine=engine,
                helpers=helpers,
                data=settings.data_dir,
                tls=peers.tls,
                intake=metrics.intake,
                clock=clock,
            )
        _LOG.info("gRPC on %s, HTTP on %s", addresses.grpc, addresses.http)
        if settings.addresses_file is not None:
            write_durably(settings.addresses_file, addresses.encode())
        wait_for(stop)
        _LOG.info("draining")


def _start_work(
    stack: ExitStack,
    engine: Engine,
    helpers: tuple[HelperClient, HelperClient],
    settings: AdserverSettings,
    clock: Clock,
) -> None:
    """Start what runs beside the intake, until the stack unwinds: jobs, expiry, and the helpers' keys."""
    worker = JobWorker(engine, helpers, settings.data_dir, clock)
    worker.start()
    stack.callback(worker.stop)
    expirer = report_expirer(TaskStore(engine), ReportStore(engine), clock)
    expirer.start()
    stack.callback(expirer.stop)
    refresher = key_refresher(TaskStore(engine), helpers, settings.refresh_keys_s)
    refresher.start()
    stack.callback(refresher.stop, waits=False)  # a helper may not answer


def _open_dashboard(stack: ExitStack, settings: DashboardSettings, **of_server: Any) -> None:
    """Serve the dashboard until the stack unwinds; what it needs is imported only here."""
    try:
        from adserver.dashboard.serving import open_dashboard
    except ModuleNotFoundError as error:
        raise InvalidTask(
            f"the dashboard needs {error.name}: pip install 'maskedlark[adserver,dashboard]'"
        ) from None
    open_dashboard(stack, settings, **of_server)


def _with_port(listen: str, port: int) -> str:
    return f"{listen.rsplit(':', 1)[0]}:{port}"
