"""Both front doors of the intake, gRPC and HTTP: an ad server's own, and those of its replicas."""

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from typing import Final

from sqlalchemy import Engine

from adserver.ingest.grpc_service import IngestService
from adserver.ingest.http_app import counting_answers, http_app
from adserver.ingest.http_server import HttpServer
from adserver.ingest.intake import Intake
from adserver.ingest.local_app import LocalIntake
from adserver.records.server_settings import IntakeSettings
from adserver.serving.intake_metrics import IntakeMetrics
from adserver.store.report_buckets import ReportBucket
from adserver.store.report_object_writer import PutsReports
from adserver.store.reports import ReportStore
from adserver.store.rounds import RoundStore
from adserver.store.tasks import TaskStore
from maskedlark.frozen import frozen
from maskedlark.observability.endpoint import OperatorEndpoint
from maskedlark.observability.otlp_metrics import sending_metrics
from maskedlark.observability.serving import ServerSettings, WatchedServer
from maskedlark.rpc.sites import TrustedProxies
from maskedlark.rpc.stream_timeouts import Patience
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.runtime import gc_tuning
from maskedlark.runtime.durable_file import write_durably
from maskedlark.runtime.signals import wait_for
from protos import ingest_pb2_grpc

_LOG: Final = logging.getLogger(__name__)
_GRPC_THREADS: Final = 64
# For single reports over HTTP where groups of them become objects: each waits in a thread for its group
_STORING_THREADS: Final = 512
_WITH_BROWSERS: Final = Patience(idle_s=30.0, total_s=120.0)
_DRAIN_S: Final = 10.0
OPEN_FILES: Final = 16_384
"""For the connections of the intake, over HTTP and gRPC, and of the dashboard."""


@frozen
class Addresses:
    """Where a running ad server listens, as host:port."""

    grpc: str
    http: str

    def encode(self) -> bytes:
        """Encode the content of the addresses file."""
        return (json.dumps({"grpc": self.grpc, "http": self.http}) + "\n").encode()


@contextmanager
def running_ingest(
    engine: Engine,
    settings: IntakeSettings,
    *,
    tls: TlsFiles | None,
    metrics: IntakeMetrics | None = None,
    check_disk: Callable[[], object] = lambda: None,
    local: LocalIntake | None = None,
    bucket: ReportBucket | None = None,
) -> Iterator[Addresses]:
    """Run both servers until the block ends; requests that have begun by then are finished.

    So is the operator's endpoint, if there is to be one. Browsers need no certificate. `check_disk` raises
    when the disk is full, and is asked with health. `local` takes updates of jobs without helpers.
    Ciphertexts of large groups of reports go to `bucket`.

    Raises:
        InvalidTask: an address is taken, or may not be used without TLS; or the bucket cannot be opened; or a
            trusted proxy is no network.
    """
    proxies = TrustedProxies.of(settings.trusted_proxies or ())
    tasks = TaskStore(engine)
    rounds = RoundStore(engine)
    putting = None if bucket is None else PutsReports(bucket, bucket.open(), monotonic=time.monotonic)
    intake = Intake(tasks, ReportStore(engine, putting), time.monotonic, rounds)
    metrics = metrics or IntakeMetrics()
    metrics.watch_intake(lambda: intake.counts)
    grpc_settings = ServerSettings(
        listen=settings.grpc_listen,
        tls=tls,
        threads=_GRPC_THREADS,
        # Browsers and their proxies have no certificate of ours
        is_open=True,
        patience=_WITH_BROWSERS,
        proxies=proxies,
    )

    def check_well() -> None:
        tasks.get(b"")  # one look into the database
        check_disk()

    with ExitStack() as stack:
        stack.callback(intake.log_counts)
        watched = WatchedServer(grpc_settings, metrics.registry, check_well)
        ingest_pb2_grpc.add_IngestServicer_to_server(IngestService(intake), watched.server)
        stack.callback(watched.drain, _DRAIN_S)
        app = counting_answers(
            http_app(
                intake,
                tasks,
                check_well=check_well,
                rounds=rounds,
                local=local,
                storing_threads=None if bucket is None else _STORING_THREADS,
            ),
            metrics.count_http,
        )
        http = HttpServer(app, settings.http_listen, tls, on_refused=metrics.count_http, proxies=proxies)
        stack.callback(http.stop)
        watched.start()
        http.wait_until_started()
        if settings.metrics_listen is not None:
            endpoint = OperatorEndpoint(
                settings.metrics_listen,
                metrics.registry,
                check_well,
                access=settings.metrics_access,
                tls=tls,
            )
            stack.enter_context(endpoint)
        if settings.otlp_metrics:
            stack.enter_context(sending_metrics("adserver", metrics.registry))
        yield Addresses(
            grpc=_with_port(settings.grpc_listen, watched.port),
            http=_with_port(settings.http_listen, http.port),
        )


def wait_at(addresses: Addresses, addresses_file: Path | None, stop: Event) -> None:
    """Say where this server listens, and wait until it is to end."""
    _LOG.info("gRPC on %s, HTTP on %s", addresses.grpc, addresses.http)
    gc_tuning.serving()
    # Only now: whoever reads the file finds both intakes answering
    if addresses_file is not None:
        write_durably(addresses_file, addresses.encode())
    wait_for(stop)
    _LOG.info("draining")


def _with_port(listen: str, port: int) -> str:
    return f"{listen.rsplit(':', 1)[0]}:{port}"
