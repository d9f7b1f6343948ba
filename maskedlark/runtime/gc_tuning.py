"""When Python looks for garbage in cycles. Nearly all memory is freed without that.

    with command():     # a command: what it imports and does stands in the block
        app()
    seldom()            # a process that works for a command, and ends with it
    serving()           # a server, once it answers

Python looks at the newest objects whenever there are a few hundred more (`gc.get_threshold()`: 700 in 3.11),
at all objects when there are a quarter more, and at all of them several times as a process ends. Of the
processor time of `adserver dataset seal` with ten thousand reports this was a fifth, of `adserver job watch`
a sixth, nearly all of it at the end, and of a helper that opens reports a tenth (samples of `perf record`):
half a million objects are modules and compiled code.
"""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# After more new objects than a command's imports make: `adserver job submit` holds 140,000 at its end
_SELDOM: Final = (300_000, 20, 20)
_USUAL: Final = gc.get_threshold()


@contextmanager
def command() -> Iterator[None]:
    """Look for garbage seldom in this block, and at what is there at its end not as the process ends, either.

    What lies in cycles by then is not finalised: a file has to be closed, as Python asks anyway.
    """
    seldom()
    try:
        yield
    finally:
        gc.freeze()


def seldom() -> None:
    """Look for garbage seldom, and not as the process ends: for one that ends soon."""
    gc.set_threshold(*_SELDOM)
    atexit.register(gc.freeze)


def serving() -> None:
    """Look as often as Python does by itself, but never again at what exists by now.

    For a process that runs for long: what it holds of a call that is over, it frees as soon as before.
    """
    gc.freeze()
    gc.set_threshold(*_USUAL)
