"""Migrations of the ledgers of older helpers. The list is empty: 1.0 is the first release.

A step may add tables and columns and fill them; it never removes a charge, a used report or a position of the
chain. `tests/maskedlark/runtime/test_migrations.py` runs every step on the tables of the older version.
"""

from typing import Final

from maskedlark.runtime.database import Migrations

MIGRATIONS: Final[Migrations] = {}
