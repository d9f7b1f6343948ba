"""Bring tables of an older schema version to today's, step by step, with Alembic's operations.

A party defines its steps in a module next to its tables, and passes them to `create_tables`::

    def _to_3(operations: Operations) -> None:
        operations.add_column("tasks", Column("unit", String(8), nullable=False, server_default="report"))

    MIGRATIONS: Final[Migrations] = {2: _to_3}  # from version 2 to version 3

All steps and the new version number are one transaction, on SQLite as on PostgreSQL: a crash in between
leaves the old version as it was, and processes that start at once migrate once.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from sqlalchemy import Connection

if TYPE_CHECKING:
    from alembic.operations import Operations

Migration: TypeAlias = "Callable[[Operations], None]"
"""One step: it changes tables through Alembic's operations, and commits nothing itself."""

Migrations: TypeAlias = Mapping[int, Migration]
"""Each step, under the version that it starts from."""


def is_migratable(found: int, version: int, migrations: Migrations) -> bool:
    """Return whether steps lead from the version that was found to a newer one."""
    return found < version and all(step in migrations for step in range(found, version))


def migrate(connection: Connection, found: int, version: int, migrations: Migrations) -> None:
    """Run every step from one version to another, in the caller's transaction.

    Args:
        connection: In a transaction that holds the write lock.
        found: The version of the tables.
        version: The version that they are to have; `is_migratable` says that steps lead there.
        migrations: The steps.

    Raises:
        SQLAlchemyError: a step failed; the caller's transaction is to be rolled back.
    """
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    operations = Operations(MigrationContext.configure(connection))
    for step in range(found, version):
        migrations[step](operations)
