"""The head's way with workers that hold nothing: each gets the next part of some work.

    undone = Parts(fleet).run(3, work, interrupt)     # the parts that no worker did

An order holds all that its part takes, so any worker can do it, and do it again: a part whose worker is lost
goes to another one. Each worker has two parts of a run at a time, so that it does not wait for the next one.
One that answers something else than its order asks for is lost, and its machine gets no other one. Where
several threads give out work, a part goes to the worker that has fewest of all.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from threading import Lock
from typing import Final, Protocol

from helper.executors.fleet import MOST_UNDONE, Fleet, NoWorkers, Worker, WorkerLost, WrongAnswer, give_up
from helper.executors.handshake import NONCE_BYTES, NotSealed
from helper.executors.heartbeats import Clock, Heartbeats
from helper.executors.orders import Failed, read
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt

_AT_A_TIME: Final = 2
_LOOK_EVERY_S: Final = 0.1
_LOG: Final = logging.getLogger(__name__)


@frozen(eq=False)
class Sent:
    """An order on its way.

    Attributes:
        order: As it was sealed; the answer is bound to its beginning.
        answer: What comes back; WorkerLost if nothing does.
        stop: Tells the worker that the order is not awaited any more.
    """

    order: bytes
    answer: "Future[bytes]"
    stop: Callable[[], None] = lambda: None


class PartWork(Protocol):
    """Work in numbered parts."""

    def send(self, part: int, worker: Worker) -> Sent:
        """Order a part of a worker."""

    def take(self, part: int, answer: bytes) -> None:
        """Take what a worker answered.

        Raises:
            InvalidTask: the worker could not do it, or answers what cannot be.
        """


@frozen(eq=False)
class _Flying:
    """Whose order is on its way, and of which part."""

    worker: Worker
    part: int
    sent: Sent


class WorkQueue:
    """Gives parts of work to a fleet. Safe to call from many threads."""

    def __init__(self, fleet: Fleet, clock: Clock = time.monotonic) -> None:
        self._fleet, self._pulses = fleet, Heartbeats(clock)
        self._counting, self._out = Lock(), Counter[bytes]()

    def run(self, parts: int, work: PartWork, interrupt: Interrupt) -> list[int]:
        """Give out so many parts; the parts that no worker did.

        None is left, unless all workers are lost, there is no room for an order, or several could not: then
        the work is the cause, or what all workers run. `interrupt` is called before an order is made, and
        while answers are awaited.
        """
        waiting, flying = deque(range(parts)), dict[Future[bytes], _Flying]()
        done, undone = set[int](), set[bytes]()
        self._pulses.forget_all_but(self._fleet.workers())
        try:
            while (waiting or flying) and len(undone) < MOST_UNDONE:
                try:
                    self._send(work, waiting, flying, interrupt)
                except NoWorkers:
                    break
                if not flying:
                    break
                landed, _ = wait(flying, timeout=_LOOK_EVERY_S, return_when=FIRST_COMPLETED)
                interrupt()
                for future in landed:
                    one = self._land(flying, future)
                    try:
                        self._take(future, one, work)
                        done.add(one.part)
                    except (WorkerLost, NotSealed, InvalidTask) as error:
                        self._lose(one, waiting, error)
                        if isinstance(error, InvalidTask | WrongAnswer):
                            undone.add(one.worker.name)
                        if len(undone) == MOST_UNDONE:
                            break
                self._look(waiting, flying)
            return [part for part in range(parts) if part not in done]
        finally:
            for future in list(flying):
                self._land(flying, future).sent.stop()

    def _look(self, waiting: deque[int], flying: dict[Future[bytes], _Flying]) -> None:
        """Await no worker any more that stands still, or that another thread found lost."""
        there = self._fleet.workers()
        for future, one in list(flying.items()):
            if one.worker.name not in there or self._pulses.is_silent(one.worker):
                self._land(flying, future)
                self._lose(one, waiting)

    def _take(self, future: "Future[bytes]", one: _Flying, work: PartWork) -> None:
        """Take an answer.

        Raises:
            WorkerLost, NotSealed: it is none.
            InvalidTask: the worker says that it could not do the part.
        """
        answer = one.worker.session.open(future.result(), one.sent.order[:NONCE_BYTES])
        try:
            work.take(one.part, answer)
        except InvalidTask:
            failure = _failure(answer)
            if failure is None:
                raise WrongAnswer from None
            _LOG.error("a worker of the cluster could not do an order: %s", failure.reason)
            raise
        self._pulses.heard(one.worker)

    def _lose(self, one: _Flying, waiting: deque[int], error: Exception | None = None) -> None:
        """Forget a worker, and give its part to the others."""
        give_up(self._fleet, one.worker, error)
        waiting.appendleft(one.part)

    def _send(
        self,
        work: PartWork,
        waiting: deque[int],
        flying: dict[Future[bytes], _Flying],
        interrupt: Interrupt,
    ) -> None:
        """Give waiting parts to the workers that there are now and that have too few."""
        loads = Counter(one.worker.name for one in flying.values())
        while waiting:
            free = [one for one in self._fleet.workers().values() if loads[one.name] < _AT_A_TIME]
            if not free:
                return
            interrupt()
            with self._counting:
                worker = min(free, key=lambda one: self._out[one.name])
                self._out[worker.name] += 1
            try:
                sent = work.send(waiting[0], worker)
            except BaseException:
                self._count_down(worker)
                raise
            flying[sent.answer] = _Flying(worker=worker, part=waiting.popleft(), sent=sent)
            loads[worker.name] += 1

    def _land(self, flying: dict[Future[bytes], _Flying], future: "Future[bytes]") -> _Flying:
        """Take an order from those that are on their way."""
        one = flying.pop(future)
        self._count_down(one.worker)
        return one

    def _count_down(self, worker: Worker) -> None:
        with self._counting:
            self._out -= Counter([worker.name])  # which forgets a worker that has none


def _failure(answer: bytes) -> Failed | None:
    """Return a worker's report that it could not do an order; None for another answer."""
    try:
        failed: Failed = read(Failed, answer).head
    except InvalidTask:
        return None
    return failed
