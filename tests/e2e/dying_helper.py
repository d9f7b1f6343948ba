"""A helper that kills itself at a chosen moment of a round, as by SIGKILL from outside at that very moment.

    with DyingFleet(folder=folder) as fleet:
        fleet.die_at(Moment.WHILE)             # the next round gets so far, and no further
        ...                                    # somebody asks for a round
        fleet.await_death()

Helper 0 is started as `python -m tests.e2e.dying_helper FOLDER serve ...`: the helper as it is, with fail
points around `Ledger.add_round` and where work is handed out. A moment is used up before the helper dies.
"""

import os
import signal
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from docs.tutorial.fleet import HELPERS, Fleet

_NEXT: Final = "next-death"
_DEATHS: Final = "deaths"
_DIES_S: Final = 300.0
_is_charging: ContextVar[bool] = ContextVar("is_charging", default=False)


class Moment(StrEnum):
    """When a helper dies.

    Attributes:
        COMPUTING: The work of the round was handed out: to a worker, or to this machine's threads.
        BEFORE: The answer is there; `add_round` is about to begin.
        WHILE: Charge and answer are written, and the transaction is about to be committed.
        AFTER: The transaction is committed; nobody has the answer.
    """

    COMPUTING = "computing"
    BEFORE = "before"
    WHILE = "while"
    AFTER = "after"


@dataclass(kw_only=True)
class DyingFleet(Fleet):
    """Two helpers, of which the first one dies when it is told to, and an ad server."""

    _before: int = 0

    def start_helper(self, role: int) -> None:
        """See `Fleet`."""
        path = self.folder / f"{HELPERS[0]}.log"
        if role == 0:
            self._before = len(path.read_text()) if path.exists() else 0
        super().start_helper(role)

    def life(self) -> str:
        """What the helper has logged since it was last started."""
        return self.log(HELPERS[0])[self._before :]

    def die_at(self, moment: Moment) -> None:
        """Let the helper die when it next comes so far. Others must not ask for rounds meanwhile."""
        path = self.folder / _NEXT
        path.with_suffix(".new").write_text(moment)
        path.with_suffix(".new").rename(path)

    @property
    def is_dead(self) -> bool:
        """Whether the helper has ended."""
        return self._processes[HELPERS[0]].poll() is not None

    def await_death(self) -> str:
        """Wait until the helper has died; of which moment, and where the work of it was."""
        process = self._processes[HELPERS[0]]
        if process.wait(_DIES_S) != -signal.SIGKILL:
            raise AssertionError(f"the helper ended by itself:\n{self.log(HELPERS[0])[-2000:]}")
        del self._processes[HELPERS[0]]
        return (self.folder / _DEATHS).read_text().splitlines()[-1]

    def _program(self, party: str, program: str) -> list[str]:
        dying = [sys.executable, "-m", "tests.e2e.dying_helper", str(self.folder)]
        return dying if party == HELPERS[0] else super()._program(party, program)


def _die(folder: Path, moment: Moment, where: str) -> None:
    """End this process, if it is to die of this moment."""
    path = folder / _NEXT
    try:
        is_time = path.read_text() == moment
    except FileNotFoundError:
        return
    if is_time:
        path.unlink()
        with (folder / _DEATHS).open("a") as deaths:
            deaths.write(f"{moment} {where}\n")
        os.kill(os.getpid(), signal.SIGKILL)


def _add_fail_points(folder: Path) -> None:
    """Put them into this process."""
    from sqlalchemy import Engine, event

    from helper.executors.dispatch import Dispatcher
    from helper.executors.local import LocalExecutor
    from helper.ledger.ledger import Ledger

    send, masked_sum, add_round = Dispatcher._send, LocalExecutor.masked_sum, Ledger.add_round

    def sent(*given: Any, **how: Any) -> None:
        send(*given, **how)
        _die(folder, Moment.COMPUTING, "worker")

    def summed(*given: Any, **how: Any) -> Any:
        _die(folder, Moment.COMPUTING, "head")
        return masked_sum(*given, **how)

    def added(*given: Any, **how: Any) -> bool:
        _die(folder, Moment.BEFORE, "head")
        token = _is_charging.set(True)
        try:
            is_new = add_round(*given, **how)
        finally:
            _is_charging.reset(token)
        if is_new:
            _die(folder, Moment.AFTER, "head")
        return is_new

    def committing(_: object) -> None:
        if _is_charging.get():
            _die(folder, Moment.WHILE, "head")

    _replace(Dispatcher, "_send", sent)
    _replace(LocalExecutor, "masked_sum", summed)
    _replace(Ledger, "add_round", added)
    event.listen(Engine, "commit", committing)


def _replace(owner: type, name: str, function: Callable[..., Any]) -> None:
    setattr(owner, name, function)


def main() -> None:
    """Serve, and die."""
    from helper.cli.main import main as helper

    _add_fail_points(Path(sys.argv.pop(1)))
    helper()


if __name__ == "__main__":
    main()
