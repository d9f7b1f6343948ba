"""Ports for servers that are started later, and again and again."""

import secrets
import socket
from contextlib import suppress
from typing import Final

from maskedlark.errors import InvalidTask

_PORTS: Final = range(20_000, 32_000)
"""Above most that programs take by habit, and below those that a kernel gives out by itself.

It gives those to connections and to whoever asks for any port. Between two starts of a server one of them is
taken now and then, by a connection for as long as a minute after its end.
"""
_TRIES: Final = 100


def free_ports(count: int) -> list[int]:
    """Find ports of 127.0.0.1 that are free now and that the kernel does not hand out by itself.

    Raises:
        InvalidTask: too many of those that were tried are taken.
    """
    found = list[int]()
    for port in secrets.SystemRandom().sample(_PORTS, count + _TRIES):
        if len(found) == count:
            break
        # Bound and let go: it may be taken again before the server starts, which then says so.
        with suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            found.append(port)
    if len(found) < count:
        raise InvalidTask(
            f"too few free ports on 127.0.0.1 after {count + _TRIES} attempts: stop other programs and "
            "try again"
        )
    return found
