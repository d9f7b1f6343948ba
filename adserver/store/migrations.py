"""Steps that bring a database of an earlier released ad server to the current schema: none before 1.0.

A step may add tables and columns and fill them; it never loses a report, a dataset, a job or a query.
"""

from typing import Final

from maskedlark.runtime.database import Migrations

MIGRATIONS: Final[Migrations] = {}
"""Each step, under the version that it starts from. Version 1 is the schema of release 1.0."""
