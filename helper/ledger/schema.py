"""The ledger's tables, on any engine that SQLAlchemy speaks to.

    tasks ──< datasets ──< jobs ──< rounds
      │           ├──────< queries
      │           └──────< segments   the objects of datasets: their names and digests
      └────< used_reports

    audit_log    acts and their actors, in a chain: every entry is a position that the ledger was at, which is
                 what shows that it was rolled back

Ad servers choose the ids of jobs and queries, and may choose each other's: such an id is a key only together
with its task. A dataset's id is a digest of its task and its reports, which this helper computes itself.

No feature, label or mask is stored here, only ids, public settings, models, and answers (which are uniform to
anyone without the other helper's). Seeds of noise that the next round takes out are sealed under a key that
is not here.
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    UniqueConstraint,
)

from maskedlark.reports.origin import MAX_ORIGIN
from maskedlark.runtime.audit_table import audit_table_of
from maskedlark.runtime.database import schema_version_of

METADATA: Final = MetaData()
SCHEMA_VERSION: Final = 1
"""Of all tables together: one more whenever a column or its meaning changes."""

schema_version_of(METADATA)

TASKS: Final = Table(
    "tasks",
    METADATA,
    Column("task_id", LargeBinary(32), primary_key=True),
    Column("task", LargeBinary, nullable=False),
    Column("origin", String(MAX_ORIGIN), nullable=False),  # whose task it is, as certificates name it
    Column("host", String(MAX_ORIGIN), nullable=False),  # the same, by its other name
    Column("role", Integer, nullable=False),
    Column("signature", LargeBinary(64), nullable=False),
)

DATASETS: Final = Table(
    "datasets",
    METADATA,
    Column("dataset_id", LargeBinary(32), primary_key=True),
    Column("task_id", LargeBinary(32), ForeignKey("tasks.task_id"), nullable=False),
    Column("size", Integer, nullable=False),
    UniqueConstraint("task_id", "dataset_id"),  # what the jobs and queries of a task refer to
)

USED_REPORTS: Final = Table(
    "used_reports",
    METADATA,
    Column("task_id", LargeBinary(32), nullable=False),
    Column("report_id", LargeBinary(16), nullable=False),
    PrimaryKeyConstraint("task_id", "report_id"),  # what makes it impossible to use a report twice
    ForeignKeyConstraint(["task_id"], ["tasks.task_id"]),
    sqlite_with_rowid=False,
)

JOBS: Final = Table(
    "jobs",
    METADATA,
    Column("task_id", LargeBinary(32), nullable=False),
    Column("job_id", LargeBinary(16), nullable=False),
    Column("dataset_id", LargeBinary(32), nullable=False, index=True),
    Column("spec", LargeBinary, nullable=False),
    Column("model", LargeBinary, nullable=False),
    Column("rounds_answered", Integer, nullable=False),
    Column("is_closed", Boolean, nullable=False),
    PrimaryKeyConstraint("task_id", "job_id"),
    ForeignKeyConstraint(["task_id", "dataset_id"], ["datasets.task_id", "datasets.dataset_id"]),
)

ROUNDS: Final = Table(
    "rounds",
    METADATA,
    Column("task_id", LargeBinary(32), nullable=False),
    Column("job_id", LargeBinary(16), nullable=False),
    Column("round_index", Integer, nullable=False),
    Column("weights_digest", LargeBinary(32), nullable=False),
    Column("answer", LargeBinary),  # null once the job has moved on
    Column("sealed_seed", LargeBinary),  # null with the answer, and where noise is of the round's own
    Column("entry", BigInteger, nullable=False),  # the number of its entry in the audit log
    # what makes it impossible to charge or answer a round twice
    PrimaryKeyConstraint("task_id", "job_id", "round_index"),
    ForeignKeyConstraint(["task_id", "job_id"], ["jobs.task_id", "jobs.job_id"]),
)

QUERIES: Final = Table(
    "queries",
    METADATA,
    Column("task_id", LargeBinary(32), nullable=False),
    Column("query_id", LargeBinary(16), nullable=False),
    Column("dataset_id", LargeBinary(32), nullable=False, index=True),
    Column("kind", String(16), nullable=False),  # names in `maskedlark.releases.kinds`
    Column("spec", LargeBinary, nullable=False),
    Column("answer", LargeBinary, nullable=False),
    Column("entry", BigInteger, nullable=False),  # the number of its entry in the audit log
    # what makes it impossible to charge or answer a query twice
    PrimaryKeyConstraint("task_id", "query_id"),
    ForeignKeyConstraint(["task_id", "dataset_id"], ["datasets.task_id", "datasets.dataset_id"]),
)

SEGMENTS: Final = Table(
    "segments",
    METADATA,
    Column("dataset_id", LargeBinary(32), ForeignKey("datasets.dataset_id"), nullable=False),
    Column("number", Integer, nullable=False),  # of the segment in its dataset
    Column("holds_ranks", Boolean, nullable=False),  # or the records themselves
    Column("name", String(128), nullable=False, index=True),  # of the object
    Column("digest", LargeBinary(32), nullable=False),  # SHA-256 of the object
    Column("num_bytes", Integer, nullable=False),
    Column("records", Integer, nullable=False),
    PrimaryKeyConstraint("dataset_id", "number", "holds_ranks"),
)

AUDIT_LOG: Final = audit_table_of(METADATA)
