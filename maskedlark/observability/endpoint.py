"""The operator's own HTTP port: on loopback, unless the operator says how else it is protected.

/metrics is for Prometheus, /healthz for the supervisor that restarts a failed service. A client that sends
its request byte by byte, or does not read the answer, loses the connection.
"""

import logging
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Thread
from time import monotonic
from typing import Any, Final, Self

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from maskedlark.errors import InvalidSetting, MaskedLarkError
from maskedlark.observability.metrics_access import MetricsAccess
from maskedlark.rpc.tls_files import TlsFiles, server_context
from maskedlark.rpc.transport import is_loopback
from maskedlark.runtime.binding import why_not_bound
from maskedlark.runtime.periodic import SharedWatch

_LOG: Final = logging.getLogger(__name__)
_READ_TIMEOUT_S: Final = 10
_TOTAL_S: Final = 30.0
_CONNECTIONS: Final = 64
_POLL_S: Final = 0.5


class Starting(Exception):
    """What a check raises while the service is not ready yet: no failure, but not well either."""


class OperatorEndpoint:
    """A running server; close it, or use it in a `with`."""

    def __init__(
        self,
        address: str,
        registry: CollectorRegistry,
        check: Callable[[], object],
        *,
        access: MetricsAccess = MetricsAccess.LOOPBACK,
        tls: TlsFiles | None = None,
        total_s: float = _TOTAL_S,
        connections: int = _CONNECTIONS,
    ) -> None:
        """Listen on host:port, port 0 for any.

        Args:
            address: On loopback, unless `access` allows another.
            registry: What /metrics shows.
            check: Returns if the service is well, and raises if not; `Starting` if it is not ready yet.
            access: How the port is protected. Callers are not authenticated.
            tls: The service's own files, whose certificate the port shows with `MetricsAccess.TLS`.
            total_s: How long a connection lasts at most, from its begin to the end of the answer.
            connections: Served at once; more are closed.

        Raises:
            InvalidSetting: the address is not on loopback and `access` does not allow it, TLS was chosen and
                the service has none, or the port is taken.
        """
        host, _, port = address.rpartition(":")
        if access is MetricsAccess.LOOPBACK and not is_loopback(host):
            raise InvalidSetting(
                f"the metrics address {address} is not on loopback: add --metrics-access tls, or "
                "--metrics-access plaintext where a network policy decides who reaches the port"
            )
        if access is MetricsAccess.TLS and tls is None:
            raise InvalidSetting(
                "--metrics-access tls requires the service's own TLS files: give --tls-cert and --tls-key"
            )
        context = None if tls is None or access is not MetricsAccess.TLS else server_context(tls)
        try:
            self._server = _Server(
                (host.strip("[]"), int(port)), _handler(registry, check), context, total_s, connections
            )
        # A port above 65535 is an OverflowError.
        except (OSError, ValueError, OverflowError):
            raise InvalidSetting(f"cannot listen on {address}: {why_not_bound(address)}") from None
        self.address = f"{host}:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, name="operator", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    """A thread for each connection, for a bounded time, and not for any number of them."""

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        context: ssl.SSLContext | None,
        total_s: float,
        places: int,
    ) -> None:
        super().__init__(address, handler)
        self._context = context
        self._total_s = total_s
        self._places = BoundedSemaphore(places)
        self._watch = SharedWatch(name="operator-watch", every_s=min(_POLL_S, total_s / 4))

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection; its handshake is made by its own thread."""
        request, address = super().get_request()
        # On this thread, which accepts for all, a client that is silent in its handshake would block others.
        if self._context is not None:
            request = self._context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        return request, address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve the connection on a new thread, or close it if all places are taken."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        # Once the thread runs, it gives the place back itself; here only if there is no thread to be had.
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve the connection, and give its place back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer within the time there is: a look ends the connection under the thread's hands."""
        until = monotonic() + self._total_s

        def look() -> bool:
            is_late = monotonic() > until
            if is_late:
                with suppress(OSError):  # it has ended by itself
                    # The plain socket's method: an SSLSocket's own would go on in plaintext.
                    socket.socket.shutdown(request, socket.SHUT_RDWR)
            return is_late

        with self._watch.looking(look):
            if isinstance(request, ssl.SSLSocket):
                # The handler sets its own timeout when it begins, which is after the handshake.
                request.settimeout(_READ_TIMEOUT_S)
                request.do_handshake()
            super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what a bug raised. A broken connection is not a bug."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _handler(registry: CollectorRegistry, check: Callable[[], object]) -> type[BaseHTTPRequestHandler]:
    def well() -> bytes:
        check()
        return b"well\n"

    class Handler(BaseHTTPRequestHandler):
        timeout = _READ_TIMEOUT_S
        # Without versions: a stranger need not learn which Python answers.
        server_version = "maskedlark"
        sys_version = ""

        def do_GET(self) -> None:
            """Answer one of the two paths."""
            match self.path.partition("?")[0]:
                case "/metrics":
                    self._answer_with(lambda: generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4)
                case "/healthz":
                    self._answer_with(well, "text/plain")
                case _:
                    self._answer(404, "text/plain", b"/metrics or /healthz\n")

        def _answer_with(self, make: Callable[[], bytes], content_type: str) -> None:
            try:
                body = make()
            except Starting:
                self._answer(503, "text/plain", b"starting\n")
            except MaskedLarkError as error:
                _LOG.warning("not well: %s", error)
                self._answer(503, "text/plain", b"not well\n")
            except Exception:  # noqa: BLE001  whatever it is: the service is not well, and the details stay in the log
                _LOG.exception("not well")
                self._answer(503, "text/plain", b"not well\n")
            else:
                self._answer(200, content_type, body)

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Log nothing: requests are not logged."""

    return Handler
