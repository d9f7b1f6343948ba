"""Every persistence boundary of the product, as a place to crash.

Before and after each commit, and around each file that is written.

The points are named after the code that stands there ("Ledger.add_round: before commit"), so none can be
forgotten, and the product needs no line for them. A process that is dead writes nothing more, however it
unwinds.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import Connection, Engine, event

from tests.simulation.faults import Faults
from tests.simulation.kernel import Killed, Process


class Boundary:
    """Where one process can die."""

    def __init__(
        self, process: Process, faults: Faults, on_commit: Callable[[], None] = lambda: None
    ) -> None:
        """A process's boundaries.

        Args:
            process: The process.
            faults: Decide where it dies.
            on_commit: Told of each transaction that was committed, whether or not the process lives on.
        """
        self.on_commit = on_commit
        self._process = process
        self._faults = faults

    def passing(self, point: str) -> None:
        """Go on, or die."""
        self._process.check()
        if self._faults.is_crash(self._process.name, point):
            self._process.kill()
            raise Killed(point)

    def around(self, point: str, write: Callable[..., Any]) -> Callable[..., Any]:
        """A function that writes, with a point on either side."""

        def guarded(*args: Any, **kwargs: Any) -> Any:
            self.passing(f"{point}: before")
            result = write(*args, **kwargs)
            self.passing(f"{point}: after")
            return result

        return guarded


class FragileEngine(Engine):
    """An engine whose transactions pass boundaries."""

    boundary: Boundary

    def begin(self) -> Any:  # a context manager, like the one that it stands for
        """A transaction, named after the method that asks for it."""
        code = sys._getframe(1).f_code  # the only way to name a point without touching the product
        return _Transaction(self, super().begin(), code.co_qualname)


class _Transaction:
    def __init__(self, engine: FragileEngine, inner: AbstractContextManager[Connection], name: str) -> None:
        self._boundary, self._inner, self._name = engine.boundary, inner, name

    def __enter__(self) -> Connection:
        self._boundary.passing(f"{self._name}: before begin")
        return self._inner.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        if kind is not None:
            return self._inner.__exit__(kind, error, trace)
        try:
            self._boundary.passing(f"{self._name}: before commit")
        except Killed as killed:
            self._inner.__exit__(Killed, killed, killed.__traceback__)
            raise
        self._inner.__exit__(None, None, None)
        self._boundary.on_commit()
        self._boundary.passing(f"{self._name}: after commit")
        return None


_ENGINES: list[Engine] = []
"""The first engine, if there was one.

Its compiled statements serve all, for processes start by the hundred here.
"""


def make_fragile(engine: Engine, boundary: Boundary) -> Engine:
    """The same engine with boundaries; without fsync, for a simulated crash takes no page cache with it."""
    if not _ENGINES:
        _ENGINES.append(engine)
    engine.dialect, engine._compiled_cache = _ENGINES[0].dialect, _ENGINES[0]._compiled_cache
    engine.__class__ = FragileEngine
    engine.boundary = boundary  # type: ignore[attr-defined]  # of the class just above
    event.listen(
        engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF").close()
    )
    return engine
