"""A bound on the time of a whole answer, however steadily its bytes come."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Timer

ANSWER_S = 600.0
"""For a whole answer."""


@contextmanager
def time_limit(seconds: float) -> Iterator[Callable[[socket.socket], None]]:
    """End connections that are still in use after some seconds, however steadily bytes come.

    Yields:
        Takes each connected socket, under TLS too.

    Raises:
        TimeoutError: at the end, if the time was over: what was read may be cut.
    """
    watched: list[socket.socket] = []
    is_over = Event()

    def end() -> None:
        is_over.set()
        for one in watched:
            with suppress(OSError):
                socket.socket.shutdown(one, socket.SHUT_RDWR)  # also of a TLS socket: the reader sees an end

    timer = Timer(seconds, end)
    # A command that ends early does not wait for the rest of the limit.
    timer.daemon = True
    timer.start()
    try:
        yield watched.append
    finally:
        timer.cancel()
    if is_over.is_set():
        raise TimeoutError
