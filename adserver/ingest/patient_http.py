"""uvicorn's HTTP/1.1, but for connections that never become a request: their patience has an end, and they are counted.

uvicorn by itself waits without end for a request's head, so that a few thousand silent connections would take the place of everybody.
Once a head is there, `adserver.ingest.http_app` limits how long its body may take.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_TIMEOUT: Final = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def patient_protocol(head_s: float, on_refused: Callable[[int], None]) -> type[H11Protocol]:
    """Uvicorn's protocol with `head_s` seconds for a request's head, from the connection or from its first byte on.

    `on_refused` is called with the status, 400 or 408, of what did not become a request.
    """

    class PatientProtocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._set_deadline()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._set_deadline()

        def connection_lost(self, exc: Exception | None) -> None:
            self._clear_deadline()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            on_refused(400)
            super().send_400_response(msg)

        def _set_deadline(self) -> None:
            """Begin to wait for a head, go on waiting for it, or stop once it is there. An idle connection has uvicorn's own time limit."""
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
                self.transport.write(_TIMEOUT)
                self.transport.close()

    return PatientProtocol
