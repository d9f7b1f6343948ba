"""Ciphertexts of reports as they are read from object storage, by the places that their rows name.

    reader = ReadsObjects(engine)
    reader.ciphertext(place, role=1)

An object that is missing, cut or replaced is an error (`reports_lost`); no report is left out in silence.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import ColumnElement, Engine, LargeBinary, Row, func, select

from adserver.store.report_buckets import ReportBucket
from adserver.store.report_object_format import Ciphertexts
from adserver.store.schema import PLACE_BYTES, POSITIONS, report_buckets, report_objects, reports
from maskedlark.errors import JobReason, JobRefused
from maskedlark.reports.dataset import ShareColumns
from maskedlark.runtime.database import reading
from maskedlark.runtime.objects import ObjectLost, Retrying

HELD_BYTES: Final = 64 << 20
"""What is kept of objects that were read: reports of several intakes take turns in the order of arrival."""


class ReadsObjects:
    """Reads ciphertexts, each object once as long as few take turns. Used by one thread at a time."""

    def __init__(self, engine: Engine) -> None:
        """Read nothing yet; buckets are opened when they are needed."""
        self._engine = engine
        self._stores: dict[int, Retrying] = {}
        self._held: OrderedDict[int, Ciphertexts] = OrderedDict()

    @staticmethod
    def place_or_ciphertext(role: int) -> ColumnElement[bytes]:
        """Select a report's ciphertext for a role, or the place where it lies."""
        if role == 0:
            return reports.c.ciphertext_0
        return func.coalesce(
            func.nullif(reports.c.ciphertext_1, b""), reports.c.ciphertext_0, type_=LargeBinary()
        )

    def fill(self, pages: Iterator[ShareColumns], *, role: int) -> Iterator[ShareColumns]:
        """Yield pages with the ciphertexts of all reports; raises as `ciphertexts` does."""
        for page in pages:
            places = {one: int.from_bytes(one) for one in page.ciphertexts if len(one) == PLACE_BYTES}
            # A page without objects is passed on as it is: most databases have no bucket.
            if not places:
                yield page
                continue
            found = self.ciphertexts(places.values(), role=role)
            ciphertexts = [found[places[one]] if one in places else one for one in page.ciphertexts]
            yield replace(page, ciphertexts=ciphertexts)

    def ciphertexts(self, places: Iterable[int], *, role: int) -> Mapping[int, bytes]:
        """Return the ciphertexts for one role of the reports whose rows name these places.

        Each object is read at most once for all of them, in whatever order they come.

        Raises:
            JobRefused(REPORTS_LOST): an object is missing, cut, altered, or another one.
            InvalidTask: a bucket cannot be opened here.
            HelperUnavailable: a bucket cannot be read at the moment.
        """
        # Reading another object may drop one that is held, so those that are held come first.
        held_first = sorted(places, key=lambda place: (place // POSITIONS not in self._held, place))
        return {place: self.ciphertext(place, role=role) for place in held_first}

    def ciphertext(self, place: int, *, role: int) -> bytes:
        """Return the ciphertext for one role of the report at this place; raises as `ciphertexts`."""
        number, position = divmod(place, POSITIONS)
        try:
            return self._object(number).at(position, role=role)
        except ObjectLost as error:
            raise JobRefused(JobReason.REPORTS_LOST, f"object {number} of reports: {error}") from None

    def _object(self, number: int) -> Ciphertexts:
        held = self._held.get(number)
        if held is None:
            held = self._held[number] = self._read(number)
            # The newest stays however large it is: its reports are being read.
            while len(self._held) > 1 and sum(one.num_bytes for one in self._held.values()) > HELD_BYTES:
                self._held.popitem(last=False)
        self._held.move_to_end(number)
        return held

    def _read(self, number: int) -> Ciphertexts:
        row = self._row(number)
        try:
            content = self._store(row).read_exactly(row.name, row.num_bytes, row.digest)
        except ObjectLost as error:
            raise JobRefused(
                JobReason.REPORTS_LOST,
                f"{error}: {row.name}, with {row.reports} reports: restore it under its name, then "
                "seal again",
            ) from None
        return Ciphertexts(content)

    def _row(self, number: int) -> Row[Any]:
        asked = select(report_objects, report_buckets.c.folder, report_buckets.c.url).join(
            report_buckets, report_buckets.c.bucket == report_objects.c.bucket
        )
        with reading(self._engine) as connection:
            row = connection.execute(asked.where(report_objects.c.object == number)).one_or_none()
        if row is None:
            raise JobRefused(
                JobReason.REPORTS_LOST, f"the database has no entry for object {number} of reports"
            )
        return row

    def _store(self, row: Row[Any]) -> Retrying:
        store = self._stores.get(row.bucket)
        if store is None:
            bucket = ReportBucket(number=row.bucket, folder=row.folder, url=row.url)
            store = self._stores[row.bucket] = bucket.open()
        return store
