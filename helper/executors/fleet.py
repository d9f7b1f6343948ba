"""The workers of a helper as its head reaches them, wherever they run, and how their work fails.

`helper.executors.dispatch` gives work to a `Fleet`; `helper.executors.ray_fleet` is the only one.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Protocol

from maskedlark.frozen import frozen


class JoinRefused(Exception):
    """A worker does not join: it is not of this cluster, or has other software."""


class WorkerLost(Exception):
    """A worker ended, stands still, or cannot be reached; its work is given to others."""


class Undone(WorkerLost):
    """A worker says that it could not do an order."""


class WrongAnswer(Undone):
    """A worker of the cluster answers something that is no answer to its order."""


@frozen(eq=False)
class Sent:
    """An order on its way.

    Attributes:
        answer: What comes back; WorkerLost if nothing does.
        cancel: Ends the order at the worker, and awaits nothing.
    """

    answer: "Future[bytes]"
    cancel: Callable[[], object] = lambda: None


class Worker(Protocol):
    """A worker that joined, as the head reaches it."""

    @property
    def name(self) -> bytes:
        """Unique among all workers that ever joined."""

    def do(self, order: bytes, *, most_bytes: int, is_opening: bool) -> Sent:
        """Send an order.

        Args:
            order: A message of `helper.executors.orders`.
            most_bytes: The longest that its answer may be.
            is_opening: Whether it is to open shares, which is done concurrently with other orders.
        """


class Fleet(Protocol):
    """The workers of a helper; they come and go."""

    def workers(self) -> Mapping[bytes, Worker]:
        """Return the workers that have joined and are not known to be lost, by name."""

    def drop(self, name: bytes) -> None:
        """Forget a worker that is lost, and end its orders: their answers are WorkerLost."""

    def refuse(self, name: bytes) -> None:
        """Forget a worker that answers wrongly, and admit no other one that its machine starts."""

    def close(self) -> None:
        """End all workers."""
