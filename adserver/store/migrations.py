"""How the database of an older ad server becomes one of today.

A step may add tables and columns and fill them; it never loses a report, a dataset, a job or a query.
`tests/adserver/store/test_adserver_migrations.py` runs every step on a database that the older version wrote.
"""

from typing import Final

from maskedlark.runtime.migrations import Migrations

MIGRATIONS: Final[Migrations] = {}
"""Version 2 is the first that can be brought forward; nothing has changed since."""
