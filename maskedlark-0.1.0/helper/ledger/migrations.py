"""How a ledger of an older helper becomes one of today.

A step may add tables and columns and fill them; it never removes a charge, a used report or a position of the
chain. `tests/helper/ledger/test_ledger_migrations.py` runs every step on a ledger that the older version
wrote.
"""

from typing import Final

from maskedlark.runtime.migrations import Migrations

MIGRATIONS: Final[Migrations] = {}
"""Version 2 is the first that can be brought forward; nothing has changed since."""
