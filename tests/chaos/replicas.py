"""Two ad servers and two intakes over one PostgreSQL, killed one after the other while jobs and uploads run.

The same jobs, uploads and claims as in `tests.chaos.chaos`. Reports go to the intakes alone: each batch to
one of them, and every third one to both at once. The last kill is that of an ad server, for good, while both
run a job: the other one brings all of them to their end.
"""

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

from sqlalchemy import Engine

from docs.tutorial.fleet import HELPERS, HOST
from maskedlark.reports.upload import Report
from maskedlark.runtime.database import open_database
from tests.chaos.books import Books
from tests.chaos.chaos import Outcome, Scene, make_task, observed, submit
from tests.chaos.counted_fleet import CountedFleet
from tests.chaos.disturbance import ADSERVER, SEALING, Disturbance, Operator
from tests.chaos.uploads import Uploads
from tests.patience import HANGS_S
from tests.postgres import running_postgres
from tests.progress import Show

SECOND: Final = "adserver-1"
INTAKES: Final = ("intake-0", "intake-1")
VICTIMS: Final = (*INTAKES, *INTAKES, ADSERVER, SECOND, ADSERVER, SECOND, HELPERS[0], SEALING)
_A_KILL_S: Final = 3.0
_LEAST_S: Final = 60.0
"""So that jobs last long enough for two to run at once."""
_TO_BOTH: Final = 3
_LOOK_EVERY_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadOutcome(Outcome):
    """What happened, as `Outcome` says.

    Attributes:
        batches_at_both: Batches that both intakes were sent at once.
        reports_stored_twice: Reports of these, and of all others, that the database has more than once.
        counts_wrong: By how many the counts beside the reports differ from a count of every row.
        running_at_the_last_kill: Jobs that ran when one ad server was killed for good, one at each; the other
            one ended both.
    """

    batches_at_both: int
    reports_stored_twice: int
    counts_wrong: int
    running_at_the_last_kill: int

    @property
    def is_right(self) -> bool:
        """Whether everything held, and something happened."""
        happened = self.batches_at_both > 0 and self.running_at_the_last_kill > 0
        wrong = self.reports_stored_twice + self.counts_wrong
        return super(SpreadOutcome, self).is_right and happened and not wrong


@dataclass(kw_only=True)
class ReplicatedFleet(CountedFleet):
    """A fleet with a second ad server and two intakes; each ad server has its own data folder.

    Attributes:
        database: The URL of the ad servers' PostgreSQL.
        doors: Where each intake answers over HTTP.
    """

    database: str
    doors: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            for party in (SECOND, *INTAKES):
                self.start(party)
        except BaseException:
            self.stop()
            raise
        return self

    def start(self, party: str) -> None:
        """Start a party by its name."""
        if party not in (SECOND, *INTAKES):
            super().start(party)
            return
        addresses = self.folder / f"{party}.addresses"
        addresses.unlink(missing_ok=True)
        listen = [
            "--grpc-listen",
            f"{HOST}:0",
            "--http-listen",
            f"{HOST}:0",
            "--addresses-file",
            str(addresses),
        ]
        if party == SECOND:
            mine = [str(self.data(SECOND)) if of == str(self.data(ADSERVER)) else of for of in self.common()]
            self._start(party, "adserver", "serve", *mine, *listen, *self.adserver_options)
        else:
            self._start(party, "adserver", "intake", "--insecure", "--database", self.database, *listen)
        self._await(party, addresses)
        self.doors[party] = json.loads(addresses.read_text())["http"]

    def common(self) -> list[str]:
        """As of every fleet, with the database."""
        return [*super().common(), "--database", self.database]

    def adserver(self, *arguments: str, options: bool = True) -> str:
        """Run an `adserver` command over the database."""
        return super().adserver(
            *arguments, *([] if options else ["--database", self.database]), options=options
        )


class SpreadUploads(Uploads):
    """Batches for two intakes; `at_both` were sent to both of them at once."""

    def __init__(self, fleet: ReplicatedFleet, task: str) -> None:
        super().__init__(fleet, task)
        self._doors = fleet.doors
        self._numbers = count()
        self.at_both = 0

    def door(self) -> str:
        """Of one intake after the other."""
        return self._doors[INTAKES[next(self._numbers) % len(INTAKES)]]

    def send(self, batch: list[Report]) -> bool:
        """Send a batch to one intake, or to both; whether one of them acknowledged all of it."""
        if next(self._numbers) % _TO_BOTH:
            return super().send(batch)
        self.at_both += 1
        with ThreadPoolExecutor(len(INTAKES)) as threads:
            return any(list(threads.map(super().send, [batch] * len(INTAKES))))


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresBooks(Books):
    """The books of a fleet whose ad servers are on PostgreSQL."""

    engine: Engine

    def rows(self, party: str, query: str, *values: Any) -> list[Any]:
        """The answer of one party's database."""
        if party in HELPERS:
            return Books.rows(self, party, query, *values)
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(query.replace("?", "%s"), values)]

    def count_of(self, *states: str) -> int:
        """How many jobs are in one of these states."""
        found = self.rows(ADSERVER, "SELECT state FROM jobs")
        return sum(state in states for (state,) in found)

    def stored_twice(self) -> int:
        """Reports that are there more than once."""
        return int(self.rows(ADSERVER, "SELECT count(*) - count(DISTINCT report_id) FROM reports")[0][0])

    def counts_wrong(self) -> int:
        """By how many the counts of reports differ from what a count of every row gives."""
        told = "SELECT (SELECT sum(reports) FROM arrived_reports) + (SELECT sum(reports) FROM report_counts)"
        return abs(int(self.rows(ADSERVER, told)[0][0]) - self.num_reports())


def seconds_for(kills: int) -> float:
    """About how long so many kills take, or longer."""
    return max(_LEAST_S, kills * _A_KILL_S)


@contextmanager
def _scene(folder: Path, seed: int) -> Iterator[tuple[Scene, PostgresBooks, SpreadUploads]]:
    """A fleet on a PostgreSQL server of its own."""
    with running_postgres() as server:
        url = server.new_database()
        engine = open_database(url)
        fleet = ReplicatedFleet(
            folder=folder, is_no_noise=True, adserver_options=("--refresh-keys", "1"), database=url
        )
        try:
            with fleet:
                task, books = make_task(fleet), PostgresBooks(fleet=fleet, engine=engine)
                uploads, operator = SpreadUploads(fleet, task), Operator(fleet, task)
                disturbance = Disturbance(fleet, operator, seed, victims=VICTIMS)
                scene = Scene(
                    fleet=fleet,
                    books=books,
                    task=task,
                    uploads=uploads,
                    operator=operator,
                    disturbance=disturbance,
                )
                yield scene, books, uploads
        finally:
            engine.dispose()


def run(kills: int, folder: Path, seed: int, show: Show = lambda _done, _note: None) -> SpreadOutcome:
    """One run of so many kills; `show` is told seconds."""
    began, running = time.monotonic(), 0
    with _scene(folder, seed) as (scene, books, uploads):
        disturbance = scene.disturbance

        def disturb(rounds: int) -> Sequence[str]:
            nonlocal running
            while disturbance.kills.total() < kills - 1:
                disturbance.strike()
                show(time.monotonic() - began, f"{disturbance.kills.total()} kills")
            more = list[str]()
            until = time.monotonic() + HANGS_S
            while books.count_of("running", "waiting") < 2 and time.monotonic() < until:
                if not books.count_of("queued"):
                    more.append(submit(scene.fleet, scene.task, rounds))
                time.sleep(_LOOK_EVERY_S)
            disturbance.kill_for_good(SECOND if seed % 2 else ADSERVER)
            running = books.count_of("running", "waiting")
            return more

        outcome = observed(scene, seconds_for(kills), began, show, disturbing=disturb)
        return SpreadOutcome(
            **asdict(outcome),
            batches_at_both=uploads.at_both,
            reports_stored_twice=books.stored_twice(),
            counts_wrong=books.counts_wrong(),
            running_at_the_last_kill=running,
        )
