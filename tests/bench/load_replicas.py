"""One intake replica and then two over one PostgreSQL, each loaded as fast as it answers.

Part of `make bench-load`. Senders, PostgreSQL and intakes share this machine: where it has fewer processors
than they want, wall time shows how they share it. So both are measured once more with each intake stopped
most of the time, as if its own machine were slower: then processors are to spare, and the ratio shows whether
intakes hinder each other. The processor time of an intake a report stands beside, and how often a transaction
waited for another one's lock.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from threading import Event, Thread
from typing import Any, Final

import psutil

from tests.bench.intake_site import Site, site

SENDERS: Final = 8
"""To each intake, each with one batch under way."""
_SLICE_S: Final = 2.0
_GO_S: Final = 0.006
_STOPPED_S: Final = 0.014


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What some intakes did.

    Attributes:
        intakes: How many.
        reports: Acknowledged, and found in the database's counts.
        reports_per_s: Of wall time.
        intake_us: Processor time of all intakes, a report.
        postgresql_us: The same of PostgreSQL's processes.
        processors_busy: Of this machine, by everybody on it.
        lock_wait_share: Of transactions that were looked at while they ran, those that waited for a lock.
    """

    intakes: int
    reports: int
    reports_per_s: float
    intake_us: float
    postgresql_us: float
    processors_busy: float
    lock_wait_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Two intakes against one.

    Attributes:
        one: As fast as it answers.
        two: The same.
        one_slowed: With each intake stopped for seven tenths of the time.
        two_slowed: The same.
        ratio: Of reports a second, two to one, with processors to spare: the slowed ones.
        ratio_on_this_machine: The same of those that share its processors as they can.
        ratio_for_processor_time: Twice the processor time of an intake a report alone, over that beside
            another one.
    """

    one: Rate
    two: Rate
    one_slowed: Rate
    two_slowed: Rate
    ratio: float
    ratio_on_this_machine: float
    ratio_for_processor_time: float


@contextmanager
def slowed(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Stop the processes again and again while the block runs; afterwards they go on.

    Each at times of its own, as machines are: processes that go on together wait for the same processors.
    """
    is_over = Event()

    def stop_and_go(one: psutil.Process, chance: Random) -> None:
        while not is_over.wait(_GO_S * chance.uniform(0.5, 1.5)):
            one.suspend()
            is_over.wait(_STOPPED_S * chance.uniform(0.5, 1.5))
            one.resume()

    threads = [Thread(target=stop_and_go, args=(one, Random(seed))) for seed, one in enumerate(processes)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


@dataclass(kw_only=True)
class Tally:
    """What slices of one kind added up to.

    Attributes:
        intakes: How many were loaded.
        is_slowed: Whether they were stopped most of the time.
        seconds: Of wall time; then of processor time, of the intakes, of PostgreSQL and of everybody.
    """

    intakes: int
    is_slowed: bool
    reports: int = 0
    seconds: float = 0.0
    used_s: float = 0.0
    postgresql_s: float = 0.0
    everybody_s: float = 0.0
    looked: list[tuple[int, int]] = field(default_factory=list)

    def load(self, at: Site, seconds: float) -> None:
        """One slice more.

        Raises:
            SystemExit: the database counts other reports than were acknowledged.
        """
        stored = at.stored()
        used, by_postgresql, everybody = at.intakes_s(), at.postgresql_s(), _busy_s()
        looked, began = len(at.looked), time.monotonic()
        with ExitStack() as stack, ThreadPoolExecutor(SENDERS * self.intakes) as threads:
            if self.is_slowed:
                stack.enter_context(slowed(at.intakes))
            doors = at.doors[: self.intakes]
            sent = [
                threads.submit(at.send, doors[number % len(doors)], began + seconds)
                for number in range(SENDERS * self.intakes)
            ]
            accepted = sum(one.result() for one in sent)
            self.seconds += time.monotonic() - began
        self.used_s += at.intakes_s() - used
        self.postgresql_s += at.postgresql_s() - by_postgresql
        self.everybody_s += _busy_s() - everybody
        self.looked += at.looked[looked:]
        self.reports += accepted
        found = at.stored() - stored
        if found != accepted:
            raise SystemExit(f"{accepted} reports were acknowledged, and {found} are counted")

    def rate(self) -> Rate:
        """The figures."""
        waiting, busy = (sum(column) for column in zip(*self.looked, (0, 1), strict=True))
        return Rate(
            intakes=self.intakes,
            reports=self.reports,
            reports_per_s=round(self.reports / self.seconds, 1),
            intake_us=round(1e6 * self.used_s / self.reports, 2),
            postgresql_us=round(1e6 * self.postgresql_s / self.reports, 2),
            processors_busy=round(self.everybody_s / self.seconds, 2),
            lock_wait_share=round(waiting / busy, 4),
        )


def _busy_s() -> float:
    """Seconds that all processors of this machine have worked."""
    times: Any = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def spread(seconds: float) -> Spread:
    """One intake, two, and both slowed, each for so long: slice after slice in turn, so that what else this
    machine does befalls all alike.
    """
    one, two = Tally(intakes=1, is_slowed=False), Tally(intakes=2, is_slowed=False)
    one_slowed, two_slowed = Tally(intakes=1, is_slowed=True), Tally(intakes=2, is_slowed=True)
    slices = max(1, round(seconds / _SLICE_S))
    with site(2) as at, at.watched():
        for door in at.doors:
            at.send(door, time.monotonic() + min(1.0, seconds / 4))  # connections, caches
        for _ in range(slices):
            for tally in (one, two, one_slowed, two_slowed):
                tally.load(at, seconds / slices)
    rates = [tally.rate() for tally in (one, two, one_slowed, two_slowed)]
    return Spread(
        one=rates[0],
        two=rates[1],
        one_slowed=rates[2],
        two_slowed=rates[3],
        ratio=round(rates[3].reports_per_s / rates[2].reports_per_s, 3),
        ratio_on_this_machine=round(rates[1].reports_per_s / rates[0].reports_per_s, 3),
        ratio_for_processor_time=round(2 * rates[0].intake_us / rates[1].intake_us, 3),
    )
