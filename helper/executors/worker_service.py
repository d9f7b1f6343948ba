"""A worker as a gRPC service: mutual TLS, and orders and answers in pieces.

    server, _ = serve(SegmentWorker(capacity_bytes), "10.0.0.7:20001", worker_tls(folder))

Only holders of a certificate of the cluster's own authority can call: the helper's head, and its workers.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Final

import grpc

from helper.executors.orders import SOFTWARE
from helper.executors.worker import SegmentWorker
from maskedlark.errors import InvalidSetting
from maskedlark.rpc.keepalive import Keepalive
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.wire import chunks
from maskedlark.runtime.binding import why_not_bound
from protos import worker_pb2, worker_pb2_grpc

# Orders that are done or wait: a head gives a worker one or two for each round and preparation under way.
_THREADS: Final = 64
_PERMITTED: Final = Keepalive(every_s=1.0)
# No shared ports: a second worker on one would get some of the first one's calls.
_OPTIONS: Final = (("grpc.so_reuseport", 0), *_PERMITTED.of_server())


class _NotAwaited(Exception):
    """The head no longer waits for an order."""


class _WorkerService(worker_pb2_grpc.WorkerServicer):
    """Gives a worker one order at a time, and at the same time one to open shares. Others wait unread."""

    def __init__(self, worker: SegmentWorker) -> None:
        self._worker, self._working, self._opening = worker, Lock(), Lock()

    def Greet(  # noqa: N802 (gRPC's name)
        self, request: worker_pb2.GreetRequest, context: grpc.ServicerContext
    ) -> worker_pb2.GreetReply:
        """Say which software this is."""
        del request, context
        return worker_pb2.GreetReply(software=SOFTWARE)

    def Work(  # noqa: N802 (gRPC's name)
        self, request_iterator: Iterator[worker_pb2.OrderPiece], context: grpc.ServicerContext
    ) -> Iterator[worker_pb2.AnswerPiece]:
        """Do an order."""
        yield from self._do(request_iterator, context, self._working)

    def Open(  # noqa: N802 (gRPC's name)
        self, request_iterator: Iterator[worker_pb2.OrderPiece], context: grpc.ServicerContext
    ) -> Iterator[worker_pb2.AnswerPiece]:
        """Do an order to open shares."""
        yield from self._do(request_iterator, context, self._opening)

    def _do(
        self, pieces: Iterator[worker_pb2.OrderPiece], context: grpc.ServicerContext, lock: Lock
    ) -> Iterator[worker_pb2.AnswerPiece]:
        def interrupt() -> None:
            if not context.is_active():
                raise _NotAwaited

        # Read under the lock: orders that wait take no memory yet.
        with lock:
            answer = self._worker.do(b"".join(piece.data for piece in pieces), interrupt)
        for data in chunks(answer):
            yield worker_pb2.AnswerPiece(data=data)


def serve(worker: SegmentWorker, address: str, tls: TlsFiles) -> tuple[grpc.Server, int]:
    """Serve a worker until the server is stopped or collected; return it with the port it got.

    Raises:
        InvalidSetting: the TLS files cannot be used, or the address is taken.
    """
    contents = tls.read()
    if not contents.trusted_authorities.strip():
        raise InvalidSetting(
            f"{tls.trusted_authorities} is empty: copy the authority of the cluster's workers"
        )
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=_OPTIONS)
    worker_pb2_grpc.add_WorkerServicer_to_server(_WorkerService(worker), server)
    credentials = grpc.ssl_server_credentials(
        [(contents.private_key, contents.certificate)],
        root_certificates=contents.trusted_authorities,
        require_client_auth=True,
    )
    try:
        port = server.add_secure_port(address, credentials)
    except RuntimeError:
        raise InvalidSetting(f"a worker cannot listen on {address}: {why_not_bound(address)}") from None
    server.start()
    return server, port
