"""How an ad server's process runs, and an intake replica's; without what serves them, which takes imports."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from adserver.records.access import Scope
from maskedlark.frozen import frozen
from maskedlark.observability.metrics_access import MetricsAccess


@frozen
class OidcSettings:
    """Where people sign in, and what they may do then.

    Attributes:
        issuer: The provider's URL, as its tokens name it.
        client_id: This server, as the provider knows it.
        scopes: What each group may do.
        secret_file: Holds the client's secret; None for a public client.
        groups_claim: The claim that lists a person's groups.
        audience: Of access tokens for the admin API; None: the API takes none.
        request_scopes: What a sign-in asks the provider for.
    """

    issuer: str
    client_id: str
    scopes: Mapping[str, Scope]
    secret_file: Path | None = None
    groups_claim: str = "groups"
    audience: str | None = None
    request_scopes: Sequence[str] = ("openid", "profile", "email")


@frozen
class DashboardSettings:
    """Where a dashboard listens.

    Attributes:
        listen: host:port, port 0 for any. Beyond loopback only with TLS.
        hosts: Names under which it is reached, besides the one in `listen`.
        trusted_proxies: As of `IntakeSettings`.
        oidc: Where people sign in; None: with links and tokens of this server alone.
    """

    listen: str
    hosts: Sequence[str] = ()
    trusted_proxies: Sequence[str] = ()
    oidc: OidcSettings | None = None


@frozen
class IntakeSettings:
    """Where reports are taken in, by an ad server or by a replica.

    Attributes:
        grpc_listen: host:port, port 0 for any.
        http_listen: The same.
        addresses_file: Gets the addresses as JSON, in one step, once both answer.
        metrics_listen: host:port of /metrics and /healthz, or None.
        metrics_access: How that port is protected.
        otlp_metrics: Whether a collector gets the metrics too.
        report_objects: URL of the object storage that ciphertexts of large groups of reports go to, or None
            for the database.
        trusted_proxies: Addresses and networks of proxies that are believed when they name the address of a
            browser (`maskedlark.rpc.sites`); None for none.
    """

    # Loopback until an operator says otherwise.
    grpc_listen: str = "127.0.0.1:0"
    http_listen: str = "127.0.0.1:0"
    addresses_file: Path | None = None
    metrics_listen: str | None = None
    metrics_access: MetricsAccess = MetricsAccess.LOOPBACK
    otlp_metrics: bool = False
    report_objects: str | None = None
    trusted_proxies: list[str] | None = None


@frozen
class AdserverSettings:
    """How an ad server's process runs.

    Attributes:
        data_dir: Of this server alone: TLS files, curves, and on SQLite the files of jobs.
        intake: Where it takes reports in.
        dashboard: Where the dashboard and the admin API are, or None.
        refresh_keys_s: How often the helpers are asked for their HPKE keys.
    """

    data_dir: Path
    intake: IntakeSettings
    dashboard: DashboardSettings | None = None
    refresh_keys_s: float = 60.0
