"""Workers and raylets killed while a helper that its operator runs on them computes a round.

A kill counts only if the round was asked for and not answered yet when the signal was sent; others are made
again. `with_orders` says how many of them took an order with them: the helper's log says so. Each answer is
compared with that of the same helper without workers, and its row in the ledger is counted.
"""

import os
import signal
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Event

import numpy as np

from docs.tutorial.fleet import HELPERS
from tests.bench.clustered_helper import JOINED, LOST, Site
from tests.helper.executors.ray_machines import raylet_pid

MOST_TRIES = 8
"""For each kill that is wanted."""
USUAL_ROUNDS = 7

Told = Callable[[float, str], None]
"""Called with how much more is done, and with what there is to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kills:
    """What kills did.

    Attributes:
        hit: How many came while a round was under way.
        tried: How many there were.
        with_orders: Of those that hit, how many took an order with them.
        unequal: Of all rounds, whose answer was another one than without workers.
        charged_otherwise: Of all rounds, that have not one row in the ledger.
        late_s: By how much the slowest round that was hit was slower than the usual one.
    """

    hit: int
    tried: int
    with_orders: int
    unequal: int
    charged_otherwise: int
    late_s: float


@dataclass(kw_only=True)
class Rounds:
    """The rounds of a site's job, one after the other, and how long one takes."""

    site: Site
    usual_s: float = 0.0
    done: int = 0
    unequal: int = 0
    charged_otherwise: int = 0

    def run(self, strike: Callable[[], None] = lambda: None) -> tuple[bool, float]:
        """One round, and a strike at a random moment: whether the round was under way then, and its time."""
        draw = np.random.default_rng(self.done)
        with ThreadPoolExecutor(1) as threads:
            began = time.perf_counter()
            asked = threads.submit(self.site.ask, HELPERS[1], self.done)
            Event().wait(self.usual_s * draw.random())
            strike()
            is_hit = not asked.done()
            answer = asked.result()
            took_s = time.perf_counter() - began
        self.unequal += not self.site.is_equal(self.done, answer)
        self.charged_otherwise += self.site.charges(self.done) != 1
        self.done += 1
        return is_hit, took_s

    def measure(self, rounds: int) -> None:
        """Learn how long a round usually takes, from at least these many."""
        self.usual_s = statistics.median([self.run()[1] for _ in range(max(rounds, USUAL_ROUNDS))])


def workers_killed(rounds: Rounds, wanted: int, told: Told) -> Kills:
    """One process that holds segments ends, as by SIGKILL."""
    return _killed(rounds, wanted, lambda: _end_a_worker(rounds), told=told, what="worker kills")


def raylets_killed(rounds: Rounds, wanted: int, told: Told) -> Kills:
    """One machine of the cluster ends with all that runs there; another one comes in its place."""

    def strike() -> None:
        os.kill(raylet_pid(rounds.site.made.nodes[0]), signal.SIGKILL)

    def mend() -> None:
        made = rounds.site.made
        made.remove(made.nodes[0])
        made.add()

    return _killed(rounds, wanted, strike, told=told, what="raylet kills", mend=mend)


def _killed(
    rounds: Rounds,
    wanted: int,
    strike: Callable[[], None],
    *,
    told: Told,
    what: str,
    mend: Callable[[], None] = lambda: None,
) -> Kills:
    fleet, hit, tried, with_orders, late_s = rounds.site.fleet, 0, 0, 0, 0.0
    before = rounds.unequal, rounds.charged_otherwise
    while hit < wanted and tried < wanted * MOST_TRIES:
        joined, lost = fleet.counted(JOINED), fleet.counted(LOST)
        is_hit, took_s = rounds.run(strike)
        tried += 1
        if is_hit:
            hit += 1
            late_s = max(late_s, took_s - rounds.usual_s)
            with_orders += fleet.counted(LOST) > lost
        mend()
        if fleet.counted(LOST) == lost:
            rounds.run()  # a worker that had nothing more to do is missed by the next round only
        rounds.site.await_joined(joined + 1)
        told(is_hit, f"{what}: {hit} of {tried} in a round, {rounds.unequal} unequal")
    return Kills(
        hit=hit,
        tried=tried,
        with_orders=with_orders,
        unequal=rounds.unequal - before[0],
        charged_otherwise=rounds.charged_otherwise - before[1],
        late_s=late_s,
    )


def _end_a_worker(rounds: Rounds) -> None:
    pids = rounds.site.made.worker_pids()
    with suppress(ProcessLookupError):
        os.kill(pids[rounds.done % len(pids)], signal.SIGKILL)
