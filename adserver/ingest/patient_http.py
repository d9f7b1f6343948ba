"""uvicorn's HTTP/1.1, but for what never comes to the application.

It has an end, an answer that says why, and is counted.

uvicorn by itself waits without end for a request's head, so that a few thousand silent connections would take
the place of everybody; and who comes when there are too many connections is told so in a form of its own.
Once a head is there, `adserver.ingest.http_app` limits how long its body may take.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from adserver.ingest.json_error import refusal

HttpHeaders: TypeAlias = Sequence[tuple[str, str]]
"""Names and values, in the order in which they are sent."""

_BAD: Final = b"HTTP/1.1 400 Bad Request"
_TIMEOUT: Final = b"HTTP/1.1 408 Request Timeout"


def patient_protocol(
    *, head_s: float, max_connections: int, on_refused: Callable[[int], None], headers: HttpHeaders
) -> type[H11Protocol]:
    """Uvicorn's protocol, within bounds.

    Args:
        head_s: How long a request's head may take, from the connection or from its first byte on.
        max_connections: While there are more, requests are answered 503 and their connections closed.
        on_refused: Called with the status, 400, 408 or 503, of what did not come to the application.
        headers: Of the answers that are written by hand.
    """
    raw = b"".join(f"{name}: {value}\r\n".encode("ascii") for name, value in headers)
    empty = b"\r\nconnection: close\r\ncontent-length: 0\r\n" + raw + b"\r\n"

    class PatientProtocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._set_deadline()
            app = self.app

            async def unless_crowded(scope: Scope, receive: Receive, send: Send) -> None:
                if len(self.connections) > max_connections:
                    on_refused(503)
                    await refusal(503, "as many connections are open as there is room for; come again")(
                        scope, receive, send
                    )
                else:
                    await app(scope, receive, send)

            self.app = unless_crowded

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._set_deadline()

        def connection_lost(self, exc: Exception | None) -> None:
            self._clear_deadline()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            """What comes is no HTTP: say so, unless something was said already, and end.

            uvicorn would say it through h11, which fails in the midst of a request, and the application would
            answer after that.
            """
            if self.cycle is not None:
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                on_refused(400)
                self.transport.write(_BAD + empty)
            self.transport.close()

        def _set_deadline(self) -> None:
            """Begin to wait for a head, go on waiting for it, or stop once it is there.

            An idle connection has uvicorn's own time limit.
            """
            if self.conn.their_state is not h11.IDLE or self.timeout_keep_alive_task is not None:
                self._clear_deadline()
            elif self._deadline is None:
                self._deadline = self.loop.call_later(head_s, self._give_up)

        def _clear_deadline(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _give_up(self) -> None:
            if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
                on_refused(408)
                self.transport.write(_TIMEOUT + empty)
                self.transport.close()

    return PatientProtocol
