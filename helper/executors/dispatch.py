"""The head's way with its workers: gives each its segments, takes its answers, and bears the loss of any.

    dispatcher.run(work, pieces, read_answer, interrupt)     # each piece in exactly one of the answers

A worker that answers something else than its order asks for is lost too, and its machine gets no other one.
A worker has one order at a time. What it is known to hold goes into one order; other segments follow one by
one, with their frames, so that neither side ever has more of a dataset in memory than it wants. Work may be
done twice, where a worker is lost or stands still; an answer counts once.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import field
from typing import Any, Final, TypeVar

from cryptography.exceptions import InvalidTag

from helper.datasets.datasets import dataset_lost
from helper.datasets.frames import SealedSegment, open_segment
from helper.datasets.segments import RowShape
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
from helper.executors.orders import Done, Failed, Message, Order, Scanning, SegmentOrder, Summing, read, write
from helper.executors.rendezvous import assign
from helper.executors.worker import ORDER, STOP
from helper.gradient.engine import Interrupt
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.model.losses import Loss

_INTERRUPTED_EVERY_S: Final = 0.1
_REMEMBERED: Final = 1 << 16
"""How many segments of a worker are remembered. One that is forgotten is sent again, and taken as held."""
_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")


@frozen(eq=False)
class WorkItem:
    """A segment's part of some work: the segment, its flags, and how many of its records are evaluated."""

    segment: SealedSegment
    name: bytes
    parts: tuple[bytes, ...] = field(repr=False, default=())
    evaluated: int = 0


@frozen(eq=False)
class _Sent:
    """An order on its way."""

    worker: Worker
    order: Order
    sealed: bytes
    pieces: tuple[WorkItem, ...]


@frozen(eq=False)
class WorkerAnswer:
    """What a worker said of some pieces, all of which it has worked on."""

    pieces: tuple[WorkItem, ...]
    message: Message


@frozen(eq=False)
class DispatchedWork:
    """What is asked of each segment, with which model and weights."""

    what: Summing | Scanning
    loss: Loss
    shared_key: bytes = field(repr=False)
    shared: Any = field(repr=False)


class Dispatcher:
    """Gives work to a fleet. Safe to call from many threads."""

    def __init__(self, fleet: Fleet, clock: Clock = time.monotonic) -> None:
        self._fleet = fleet
        self._pulses = Heartbeats(clock)
        self._held: dict[bytes, set[bytes]] = {}

    def run(
        self,
        work: DispatchedWork,
        pieces: Sequence[WorkItem],
        read_answer: Callable[[WorkerAnswer], _T],
        interrupt: Interrupt,
    ) -> list[_T]:
        """Run all pieces on workers, each piece in exactly one of the returned answers.

        Args:
            work: What is asked.
            pieces: Of which segments.
            read_answer: What an answer says. Raises InvalidTask if it is none to `work`: then its worker is
                given up, and others are asked.
            interrupt: Ends the work if it raises.

        Raises:
            NoWorkers, JobRefused
        """
        queues: dict[bytes, deque[WorkItem]] = {}
        flying: dict[Future[bytes], _Sent] = {}
        told: list[_T] = []
        answered: list[bytes] = []
        undone = 0

        def take(answer: WorkerAnswer) -> None:
            told.append(read_answer(answer))
            answered.extend(piece.name for piece in answer.pieces)

        self._forget()
        self._queue(pieces, queues)
        try:
            while queues or flying:
                busy = {sent.worker.name for sent in flying.values()}
                for name in queues.keys() - busy:
                    self._send(work, name, queues, flying)
                landed, _ = wait(flying, timeout=_INTERRUPTED_EVERY_S, return_when=FIRST_COMPLETED)
                interrupt()
                for future in landed:
                    sent = flying.pop(future)
                    try:
                        self._take(sent, future.result(), take, queues)
                    except (WorkerLost, NotSealed) as error:
                        self._lose(sent, queues, error)
                        undone += isinstance(error, Undone)
                        if undone == MOST_UNDONE:
                            raise NoWorkers from None
                there = self._fleet.workers()  # what another thread lost is not awaited here either
                for future, sent in list(flying.items()):
                    if sent.worker.name not in there or self._pulses.is_silent(sent.worker):
                        del flying[future]
                        self._lose(sent, queues)
        finally:
            for sent in flying.values():
                sent.worker.stop(sent.worker.session.seal(sent.order.order_id, STOP))
        if sorted(answered) != sorted(piece.name for piece in pieces):
            raise AssertionError("each segment is worked on once")
        return told

    def _forget(self) -> None:
        """Forget workers that are gone."""
        names = set(self._fleet.workers())
        self._pulses.forget_all_but(names)
        for name in set(self._held) - names:
            self._held.pop(name, None)

    def _lose(
        self, sent: _Sent, queues: dict[bytes, deque[WorkItem]], error: Exception | None = None
    ) -> None:
        """Forget a worker, and give its work to the others."""
        give_up(self._fleet, sent.worker, error)
        self._held.pop(sent.worker.name, None)
        self._queue((*sent.pieces, *queues.pop(sent.worker.name, ())), queues)

    def _queue(self, pieces: Sequence[WorkItem], queues: dict[bytes, deque[WorkItem]]) -> None:
        """Give pieces to the workers that there are now; first comes what they are known to hold."""
        if not pieces:
            return
        workers = self._fleet.workers()
        if not workers:
            raise NoWorkers
        chosen = assign([piece.name for piece in pieces], list(workers))
        for piece in pieces:
            name = chosen[piece.name]
            queue = queues.setdefault(name, deque())
            if piece.name in self._held.get(name, ()):
                queue.appendleft(piece)
            else:
                queue.append(piece)

    def _send(
        self,
        work: DispatchedWork,
        name: bytes,
        queues: dict[bytes, deque[WorkItem]],
        flying: dict[Future[bytes], _Sent],
    ) -> None:
        """Order one worker's next pieces: all that it holds at once, then the others one by one."""
        worker = self._fleet.workers().get(name)
        if worker is None:
            self._queue(tuple(queues.pop(name)), queues)
            return
        queue, known = queues[name], self._held.setdefault(name, set())
        pieces: list[WorkItem] = []
        while queue and queue[0].name in known:
            pieces.append(queue.popleft())
        frames: tuple[bytes, ...] = ()
        if not pieces:
            pieces = [queue.popleft()]
            frames = (pieces[0].segment.read(),)
        if not queue:
            del queues[name]
        order = _order(work, pieces, is_sent=bool(frames))
        parts = [part for piece in pieces for part in piece.parts]
        sealed = worker.session.seal(write(order, parts), ORDER)
        sent = _Sent(worker=worker, order=order, sealed=sealed, pieces=tuple(pieces))
        flying[worker.work(sealed, work.shared, *frames)] = sent

    def _take(
        self,
        sent: _Sent,
        sealed: bytes,
        take: Callable[[WorkerAnswer], None],
        queues: dict[bytes, deque[WorkItem]],
    ) -> None:
        """Take an answer; what was not held any more is sent again, with its frames.

        Raises:
            NotSealed, WorkerLost: it is none.
            NoWorkers, JobRefused: see `_failure`.
        """
        opened = sent.worker.session.open(sealed, sent.sealed[:NONCE_BYTES])
        self._pulses.heard(sent.worker)
        name, known = sent.worker.name, self._held.setdefault(sent.worker.name, set())
        message = _done(opened, sent)
        done: tuple[int, ...] = message.head.done
        pieces = tuple(sent.pieces[place] for place in done)
        if pieces:
            try:
                take(WorkerAnswer(pieces=pieces, message=message))
            except InvalidTask:
                raise WrongAnswer from None
        known.update(piece.name for piece in pieces)
        missing = [piece for place, piece in enumerate(sent.pieces) if place not in done]
        known.difference_update(piece.name for piece in missing)
        while len(known) > _REMEMBERED:
            known.pop()
        if missing:
            queues.setdefault(name, deque()).extend(missing)


def _done(opened: bytes, sent: _Sent) -> Message:
    """Read the answer of a worker that did its order, as far as it had the segments.

    Raises:
        WorkerLost: it could not, or this is no answer.
        NoWorkers, JobRefused: see `_failure`.
    """
    try:
        message = read(Done, opened)
    except InvalidTask:
        try:
            failed = read(Failed, opened).head
        except InvalidTask:
            raise WrongAnswer from None
        raise _failure(failed, sent.pieces) from None
    done = message.head.done
    if len(set(done)) != len(done) or not set(done) <= set(range(len(sent.pieces))):
        raise WrongAnswer
    if len(done) < len(sent.pieces) and sent.order.segments[0].is_sent:  # what came with its order is there
        raise WrongAnswer
    return message


def _order(work: DispatchedWork, pieces: Sequence[WorkItem], *, is_sent: bool) -> Order:
    return Order(
        order_id=os.urandom(32),
        shared_key=work.shared_key,
        loss=work.loss,
        summing=work.what if isinstance(work.what, Summing) else None,
        scanning=work.what if isinstance(work.what, Scanning) else None,
        segments=tuple(
            SegmentOrder(
                header=piece.segment.place.header,
                number=piece.segment.place.number,
                records=piece.segment.place.records,
                widths=_widths(piece.segment.shape),
                key=piece.segment.key,
                chosen=int(piece.segment.is_chosen.sum()),
                is_sent=is_sent,
            )
            for piece in pieces
        ),
    )


def _widths(shape: RowShape) -> tuple[int, int, int, int]:
    return shape.features, shape.candidates, shape.keys, shape.columns


def _failure(failed: Failed, pieces: Sequence[WorkItem]) -> Exception:
    """Map a failed order to the caller's error.

    Frames may be damaged on their way: a dataset is lost only if they do not open here either.
    """
    if failed.reason == "refused":
        _LOG.warning("a worker of the cluster refuses an order: this machine decides, and does it if it may")
        return NoWorkers()  # the head finds out by itself, and says so in its own words
    if failed.reason == "damaged" and not all(_opens(piece.segment) for piece in pieces):
        return dataset_lost()
    _LOG.error("a worker of the cluster could not do an order: %s", failed.reason)
    return Undone()


def _opens(segment: SealedSegment) -> bool:
    """Return whether the frames of a segment, read again, are what was sealed."""
    try:
        open_segment(segment.shape, segment.place, segment.key, segment.read())
    except (InvalidTag, ValueError):
        return False
    return True
