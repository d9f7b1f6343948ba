"""`adserver serve` and `adserver keygen`."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adserver.cli.intake import intake_of
from adserver.cli.oidc import oidc_of
from adserver.cli.options import DatabaseOption, DataOption, TracesOption, watching
from adserver.cli.target import peers_of
from adserver.records.server_settings import AdserverSettings, DashboardSettings, IntakeSettings
from maskedlark.observability.logs import LogFormat, configure_logging
from maskedlark.observability.traces import Traces
from maskedlark.runtime.signals import stop_on_signals
from maskedlark.terminal.log_options import LogFormatOption
from maskedlark.terminal.options import option, takes

if TYPE_CHECKING:
    from adserver.peers.connect import Peers


# A server waits for its helpers anyway, as long as it runs
@takes(peers=peers_of, intake=intake_of, without=["wait"])
def _serve_command(
    *,
    data: DataOption,
    peers: "Peers",
    intake: IntakeSettings,
    database: DatabaseOption = None,
    refresh_keys: Annotated[
        float, option("Seconds between two refreshes of the helpers' HPKE keys.", min=1.0)
    ] = 60.0,
    dashboard_listen: Annotated[
        str | None,
        watching(
            "host:port to serve the dashboard and admin API on; TLS is required beyond loopback.",
            metavar="HOST:PORT",
        ),
    ] = None,
    dashboard_host: Annotated[
        list[str] | None,
        watching("Another host name of the dashboard; repeatable.", metavar="NAME"),
    ] = None,
    oidc_issuer: Annotated[
        str | None,
        watching("URL of the OpenID Connect provider where people sign in to the dashboard.", metavar="URL"),
    ] = None,
    oidc_client_id: Annotated[
        str | None, watching("This server, as the provider knows it.", metavar="ID")
    ] = None,
    oidc_client_secret_file: Annotated[
        Path | None, watching("File with the client's secret; none for a public client.")
    ] = None,
    oidc_group: Annotated[
        list[str] | None,
        watching(
            "A group of the provider and its scope (read, operate, tasks, tokens); repeatable.",
            metavar="GROUP=SCOPE",
        ),
    ] = None,
    oidc_groups_claim: Annotated[str, watching("Claim that lists a person's groups.")] = "groups",
    oidc_audience: Annotated[
        str | None,
        watching(
            "Audience of the provider's access tokens that the admin API accepts.",
            show_default="the API accepts none",
        ),
    ] = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    traces: TracesOption = Traces.NONE,
) -> None:
    """Receive reports over gRPC and HTTP, serve tasks, and run jobs, until SIGTERM."""
    from adserver.cli.main import app
    from adserver.serving.server import serve
    from adserver.store.database import open_store
    from maskedlark.observability.tracing import tracing
    from maskedlark.terminal.unknown_variables import warn_of_unknown_variables

    configure_logging(log_format)
    warn_of_unknown_variables(app, "ADSERVER_")
    # Signals first: one that comes while the server starts ends it as cleanly as later ones
    with stop_on_signals() as stop, tracing("adserver", traces):
        settings = AdserverSettings(
            data_dir=data,
            intake=intake,
            dashboard=DashboardSettings(
                listen=dashboard_listen,
                hosts=dashboard_host or (),
                # The same option for both listeners: the same proxies stand before them
                trusted_proxies=intake.trusted_proxies or (),
                oidc=oidc_of(
                    issuer=oidc_issuer,
                    client_id=oidc_client_id,
                    secret_file=oidc_client_secret_file,
                    groups=oidc_group or (),
                    groups_claim=oidc_groups_claim,
                    audience=oidc_audience,
                ),
            )
            if dashboard_listen
            else None,
            refresh_keys_s=refresh_keys,
        )
        serve(open_store(data, database), peers, settings, clock=time.time, stop=stop)


def _keygen_command(
    data: DataOption,
    origin: Annotated[str, option("The ad-tech origin for the certificate: the same as in the tasks.")],
    host: Annotated[list[str] | None, option("A host name or address of the server; repeatable.")] = None,
) -> None:
    """Create this server's TLS key and certificate in --data. Existing ones are never overwritten."""
    from maskedlark.reports.origin import SPELLING, split_origin
    from maskedlark.rpc.certificates import write_certificate
    from maskedlark.runtime.ownership import make_folder

    # Helpers take tasks of the origin that the certificate names: a misspelt one would show only there
    if split_origin(origin) is None:
        raise typer.BadParameter(f"--origin is {origin!r}, which is not valid: {SPELLING}")
    # The private key will lie in it
    make_folder(data)
    try:
        files = write_certificate(data, name=origin, hosts=tuple(host or ()), now=datetime.now(UTC))
    # Helpers pin it: another one would shut this server out
    except FileExistsError:
        raise typer.BadParameter(f"{data} already has a TLS key: keeping it") from None
    typer.echo(
        f"next: give {files.certificate} to both helpers, and add their certificates to "
        f"{files.trusted_authorities}"
    )
