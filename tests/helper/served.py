"""A helper behind a port of this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from helper.core import HelperCore
from helper.serving.service import HelperService
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import make_channel
from protos import helper_pb2_grpc
from tests.grpc_server import grpc_server


@contextmanager
def served(
    service: HelperService | HelperCore, *, tls: TlsFiles | None = None, threads: int = 4
) -> Iterator[str]:
    """Serve while the block runs; where."""
    service = HelperService(service) if isinstance(service, HelperCore) else service
    added = partial(helper_pb2_grpc.add_HelperServicer_to_server, service)
    with grpc_server(added, tls=tls, threads=threads) as at:
        yield at


@contextmanager
def stub_of(service: HelperService | HelperCore, *, threads: int = 4) -> Iterator[helper_pb2_grpc.HelperStub]:
    """Serve while the block runs, and call over a channel without TLS."""
    with served(service, threads=threads) as address, make_channel(address, None) as channel:
        yield helper_pb2_grpc.HelperStub(channel)
