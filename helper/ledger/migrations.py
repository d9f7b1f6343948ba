"""How a ledger of an older helper becomes one of today.

A step may add tables and columns and fill them; it never removes a charge, a used report or a position of the
chain. `tests/maskedlark/runtime/test_migrations.py` runs every step on the tables of the older version.
"""

from typing import TYPE_CHECKING, Final

from sqlalchemy import (
    Boolean,
    Column,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
)

from maskedlark.runtime.migrations import Migrations

if TYPE_CHECKING:
    from alembic.operations import Operations


def _to_3(operations: "Operations") -> None:
    """The sealed seed of a round's correlated noise; rounds that were answered before have none."""
    operations.add_column("rounds", Column("sealed_seed", LargeBinary))


def _to_4(operations: "Operations") -> None:
    """The manifests of datasets in object storage; datasets of before lie in the data folder."""
    operations.create_table(
        "segments",
        Column("dataset_id", LargeBinary(32), nullable=False),
        Column("number", Integer, nullable=False),
        Column("holds_ranks", Boolean, nullable=False),
        Column("name", String(128), nullable=False, index=True),
        Column("digest", LargeBinary(32), nullable=False),
        Column("num_bytes", Integer, nullable=False),
        Column("records", Integer, nullable=False),
        PrimaryKeyConstraint("dataset_id", "number", "holds_ranks"),
        ForeignKeyConstraint(["dataset_id"], ["datasets.dataset_id"]),
    )


MIGRATIONS: Final[Migrations] = {2: _to_3, 3: _to_4}
"""Version 2 is the first that can be brought forward."""
