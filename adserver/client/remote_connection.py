"""The connection to an ad server elsewhere: what its URL and token may be, and what is trusted.

connection = connect("https://ads.example:8443", ca=Path("ads.crt"), timeout_s=900.0)
"""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from socket import SHUT_RDWR, socket
from threading import Timer
from typing import Final
from urllib.parse import SplitResult, urlsplit

from maskedlark.errors import InvalidTask
from maskedlark.rpc.transport import is_loopback

_WRONG_URL: Final = (
    "the ad server's URL is not valid: expected https://HOST[:PORT], or http on loopback, and nothing else"
)


def check_address(url: str, token: str) -> None:
    """Reject an unsafe URL or a malformed token; error messages contain neither.

    Raises:
        InvalidTask
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        HTTPConnection(host, _port(parts))  # connects to nothing; refuses what a request cannot carry
        is_name = bool(host.encode("idna"))
    except (ValueError, HTTPException):
        raise InvalidTask(_WRONG_URL) from None
    is_plain = parts.scheme == "http" and is_loopback(host)
    is_more = "@" in parts.netloc or parts.path not in ("", "/") or parts.query or parts.fragment
    if not is_name or is_more or not (parts.scheme == "https" or is_plain):
        raise InvalidTask(_WRONG_URL)
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise InvalidTask(
            "the token is not valid: expected the output of `adserver token create`, without spaces or "
            "line breaks"
        )


def connect(url: str, *, ca: Path | None, timeout_s: float) -> HTTPConnection:
    """Create a connection, not yet opened, to a URL that `check_address` accepts.

    Raises:
        InvalidTask: the file of the certificate to trust holds none, or cannot be read.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", _port(parts)
    if parts.scheme == "http":
        return HTTPConnection(host, port, timeout=timeout_s)
    try:
        trusting = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except OSError as error:
        raise InvalidTask(f"cannot read a certificate in {ca}: {error.strerror}") from None
    return HTTPSConnection(host, port, timeout=timeout_s, context=trusting)


@contextmanager
def end_after(connection: HTTPConnection, seconds: float) -> Iterator[None]:
    """End an open connection's calls after some seconds, however steadily its bytes come."""

    def end() -> None:
        with suppress(OSError):
            socket.shutdown(connected, SHUT_RDWR)  # also of a TLS socket: the reader sees an end

    connected, timer = connection.sock, Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _port(parts: SplitResult) -> int:
    """Return the port, which `http.client` would otherwise look for in an IPv6 address."""
    return (80 if parts.scheme == "http" else 443) if parts.port is None else parts.port
