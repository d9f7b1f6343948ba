"""Ciphertexts of reports on their way to object storage, before their ids go into the database.

    puts = putting.put(reports)                      # those objects are there; nothing names them yet
    with engine.begin() as connection:
        places = putting.places(connection, puts)    # what a report's row says of where its ciphertexts are
        new = insert_new(connection, reports, places)
        putting.name(connection, puts, places, new)

Until the transaction commits, an object has no owner, and a sweep removes it one day: a crash at any point
leaves acknowledged reports whole, or orphans.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from hashlib import sha256
from typing import Final

from sqlalchemy import Connection, func, insert, select, text

from adserver.store.batch_window import WORTH_BYTES
from adserver.store.report_buckets import ReportBucket
from adserver.store.report_object_format import Ciphertexts
from adserver.store.schema import POSITIONS, report_objects
from maskedlark.errors import HelperUnavailable
from maskedlark.frozen import frozen
from maskedlark.randomness import Randomness, system_randomness
from maskedlark.reports.upload import Report
from maskedlark.runtime.objects import Retrying

_LOG: Final = logging.getLogger(__name__)
_NAME_BYTES: Final = 16
_PUTS_AT_ONCE: Final = 4
AWAY_S: Final = 60.0
"""How long no put is tried after one has failed for good: each would hold up a group of reports."""
LONGEST_S: Final = 10.0
"""How long a group waits for its objects: a bucket that hangs would hold up all that come meanwhile."""
_NEXT_NUMBERS: Final = text(
    "SELECT nextval('report_objects_object_seq') FROM generate_series(1, CAST(:count AS integer))"
)


@frozen
class Put:
    """An object that lies in the bucket.

    Attributes:
        name: Its name.
        num_bytes: How long it is.
        digest: SHA-256 of its bytes.
        task_id: The task of the reports in it.
        keys: Their digests, by position.
    """

    name: str
    num_bytes: int
    digest: bytes
    task_id: bytes
    keys: tuple[bytes, ...]


class PutsReports:
    """Puts the ciphertexts of groups of reports. Safe to call from many threads."""

    def __init__(
        self,
        bucket: ReportBucket,
        store: Retrying,
        *,
        monotonic: Callable[[], float],
        randomness: Randomness = system_randomness,
    ) -> None:
        """Send nothing to the store yet.

        Args:
            bucket: The database's row of it.
            store: Its store.
            monotonic: Seconds, for how long the store is left alone after it failed.
            randomness: Names objects.
        """
        self.bucket = bucket
        self._store = store
        self._monotonic = monotonic
        self._randomness = randomness
        self._away_until_s = float("-inf")
        self._pool = ThreadPoolExecutor(_PUTS_AT_ONCE, thread_name_prefix="puts")

    def put(self, reports: Mapping[bytes, Report]) -> list[Put]:
        """Put the ciphertexts of each task that has enough of them to be worth it, as one object a task.

        What is in no object is to become rows: all of it while the store does not answer. Returns within
        `LONGEST_S`; an object that is there only later is an orphan.
        """
        by_task: dict[bytes, dict[bytes, Report]] = {}
        for key, report in reports.items():
            by_task.setdefault(report.task_id, {})[key] = report
        # A position beyond `POSITIONS` would be a place in the next object.
        worth = [
            (task_id, some)
            for task_id, some in by_task.items()
            if _size(some.values()) >= WORTH_BYTES and len(some) < POSITIONS
        ]
        if not worth or self.is_away():
            return []
        until_s = self._monotonic() + LONGEST_S
        putting = [self._pool.submit(self._put_one, *some, until_s) for some in worth]
        done, late = wait(putting, LONGEST_S)
        for one in late:
            one.cancel()
        if late:
            self._leave_alone("object storage did not answer in time")
        return [put for one in putting if one in done and (put := one.result()) is not None]

    def places(self, connection: Connection, puts: Sequence[Put]) -> Mapping[bytes, int]:
        """Number the objects, and return the value for the row of each report in them.

        Args:
            connection: In the transaction that will name them with `name`.
            puts: The objects.
        """
        numbers = _next_numbers(connection, len(puts))
        return {
            key: number * POSITIONS + position
            for number, put in zip(numbers, puts, strict=True)
            for position, key in enumerate(put.keys)
        }

    def name(
        self, connection: Connection, puts: Sequence[Put], places: Mapping[bytes, int], new: Iterable[bytes]
    ) -> None:
        """Write the manifest: a row for each object with a report that was not stored before.

        Args:
            connection: In the transaction that stores the reports.
            puts: The objects.
            places: Of `places`.
            new: The digests of the reports that this transaction stored.
        """
        needed = {places[key] // POSITIONS for key in new if key in places}
        # An object whose reports were all stored before stays without a row, and is swept as an orphan.
        rows = [
            {
                "object": number,
                "bucket": self.bucket.number,
                "name": put.name,
                "task_id": put.task_id,
                "num_bytes": put.num_bytes,
                "digest": put.digest,
                "reports": len(put.keys),
            }
            for put in puts
            if (number := places[put.keys[0]] // POSITIONS) in needed
        ]
        if rows:
            connection.execute(insert(report_objects), rows)

    def may_put(self, num_bytes: int) -> bool:
        """Return whether a group of so many bytes may become an object."""
        return num_bytes >= WORTH_BYTES and not self.is_away()

    def is_away(self) -> bool:
        """Return whether the store is skipped for now, since it has failed."""
        return self._monotonic() < self._away_until_s

    def _put_one(self, task_id: bytes, reports: Mapping[bytes, Report], until_s: float) -> Put | None:
        """Put one object; None if the store does not take it, or has just not taken another one."""
        if self.is_away():
            return None

        def fresh_name() -> str:
            if self._monotonic() >= until_s:
                raise HelperUnavailable("nobody waits for this object any more")
            return f"{self.bucket.folder}/{self._randomness(_NAME_BYTES).hex()}"

        content = Ciphertexts.encode(list(reports.values()))
        try:
            name = self._store.put_fresh(fresh_name, content)
        except HelperUnavailable as error:
            # Later than that `put` has returned, and has said so itself.
            if self._monotonic() < until_s:
                self._leave_alone(str(error))
            return None
        return Put(
            name=name,
            num_bytes=len(content),
            digest=sha256(content).digest(),
            task_id=task_id,
            keys=tuple(reports),
        )

    def _leave_alone(self, why: str) -> None:
        """Put nothing for a while."""
        self._away_until_s = self._monotonic() + AWAY_S
        _LOG.warning(
            "storing reports in the database for %g s, because object storage failed: %s", AWAY_S, why
        )


def _next_numbers(connection: Connection, count: int) -> Sequence[int]:
    """Return numbers that no other object has or gets."""
    if not count:
        return []
    if connection.dialect.name == "postgresql":
        return connection.execute(_NEXT_NUMBERS, {"count": count}).scalars().all()
    last = connection.execute(select(func.coalesce(func.max(report_objects.c.object), 0))).scalar_one()
    return range(last + 1, last + 1 + count)  # the transaction holds SQLite's lock


def _size(reports: Iterable[Report]) -> int:
    return sum(len(share.ciphertext) for report in reports for share in report.shares)
