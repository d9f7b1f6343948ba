"""A helper's process: opens the data folder, serves, drains, and lets go of everything.

It serves until it is asked to stop.
"""

import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import Final

from cryptography import x509
from sqlalchemy.exc import SQLAlchemyError

from helper.core import HelperCore
from helper.datasets.sweeping import DROPPED_EVERY_S, EVERY_S, EXPIRED_KEPT_S, Sweeper
from helper.executors.clustered import ClusterExecutor
from helper.executors.executor import Executor
from helper.executors.local import LocalExecutor
from helper.gradient.choose import choose_engine
from helper.ledger.ledger import LEDGER_FILE, Ledger, sqlite_url
from helper.releases.release_grid import DEFAULT_STEP_MS, ReleaseGrid
from helper.serving.cluster import RayCluster, check_machine
from helper.serving.metrics import HelperMetrics
from helper.serving.own_acts import OwnActs
from helper.serving.service import HelperService
from helper.serving.warmup import warm_up
from helper.trust.cluster_secrets import worker_tls
from helper.trust.floors import MOST_HELD_BYTES, PREPARED_BYTES, Floors
from helper.trust.keys import FILE_NAME, HelperKeys
from maskedlark.errors import InvalidSetting, JobRefused, MaskedLarkError
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt
from maskedlark.observability.endpoint import OperatorEndpoint, Starting
from maskedlark.observability.metrics_access import MetricsAccess
from maskedlark.observability.otlp_metrics import sending_metrics
from maskedlark.observability.serving import ServerSettings, WatchedServer
from maskedlark.rpc.fair_quota import FairQuota
from maskedlark.rpc.tls_files import TlsContents, TlsFiles
from maskedlark.rpc.transport import MOST_CONNECTIONS, is_loopback
from maskedlark.rpc.trust import sha256_of
from maskedlark.runtime import gc_tuning
from maskedlark.runtime.bucket import open_bucket
from maskedlark.runtime.database import open_database
from maskedlark.runtime.durable_file import write_durably
from maskedlark.runtime.folder_lock import only_process
from maskedlark.runtime.hardening import allow_open_files, forbid_core_files
from maskedlark.runtime.ownership import check_data_folder, check_own
from maskedlark.runtime.periodic import IsStopped, Periodic
from maskedlark.runtime.signals import wait_for
from protos import helper_pb2_grpc

DRAIN_S: Final = 30.0
DAY_S: Final = 86_400.0
LIGHT_CALLS: Final = 4
"""Threads that preparations, rounds and queries leave free for calls that take no time."""
_OPEN_FILES: Final = 2 * MOST_CONNECTIONS

_LOG: Final = logging.getLogger(__name__)


@frozen
class HelperSettings:
    """How a helper process runs.

    Attributes:
        data: The folder of its keys and datasets.
        listen: host:port; port 0 for any.
        tls: Its TLS files, or None for plaintext on loopback.
        floors: The operator's.
        database: A SQLAlchemy URL, or None for SQLite in `data`.
        port_file: Where to write the address that was bound, or None.
        threads: How many calls are answered at once.
        opening_workers: Processes that open report shares; None for one a core.
        round_threads: Threads that share the computation of one round; None for one a core.
        max_preparing_bytes: Memory that reports may take together while they become datasets.
        max_held_bytes: What one ad server may hold on the disk and in the bucket, committed or not.
        release_grid_ms: Answers are charged and leave a whole number of these milliseconds after their
            requests.
        metrics_listen: host:port of /metrics and /healthz, or None.
        metrics_access: How that port is protected.
        otlp_metrics: Whether a collector gets the metrics too.
        segments: The URL of the object storage that new datasets lie in, or None for the data folder.
        keep_expired_days: How long after its task's end a dataset is kept.
        cluster: Whose workers compute too, or None.
    """

    data: Path
    listen: str
    tls: TlsFiles | None
    floors: Floors
    database: str | None = None
    port_file: Path | None = None
    threads: int = 16
    opening_workers: int | None = None
    round_threads: int | None = None
    max_preparing_bytes: int = PREPARED_BYTES
    max_held_bytes: int = MOST_HELD_BYTES
    release_grid_ms: float = DEFAULT_STEP_MS
    metrics_listen: str | None = None
    metrics_access: MetricsAccess = MetricsAccess.LOOPBACK
    otlp_metrics: bool = False
    segments: str | None = None
    keep_expired_days: float = EXPIRED_KEPT_S / DAY_S
    cluster: RayCluster | None = None


def serve(settings: HelperSettings, stop: Event) -> None:
    """Serve until `stop` is set; then finish the calls that are under way, within `DRAIN_S`.

    Health is answered at once, as not serving yet; other calls once this machine is checked.

    Raises:
        InvalidSetting: the settings are unsafe, the keys cannot be read, they or the folder are another
            user's or open to others, the folder is in use, the address is taken, or this machine's arithmetic
            does not give the protocol's golden vectors.
    """
    _check_settings(settings)
    with suppress(_Stopped), ExitStack() as stack:
        core = _open_core(settings, stack, _stopping(stop))
        with suppress(JobRefused):  # it is logged: a ledger that was rolled back is served too, with refusals
            core.witness.check(None)
        metrics = HelperMetrics(core)
        watched = _create_server(settings, core, metrics, stack)
        is_ready = Event()

        def check_well() -> None:
            if not is_ready.is_set():
                raise Starting
            core.check_well()

        if settings.metrics_listen is not None:
            endpoint = OperatorEndpoint(
                settings.metrics_listen,
                metrics.registry,
                check_well,
                access=settings.metrics_access,
                tls=settings.tls,
            )
            stack.enter_context(endpoint)
        if settings.otlp_metrics:
            stack.enter_context(sending_metrics("helper", metrics.registry))
        watched.listen()
        acts = OwnActs(core, settings.floors)
        acts.log_start()
        # Refusals are counted in memory: the last ones are logged before the ledger is closed.
        stack.callback(core.refused.flush, is_over=True)
        for sweeping in (*_sweepings(core.sweeper), acts.periodic()):
            sweeping.start()
            stack.callback(sweeping.stop)
        # Last, and so undone first: calls end while everything that they use is still there.
        stack.callback(watched.drain, DRAIN_S)
        with suppress(_Stopped):
            _answer_calls(settings, core, watched, is_ready, stop)
        _LOG.info("draining")


def _sweepings(sweeper: Sweeper) -> tuple[Periodic, ...]:
    """Return the periodic tasks that remove what is no longer needed."""

    def log_refusals(work: Callable[[IsStopped], object]) -> Callable[[IsStopped], None]:
        def run(is_stopped: IsStopped) -> None:
            try:
                work(is_stopped)
            # A store that is away, or a ledger that was rolled back, ends this sweep and not the next.
            except MaskedLarkError as error:
                _LOG.warning("the sweep is incomplete: %s", error)

        return run

    survives = (OSError, SQLAlchemyError)
    everything = Periodic(log_refusals(sweeper.sweep), name="sweep", every_s=EVERY_S, survives=survives)
    dropped = log_refusals(lambda _: sweeper.vault.delete_dropped())
    return everything, Periodic(dropped, name="dropped", every_s=DROPPED_EVERY_S, survives=survives)


def _check_settings(settings: HelperSettings) -> None:
    """Refuse settings and files that are unsafe."""
    host = settings.listen.rsplit(":", 1)[0]
    if settings.floors.is_noise_optional and not is_loopback(host):
        raise InvalidSetting(
            f"--allow-no-noise cannot be used on {host}: it is for debugging on loopback only"
        )
    forbid_core_files()
    allow_open_files(_OPEN_FILES)
    _check_files(settings)


def _create_server(
    settings: HelperSettings, core: HelperCore, metrics: HelperMetrics, stack: ExitStack
) -> WatchedServer:
    """Create the gRPC server with the helper's service, not listening yet."""
    # set when every call has ended: a thread that holds an answer back for its time would hold the process up
    is_over = Event()
    stack.callback(is_over.set)
    service = HelperService(
        core,
        ReleaseGrid(step_s=settings.release_grid_ms / 1000, sleep=is_over.wait),
        metrics,
        FairQuota(max(1, settings.threads - LIGHT_CALLS)),
        is_over=is_over,
    )
    watched = WatchedServer(
        ServerSettings(listen=settings.listen, tls=settings.tls, threads=settings.threads),
        metrics.registry,
        core.check_well,
    )
    helper_pb2_grpc.add_HelperServicer_to_server(service, watched.server)
    return watched


def _answer_calls(
    settings: HelperSettings, core: HelperCore, watched: WatchedServer, is_ready: Event, stop: Event
) -> None:
    """Check this machine, then answer calls until `stop` is set.

    Raises:
        _Stopped: `stop` was set before the machine was checked.
        InvalidSetting: this machine's arithmetic does not give the protocol's golden vectors.
    """
    address = f"{settings.listen.rsplit(':', 1)[0]}:{watched.port}"
    _LOG.info("starting on %s: checking this machine's arithmetic", address)
    status = core.status()
    _LOG.info(
        "version %s, fingerprint %s, software_digest %s",
        status.version,
        status.identity.fingerprint,
        status.numerics.hex(),
    )
    warm_up(_stopping(stop))
    watched.start()
    is_ready.set()
    gc_tuning.serving()
    # Now, and not once the port is bound: a program that waits for the file calls at once.
    if settings.port_file is not None:
        write_durably(settings.port_file, address.encode())
    _LOG.info("serving on %s (%s)", address, "TLS" if settings.tls else "plaintext, loopback only")
    wait_for(stop)


class _Stopped(Exception):
    """The helper was asked to stop before it was ready."""


def _stopping(stop: Event) -> Interrupt:
    """Return an interrupt that ends its caller once the event is set."""

    def check() -> None:
        if stop.is_set():
            raise _Stopped

    return check


def _check_files(settings: HelperSettings) -> None:
    """Refuse to serve from secrets or a folder that others may have read, or could replace."""
    own = HelperKeys.read(settings.data).identity.fingerprint  # which refuses keys that others may read
    if own in settings.floors.peers:
        raise InvalidSetting(
            f"--peer {own} is this helper's own fingerprint: give the other helper's, which its operator's "
            "`lark-helper keygen` printed"
        )
    check_data_folder(settings.data)
    check_own(settings.data / FILE_NAME)
    if settings.tls is not None:
        settings.tls.check_own()
        _check_peers(settings.floors.peers, settings.tls.read())


def _check_peers(peers: frozenset[str], contents: TlsContents) -> None:
    """Refuse a certificate's SHA-256 in place of a fingerprint, which has the same form."""
    for whose, pem in (("this helper's", contents.certificate), ("a trusted", contents.trusted_authorities)):
        for one in x509.load_pem_x509_certificates(pem) if pem.strip() else []:
            if sha256_of(one) in peers:
                raise InvalidSetting(
                    f"--peer {sha256_of(one)} is the SHA-256 of {whose} TLS certificate: give the "
                    "fingerprint of the other helper's keys, which its `lark-helper keys list` prints"
                )


def _open_core(settings: HelperSettings, stack: ExitStack, interrupt: Interrupt) -> HelperCore:
    """Open the core on the data folder; its resources close when the stack unwinds."""
    keys = HelperKeys.read(settings.data)
    # Two helpers on one folder would each believe that they alone write its files
    stack.enter_context(only_process(settings.data, "helper", "use another folder"))
    ledger = stack.enter_context(
        closing(Ledger(open_database(settings.database or sqlite_url(settings.data / LEDGER_FILE))))
    )
    executor = _executor(settings, interrupt)
    stack.callback(executor.close)
    return HelperCore(
        data=settings.data,
        keys=keys,
        floors=settings.floors,
        ledger=ledger,
        executor=executor,
        clock=time.time,
        engine_for=partial(choose_engine, threads=settings.round_threads or os.cpu_count() or 1),
        max_preparing_bytes=settings.max_preparing_bytes,
        max_held_bytes=settings.max_held_bytes,
        segments=open_bucket(settings.segments) if settings.segments is not None else None,
        keep_expired_s=settings.keep_expired_days * DAY_S,
    )


def _executor(settings: HelperSettings, interrupt: Interrupt) -> Executor:
    """Return an executor for this machine's processors, or also those of a cluster.

    Raises:
        InvalidSetting: Ray is not installed, or no cluster answers.
    """
    cluster, local = settings.cluster, LocalExecutor(settings.opening_workers)
    if cluster is None:
        return local
    # All that can be refused is, before anything connects to the cluster.
    cluster.check()
    tls = worker_tls(cluster.worker_tls)
    tls.read()
    tls.check_own()
    try:
        from helper.executors.ray_fleet import RayFleet  # most helpers go without Ray
    except ImportError:
        raise InvalidSetting("--ray requires the extra `ray`: pip install 'masked-lark[ray]'") from None
    fleet = RayFleet(
        cluster.address,
        tls,
        capacity_bytes=cluster.worker_bytes,
        check_machine=check_machine,
        interrupt=interrupt,
    )
    return ClusterExecutor(fleet, local, opens_shares=cluster.opens_shares)
