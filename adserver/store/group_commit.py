"""Calls that come at the same time share one transaction: group commit.

    together = GroupCommit(serve)       # serve(calls) answers many calls, in one transaction
    together.call(mine)                 # returns when `mine` is answered; raises what `serve` raised

A transaction costs the same for one call as for ten. While one thread commits, others queue; the next one
serves all that queue.
"""

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

_Call = TypeVar("_Call")


class _Waiting(Generic[_Call]):
    """A call in the queue, and what became of it. Its thread sleeps until it is served, or is to serve."""

    __slots__ = ("call", "error", "is_done", "sleeping")

    def __init__(self, call: _Call) -> None:
        self.call = call
        self.is_done = False
        self.error: BaseException | None = None
        self.sleeping = Lock()
        self.sleeping.acquire()


class GroupCommit(Generic[_Call]):
    """Serves calls of many threads in batches, one batch at a time."""

    def __init__(
        self,
        serve: Callable[[list[_Call]], None],
        *,
        most: int = 64,
        weigh: Callable[[_Call], int] = lambda _call: 0,
        most_weight: int = 0,
        hold: Callable[[Callable[[], int]], object] = lambda _waiting: None,
    ) -> None:
        """Serve by a function that writes each call's answer into the call.

        Args:
            serve: Answers a batch, in the order in which its calls came. What it raises is raised to every
                caller of the batch.
            most: The most calls of a batch.
            weigh: What a call counts of `most_weight`.
            most_weight: What the calls of a batch weigh at most; the first one is served in any case.
            hold: Called before a batch is closed, with what tells how much all calls that wait weigh; others
                may come until it returns.
        """
        self._serve = serve
        self._most = most
        self._weigh = weigh
        self._most_weight = most_weight
        self._hold = hold
        self._guard = Lock()
        self._queue: list[_Waiting[_Call]] = []
        self._is_served = False

    def call(self, one: _Call) -> None:
        """Run one call in a batch of this thread or of another one.

        Raises:
            Exception: what `serve` raised for the batch.
        """
        ours = _Waiting(one)
        # One serves at a time. A call that finds nobody at it serves at once; any other sleeps until its
        # batch is done, or until it is the first of the queue and the turn is its own.
        with self._guard:
            self._queue.append(ours)
            must_wait, self._is_served = self._is_served, True
        if must_wait:
            ours.sleeping.acquire()
        if not ours.is_done:
            self._serve_first()
        if ours.error is not None:
            raise ours.error

    def _serve_first(self) -> None:
        """Serve the calls that came first, this thread's at their head, and let the next thread serve."""
        self._hold(self._weight)
        with self._guard:
            count = self._batch_length()
            batch, self._queue = self._queue[:count], self._queue[count:]
        error: BaseException | None = None
        try:
            self._serve([one.call for one in batch])
        except BaseException as raised:  # noqa: BLE001 # it is raised to all of them
            error = raised
        for one in batch:
            one.error = error
            # Before its thread wakes: it serves a batch itself unless this is set.
            one.is_done = True
            one.sleeping.release()
        with self._guard:
            # The turn passes on without being free in between, so that no newcomer overtakes the queue.
            if self._queue:
                self._queue[0].sleeping.release()
            else:
                self._is_served = False

    def _weight(self) -> int:
        """Return the total weight of all waiting calls."""
        with self._guard:
            return sum(self._weigh(one.call) for one in self._queue)

    def _batch_length(self) -> int:
        """Return how many calls at the head of the queue are run now."""
        weight = 0
        for count, one in enumerate(self._queue[: self._most]):
            weight += self._weigh(one.call)
            if count and weight > self._most_weight:
                return count
        return min(len(self._queue), self._most)
