"""httpx with a limit of time for a whole answer's head, redirects included, and without decompression.

httpx limits each read alone: a server that sends a byte of its head now and then holds it without end.
"""

from collections.abc import Callable
from socket import socket
from typing import Any

import httpx

from browser_sim import time_limits


class BoundedClient(httpx.Client):
    """A client of one thread, each of whose requests has its answer's head within `time_limits.ANSWER_S`."""

    def __init__(self, **options: Any) -> None:
        """Take the options of httpx.Client."""
        # `read_limited` refuses compressed answers, so none are asked for.
        super().__init__(**options, headers={"accept-encoding": "identity"})
        self._connected: Any = None

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Send a request; the connection is ended if its answer's head takes too long."""
        try:
            with time_limits.time_limit(time_limits.ANSWER_S) as watch:
                self._watch(request, watch)
                return super().send(request, **options)
        except TimeoutError:
            raise httpx.ReadTimeout("an answer's head took too long", request=request) from None

    def _watch(self, request: httpx.Request, watch: Callable[[socket], None]) -> None:
        """Show the connection of an earlier request, which may be used again, and those that are opened."""

        def note(event: str, about: dict[str, Any]) -> None:
            if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
                self._connected = about["return_value"].get_extra_info("socket")
                watch(self._connected)

        if self._connected is not None:
            watch(self._connected)
        # httpcore tells this extension each of its steps: the public way to the socket of a connection.
        request.extensions = {**request.extensions, "trace": note}
