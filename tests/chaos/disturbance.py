"""What befalls the fleet.

Processes are killed and started again, keys are rotated, and an operator seals datasets through it all.
"""

import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Lock
from typing import Final

import psutil

from docs.tutorial.fleet import HELPERS, Fleet
from maskedlark.reports.hpke_suite import HpkeSuite
from tests.chaos.watch import running

ADSERVER: Final = "adserver"
WORKER: Final = "opening worker"
SEALING: Final = "dataset seal"
VICTIMS: Final = (*HELPERS, ADSERVER, WORKER, SEALING)
_PAUSE_S: Final = (0.5, 3.0)
_DOWN_S: Final = (0.0, 1.0)
_ROTATION_CHANCE: Final = 0.3
_SEAL_PAUSE_S: Final = 1.0


def kill_worker(fleet: Fleet, chance: random.Random) -> bool:
    """Kill a process that opens shares for a helper, if one runs."""
    for helper in chance.sample(HELPERS, 2):
        with suppress(psutil.NoSuchProcess, IndexError):
            chance.choice(psutil.Process(fleet.pid(helper)).children(recursive=True)).kill()
            return True
    return False


class Operator:
    """Runs `dataset seal` again and again, whatever becomes of it.

    Attributes:
        sealed: How many of these commands ended well.
    """

    def __init__(self, fleet: Fleet, task: str) -> None:
        self._fleet = fleet
        self._options = [*fleet.common(), "--task", task, "--deadline", "10"]
        self._stop = Event()
        self._lock = Lock()
        self._command: subprocess.Popen[bytes] | None = None
        self.sealed = 0

    @contextmanager
    def sealing(self) -> Iterator[None]:
        """Seal while the block runs; the last command is waited for."""
        with running(self._run, "sealing", self._stop):
            yield

    def kill(self) -> bool:
        """Kill the command that runs at the moment; whether there was one."""
        with self._lock:
            if self._command is None or self._command.poll() is not None:
                return False
            self._command.kill()
        return True

    def _run(self) -> None:
        while not self._stop.wait(_SEAL_PAUSE_S):
            with self._lock:
                self._command = self._fleet.start_command("adserver", "dataset", "seal", *self._options)
            self.sealed += self._command.wait() == 0


class Disturbance:
    """Kills and rotates, seeded; what happened is counted.

    Attributes:
        kills: How many processes of each kind were killed.
        rotations: Of one helper's keys.
        down: Parties that are not up at the moment.
    """

    def __init__(
        self, fleet: Fleet, operator: Operator, seed: int, *, victims: Sequence[str] = VICTIMS
    ) -> None:
        self._fleet = fleet
        self._victims = victims
        self._operator = operator
        self._chance = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.rotations = 0
        self.down: frozenset[str] = frozenset()

    def strike(self) -> None:
        """Wait a little, kill one process, perhaps rotate a helper's keys, and start the process again."""
        time.sleep(self._chance.uniform(*_PAUSE_S))
        victim = self._chance.choice(self._victims)
        if victim == WORKER:
            self.kills[victim] += kill_worker(self._fleet, self._chance)
        elif victim == SEALING:
            self.kills[victim] += self._operator.kill()
        else:
            self._kill_party(victim)
        if victim in (WORKER, SEALING):
            self._maybe_rotate()

    def kill_for_good(self, party: str) -> None:
        """Kill a party that is not started again."""
        self._fleet.kill(party)
        self.kills[party] += 1

    def _kill_party(self, party: str) -> None:
        self.down = frozenset({party})
        self._fleet.kill(party)
        self.kills[party] += 1
        self._maybe_rotate()
        time.sleep(self._chance.uniform(*_DOWN_S))
        self._fleet.start(party)
        self.down = frozenset()

    def _maybe_rotate(self) -> None:
        if self._chance.random() < _ROTATION_CHANCE:
            helper, suite = self._chance.choice(HELPERS), self._chance.choice(list(HpkeSuite))
            self._fleet.run(
                "lark-helper", "keys", "rotate", "--data", str(self._fleet.data(helper)), "--suite", suite
            )
            self.rotations += 1
