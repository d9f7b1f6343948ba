"""An intake replica's life: it takes reports into a database that it shares, and keeps nothing itself.

Any number of them run next to an ad server, behind a load balancer. What must hold of a
task's reports as a whole is the database's: a report counts once whoever takes it, a round that is closed is
closed at all of them, and a task is known to all at once.
"""

from threading import Event

from sqlalchemy import Engine

from adserver.records.server_settings import IntakeSettings
from adserver.serving.intake_metrics import IntakeMetrics
from adserver.serving.intake_servers import OPEN_FILES, running_ingest, wait_at
from adserver.store.report_buckets import ReportBucket
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.runtime.hardening import allow_open_files, forbid_core_files


def serve_intake(engine: Engine, tls: TlsFiles | None, settings: IntakeSettings, *, stop: Event) -> None:
    """Take reports in until `stop` is set; then finish what has begun.

    Args:
        engine: The ad server's database, with its tables.
        tls: How it proves its identity, or None for plaintext on loopback.
        settings: How.
        stop: Ends it.

    Raises:
        InvalidTask: the TLS key is another user's or open to others, or an address is taken; or the ad server
            does not know the object storage yet.
    """
    forbid_core_files()  # before the TLS key is read
    allow_open_files(OPEN_FILES)
    if tls is not None:
        tls.check_own()
    url = settings.report_objects
    bucket = ReportBucket.of(engine, url, may_add=False) if url else None
    with running_ingest(engine, settings, tls=tls, metrics=IntakeMetrics(), bucket=bucket) as addresses:
        wait_at(addresses, settings.addresses_file, stop)
