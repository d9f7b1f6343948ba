"""Work that a server does at intervals, independent of requests.

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
from threading import Event, RLock, Thread
from time import sleep
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


class SharedWatch:
    """A repeated check for many blocks at once, such as the short calls of a server.

    One thread checks all of them, so that a block does not start a thread or wait for one to start. It ends
    after an interval without blocks.

    >>> watch, seen = SharedWatch(name="watch", every_s=0.001), Event()
    >>> with watch.looking(lambda: bool(seen.set())):
    ...     seen.wait(30)
    True
    """

    def __init__(self, *, name: str, every_s: float) -> None:
        """Name the thread, and how often it looks; a look takes no time."""
        self._name = name
        self._every_s = every_s
        self._lock = RLock()  # generators found as garbage end their blocks on any thread, in a look too
        self._looks: dict[object, Callable[[], bool]] = {}
        self._thread: Thread | None = None

    @contextmanager
    def looking(self, look: Callable[[], bool]) -> Iterator[None]:
        """Look now and then while the block runs, until a look says: enough.

        No look goes on once the block has ended.
        """
        key = object()
        with self._lock:
            if self._thread is None:
                thread = Thread(target=self._watch, name=self._name, daemon=True)
                thread.start()  # if there is no thread to be had, the next block tries again
                self._thread = thread
            self._looks[key] = look
        try:
            yield
        finally:
            with self._lock:
                self._looks.pop(key, None)

    def _watch(self) -> None:
        while True:
            sleep(self._every_s)
            with self._lock:
                if not self._looks:
                    self._thread = None
                    return
                for key, look in self._looks.copy().items():
                    if key in self._looks and self._is_enough(look):
                        self._looks.pop(key, None)

    def _is_enough(self, look: Callable[[], bool]) -> bool:
        try:
            return look()
        except Exception:  # noqa: BLE001  it must not end those of other blocks
            _LOG.exception("%s failed", self._name)
            return True


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
