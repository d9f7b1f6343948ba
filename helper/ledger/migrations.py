"""How a ledger of an older helper becomes one of today.

A step may add tables and columns and fill them; it never removes a charge, a used report or a position of the
chain. `tests/maskedlark/runtime/test_migrations.py` runs every step on the tables of the older version.
"""

from typing import TYPE_CHECKING, Final

from sqlalchemy import Column, LargeBinary

from maskedlark.runtime.migrations import Migrations

if TYPE_CHECKING:
    from alembic.operations import Operations


def _to_3(operations: "Operations") -> None:
    """The sealed seed of a round's correlated noise; rounds that were answered before have none."""
    operations.add_column("rounds", Column("sealed_seed", LargeBinary))


MIGRATIONS: Final[Migrations] = {2: _to_3}
"""Version 2 is the first that can be brought forward."""
