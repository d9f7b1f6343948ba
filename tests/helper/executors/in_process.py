"""Workers in threads of the test's process: head and holders as they are, and nothing between them."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event

from helper.executors.fleet import WorkerLost
from helper.executors.handshake import HandshakeServer, JoinToken, Session
from helper.executors.worker import SegmentWorker

TOKEN = b"a join token of at least 32 bytes, for tests"


class Fails:
    """What ends a worker before one of its orders, counted from 1; before each, if none is named."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.calls = at, 0

    def __call__(self) -> None:
        self.calls += 1
        if self.at in (None, self.calls):
            raise RuntimeError("as if killed")


@dataclass(kw_only=True, eq=False)
class ThreadWorker:
    """A worker. `fails` is called before each order, and may raise what ends the worker.

    One that `stands_still` answers nothing, until it `goes_on`.
    """

    name: bytes
    session: Session
    holder: SegmentWorker
    fails: Callable[[], None] = lambda: None
    passed: list[bytes] = field(default_factory=list)
    stands_still: Event = field(default_factory=Event)
    goes_on: Event = field(default_factory=Event)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def do(self, order: bytes, shared: bytes, frames: bytes, *, is_opening: bool) -> "Future[bytes]":
        del is_opening
        self.passed += filter(None, [order, shared, frames])

        def run() -> bytes:
            try:
                self.fails()
                if self.stands_still.is_set():
                    self.goes_on.wait()
                answer = self.holder.do(order, shared, frames)
            except Exception:  # noqa: BLE001 # as a process that ends, whatever ended it
                raise WorkerLost from None
            self.passed.append(answer)
            return answer

        return self._pool.submit(run)

    def stop(self, sealed: bytes) -> None:
        self.passed.append(sealed)
        self.holder.stop(sealed)

    def alive(self, sealed: bytes) -> "Future[bytes]":
        answer: Future[bytes] = Future()
        if not self.stands_still.is_set():
            answer.set_result(self.holder.alive(sealed))
        return answer

    def end(self) -> None:
        self.goes_on.set()
        self._pool.shutdown()


@dataclass(kw_only=True, eq=False)
class ThreadFleet:
    """Workers that a test adds and takes away."""

    capacity_bytes: int = 1 << 30
    joined: dict[bytes, ThreadWorker] = field(default_factory=dict)
    ended: list[ThreadWorker] = field(default_factory=list)
    refused: list[bytes] = field(default_factory=list)
    _gate: HandshakeServer = field(default_factory=lambda: HandshakeServer(JoinToken(TOKEN)))

    def add(self, count: int = 1, *, fails: Callable[[], None] = lambda: None) -> None:
        for _ in range(count):
            holder = SegmentWorker(JoinToken(TOKEN), self.capacity_bytes)
            challenge = self._gate.challenge()
            admitted = self._gate.admit(challenge, holder.apply(challenge))
            holder.welcome(admitted.welcome)
            name = b"worker %d" % (len(self.joined) + len(self.ended))
            self.joined[name] = ThreadWorker(name=name, session=admitted.session, holder=holder, fails=fails)

    def workers(self) -> Mapping[bytes, ThreadWorker]:
        return dict(self.joined)

    def drop(self, name: bytes) -> None:
        worker = self.joined.pop(name, None)
        if worker is not None:
            self.ended.append(worker)

    def refuse(self, name: bytes) -> None:
        self.refused.append(name)
        self.drop(name)

    def share(self, sealed: bytes) -> bytes:
        return sealed

    def close(self) -> None:
        for worker in [*self.joined.values(), *self.ended]:
            worker.end()
        self.joined.clear()
