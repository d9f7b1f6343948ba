"""An intake replica's life: it takes reports into a database that it shares, and keeps nothing itself.

Any number of them run beside an ad server and beside each other, behind a load balancer. What must hold of a
task's reports as a whole is the database's: a report counts once whoever takes it, a round that is closed is
closed at all of them, and a task is known to all at once.
"""

import logging
from contextlib import ExitStack
from pathlib import Path
from threading import Event

from sqlalchemy import Engine

from adserver.serving.front_doors import running_ingest
from adserver.serving.intake_metrics import IntakeMetrics
from adserver.store.tasks import TaskStore
from maskedlark.frozen import frozen
from maskedlark.observability.endpoint import OperatorEndpoint
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.runtime.durable_file import write_durably
from maskedlark.runtime.hardening import forbid_core_files
from maskedlark.runtime.ownership import check_own
from maskedlark.runtime.signals import wait_for

_LOG = logging.getLogger(__name__)


@frozen
class ReplicaSettings:
    """How an intake replica's process runs.

    Attributes:
        grpc_listen: host:port, port 0 for any.
        http_listen: The same.
        addresses_file: Gets the addresses as JSON, in one step, once both answer.
        metrics_listen: host:port on loopback of /metrics and /healthz, or None.
    """

    grpc_listen: str
    http_listen: str
    addresses_file: Path | None = None
    metrics_listen: str | None = None


def serve_intake(engine: Engine, tls: TlsFiles | None, settings: ReplicaSettings, *, stop: Event) -> None:
    """Take reports in until `stop` is set; then finish what has begun.

    Args:
        engine: The ad server's database, with its tables.
        tls: How it proves who it is, or None for plaintext on loopback.
        settings: How.
        stop: Ends it.

    Raises:
        InvalidTask: the TLS key is another user's or open to others, or an address is taken.
    """
    forbid_core_files()  # before the TLS key is read
    if tls is not None:
        check_own(tls.private_key)
    tasks = TaskStore(engine)
    with ExitStack() as stack:
        metrics = IntakeMetrics()
        addresses = stack.enter_context(
            running_ingest(
                engine,
                grpc_listen=settings.grpc_listen,
                http_listen=settings.http_listen,
                tls=tls,
                metrics=metrics,
            )
        )
        if settings.metrics_listen is not None:
            stack.enter_context(
                OperatorEndpoint(settings.metrics_listen, metrics.registry, lambda: tasks.get(b""))
            )
        _LOG.info("gRPC on %s, HTTP on %s", addresses.grpc, addresses.http)
        if settings.addresses_file is not None:
            write_durably(settings.addresses_file, addresses.encode())
        wait_for(stop)
        _LOG.info("draining")
