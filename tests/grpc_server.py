"""A gRPC server behind a port of this machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import make_server


@contextmanager
def grpc_server(
    add: Callable[[grpc.Server], None], *, tls: TlsFiles | None = None, threads: int = 4
) -> Iterator[str]:
    """Serve what `add` adds while the block runs; where."""
    server, port = make_server("127.0.0.1:0", tls, threads=threads)
    add(server)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
