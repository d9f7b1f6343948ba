"""uvicorn's HTTP/1.1 within bounds: connections end, and no site has all of them.

Not every connection brings a request to the application, or takes the answer:

    no head of a request within `head_s`          408, closed
    answers that are not read within `write_s`    reset
    a site has its share of the connections       503, closed
    bodies in pieces of a few bytes               400, closed

uvicorn by itself waits without end for all of these, also for the end of a connection that it has closed
while something was unread. Once a head is there, `adserver.ingest.http_app` limits how long its body may
take.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final, TypeAlias

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from adserver.ingest.json_error import refusal
from maskedlark.frozen import frozen
from maskedlark.rpc.fair_quota import FairQuota
from maskedlark.rpc.sites import FORWARDED_FOR, TrustedProxies

HttpHeaders: TypeAlias = Sequence[tuple[str, str]]
"""Names and values, in the order in which they are sent."""

_MOST_HEAD_BYTES: Final = 64 << 10
_BAD: Final = b"HTTP/1.1 400 Bad Request"
_TIMEOUT: Final = b"HTTP/1.1 408 Request Timeout"
# Close without waiting: else the system keeps what is unread for as long as the other side answers
_RESET: Final = struct.pack("ii", 1, 0)
# A body has so many pieces, and one more for each of so many bytes: a chunk takes the event loop 20
# microseconds and more, whatever it holds. Packets of a slow network are longer.
_PIECES: Final = 1_024
_PIECE_BYTES: Final = 256


class _Connection(h11.Connection):
    """Counts the pieces of each body."""

    _pieces = 0
    _body_bytes = 0

    def next_event(self) -> Any:
        """Return the next event.

        Raises:
            h11.RemoteProtocolError: it is no HTTP, or one more piece of a body in too many.
        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces = self._body_bytes = 0
        elif isinstance(event, h11.Data):
            self._pieces += 1
            self._body_bytes += len(event.data)
            if self._pieces > _PIECES + self._body_bytes // _PIECE_BYTES:
                raise h11.RemoteProtocolError("a body in too many pieces")
        return event


@frozen
class HttpLimits:
    """What the connections of an HTTP server may cost.

    Attributes:
        head_s: How long a request's head may take, from the connection or from its first byte on.
        write_s: The interval in which a client takes `least_read_bytes` of its answers, or all there is.
        least_read_bytes: A slower connection is reset. Four times less than a GPRS phone takes.
        connections: Places, shared by the sites as in `FairQuota`: one site has half of them at most. Of a
            trusted proxy's connections requests count, for the site that the proxy names.
    """

    head_s: float = 10.0
    write_s: float = 20.0
    least_read_bytes: int = 16 << 10
    connections: int = 2_000


def patient_protocol(
    limits: HttpLimits, proxies: TrustedProxies, *, on_refused: Callable[[int], None], headers: HttpHeaders
) -> type[H11Protocol]:
    """Return uvicorn's protocol, within bounds.

    Args:
        limits: The bounds.
        proxies: Are believed when they name a caller's address.
        on_refused: Called with the status, 400, 408 or 503, of what did not come to the application.
        headers: Of the answers that are written by hand.
    """
    raw = b"".join(f"{name}: {value}\r\n".encode("ascii") for name, value in headers)
    empty = b"\r\nconnection: close\r\ncontent-length: 0\r\n" + raw + b"\r\n"
    # One for the whole server: uvicorn makes a protocol object for each connection
    room = FairQuota(limits.connections)

    class PatientProtocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None
        _next_look: asyncio.TimerHandle | None = None
        _unread_bytes: int | None = None
        """What was not taken at the last look, if some of it is what is not taken now."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.conn = _Connection(h11.SERVER, _MOST_HEAD_BYTES)
            transport.set_write_buffer_limits(high=1, low=0)  # `resume_writing` says that all was taken
            self._next_look = self.loop.call_later(limits.write_s, self._look)
            self._set_deadline()
            self._place = ExitStack()
            peer = self.client[0] if self.client else ""
            is_proxy = proxies.trust(peer)
            is_crowded = not is_proxy and not room.try_enter(self._place, proxies.site(peer, ()))
            app = self.app

            async def unless_crowded(scope: Scope, receive: Receive, send: Send) -> None:
                with ExitStack() as place:
                    if is_crowded or (
                        is_proxy and not room.try_enter(place, proxies.site(peer, _read_forwarded(scope)))
                    ):
                        on_refused(503)
                        await refusal(503, "the limit of open connections is reached; retry later")(
                            scope, receive, send
                        )
                    else:
                        await app(scope, receive, send)

            self.app = unless_crowded

        def resume_writing(self) -> None:
            self._unread_bytes = None
            super().resume_writing()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._set_deadline()

        def connection_lost(self, exc: Exception | None) -> None:
            self._clear_deadline()
            if self._next_look is not None:
                self._next_look.cancel()
            self._place.close()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            """Answer that the bytes are not HTTP, unless an answer has begun, and end.

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
                self._deadline = self.loop.call_later(limits.head_s, self._give_up)

        def _clear_deadline(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _give_up(self) -> None:
            if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
                on_refused(408)
                self.transport.write(_TIMEOUT + empty)
                self.transport.close()

        def _look(self) -> None:
            """Reset the connection if it has not taken enough since the last look."""
            unread, before = self.transport.get_write_buffer_size(), self._unread_bytes
            if before is not None and before - unread < limits.least_read_bytes:
                connection = self.transport.get_extra_info("socket")
                if connection is not None:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                self.transport.abort()
                return
            # What was closed a whole interval ago is still here because of what TLS holds.
            self._unread_bytes = unread if unread or self.transport.is_closing() else None
            self._next_look = self.loop.call_later(limits.write_s, self._look)

    return PatientProtocol


def _read_forwarded(scope: Scope) -> list[str]:
    """Return what proxies say of a request's way."""
    return [value.decode("latin-1") for name, value in scope["headers"] if name == FORWARDED_FOR.encode()]
