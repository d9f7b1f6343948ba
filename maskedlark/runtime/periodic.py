"""Work that a server does now and then, beside what it is asked for.

>>> done = Event()
>>> sweep = Periodic(lambda _: done.set(), name="sweep", every_s=60.0, survives=(OSError,))
>>> sweep.start()
>>> done.wait(30)
True
>>> sweep.stop()
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final, TypeAlias

IsStopped: TypeAlias = Callable[[], bool]
"""Whether the work should end early."""

_LOG: Final = logging.getLogger(__name__)


@contextmanager
def watching(look: Callable[[], bool], *, name: str, every_s: float) -> Iterator[None]:
    """Look at something now and then while the block runs, in a thread, until a look says: enough.

    No look goes on once the block has ended.
    """
    is_over = Event()

    def watch() -> None:
        while not is_over.wait(every_s):
            if look():
                return

    thread = Thread(target=watch, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class Periodic:
    """A thread that works at once, and then every so many seconds, until it is stopped."""

    def __init__(
        self,
        work: Callable[[IsStopped], object],
        *,
        name: str,
        every_s: float,
        survives: tuple[type[Exception], ...],
    ) -> None:
        """Make the thread; it does not run yet.

        Args:
            work: What is done each time. It may ask between its steps whether it should end.
            name: The thread's, for logs.
            every_s: From the end of one time to the beginning of the next, in seconds.
            survives: Errors of the work that are logged; it is tried again the next time.
        """
        self._work = work
        self._name = name
        self._every_s = every_s
        self._survives = survives
        self._stopping = Event()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, *, waits: bool = True) -> None:
        """End after the step that is under way; return then, or at once if it is not to be waited for."""
        self._stopping.set()
        if waits:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._work(self._stopping.is_set)
            except self._survives:
                _LOG.exception("%s failed; it is tried again in %g s", self._name, self._every_s)
            self._stopping.wait(self._every_s)
