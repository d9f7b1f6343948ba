"""How long a test waits before it says that something hangs: longer than the busiest machine needs.

No test claims a time. What must not take long is counted, measured in processor time
(`time.process_time`), or compared with something that would take longer than `HANGS_S`.
"""

import socket
import time
from typing import Final

HANGS_S: Final = 600.0
"""More than pytest's `timeout`, which comes first in `make test` and shows where every thread stands."""


def connect(address: tuple[str, int]) -> socket.socket:
    """Open a TCP connection to a server that listens; refusals are tried again.

    A sandbox's network may refuse one of many connections that are opened at once, though the server listens.
    """
    until = time.monotonic() + HANGS_S
    while True:
        try:
            return socket.create_connection(address, timeout=HANGS_S)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
