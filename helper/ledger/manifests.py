"""What datasets consist of: which objects, with which digests.

A manifest is written in the transaction that commits its dataset, so an object that no row names is of no
dataset. It goes once the dataset has expired, and that of a federated round in the transaction that keeps the
round's answer; charges and used reports stay.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Final

from sqlalchemy import Connection, Engine, delete, exists, func, insert, select

from helper.ledger.records import Manifest, SealedObject
from helper.ledger.schema import AUDIT_LOG, JOBS, SEGMENTS
from maskedlark.runtime.database import reading

_LOOKUP_BATCH: Final = 500
_COLUMNS: Final = tuple(SEGMENTS.c[one.name] for one in fields(SealedObject))


class Manifests:
    """The manifests of a ledger. Safe to call from many threads; every method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def ledger_id(self) -> bytes:
        """Return the digest of the ledger's random beginning, which no two ledgers share."""
        with reading(self._engine) as connection:
            return bytes(
                connection.execute(select(AUDIT_LOG.c.head).where(AUDIT_LOG.c.sequence == 0)).scalar_one()
            )

    def of(self, dataset_id: bytes) -> Manifest:
        """Return a dataset's objects by number, records before ranks; none if they were deleted."""
        found = (
            select(*_COLUMNS)
            .where(SEGMENTS.c.dataset_id == dataset_id)
            .order_by(SEGMENTS.c.number, SEGMENTS.c.holds_ranks)
        )
        with reading(self._engine) as connection:
            return tuple(SealedObject(**row) for row in connection.execute(found).mappings())

    def select_named(self, names: Sequence[str]) -> set[str]:
        """Return those of some names that a manifest holds."""
        named: set[str] = set()
        with reading(self._engine) as connection:
            for start in range(0, len(names), _LOOKUP_BATCH):
                batch = names[start : start + _LOOKUP_BATCH]
                named.update(connection.scalars(select(SEGMENTS.c.name).where(SEGMENTS.c.name.in_(batch))))
        return named

    def dataset_ids(self) -> list[bytes]:
        """Return the datasets that have a manifest."""
        with reading(self._engine) as connection:
            return list(connection.scalars(select(SEGMENTS.c.dataset_id).distinct()))

    def sizes(self) -> dict[bytes, tuple[str, int]]:
        """Return of each dataset that has a manifest one object's name and the bytes of all of them."""
        name, num_bytes = func.min(SEGMENTS.c.name), func.sum(SEGMENTS.c.num_bytes)
        found = select(SEGMENTS.c.dataset_id, name, num_bytes).group_by(SEGMENTS.c.dataset_id)
        with reading(self._engine) as connection:
            return {bytes(of): (str(one), int(size)) for of, one, size in connection.execute(found)}

    def drop(self, dataset_id: bytes) -> bool:
        """Forget a dataset's manifest; False, and no change, while a job over it is open."""
        is_open = exists().where(JOBS.c.dataset_id == dataset_id, JOBS.c.is_closed.is_(False))
        with self._engine.begin() as connection:
            of_it = SEGMENTS.c.dataset_id == dataset_id
            # Asked in the statement itself: between a look and the deletion a job could be opened.
            return bool(connection.execute(delete(SEGMENTS).where(of_it, ~is_open)).rowcount)


def drop_manifest(connection: Connection, dataset_id: bytes) -> None:
    """Forget the objects of a dataset, in the transaction that makes it useless."""
    connection.execute(delete(SEGMENTS).where(SEGMENTS.c.dataset_id == dataset_id))


def add_manifest(connection: Connection, dataset_id: bytes, manifest: Manifest) -> None:
    """Keep the objects of a dataset, in the transaction that commits it."""
    if not manifest:
        return
    rows = [
        {
            "dataset_id": dataset_id,
            "number": one.number,
            "holds_ranks": one.holds_ranks,
            "name": one.name,
            "digest": one.digest,
            "num_bytes": one.num_bytes,
            "records": one.records,
        }
        for one in manifest
    ]
    connection.execute(insert(SEGMENTS), rows)
