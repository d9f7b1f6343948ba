"""Gives work to the workers of a helper, takes their answers, and copes with the loss of any of them.

    undone = dispatcher.run(work, interrupt)     # the parts that no worker did

Work comes in numbered parts. An order holds all that its parts take, so any worker can do it, and do it
again: the parts of a lost worker go to others, and an answer counts once. If workers keep what a part is
about (a segment), each part goes to the worker that is to keep it, so that few are sent anew when workers
come or go. What a worker is known to keep goes into one order; other segments follow one by one, with their
frames, so that neither side holds more of a dataset in memory than it wants.
"""

import logging
import os
import time
from collections import Counter, deque
from collections.abc import Container, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import field
from threading import Lock
from typing import Any, Final, Protocol

from helper.executors.fleet import (
    MOST_UNDONE,
    Fleet,
    NoWorkers,
    Undone,
    Worker,
    WorkerLost,
    WrongAnswer,
    give_up,
)
from helper.executors.handshake import NONCE_BYTES, NotSealed
from helper.executors.heartbeats import Clock, Heartbeats
from helper.executors.orders import Done, Failed, Message, Opening, Order, SegmentOrder, WorkKind, read, write
from helper.executors.rendezvous import assign
from helper.executors.worker import ORDER, STOP
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt

_LOOK_EVERY_S: Final = 0.1
_REMEMBERED: Final = 1 << 16
"""How many segments of a worker are remembered. One that is forgotten is sent again, and taken as held."""
_ANY: Final = b""
_LOG: Final = logging.getLogger(__name__)


@frozen(eq=False)
class PartsToSend:
    """What an order for some parts of a work says, and what is sent with it.

    Attributes:
        kind: What to do.
        parts: The byte strings of the order.
        segments: The segments to do it on.
        frames: What the parts are about, as it lies on the head's disk; empty if the worker has it already.
        shared_key: Opens `shared`.
        shared: What all orders of the work have in common: see `Fleet.share`.
    """

    kind: WorkKind
    parts: Sequence[bytes] = field(repr=False)
    segments: tuple[SegmentOrder, ...] = ()
    frames: bytes = field(repr=False, default=b"")
    shared_key: bytes | None = field(repr=False, default=None)
    shared: Any = field(repr=False, default=b"")


class Work(Protocol):
    """Work in numbered parts."""

    @property
    def count(self) -> int:
        """The number of parts."""

    @property
    def names(self) -> Sequence[bytes] | None:
        """The names of what workers keep, one a part; None if they keep nothing."""

    @property
    def at_once(self) -> int:
        """How many orders a worker has at a time: two, so that it does not wait for the next, or one."""

    def order(self, parts: Sequence[int], *, is_sent: bool) -> PartsToSend:
        """Return the order for some parts; with their frames, unless the worker keeps those."""

    def take(self, parts: Sequence[int], answer: Sequence[bytes]) -> None:
        """Take the results of some parts.

        Raises:
            InvalidTask: these are no results of these parts.
        """

    def check(self, parts: Sequence[int]) -> None:
        """Read what was sent for some parts again: it may have been damaged on its way.

        Raises:
            JobRefused(DATASET_LOST): it does not open here either.
        """


@frozen(eq=False)
class _Sent:
    """An order on its way."""

    worker: Worker
    parts: tuple[int, ...]
    order: Order
    sealed: bytes
    is_sent: bool


class Dispatcher:
    """Gives work to a fleet. Safe to call from many threads."""

    def __init__(self, fleet: Fleet, clock: Clock = time.monotonic) -> None:
        self._fleet, self._pulses = fleet, Heartbeats(clock)
        self._held: dict[bytes, set[bytes]] = {}
        self._counting, self._out = Lock(), Counter[bytes]()

    def run(self, work: Work, interrupt: Interrupt) -> list[int]:
        """Give out all parts, and return those that no worker did.

        None is left, unless all workers are lost, there is no room for an order, a worker refuses one, or
        several workers could not do theirs: then the work is the cause, or what all workers run. `interrupt`
        is called before an order is made, and while answers are awaited.

        Raises:
            JobRefused(DATASET_LOST)
        """
        waiting, flying = _Waiting(work.names, self._held), dict[Future[bytes], _Sent]()
        done, undone = set[int](), set[bytes]()
        self._forget()
        waiting.put(range(work.count), self._fleet.workers())
        try:
            while self._send(work, waiting, flying, interrupt):
                landed, _ = wait(flying, timeout=_LOOK_EVERY_S, return_when=FIRST_COMPLETED)
                interrupt()
                for future in landed:
                    sent = self._land(flying, future)
                    try:
                        answered = self._take(work, sent, future)
                        done.update(answered)
                        waiting.put_back(sent, answered)
                    except (WorkerLost, NotSealed) as error:
                        give_up(self._fleet, sent.worker, error)
                        waiting.put(sent.parts, self._fleet.workers())
                        undone |= {sent.worker.name} if isinstance(error, Undone) else set()
                        if len(undone) == MOST_UNDONE:
                            raise NoWorkers from None
                self._look(waiting, flying)
        except NoWorkers:
            pass
        finally:
            for future in list(flying):
                sent = self._land(flying, future)
                sent.worker.stop(sent.worker.session.seal(sent.order.order_id, STOP))
        return [part for part in range(work.count) if part not in done]

    def _forget(self) -> None:
        """Forget workers that are gone."""
        names = set(self._fleet.workers())
        self._pulses.forget_all_but(names)
        for name in set(self._held) - names:
            self._held.pop(name, None)

    def _send(
        self, work: Work, waiting: "_Waiting", flying: dict[Future[bytes], _Sent], interrupt: Interrupt
    ) -> bool:
        """Give waiting parts to the workers that there are now; whether orders are on their way then."""
        workers = self._fleet.workers()
        waiting.reassign(workers)
        loads = Counter(sent.worker.name for sent in flying.values())
        while free := [
            one for name, one in workers.items() if loads[name] < work.at_once and waiting.has_some(name)
        ]:
            interrupt()
            with self._counting:  # several threads give out work: the worker that has least of all is next
                worker = min(free, key=lambda one: self._out[one.name])
                self._out[worker.name] += 1
            try:
                future, sent = self._order(work, worker, waiting)
            except BaseException:
                self._count_down(worker)
                raise
            flying[future] = sent
            loads[worker.name] += 1
        return bool(flying)

    def _order(self, work: Work, worker: Worker, waiting: "_Waiting") -> "tuple[Future[bytes], _Sent]":
        """Order one worker's next parts."""
        parts, is_sent = waiting.take(worker.name)
        about = work.order(parts, is_sent=is_sent)
        order = Order(
            order_id=os.urandom(32), work=about.kind, segments=about.segments, shared_key=about.shared_key
        )
        sealed = worker.session.seal(write(order, about.parts), ORDER)
        is_opening = isinstance(about.kind, Opening)
        future = worker.do(sealed, about.shared, about.frames, is_opening=is_opening)
        return future, _Sent(worker=worker, parts=parts, order=order, sealed=sealed, is_sent=is_sent)

    def _take(self, work: Work, sent: _Sent, future: "Future[bytes]") -> set[int]:
        """Take an answer, and return the parts that were done; the others were not kept any more.

        Raises:
            NotSealed, WorkerLost: it is no answer.
            NoWorkers, JobRefused: see `_read`.
        """
        opened = sent.worker.session.open(future.result(), sent.sealed[:NONCE_BYTES])
        self._pulses.heard(sent.worker)
        message = _read(work, sent, opened)
        done = [sent.parts[place] for place in message.head.done]
        if done:
            try:
                work.take(done, message.parts)
            except InvalidTask:
                raise WrongAnswer from None
        if work.names is not None:
            known = self._held.setdefault(sent.worker.name, set())
            known.difference_update(work.names[part] for part in sent.parts)
            known.update(work.names[part] for part in done)
            while len(known) > _REMEMBERED:
                known.pop()
        return set(done)

    def _look(self, waiting: "_Waiting", flying: dict[Future[bytes], _Sent]) -> None:
        """Await no worker any more that stands still, or that another thread found lost."""
        there = self._fleet.workers()
        for future, sent in list(flying.items()):
            if sent.worker.name not in there or self._pulses.is_silent(sent.worker):
                self._land(flying, future)
                give_up(self._fleet, sent.worker)
                waiting.put(sent.parts, self._fleet.workers())

    def _land(self, flying: dict[Future[bytes], _Sent], future: "Future[bytes]") -> _Sent:
        """Take an order from those that are on their way."""
        sent = flying.pop(future)
        self._count_down(sent.worker)
        return sent

    def _count_down(self, worker: Worker) -> None:
        with self._counting:
            self._out -= Counter([worker.name])  # which forgets a worker that has none


class _Waiting:
    """The parts that wait: each for the worker that is to keep what it is about, or all for any worker."""

    def __init__(self, names: Sequence[bytes] | None, held: dict[bytes, set[bytes]]) -> None:
        self._names, self._held = names, held
        self._queues: dict[bytes, deque[int]] = {}

    def put(self, parts: Sequence[int], workers: Iterable[bytes]) -> None:
        """Queue parts for the workers that there are now; what they are known to keep comes first."""
        workers = list(workers)
        if self._names is None or not workers:
            self._queues.setdefault(_ANY, deque()).extendleft(reversed(parts))
            return
        chosen = assign([self._names[part] for part in parts], workers)
        for part in parts:
            name = self._names[part]
            queue = self._queues.setdefault(chosen[name], deque())
            if name in self._held.get(chosen[name], ()):
                queue.appendleft(part)
            else:
                queue.append(part)

    def put_back(self, sent: _Sent, done: Container[int]) -> None:
        """Queue what a worker did not keep any more, to be sent to it."""
        left = [part for part in sent.parts if part not in done]
        if left:
            self._queues.setdefault(sent.worker.name, deque()).extend(left)

    def reassign(self, workers: Iterable[bytes]) -> None:
        """Queue the parts of workers that are gone for others."""
        if self._names is not None:
            for gone in self._queues.keys() - set(workers):
                self.put(self._queues.pop(gone), workers)

    def has_some(self, worker: bytes) -> bool:
        """Return whether there are parts for a worker."""
        return bool(self._queue(worker))

    def take(self, worker: bytes) -> tuple[tuple[int, ...], bool]:
        """Return a worker's next parts, and whether what they are about has to be sent.

        These are all parts that it is known to keep, and otherwise the next one.
        """
        queue, parts = self._queue(worker), list[int]()
        if self._names is not None:
            held = self._held.setdefault(worker, set())
            while queue and self._names[queue[0]] in held:
                parts.append(queue.popleft())
        if parts:
            return tuple(parts), False
        return (queue.popleft(),), True

    def _queue(self, worker: bytes) -> deque[int]:
        return self._queues.get(_ANY if self._names is None else worker, deque())


def _read(work: Work, sent: _Sent, opened: bytes) -> Message:
    """Read the answer of a worker that did its order, as far as it had the segments.

    Raises:
        WorkerLost: it could not, or this is no answer.
        NoWorkers: it refuses the order, so that this machine has to decide.
        JobRefused(DATASET_LOST): what was sent does not open, here either.
    """
    try:
        message = read(Done, opened)
    except InvalidTask:
        try:
            failed: Failed = read(Failed, opened).head
        except InvalidTask:
            raise WrongAnswer from None
        raise _failure(work, sent, failed) from None
    done = message.head.done
    if len(set(done)) != len(done) or not set(done) <= set(range(len(sent.parts))):
        raise WrongAnswer
    if len(done) < len(sent.parts) and sent.is_sent:  # what came with its order is there
        raise WrongAnswer
    return message


def _failure(work: Work, sent: _Sent, failed: Failed) -> Exception:
    """Return the error of an order that was not done.

    Raises:
        JobRefused(DATASET_LOST)
    """
    if failed.reason == "refused":
        _LOG.warning("a worker of the cluster refuses an order: this machine decides, and does it if it may")
        return NoWorkers()  # the head finds out by itself, and says so in its own words
    if failed.reason == "damaged":
        work.check(sent.parts)
    _LOG.error("a worker of the cluster could not do an order: %s", failed.reason)
    return Undone()
