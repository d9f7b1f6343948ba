"""Gives work to the workers of a helper, takes their answers, and copes with the loss of any of them.

    undone = dispatcher.run(work, interrupt)     # the parts that no worker did

Work comes in numbered parts. An order holds all that its parts take, so any worker can do it, and do it
again: the parts of a lost worker go to others, and an answer counts once. If workers keep what a part is
about (a segment), each part goes to the worker that is to keep it, so that few are sent anew when workers
come or go. What a worker is known to keep goes into one order; other segments follow one by one, with their
frames, so that neither side holds more of a dataset in memory than it wants.
"""

import logging
from collections import Counter, deque
from collections.abc import Container, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import field
from hashlib import sha256
from threading import Lock
from typing import Final, Protocol

from helper.executors.fleet import Fleet, Sent, Undone, Worker, WorkerLost, WrongAnswer
from helper.executors.orders import (
    Done,
    Failed,
    Opening,
    Order,
    OrderMessage,
    SegmentOrder,
    WorkKind,
    read,
    write,
)
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt

MOST_UNDONE: Final = 2
"""So many workers say that they cannot do an order before the work itself is held to be the cause."""
_INTERRUPTED_EVERY_S: Final = 0.1
# The longest head of an answer, with the lengths of its parts.
_HEAD_BYTES: Final = 1 << 20
# How many segments of a worker are remembered. One that is forgotten is sent again, and taken as held.
_REMEMBERED: Final = 1 << 16
_ANY: Final = b""
_LOG: Final = logging.getLogger(__name__)


@frozen(eq=False)
class PartsToSend:
    """What an order for some parts of a work says, and what is sent with it.

    Attributes:
        kind: What to do.
        parts: The byte strings of the order.
        segments: The segments to do it on.
        answer_bytes: The length of the parts of the answer, or more.
        frames: What the parts are about, as it lies on the head's disk; empty if the worker has it already.
    """

    kind: WorkKind
    parts: Sequence[bytes] = field(repr=False)
    answer_bytes: int
    segments: tuple[SegmentOrder, ...] = ()
    frames: bytes = field(repr=False, default=b"")


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
        """The orders that a worker has at a time: two, so that it does not wait for the next, or one."""

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
class _Flying:
    """An order on its way: whose it is, which parts it is of, and whether what they are about was sent."""

    worker: Worker
    parts: tuple[int, ...]
    is_sent: bool
    sent: Sent


class _LeftToHead(Exception):
    """Workers do no more of this work."""


class Dispatcher:
    """Gives work to a fleet. Safe to call from many threads."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        # Without a lock: what is wrongly known of a worker's memory costs a segment that is sent again.
        self._held: dict[bytes, set[bytes]] = {}
        self._counting, self._out = Lock(), Counter[bytes]()

    def run(self, work: Work, interrupt: Interrupt) -> list[int]:
        """Give out all parts, and return those that no worker did.

        None is left, unless all workers are lost, one refuses an order, or several could not do theirs: then
        the work is the cause, or what all workers run. `interrupt` is called before an order is made, and
        while answers are awaited; orders that are left are ended at their workers.

        Raises:
            JobRefused(DATASET_LOST)
        """
        waiting, flying = _Waiting(work.names, self._held), dict[Future[bytes], _Flying]()
        done, undone = set[int](), set[bytes]()
        self._forget()  # once a run is enough: no name of a worker is used again
        waiting.put(range(work.count), self._fleet.workers())
        try:
            while self._send(work, waiting, flying, interrupt):
                landed, _ = wait(flying, timeout=_INTERRUPTED_EVERY_S, return_when=FIRST_COMPLETED)
                interrupt()
                for future in landed:
                    one = self._land(flying, future)
                    try:
                        answered = self._take(work, one)
                        done.update(answered)
                        waiting.put_back(one, answered)
                    except WorkerLost as error:
                        _give_up(self._fleet, one.worker, error)
                        waiting.put(one.parts, self._fleet.workers())
                        undone |= {one.worker.name} if isinstance(error, Undone) else set()
                        if len(undone) == MOST_UNDONE:
                            raise _LeftToHead from None
        except _LeftToHead:
            pass
        finally:
            for future in list(flying):
                self._land(flying, future).sent.cancel()
        return [part for part in range(work.count) if part not in done]

    def _forget(self) -> None:
        """Forget workers that are gone."""
        for name in self._held.keys() - self._fleet.workers().keys():
            self._held.pop(name, None)

    def _send(
        self, work: Work, waiting: "_Waiting", flying: dict[Future[bytes], _Flying], interrupt: Interrupt
    ) -> bool:
        """Give waiting parts to the workers that there are now; whether orders are on their way then."""
        workers = self._fleet.workers()
        waiting.reassign(workers)
        loads = Counter(one.worker.name for one in flying.values())
        while free := [
            one for name, one in workers.items() if loads[name] < work.at_once and waiting.has_some(name)
        ]:
            interrupt()
            with self._counting:  # several threads give out work: the worker that has least of all is next
                worker = min(free, key=lambda one: self._out[one.name])
                self._out[worker.name] += 1
            try:
                one = self._order(work, worker, waiting)
            except BaseException:
                self._count_down(worker)
                raise
            flying[one.sent.answer] = one
            loads[worker.name] += 1
        return bool(flying)

    def _order(self, work: Work, worker: Worker, waiting: "_Waiting") -> _Flying:
        """Order one worker's next parts."""
        parts, is_sent = waiting.take(worker.name)
        about = work.order(parts, is_sent=is_sent)
        sent = worker.do(
            write(Order(work=about.kind, segments=about.segments), [*about.parts, about.frames]),
            most_bytes=about.answer_bytes + _HEAD_BYTES,
            is_opening=isinstance(about.kind, Opening),
        )
        return _Flying(worker=worker, parts=parts, is_sent=is_sent, sent=sent)

    def _take(self, work: Work, one: _Flying) -> set[int]:
        """Take an answer, and return the parts that were done; the others were not kept any more.

        Raises:
            WorkerLost: it is no answer.
            _LeftToHead, JobRefused: see `_read`.
        """
        message = _read(work, one, one.sent.answer.result())
        done = [one.parts[place] for place in message.head.done]
        if done:
            try:
                work.take(done, message.parts)
            except InvalidTask:
                raise WrongAnswer from None
        if work.names is not None:
            known = self._held.setdefault(one.worker.name, set())
            known.difference_update(work.names[part] for part in one.parts)
            known.update(work.names[part] for part in done)
            while len(known) > _REMEMBERED:
                # Any of them: one that is forgotten is only sent again.
                known.pop()
        return set(done)

    def _land(self, flying: dict[Future[bytes], _Flying], future: "Future[bytes]") -> _Flying:
        """Take an order from those that are on their way."""
        one = flying.pop(future)
        self._count_down(one.worker)
        return one

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
            # In front, in their order: the parts of a lost worker come before what waits.
            self._queues.setdefault(_ANY, deque()).extendleft(reversed(parts))
            return
        chosen = _assign([self._names[part] for part in parts], workers)
        for part in parts:
            name = self._names[part]
            queue = self._queues.setdefault(chosen[name], deque())
            if name in self._held.get(chosen[name], ()):
                queue.appendleft(part)
            else:
                queue.append(part)

    def put_back(self, one: _Flying, done: Container[int]) -> None:
        """Queue what a worker did not keep any more, to be sent to it."""
        left = [part for part in one.parts if part not in done]
        if left:
            self._queues.setdefault(one.worker.name, deque()).extend(left)

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


def _assign(segments: Sequence[bytes], workers: Sequence[bytes]) -> dict[bytes, bytes]:
    """Assign a worker to each segment, stable when other workers come or go.

    Rendezvous hashing with bounded loads: each segment goes to the worker that ranks highest for it and has
    less than its share.

    Guarantees: loads differ by at most one segment from equal shares rounded up; the result depends on the
        names alone.
    """
    most = -(-len(segments) // len(workers)) if workers else 0
    loads: Counter[bytes] = Counter()
    chosen: dict[bytes, bytes] = {}
    for segment in sorted(segments):
        ranked = sorted(workers, key=lambda worker: sha256(worker + segment).digest())
        chosen[segment] = next(worker for worker in ranked if loads[worker] < most)
        loads[chosen[segment]] += 1
    return chosen


def _read(work: Work, one: _Flying, answer: bytes) -> OrderMessage:
    """Read the answer of a worker that did its order, as far as it had the segments.

    Raises:
        WorkerLost: it could not, or this is no answer.
        _LeftToHead: it refuses the order, so that this machine has to decide.
        JobRefused(DATASET_LOST): what was sent does not open, here either.
    """
    try:
        message = read(Done, answer)
    except InvalidTask:
        try:
            failed: Failed = read(Failed, answer).head
        except InvalidTask:
            raise WrongAnswer from None
        raise _failure(work, one, failed) from None
    done = message.head.done
    if len(set(done)) != len(done) or not set(done) <= set(range(len(one.parts))):
        raise WrongAnswer
    if len(done) < len(one.parts) and one.is_sent:  # what came with its order is there
        raise WrongAnswer
    return message


def _failure(work: Work, one: _Flying, failed: Failed) -> Exception:
    """Return the error of an order that was not done.

    Raises:
        JobRefused(DATASET_LOST)
    """
    if failed.reason == "refused":
        _LOG.warning("a worker of the cluster refuses an order: this machine decides, and does it if it may")
        return _LeftToHead()  # the head finds out by itself, and says so in its own words
    if failed.reason == "damaged":
        work.check(one.parts)
    _LOG.error("a worker of the cluster could not do an order: %s", failed.reason)
    return Undone()


def _give_up(fleet: Fleet, worker: Worker, error: Exception) -> None:
    """Forget a worker whose work goes to others; after a wrong answer, ban its machine."""
    if isinstance(error, WrongAnswer):
        _LOG.error("a worker of the cluster answers something else than its order asks for")
        fleet.refuse(worker.name)
    else:
        fleet.drop(worker.name)
    _LOG.warning("a worker of the cluster is lost: its work goes to others")
