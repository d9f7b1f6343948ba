"""A listening socket whose connections are shared by the sites that they come from.

It stands before TLS and HTTP: a connection that says nothing, or never ends its handshake, counts as well.
"""

import socket
from contextlib import ExitStack
from typing import Any, Final

from maskedlark.rpc.fair_quota import FairQuota
from maskedlark.rpc.sites import TrustedProxies

_BACKLOG: Final = 512
# Connections closed in a row before the event loop does something else
_REFUSED_AT_ONCE: Final = 64
# What the system holds of answers that a connection does not read, besides what is on its way
_UNSENT_BYTES: Final = 128 << 10


class SharedListener(socket.socket):
    """Listens, and closes at once what a site opens beyond its share.

    For asyncio, which calls `accept` until it would block.
    """

    def __init__(self, family: int, room: FairQuota, proxies: TrustedProxies) -> None:
        """Accept as many connections as `room` has places; those of `proxies` count for no single address."""
        # The protocol by name: asyncio turns Nagle's algorithm off only then, and each answer would wait
        # 40 ms for the browser's delayed ACK.
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._room = room
        self._proxies = proxies

    def listen_at(self, host: str, port: int) -> None:
        """Bind and listen; raise OSError or OverflowError if that cannot be."""
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # Linux and macOS
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        self.bind((host, port))
        self.listen(_BACKLOG)

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection that has a place, and its address."""
        for _ in range(_REFUSED_AT_ONCE):
            connection, address = super().accept()
            place = ExitStack()
            if self._room.try_enter(place, self._proxies.site(address[0], ())):
                return _Placed(connection, place), address
            connection.close()
        # To asyncio this says that no connection waits; it comes back when one does
        raise BlockingIOError


class _Placed(socket.socket):
    """A connection with a place, which it gives back when it is closed."""

    def __init__(self, connection: socket.socket, place: ExitStack) -> None:
        super().__init__(connection.family, connection.type, connection.proto, fileno=connection.detach())
        self._place = place

    def close(self) -> None:
        super().close()
        self._place.close()
