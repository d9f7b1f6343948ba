"""How a process is asked to end.

In a server SIGTERM or SIGINT set an event, and the main thread sees it; a command ends as by Ctrl-C.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Final

_LOOK_EVERY_S: Final = 0.2


@contextmanager
def stop_on_signals() -> Iterator[Event]:
    """Set an event on SIGTERM and SIGINT instead of ending the process. Called by the main thread."""
    stop = Event()
    before = {
        number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does: what it started is ended with it."""

    def end(_signal: int, _frame: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def wait_for(stop: Event) -> None:
    """Return once the event is set.

    Python runs a signal's handler in the main thread, and the kernel may give the signal to any other one: a
    main thread that sleeps without end would then never run it. So it wakes up from time to time.
    """
    while not stop.wait(_LOOK_EVERY_S):
        pass
