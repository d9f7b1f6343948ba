"""The ad server's life: start everything, say where it listens, drain, stop."""

from contextlib import ExitStack
from threading import Event
from typing import Any

from sqlalchemy import Engine

from adserver.collecting.key_refresh import key_refresher
from adserver.collecting.object_sweeping import object_sweeper
from adserver.collecting.report_expiry import report_expirer
from adserver.dashboard.address import ADDRESS_FILE
from adserver.ingest.local_app import LocalIntake
from adserver.peers.client import HelperClient
from adserver.peers.connect import Peers
from adserver.records.server_settings import AdserverSettings, DashboardSettings
from adserver.serving.intake_servers import OPEN_FILES, running_ingest, wait_at
from adserver.serving.metrics import AdserverMetrics
from adserver.store.database import Clock, database_clock
from adserver.store.job_folder import JobFolder
from adserver.store.jobs import JobStore
from adserver.store.local.models import LocalModels
from adserver.store.report_buckets import ReportBucket
from adserver.store.tasks import TaskStore
from adserver.training.worker import JobWorker
from maskedlark.errors import InvalidSetting
from maskedlark.runtime.disk import check_room
from maskedlark.runtime.folder_lock import only_process
from maskedlark.runtime.hardening import allow_open_files, forbid_core_files
from maskedlark.runtime.ownership import check_data_folder


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
        InvalidSetting: the data folder or the TLS key is another user's or open to others, another process
            serves from the folder, or an address is taken.
    """
    forbid_core_files()  # before the TLS key is read
    allow_open_files(OPEN_FILES)
    check_data_folder(settings.data_dir)
    if peers.tls is not None:
        peers.tls.check_own()
    with ExitStack() as stack:
        # Several share a PostgreSQL, by its clock and its locks
        if engine.dialect.name == "sqlite":
            remedy = "put the database of both on PostgreSQL (--database)"
            stack.enter_context(only_process(settings.data_dir, "`adserver serve`", remedy))
        # Of a process that was killed while it wrote
        JobFolder.remove_unfinished(settings.data_dir)
        helpers = peers.open(stack, engine)
        metrics = AdserverMetrics(engine, clock)
        url = settings.intake.report_objects
        bucket = ReportBucket.of(engine, url, may_add=True) if url else None
        addresses = stack.enter_context(
            running_ingest(
                engine,
                settings.intake,
                tls=peers.tls,
                metrics=metrics,
                check_disk=lambda: check_room(settings.data_dir),
                local=LocalIntake(JobStore(engine, clock), LocalModels(engine)),
                bucket=bucket,
            )
        )
        _start_work(stack, engine, helpers, settings, clock, bucket=bucket)
        # Of a process that was killed: this one may have another dashboard, or none
        (settings.data_dir / ADDRESS_FILE).unlink(missing_ok=True)
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
        wait_at(addresses, settings.intake.addresses_file, stop)


def _start_work(
    stack: ExitStack,
    engine: Engine,
    helpers: tuple[HelperClient, HelperClient],
    settings: AdserverSettings,
    clock: Clock,
    *,
    bucket: ReportBucket | None,
) -> None:
    """Start the background work until the stack unwinds: jobs, expiry, sweeps, the helpers' keys."""
    worker = JobWorker(engine, helpers, settings.data_dir, clock)
    worker.start()
    stack.callback(worker.stop)
    # Intakes on other machines have clocks of their own; what ends a task's reports goes by the database's
    shared = database_clock(engine, clock)
    cleaners = [report_expirer(engine, shared, clock)]
    if bucket is not None:
        cleaners.append(object_sweeper(engine, bucket, shared, clock))
    for cleaner in cleaners:
        cleaner.start()
        stack.callback(cleaner.stop)
    refresher = key_refresher(TaskStore(engine), helpers, settings.refresh_keys_s)
    refresher.start()
    stack.callback(refresher.stop, waits=False)  # a helper may not answer


def _open_dashboard(stack: ExitStack, settings: DashboardSettings, **of_server: Any) -> None:
    """Serve the dashboard until the stack unwinds; what it needs is imported only here."""
    try:
        from adserver.dashboard.serving import open_dashboard
    except ModuleNotFoundError as error:
        raise InvalidSetting(
            f"the dashboard needs {error.name}: pip install 'masked-lark[adserver,dashboard]'"
        ) from None
    open_dashboard(stack, settings, **of_server)
