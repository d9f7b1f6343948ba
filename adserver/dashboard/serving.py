"""The dashboard of a running ad server: a listener separate from the intake's, until the server ends."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Engine

from adserver.admin.access import ALL_INTERFACES, names_of
from adserver.admin.admin_context import AdminContext
from adserver.admin.helper_watch import HelperWatch
from adserver.client import Client
from adserver.client.local import LocalAdServer
from adserver.dashboard.address import ADDRESS_FILE
from adserver.dashboard.app import dashboard
from adserver.ingest.http_server import HttpServer
from adserver.ingest.intake import IntakeCounts
from adserver.peers.client import HelperClient
from adserver.records.server_settings import DashboardSettings, OidcSettings
from adserver.store.audit_log import log_refusal
from adserver.store.database import Clock
from maskedlark.errors import InvalidTask
from maskedlark.rpc.sites import TrustedProxies
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import is_loopback
from maskedlark.runtime.durable_file import write_durably
from maskedlark.runtime.refused_acts import RefusedActs

if TYPE_CHECKING:
    from adserver.admin.oidc import OidcProvider

_LOG: Final = logging.getLogger(__name__)


def open_dashboard(
    stack: ExitStack,
    settings: DashboardSettings,
    *,
    engine: Engine,
    helpers: tuple[HelperClient, HelperClient],
    data: Path,
    tls: TlsFiles | None,
    intake: Callable[[], IntakeCounts],
    clock: Clock,
) -> str:
    """Serve the dashboard until the stack unwinds; its URL.

    Raises:
        InvalidTask: the address is taken, or may not be used without TLS.
    """
    host = settings.listen.rsplit(":", 1)[0].strip("[]")
    # A session's cookie and every token would cross the network in the clear
    if tls is None and not is_loopback(host):
        raise InvalidTask(
            f"the dashboard's address {settings.listen} is not on loopback: without TLS, only loopback "
            "is allowed"
        )
    watch = HelperWatch(engine, helpers, clock)
    watch.start()
    stack.callback(watch.stop)
    refused = RefusedActs(partial(log_refusal, engine))
    # Refusals are counted and logged in bulk: those of the last moments are still to be written
    stack.callback(refused.flush, is_over=True)
    site = AdminContext(
        engine=engine,
        data=data,
        client=Client.of(LocalAdServer.over(engine, helpers, data=data)),
        intake=intake,
        sights=watch.sights,
        tls=tls,
        clock=clock,
        started_at=clock(),
        refused=refused,
    )
    hosts = names_of(settings.listen, settings.hosts)
    provider = None if settings.oidc is None else stack.enter_context(_provider(settings.oidc, clock))
    app = stack.enter_context(dashboard(site, hosts=hosts, is_tls=tls is not None, provider=provider))
    # No CORS headers: no other site's page may read the dashboard
    server = HttpServer(
        app, settings.listen, tls, headers=(), proxies=TrustedProxies.of(settings.trusted_proxies)
    )
    stack.callback(server.stop)
    server.wait_until_started()
    url = f"{'http' if tls is None else 'https'}://{_link_host(settings, host)}:{server.port}"
    # Only now, with the port that was bound: port 0 picks one, and a link must not come before the server
    address = data / ADDRESS_FILE
    stack.callback(address.unlink, missing_ok=True)
    write_durably(address, f"{url}\n".encode())
    _LOG.info("dashboard on %s; `adserver dashboard login` prints a link that opens it once", url)
    return url


def _provider(settings: OidcSettings, clock: Clock) -> "OidcProvider":
    try:
        from adserver.admin.oidc import OidcProvider
    except ImportError:
        raise InvalidTask("--oidc-issuer needs packages: pip install 'masked-lark[oidc]'") from None
    return OidcProvider(settings, clock)


def _link_host(settings: DashboardSettings, host: str) -> str:
    """Return the host name for a link, as an all-interfaces address is not one."""
    is_any = host in ALL_INTERFACES
    name = settings.hosts[0] if is_any and settings.hosts else "127.0.0.1" if is_any else host
    return f"[{name}]" if ":" in name else name
