"""The tables of jobs without helpers: draw and discard's instances, LINE's rounds.

They are in a database of their own: they are written hundreds of times a second, and reports wait for no
such writer.
"""

from pathlib import Path
from typing import Final

from sqlalchemy import (
    URL,
    BigInteger,
    Boolean,
    Column,
    Double,
    Engine,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    Table,
)

from maskedlark.runtime import database as storage

metadata = MetaData()
SCHEMA_VERSION: Final = 1
storage.schema_version_of(metadata)

ID_BYTES: Final = 16
_FILE_NAME: Final = "local.sqlite3"

local_jobs = Table(
    "local_jobs",
    metadata,
    Column("job_id", LargeBinary(ID_BYTES), primary_key=True),
    Column("job", LargeBinary, nullable=False),  # canonical: LocalJob
    Column("seed", BigInteger, nullable=False),  # of LINE's first weights
    Column("submitted_at", Double, nullable=False),
    Column("is_open", Boolean, nullable=False),
    Column("is_tested", Boolean, nullable=False),  # whether draw and discard refuses spam
)
instance_jobs = Table(
    "instance_jobs",
    metadata,
    Column("job_id", LargeBinary(ID_BYTES), primary_key=True),
    Column("settings", LargeBinary, nullable=False),  # canonical
    Column("weights", Integer, nullable=False),
    Column("returns", BigInteger, nullable=False),  # accepted updates
    Column("in_flight", Double, nullable=False),  # a running mean
)
model_instances = Table(
    "model_instances",
    metadata,
    Column("job_id", LargeBinary(ID_BYTES), ForeignKey("instance_jobs.job_id"), primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("encoded", LargeBinary, nullable=False),  # int64, little-endian
)
instance_updates = Table(
    "instance_updates",
    metadata,
    Column("job_id", LargeBinary(ID_BYTES), ForeignKey("instance_jobs.job_id"), primary_key=True),
    Column("digest", LargeBinary(ID_BYTES), primary_key=True),  # LocalUpdate.digest
)
noised_rounds = Table(
    "noised_rounds",
    metadata,
    Column("job_id", LargeBinary(ID_BYTES), primary_key=True),
    Column("round_index", Integer, nullable=False),  # the one that is open
    Column("state", LargeBinary, nullable=False),  # ServerState
    Column("received", Integer, nullable=False),  # updates of the open round
    Column("total", LargeBinary, nullable=False),  # their sum: int64, little-endian
)
noised_updates = Table(
    "noised_updates",
    metadata,
    Column("job_id", LargeBinary(ID_BYTES), ForeignKey("noised_rounds.job_id"), primary_key=True),
    Column("digest", LargeBinary(ID_BYTES), primary_key=True),  # LocalUpdate.digest
)


def default_local_url(data_dir: Path) -> str:
    """Return the URL of the embedded database in the data folder."""
    return URL.create("sqlite", database=str(data_dir / _FILE_NAME)).render_as_string()


def open_local(url: str) -> Engine:
    """Connect to the database of jobs without helpers, and make its tables.

    Guarantees: a process that is killed loses nothing that it acknowledged. On SQLite a machine that loses
        power may lose the last acknowledged updates, each with its id and its count: a few noised steps of
        the model, which the next ones make up for. On PostgreSQL they are durable.

    Raises:
        InvalidTask: as `open_database`; or the tables are of another version.
    """
    engine = storage.open_database(url, is_crash_proof=False)
    storage.create_tables(engine, metadata, version=SCHEMA_VERSION, whose="local jobs", migrations={})
    return engine
