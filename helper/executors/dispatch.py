"""The head's way with its workers: gives each its segments, takes its answers, and bears the loss of any.

    dispatcher.run(work, pieces, interrupt)     # each piece in exactly one of the answers

A worker has one order at a time. What it is known to hold goes into one order; other segments follow one by
one, with their frames, so that neither side ever has more of a dataset in memory than it wants. Work may be
done twice, where a worker is lost or stands still; an answer counts once.
"""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import field
from typing import Any, Final, Protocol

from cryptography.exceptions import InvalidTag

from helper.datasets.datasets import dataset_lost
from helper.datasets.segments import RowShape
from helper.datasets.spool import SealedSegment, open_segment
from helper.executors.holder import ORDER, STOP
from helper.executors.joining import NONCE_BYTES, NotSealed
from helper.executors.orders import Done, Failed, Message, Order, Scanning, SegmentOrder, Summing, read, write
from helper.executors.pulses import Asked, Clock, Pulses
from helper.executors.sharing_out import shared_out
from helper.gradient.engine import Interrupt
from maskedlark.errors import InvalidTask, JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.model.losses import Loss

_INTERRUPTED_EVERY_S: Final = 0.1
MOST_UNDONE: Final = 2
"""So many workers say that they cannot do an order before the work itself is held to be the cause."""
_REMEMBERED: Final = 1 << 16
"""How many segments of a worker are remembered. One that is forgotten is sent again, and taken as held."""
_LOG: Final = logging.getLogger(__name__)


class WorkerLost(Exception):
    """A worker ended, stands still, or cannot be reached; its work is given to others."""


class _Undone(WorkerLost):
    """A worker says that it could not do an order."""


class Worker(Asked, Protocol):
    """A worker that joined, as the head reaches it."""

    def work(self, order: bytes, shared: Any, *frames: bytes) -> "Future[bytes]":
        """See `Holder.work`; the future may raise WorkerLost."""

    def open(self, order: bytes) -> "Future[bytes]":
        """See `Holder.open`; the future may raise WorkerLost."""

    def stop(self, sealed: bytes) -> None:
        """See `Holder.stop`; awaits nothing."""


class Fleet(Protocol):
    """The workers of a helper, who come and go."""

    def workers(self) -> Mapping[bytes, Worker]:
        """Those that have joined and are not known to be lost, by name."""

    def drop(self, name: bytes) -> None:
        """Forget a worker that is lost."""

    def share(self, sealed: bytes) -> Any:
        """Put bytes where every worker finds them; what `Worker.work` takes.

        Raises:
            NoWorkers: there is no room for them, or no cluster any more.
        """

    def close(self) -> None:
        """End all workers."""


class NoWorkers(Exception):
    """There is no worker any more, or none that can do this work."""


@frozen(eq=False)
class Piece:
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
    pieces: tuple[Piece, ...]


@frozen(eq=False)
class Answer:
    """What a worker said of some pieces, all of which it has worked on."""

    pieces: tuple[Piece, ...]
    message: Message

    @property
    def done(self) -> Done:
        """What it says of them."""
        done: Done = self.message.head
        return done


@frozen(eq=False)
class Work:
    """What is asked of each segment, with which model and weights."""

    what: Summing | Scanning
    loss: Loss
    shared_key: bytes = field(repr=False)
    shared: Any = field(repr=False)


class Dispatcher:
    """Gives work to a fleet. Safe to call from many threads."""

    def __init__(self, fleet: Fleet, clock: Clock = time.monotonic) -> None:
        self._fleet = fleet
        self._pulses = Pulses(clock)
        self._held: dict[bytes, set[bytes]] = {}

    def run(self, work: Work, pieces: Sequence[Piece], interrupt: Interrupt) -> list[Answer]:
        """The answers of workers to all pieces, each piece in one of them.

        Raises:
            NoWorkers, JobRefused
        """
        queues: dict[bytes, list[Piece]] = {}
        flying: dict[Future[bytes], _Sent] = {}
        answers: list[Answer] = []
        undone = 0
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
                        self._take(sent, future.result(), answers, queues)
                    except (WorkerLost, NotSealed, InvalidTask) as error:
                        self._lose(sent, queues)
                        undone += isinstance(error, _Undone)
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
        named = [piece.name for answer in answers for piece in answer.pieces]
        if len(named) != len(set(named)) or set(named) != {piece.name for piece in pieces}:
            raise AssertionError("each segment is worked on once")
        return answers

    def _forget(self) -> None:
        """Forget what is known of workers that are gone."""
        names = set(self._fleet.workers())
        self._pulses.forget_all_but(names)
        for name in set(self._held) - names:
            self._held.pop(name, None)

    def _lose(self, sent: _Sent, queues: dict[bytes, list[Piece]]) -> None:
        """Forget a worker, and give what it had to do to the others."""
        _LOG.warning("a worker of the cluster is lost: its segments go to others")
        self._fleet.drop(sent.worker.name)
        self._held.pop(sent.worker.name, None)
        self._queue((*sent.pieces, *queues.pop(sent.worker.name, ())), queues)

    def _queue(self, pieces: Sequence[Piece], queues: dict[bytes, list[Piece]]) -> None:
        """Give pieces to the workers that there are now."""
        if not pieces:
            return
        workers = self._fleet.workers()
        if not workers:
            raise NoWorkers
        chosen = shared_out([piece.name for piece in pieces], list(workers))
        for piece in pieces:
            queues.setdefault(chosen[piece.name], []).append(piece)

    def _send(
        self,
        work: Work,
        name: bytes,
        queues: dict[bytes, list[Piece]],
        flying: dict[Future[bytes], _Sent],
    ) -> None:
        """Order one worker's next pieces: all that it holds at once, then the others one by one."""
        worker = self._fleet.workers().get(name)
        if worker is None:
            self._queue(queues.pop(name), queues)
            return
        queue, known = queues.pop(name), self._held.setdefault(name, set())
        pieces = [piece for piece in queue if piece.name in known]
        frames: tuple[bytes, ...] = ()
        if not pieces:
            pieces = queue[:1]
            frames = tuple(piece.segment.read() for piece in pieces)
        if rest := [piece for piece in queue if piece not in pieces]:
            queues[name] = rest
        order = _order(work, pieces, is_sent=bool(frames))
        parts = [part for piece in pieces for part in piece.parts]
        sealed = worker.session.seal(write(order, parts), ORDER)
        sent = _Sent(worker=worker, order=order, sealed=sealed, pieces=tuple(pieces))
        flying[worker.work(sealed, work.shared, *frames)] = sent

    def _take(
        self, sent: _Sent, sealed: bytes, answers: list[Answer], queues: dict[bytes, list[Piece]]
    ) -> None:
        """Take an answer; what was not held any more is sent again, with its frames.

        Raises:
            NotSealed, InvalidTask, WorkerLost: it is none.
            JobRefused
        """
        opened = sent.worker.session.open(sealed, sent.sealed[:NONCE_BYTES])
        self._pulses.heard(sent.worker)
        name, known = sent.worker.name, self._held.setdefault(sent.worker.name, set())
        try:
            message = read(Done, opened)
        except InvalidTask:
            raise _failure(read(Failed, opened).head, sent.pieces) from None
        done: Done = message.head
        if len(set(done.done)) != len(done.done) or not set(done.done) <= set(range(len(sent.pieces))):
            raise WorkerLost
        pieces = tuple(sent.pieces[place] for place in done.done)
        known.update(piece.name for piece in pieces)
        missing = [piece for place, piece in enumerate(sent.pieces) if place not in done.done]
        known.difference_update(piece.name for piece in missing)
        while len(known) > _REMEMBERED:
            known.pop()
        if missing:
            queues.setdefault(name, []).extend(missing)
        if pieces:
            answers.append(Answer(pieces=pieces, message=message))


def _order(work: Work, pieces: Sequence[Piece], *, is_sent: bool) -> Order:
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


def _failure(failed: Failed, pieces: Sequence[Piece]) -> Exception:
    """What an order that was not done means for the caller.

    Frames may be damaged on their way: a dataset is lost only if they do not open here either.
    """
    if failed.reason == "refused":
        return JobRefused(JobReason(failed.code), failed.message)
    if failed.reason == "damaged" and not all(_opens(piece.segment) for piece in pieces):
        return dataset_lost()
    _LOG.error("a worker of the cluster could not do an order: %s", failed.reason)
    return _Undone()


def _opens(segment: SealedSegment) -> bool:
    """Whether the frames of a segment, read again, are what was sealed."""
    try:
        open_segment(segment.shape, segment.place, segment.key, segment.read())
    except (InvalidTag, ValueError):
        return False
    return True
