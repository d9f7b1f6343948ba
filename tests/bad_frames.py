"""A connection on which bytes arrive that are no protocol."""

import socket
import ssl
import time
from contextlib import suppress

from tests.patience import HANGS_S


def check_that_it_ends(address: tuple[str, int], context: ssl.SSLContext, frames: bytes) -> None:
    """Send the bytes over TLS, and check that the other side closes the connection."""
    with (
        socket.create_connection(address, timeout=HANGS_S) as plain,
        context.wrap_socket(plain, server_hostname=address[0]) as secure,
        suppress(ConnectionError, ssl.SSLError),
    ):
        secure.sendall(frames)
        until = time.monotonic() + HANGS_S
        while secure.recv(4096):
            assert time.monotonic() < until, "the connection is still open"
