"""The workers of a helper as its head reaches them, wherever they run, and how their work fails.

`helper.executors.dispatch` gives work to a `Fleet`; `helper.executors.ray_fleet` is the only one.
"""

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final, Protocol

from helper.executors.heartbeats import HeartbeatTarget

MOST_UNDONE: Final = 2
"""So many workers say that they cannot do an order before the work itself is held to be the cause."""
_LOG: Final = logging.getLogger(__name__)


class WorkerLost(Exception):
    """A worker ended, stands still, or cannot be reached; its work is given to others."""


class Undone(WorkerLost):
    """A worker says that it could not do an order."""


class WrongAnswer(Undone):
    """A worker with the token answers something that is no answer to its order."""


class NoWorkers(Exception):
    """There is no worker any more, or none that can do this work."""


class Worker(HeartbeatTarget, Protocol):
    """A worker that joined, as the head reaches it.

    What gives it an order raises NoWorkers where there is no room for what it would be sent.
    """

    def do(self, order: bytes, shared: Any, frames: bytes, *, is_opening: bool) -> "Future[bytes]":
        """See `SegmentWorker.do`; the future may raise WorkerLost. Shares are opened beside other work."""

    def stop(self, sealed: bytes) -> None:
        """See `SegmentWorker.stop`; awaits nothing."""


class Fleet(Protocol):
    """The workers of a helper, who come and go."""

    def workers(self) -> Mapping[bytes, Worker]:
        """Return the workers that have joined and are not known to be lost, by name."""

    def drop(self, name: bytes) -> None:
        """Forget a worker that is lost."""

    def refuse(self, name: bytes) -> None:
        """Forget a worker that answers wrongly, and admit no other one that its machine starts."""

    def share(self, sealed: bytes) -> Any:
        """Put bytes where every worker finds them; what `Worker.do` takes.

        Raises:
            NoWorkers: there is no room for them, or no cluster any more.
        """

    def close(self) -> None:
        """End all workers."""


def give_up(fleet: Fleet, worker: Worker, error: Exception | None = None) -> None:
    """Forget a worker whose work goes to others; after a wrong answer, ban its machine."""
    if isinstance(error, WrongAnswer):
        _LOG.error("a worker of the cluster answers something else than its order asks for")
        fleet.refuse(worker.name)
    else:
        fleet.drop(worker.name)
    _LOG.warning("a worker of the cluster is lost: its work goes to others")
