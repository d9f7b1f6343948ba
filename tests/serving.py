"""An HTTP server of the standard library in a thread of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseServer
from threading import Thread
from typing import Final

POLL_S: Final = 0.01
"""How often a server looks whether it is to end; the library's half a second is what ending would take."""


@contextmanager
def serving(server: BaseServer) -> Iterator[None]:
    """Serve until the block ends; then end the thread, and close the server's socket."""
    thread = Thread(target=server.serve_forever, args=(POLL_S,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
