"""uvicorn in a separate thread, so that one process serves gRPC, HTTP and jobs."""

import socket
from collections.abc import Callable
from threading import Thread
from typing import Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from adserver.ingest import cors_headers
from adserver.ingest.shared_listener import SharedListener
from adserver.ingest.slow_client_limits import HttpHeaders, HttpLimits, patient_protocol
from maskedlark.errors import InvalidSetting
from maskedlark.rpc.fair_quota import FairQuota
from maskedlark.rpc.sites import TrustedProxies
from maskedlark.rpc.tls_files import TlsFiles, server_context
from maskedlark.rpc.transport import is_loopback
from maskedlark.runtime.binding import why_not_bound

_START_DEADLINE_S: Final = 30.0
_DRAIN_S: Final = 10
_POLL_S: Final = 0.01
# Connections beyond a site's share are accepted as long as there are so many for each place, to be refused
# with an answer. Beyond that they are closed at once.
_SOCKETS_A_PLACE: Final = 2
LIMITS: Final = HttpLimits()
NO_PROXIES: Final = TrustedProxies()


class HttpServer:
    """A running HTTP server.

    It listens when the constructor returns; `stop` finishes the requests that have begun.
    """

    def __init__(
        self,
        app: ASGIApp,
        address: str,
        tls: TlsFiles | None,
        *,
        on_refused: Callable[[int], None] = lambda _status: None,
        headers: HttpHeaders = cors_headers.HEADERS,
        limits: HttpLimits | None = None,
        proxies: TrustedProxies = NO_PROXIES,
    ) -> None:
        """Listen on host:port (port 0: any).

        Browsers show no certificates, so `tls` only proves the server's identity.

        `on_refused` is called with the status of what was refused before it was a request: `app` does not see
        it. `headers` are those of every answer. `limits` are `LIMITS` if not given. `proxies` are believed
        when they name the address of a browser.

        Raises:
            InvalidSetting: no TLS on an address that others can reach, or the address is taken.
        """
        host = address.rsplit(":", 1)[0].strip("[]")
        if tls is None and not is_loopback(host):
            raise InvalidSetting(
                f"the HTTP server's address {address} is not on loopback: without TLS, only loopback is "
                "allowed"
            )
        limits = limits or LIMITS
        self._socket = _listen(host, address, limits, proxies)
        self.port: int = self._socket.getsockname()[1]
        protocol = patient_protocol(limits, proxies, on_refused=on_refused, headers=headers)
        self._server = uvicorn.Server(_config(app, tls, protocol, headers))
        self._thread = Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="http", daemon=True
        )
        self._thread.start()

    def wait_until_started(self) -> None:
        """Return when requests are answered.

        Raises:
            InvalidSetting: the server did not start; its log says why.
        """
        for _ in range(int(_START_DEADLINE_S / _POLL_S)):
            if self._server.started or not self._thread.is_alive():
                break
            self._thread.join(_POLL_S)
        if not self._server.started:
            raise InvalidSetting("the HTTP server did not start: check the TLS files")

    def stop(self) -> None:
        """Stop listening, finish what has begun, and end."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


def _listen(host: str, address: str, limits: HttpLimits, proxies: TrustedProxies) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = SharedListener(family, FairQuota(_SOCKETS_A_PLACE * limits.connections), proxies)
    try:
        listening.listen_at(host, int(address.rsplit(":", 1)[-1]))
    except (OSError, ValueError, OverflowError):
        listening.close()
        raise InvalidSetting(f"cannot listen on {address}: {why_not_bound(address)}") from None
    return listening


def _config(
    app: ASGIApp, tls: TlsFiles | None, protocol: type[H11Protocol], headers: HttpHeaders
) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        # `SharedListener` relies on how this loop accepts
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,  # it would record who sends reports, and when
        server_header=False,
        date_header=False,
        headers=list(headers),
        proxy_headers=False,  # uvicorn believes everybody on this machine
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_DRAIN_S,
    )
    config.load()
    if tls is not None:
        config.ssl = server_context(tls)
    return config
