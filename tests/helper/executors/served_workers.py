"""Workers as gRPC services in this process, certificates of a cluster, and a wire to watch or to cut."""

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

from helper.executors.worker import SegmentWorker
from helper.executors.worker_client import WorkerClient
from helper.executors.worker_service import serve
from helper.trust.cluster_secrets import WORKERS, worker_tls, write_cluster_secrets, write_machine_certificate
from maskedlark.rpc.keepalive import Keepalive
from maskedlark.rpc.tls_files import TlsFiles

HOST = "127.0.0.2"
_BLOCK = 1 << 16


def certified(folder: Path, host: str = HOST) -> Path:
    """A machine's folder, of the cluster whose secrets are in `folder`; they are made if there are none."""
    now, machine = datetime.now(UTC), folder / host
    if not folder.exists():
        write_cluster_secrets(folder, now=now)
    write_machine_certificate(folder, machine, hosts=(host,), now=now)
    return machine


def tls_of(machine: Path) -> TlsFiles:
    """The files of its workers."""
    return worker_tls(machine / WORKERS)


@contextmanager
def served(worker: SegmentWorker | Any, tls: TlsFiles) -> Iterator[str]:
    """The address of a worker while it is served."""
    server, port = serve(worker, f"{HOST}:0", tls)
    try:
        yield f"{HOST}:{port}"
    finally:
        server.stop(None).wait()


@contextmanager
def called(address: str, tls: TlsFiles, keepalive: Keepalive | None = None) -> Iterator[WorkerClient]:
    """A worker as its head calls it."""
    client = WorkerClient(address.encode(), address, tls, keepalive or Keepalive())
    try:
        yield client
    finally:
        client.close()


@dataclass(kw_only=True)
class ServedFleet:
    """A fleet of workers that are called over gRPC."""

    clients: dict[bytes, WorkerClient] = field(default_factory=dict)

    def workers(self) -> Mapping[bytes, WorkerClient]:
        return dict(self.clients)

    def drop(self, name: bytes) -> None:
        client = self.clients.pop(name, None)
        if client is not None:
            client.close()

    refuse = drop

    def close(self) -> None:
        for name in list(self.clients):
            self.drop(name)


class Wire:
    """Carries connections to an address, and what it carried; nothing any more once it is cut."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._target = host, int(port)
        self._listens = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._listens.getsockname()[1]}"
        self.carried = bytearray()
        self.is_cut = Event()
        self._sockets: list[socket.socket] = [self._listens]
        self._run(self._accept)

    def close(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                incoming, _ = self._listens.accept()
                outgoing = socket.create_connection(self._target)
                self._sockets += [incoming, outgoing]
                for ends in ((incoming, outgoing), (outgoing, incoming)):
                    self._run(partial(self._carry, *ends))

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_BLOCK):
                if not self.is_cut.is_set():
                    self.carried += data
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    @staticmethod
    def _run(work: Callable[[], None]) -> None:
        Thread(target=work, daemon=True).start()
