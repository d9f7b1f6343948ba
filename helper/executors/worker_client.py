"""A worker as its head calls it: orders and answers in pieces, over mutual TLS.

    client = WorkerClient(name, "10.0.0.7:20001", worker_tls(folder))
    client.greet()                                        # JoinRefused, if it is not the helper's own
    sent = client.do(order, most_bytes=1 << 20, is_opening=False)
    sent.answer.result()                                  # or sent.cancel()

A call lasts as long as its order. A worker that stands still without having ended (a stopped process, a
machine that swaps or is cut off) answers no pings, and then its calls fail.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import grpc

from helper.executors.fleet import JoinRefused, Sent, WorkerLost, WrongAnswer
from helper.executors.orders import SOFTWARE
from maskedlark.errors import JobRefused
from maskedlark.rpc.keepalive import Keepalive
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import make_channel
from maskedlark.rpc.wire import chunks, join
from protos import worker_pb2, worker_pb2_grpc

_GREETS_S: Final = 5.0
# What gRPC, which has no code for it, says of a certificate of another authority, or for another address.
_NOT_ACCEPTED: Final = ("handshake failed", "verification check failed")
# Answers that are read at once; others wait, which no worker has as many of.
_THREADS: Final = 64


class WorkerClient:
    """A worker. Safe to call from many threads; close it."""

    def __init__(self, name: bytes, address: str, tls: TlsFiles, keepalive: Keepalive) -> None:
        """Connect lazily.

        Args:
            name: Unique among all workers that ever joined.
            address: host:port, for which the worker's certificate has to be.
            tls: This machine's, of the same authority.
            keepalive: How soon a worker that stands still is lost.
        """
        self.name = name
        self._channel = make_channel(address, tls, keepalive=keepalive)
        self._stub = worker_pb2_grpc.WorkerStub(self._channel)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="answers")

    def greet(self) -> None:
        """Ask the worker which software it runs.

        Raises:
            JoinRefused: it has other software, or no certificate of this cluster for its address.
            WorkerLost: it does not answer.
        """
        try:
            reply = self._stub.Greet(worker_pb2.GreetRequest(), timeout=_GREETS_S)
        except grpc.RpcError as error:
            if any(one in str(error.details()).lower() for one in _NOT_ACCEPTED):
                raise JoinRefused("has no certificate of this cluster for its address") from None
            raise WorkerLost from None
        if reply.software != SOFTWARE:
            raise JoinRefused("has other numerics, or another version of this software")

    def do(self, order: bytes, *, most_bytes: int, is_opening: bool) -> Sent:
        """See `Worker`."""
        method = self._stub.Open if is_opening else self._stub.Work
        try:
            call = method(worker_pb2.OrderPiece(data=one) for one in chunks(order))
            answer = self._threads.submit(_read, call, most_bytes)
        except (ValueError, RuntimeError):  # closed meanwhile
            answer = Future()
            answer.set_exception(WorkerLost())
            return Sent(answer=answer)
        return Sent(answer=answer, cancel=call.cancel)

    def close(self) -> None:
        """End all calls."""
        self._channel.close()
        self._threads.shutdown(wait=False)


def _read(call: Any, most_bytes: int) -> bytes:
    """Read an answer.

    Raises:
        WrongAnswer: it is longer than `most_bytes`.
        WorkerLost: none comes.
    """
    try:
        return join((piece.data for piece in call), limit=most_bytes, what="an answer")
    except JobRefused:
        call.cancel()
        raise WrongAnswer from None
    except grpc.RpcError:
        raise WorkerLost from None
