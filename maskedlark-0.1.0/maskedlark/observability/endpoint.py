"""The operator's own HTTP port, on loopback.

/metrics for Prometheus and /healthz for whoever restarts what is not well.
"""

import logging
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final, Self

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from maskedlark.errors import InvalidTask
from maskedlark.rpc.transport import is_loopback

_LOG: Final = logging.getLogger(__name__)
_READ_TIMEOUT_S: Final = 10


class Starting(Exception):
    """What a check raises while the service is not ready yet: no failure, but not well either."""


class OperatorEndpoint:
    """A running server; close it, or use it in a `with`."""

    def __init__(self, address: str, registry: CollectorRegistry, check: Callable[[], object]) -> None:
        """Listen on host:port, port 0 for any.

        Args:
            address: On loopback: it is plaintext, and for the operator alone.
            registry: What /metrics shows.
            check: Returns if the service is well, and raises if not; `Starting` if it is not ready yet.

        Raises:
            InvalidTask: not loopback, or taken.
        """
        host, _, port = address.rpartition(":")
        if not is_loopback(host):
            raise InvalidTask(f"metrics are served on loopback only, not on {address}")
        try:
            self._server = ThreadingHTTPServer((host.strip("[]"), int(port)), _handler(registry, check))
        except (OSError, ValueError, OverflowError):
            raise InvalidTask(f"cannot listen on {address}: is it host:port, and is the port free?") from None
        self._server.daemon_threads = True
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


def _handler(registry: CollectorRegistry, check: Callable[[], object]) -> type[BaseHTTPRequestHandler]:
    def well() -> bytes:
        check()
        return b"well\n"

    class Handler(BaseHTTPRequestHandler):
        timeout = _READ_TIMEOUT_S
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
            """Requests are not logged."""

    return Handler
