"""`adserver intake`."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from adserver.cli.options import InsecureOption, TlsCertOption, TlsKeyOption, watching
from adserver.records.server_settings import IntakeSettings
from maskedlark.observability.logs import LogFormat, configure_logging
from maskedlark.runtime.signals import stop_on_signals
from maskedlark.terminal.log_options import LogFormatOption
from maskedlark.terminal.options import making, option, takes

if TYPE_CHECKING:
    from maskedlark.rpc.tls_files import TlsFiles


def _intake_tls(
    *,
    insecure: InsecureOption = False,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
) -> "TlsFiles | None":
    """Return the TLS files of a server that only browsers call.

    Raises:
        typer.BadParameter: only one file is named, one does not exist, or files are named together with
            --insecure.
    """
    from maskedlark.rpc.tls_files import TlsFiles

    # Both would leave open which of them holds
    if insecure and not (tls_cert or tls_key):
        return None
    if insecure or tls_cert is None or tls_key is None:
        raise typer.BadParameter(
            "TLS is not configured: give both --tls-cert and --tls-key, or only --insecure (loopback)"
        )
    # No authorities: browsers have no certificates to check
    files = TlsFiles.without_peers(tls_cert, tls_key)
    for path in (files.certificate, files.private_key):
        if not path.is_file():
            raise typer.BadParameter(f"{path} is not a file: give the path of an existing PEM file")
    return files


intake_of: Final = making(
    IntakeSettings,
    grpc_listen=option("host:port of the gRPC intake; port 0 picks a free port.", metavar="HOST:PORT"),
    http_listen=option("host:port of the HTTP intake; port 0 picks a free port.", metavar="HOST:PORT"),
    addresses_file=option("Write the addresses to this file as JSON once both intakes answer."),
    metrics_listen=watching("host:port to serve /metrics and /healthz on.", metavar="HOST:PORT"),
    metrics_access=watching(
        "Protection of that port: loopback only, TLS with this server's certificate, or plaintext "
        "behind a network policy. Callers are not authenticated."
    ),
    otlp_metrics=watching(
        "Also send metrics to the collector of the OTEL_EXPORTER_OTLP_* environment variables."
    ),
    report_objects=option(
        "Object storage for report ciphertexts: s3://BUCKET/PREFIX, gs:// or az://; credentials "
        "come from the environment.",
        metavar="URL",
        show_default="rows of the database",
    ),
    trusted_proxies=option(
        "Address or network of a proxy whose X-Forwarded-For header is trusted; repeatable. "
        "Without it, all clients of the proxy share the quota of one address.",
        "--trusted-proxy",
        metavar="CIDR",
    ),
)


@takes(tls=_intake_tls, intake=intake_of)
def _intake_command(
    *,
    database: Annotated[
        str, option("SQLAlchemy URL of the ad server's database, the same as its --database.", metavar="URL")
    ],
    tls: "TlsFiles | None",
    intake: IntakeSettings,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Receive reports for an ad server, into its database, until SIGTERM.

    An intake keeps no files, needs no helpers and runs no jobs. The ad server creates and migrates the
    tables: start its `serve` of the same version first.
    """
    from adserver.cli.main import app
    from adserver.serving.replica import serve_intake
    from adserver.store.database import check_tables
    from maskedlark.runtime.database import open_database
    from maskedlark.terminal.unknown_variables import warn_of_unknown_variables

    configure_logging(log_format)
    warn_of_unknown_variables(app, "ADSERVER_")
    with stop_on_signals() as stop:
        engine = open_database(database)
        # A replica makes no tables: `serve` does, and must be of the same version
        check_tables(engine)
        serve_intake(engine, tls, intake, stop=stop)
