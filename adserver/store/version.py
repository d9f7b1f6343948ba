"""The version of the ad server's tables and the name of their file, importable without SQLAlchemy."""

from typing import Final

SCHEMA_VERSION: Final = 1
"""Version of all tables together: add one whenever a column or its meaning changes after release 1.0."""
FILE_NAME: Final = "adserver.sqlite3"
"""In the data folder, unless another database is named."""
