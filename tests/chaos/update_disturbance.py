"""What befalls federated jobs: processes are killed, and helpers are asked for the same rounds again."""

import random
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import Final

from adserver.peers.client import HelperClient
from docs.tutorial.fleet import HELPERS, Fleet
from maskedlark.errors import HelperUnavailable, JobRefused
from maskedlark.releases.update import UpdateSpec, form_of
from tests.chaos.disturbance import ADSERVER, WORKER, kill_worker
from tests.chaos.update_books import Training
from tests.chaos.watch import repeating

DEVICE_PROCESS: Final = "devices"
VICTIMS: Final = (*HELPERS, ADSERVER, WORKER, DEVICE_PROCESS)
_PAUSE_S: Final = (0.3, 2.5)
_DOWN_S: Final = (0.0, 1.0)
_BOTH_CHANCE: Final = 0.5
_ASK_S: Final = 60.0
_ASK_EVERY_S: Final = 0.2
_NEWEST_CHANCE: Final = 0.5


class Killer:
    """Kills and starts again, seeded.

    Attributes:
        kills: How many processes of each kind were killed.
    """

    def __init__(self, fleet: Fleet, trainings: Sequence[Training], seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self._fleet = fleet
        self._trainings = trainings
        self._chance = random.Random(seed)
        self._next: list[str] = []
        self._start_s = 0.0

    def strike(self) -> None:
        """Wait a little, kill one process, wait again, and start it again; all in turn, in random order.

        Half of the time devices die, too, while a party is down. Where a party takes long to start, there is
        more time before the next one dies: else nothing happens between kills.
        """
        time.sleep(self._chance.uniform(*_PAUSE_S) + self._chance.random() * self._start_s)
        self._next = self._next or self._chance.sample(VICTIMS, len(VICTIMS))
        victim = self._next.pop()
        if victim == WORKER:
            self.kills[victim] += kill_worker(self._fleet, self._chance)
        elif victim == DEVICE_PROCESS:
            self._kill_devices()
        else:
            self._fleet.kill(victim)
            self.kills[victim] += 1
            if self._chance.random() < _BOTH_CHANCE:
                self._kill_devices()
            time.sleep(self._chance.uniform(*_DOWN_S))
            began = time.monotonic()
            if victim == ADSERVER:
                self._fleet.start_adserver()
            else:
                self._fleet.start_helper(HELPERS.index(victim))
            self._start_s = time.monotonic() - began

    def _kill_devices(self) -> None:
        self.kills[DEVICE_PROCESS] += self._chance.choice(self._trainings).devices.kill()


class Asker:
    """Asks a helper for a round's release beside the ad server, whatever is up.

    Attributes:
        answered: How often it got an answer.
    """

    def __init__(self, fleet: Fleet, trainings: Sequence[Training], seed: int) -> None:
        self.answered = 0
        self._fleet = fleet
        self._trainings = trainings
        self._chance = random.Random(f"{seed} asker")
        self._heard: defaultdict[tuple[int, bytes], set[bytes]] = defaultdict(set)
        self._lengths = {one.books.job: form_of(one.books.plan().task).length for one in trainings}

    def asking(self) -> AbstractContextManager[None]:
        """Ask while the block runs."""
        return repeating(self._ask_once, "asker", _ASK_EVERY_S)

    def ask_all(self) -> None:
        """Each helper, each round of each job, once more; both are up."""
        for one in self._trainings:
            for spec in one.books.specs():
                for role in (0, 1):
                    self._ask(role, spec, self._lengths[one.books.job])

    def second_answers(self) -> int:
        """Answers that are not the one that the helper's ledger holds."""
        held = {
            (role, spec.query_id): answer
            for one in self._trainings
            for role in (0, 1)
            for spec, answer in one.books.answers(HELPERS[role])
        }
        return sum(len(heard - {held.get(which)}) for which, heard in self._heard.items())

    def _ask_once(self) -> None:
        one = self._chance.choice(self._trainings)
        specs = one.books.specs()
        if specs:
            newest = self._chance.random() < _NEWEST_CHANCE
            spec = specs[-1] if newest else self._chance.choice(specs)
            with suppress(HelperUnavailable, JobRefused, FileNotFoundError):
                self._ask(self._chance.randrange(2), spec, self._lengths[one.books.job])

    def _ask(self, role: int, spec: UpdateSpec, length: int) -> None:
        address = (self._fleet.folder / f"{HELPERS[role]}.address").read_text()
        with HelperClient(address, None, _ASK_S) as client:
            answer = client.run_query(spec, b"", length).share.encode()
        self.answered += 1
        self._heard[role, spec.query_id].add(answer)
