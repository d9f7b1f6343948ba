"""Of which version the ad server's tables are, and in which file: known without loading what reads them."""

from typing import Final

SCHEMA_VERSION: Final = 11
"""Of all tables together: one more whenever a column or its meaning changes.

A database of version 1 does not say which it has.
"""
FILE_NAME: Final = "adserver.sqlite3"
"""In the data folder, unless another database is named."""
