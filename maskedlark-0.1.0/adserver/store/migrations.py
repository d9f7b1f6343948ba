"""How the database of an older ad server becomes one of today.

A step may add tables and columns and fill them; it never loses a report, a dataset, a job or a query.
`tests/adserver/store/test_adserver_migrations.py` runs every step on a database that the older version wrote.
"""

from typing import TYPE_CHECKING, Final

from adserver.store.schema import encoders, update_reports, update_rounds
from maskedlark.runtime.migrations import Migrations

if TYPE_CHECKING:
    from alembic.operations import Operations


def _to_3(operations: "Operations") -> None:
    """Federated rounds, and the sealed updates that devices sent for them."""
    for table in (update_rounds, update_reports):
        table.create(operations.get_bind())


def _to_4(operations: "Operations") -> None:
    """The encoders that tasks name."""
    encoders.create(operations.get_bind())


MIGRATIONS: Final[Migrations] = {2: _to_3, 3: _to_4}
"""Version 2 is the first that can be brought forward."""
