"""Small web sites for tests, on loopback: fixed answers, and functions that answer."""

import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Final, Self

from tests.serving import POLL_S

DIST: Final = Path(__file__).parents[3] / "browser_sim" / "js" / "dist"
_TYPES: Final = {".js": "text/javascript", ".html": "text/html", ".json": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a site answers."""

    status: int = 200
    body: bytes = b""
    media_type: str = "text/html"
    headers: dict[str, str] = field(default_factory=dict)


Handler = Callable[[Seen], Answer | None]
"""None: the connection is closed without an answer."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that is gone is no error; anything else is shown."""
        if not isinstance(sys.exc_info()[1], ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)


class Site:
    """Serves `pages` (path to text), the client under /dist/, and whatever `handler` answers."""

    def __init__(
        self, pages: dict[str, str], *, handler: Handler | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.pages = pages
        self.seen: list[Seen] = []
        site = self

        class _Requests(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self._answer()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # the library's name
                pass

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                seen = Seen(method=self.command, path=self.path, headers=dict(self.headers), body=body)
                site.seen.append(seen)
                answer = site.page(seen.path) or (handler(seen) if handler else Answer(status=404))
                if answer is None:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in {"content-type": answer.media_type, **answer.headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

        self._server = _Server(("127.0.0.1", 0), _Requests)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._scheme = "https" if tls else "http"
        self._thread = Thread(target=self._server.serve_forever, args=(POLL_S,), daemon=True)

    @property
    def origin(self) -> str:
        return f"{self._scheme}://localhost:{self._server.server_address[1]}"

    def page(self, path: str) -> Answer | None:
        path = path.split("?", maxsplit=1)[0]
        if path in self.pages:
            return Answer(
                body=self.pages[path].encode(), media_type=_TYPES.get(Path(path).suffix, "text/html")
            )
        if path.startswith("/dist/"):
            file = DIST / Path(path).name
            if file.is_file():
                headers = {"service-worker-allowed": "/", "access-control-allow-origin": "*"}
                return Answer(body=file.read_bytes(), media_type=_TYPES[file.suffix], headers=headers)
        return None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
