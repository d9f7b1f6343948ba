"""The ad server's life: start everything, say where it listens, drain, stop."""

import logging
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

from sqlalchemy import Engine

from adserver.collecting.key_refresh import key_refresher
from adserver.collecting.report_expiry import report_expirer
from adserver.ingest.local_app import LocalIntake
from adserver.peers.client import HelperClient
from adserver.peers.opening import Peers
from adserver.records.dashboard_settings import DashboardSettings
from adserver.serving.front_doors import running_ingest
from adserver.serving.metrics import AdserverMetrics
from adserver.store.database import Clock
from adserver.store.job_folder import remove_unfinished_of_jobs
from adserver.store.local.jobs import LocalJobs
from adserver.store.local.schema import default_local_url, open_local
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from adserver.training.worker import JobWorker
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.observability.endpoint import OperatorEndpoint
from maskedlark.runtime.disk import check_room
from maskedlark.runtime.durable_file import write_durably
from maskedlark.runtime.hardening import forbid_core_files
from maskedlark.runtime.ownership import check_data_folder, check_own
from maskedlark.runtime.signals import wait_for

_LOG = logging.getLogger(__name__)


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
