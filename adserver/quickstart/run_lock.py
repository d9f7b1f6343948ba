"""One run of a project at a time: a lock in its folder, which ends with the process that holds it.

with only_run(project): ...
running_process(project)        # the id of the process that runs it, or None
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from adserver.quickstart.project import Project
from adserver.quickstart.runs import SUMMARY
from maskedlark.errors import InvalidTask

_FILE: Final = ".running"
# `running_process` holds the lock for a moment, and must not keep a run from starting
_TRIES: Final = 20
_PAUSE_S: Final = 0.02


@contextmanager
def only_run(project: Project) -> Iterator[None]:
    """Hold a project's runs while a `with` block lasts: two at once would each do the other's steps.

    Raises:
        InvalidTask: another process runs the project.
    """
    with (project.folder / _FILE).open("a+b") as lock:
        # A lock, not the file's being there: it ends with the process, however that ends.
        for tries_left in reversed(range(_TRIES)):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not tries_left:
                    raise InvalidTask(_describe(project)) from None
                time.sleep(_PAUSE_S)
        lock.truncate(0)
        lock.write(b"%d\n" % os.getpid())
        lock.flush()
        yield


def running_process(project: Project) -> int | None:
    """Return the id of the process that runs a project now; None if there is none."""
    try:
        with (project.folder / _FILE).open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                # Empty in the moment between the lock and the number
                return int(lock.read() or b"0")
    except FileNotFoundError:
        pass
    return None


def _describe(project: Project) -> str:
    last = project.last_run()
    # Before its servers are up a new run has no folder yet
    run = "a run" if last is None or (last / SUMMARY).exists() else f"run {last.name}"
    process = running_process(project)
    where = f" (process {process})" if process else ""
    return f"{run} is running{where}: wait for it, or stop it with Ctrl-C there"
