"""Workers in threads of the test's process: head and workers as they are, and nothing between them."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event

from helper.executors.fleet import Sent, WorkerLost
from helper.executors.worker import SegmentWorker


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
    """A worker. `fails` is called before each order, and may raise what ends the worker."""

    name: bytes
    holder: SegmentWorker
    fails: Callable[[], object] = lambda: None
    passed: list[bytes] = field(default_factory=list)
    _is_lost: bool = False
    _awaited: list["Future[bytes]"] = field(default_factory=list)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def do(self, order: bytes, *, most_bytes: int, is_opening: bool) -> Sent:
        del is_opening
        self.passed.append(order)
        answer, is_cancelled = Future[bytes](), Event()
        self._awaited.append(answer)

        def interrupt() -> None:
            if is_cancelled.is_set():
                raise InterruptedError

        def run() -> None:
            with suppress(InvalidStateError):  # dropped meanwhile
                try:
                    self.fails()
                    done = self.holder.do(order, interrupt)
                except Exception:  # noqa: BLE001 # as a process that ends, whatever ended it
                    answer.set_exception(WorkerLost())
                    return
                assert len(done) <= most_bytes
                self.passed.append(done)
                answer.set_result(done)

        self._pool.submit(run)
        if self._is_lost:
            self.lose()
        return Sent(answer=answer, cancel=is_cancelled.set)

    def lose(self) -> None:
        """Answer nothing any more, as over a channel that is closed."""
        self._is_lost = True
        for answer in self._awaited:
            with suppress(InvalidStateError):
                answer.set_exception(WorkerLost())

    def end(self) -> None:
        self._pool.shutdown()


@dataclass(kw_only=True, eq=False)
class ThreadFleet:
    """Workers that a test adds and takes away."""

    capacity_bytes: int = 1 << 30
    joined: dict[bytes, ThreadWorker] = field(default_factory=dict)
    ended: list[ThreadWorker] = field(default_factory=list)
    refused: list[bytes] = field(default_factory=list)

    def add(self, count: int = 1, *, fails: Callable[[], object] = lambda: None) -> None:
        for _ in range(count):
            name = b"worker %d" % (len(self.joined) + len(self.ended))
            holder = SegmentWorker(self.capacity_bytes)
            self.joined[name] = ThreadWorker(name=name, holder=holder, fails=fails)

    def workers(self) -> Mapping[bytes, ThreadWorker]:
        return dict(self.joined)

    def drop(self, name: bytes) -> None:
        worker = self.joined.pop(name, None)
        if worker is not None:
            worker.lose()
            self.ended.append(worker)

    def refuse(self, name: bytes) -> None:
        self.refused.append(name)
        self.drop(name)

    def close(self) -> None:
        for worker in [*self.joined.values(), *self.ended]:
            worker.end()
        self.joined.clear()
