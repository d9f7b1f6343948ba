"""Every table of the ad server's database, and the version of them together.

The other modules of this folder hold the statements over the tables: each table is written by one of them
only.
"""

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from adserver.records.defaults import MOST_JOB_NAME, MOST_JOB_NOTE, QUERY_ID_BYTES
from maskedlark.reports.task import REPORT_DIGEST_BYTES, REPORT_ID_BYTES
from maskedlark.runtime import database as storage
from maskedlark.runtime.audit_table import audit_table_of

metadata: Final = MetaData()
"""Every table of the ad server."""

storage.schema_version_of(metadata)

HANDLE_BYTES: Final = 16
TASK_ID_BYTES: Final = 32
POSITIONS: Final = 1 << 20
"""A report's place is its object's number times this, plus its position in the object."""
PLACE_BYTES: Final = 8
"""Of a place, big-endian; every ciphertext is longer."""
NO_DATASET: Final = b""
"""The handle of reports that no dataset has taken."""


def _report_columns() -> tuple[Column[Any], ...]:
    """Return the columns of a report or an update as it came in."""
    return (
        Column("report_id", LargeBinary(REPORT_ID_BYTES), nullable=False),
        Column("time_bucket", BigInteger, nullable=False),
        Column("key_id_0", SmallInteger, nullable=False),
        Column("ciphertext_0", LargeBinary, nullable=False),
        Column("key_id_1", SmallInteger, nullable=False),
        Column("ciphertext_1", LargeBinary, nullable=False),
        # Of the whole report (`maskedlark.reports.upload.Report.digest`): what it is stored once under.
        Column("digest", LargeBinary(REPORT_DIGEST_BYTES), nullable=False),
    )


tasks: Final = Table(
    "tasks",
    metadata,
    Column("task_id", LargeBinary(TASK_ID_BYTES), primary_key=True),
    Column("bundle", LargeBinary, nullable=False),  # canonical
    Column("created_at", Double, nullable=False),  # Unix seconds
    # Unix seconds from which on intakes refuse its reports, for their ids are forgotten; empty: they do not.
    Column("refused_since", Double),
    Index("tasks_by_age", "created_at", "task_id"),
)

encoders: Final = Table(
    "encoders",
    metadata,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("encoder", LargeBinary, nullable=False),  # canonical
)

datasets: Final = Table(
    "datasets",
    metadata,
    Column("handle", LargeBinary(HANDLE_BYTES), primary_key=True),
    Column("task_id", LargeBinary(32), ForeignKey("tasks.task_id"), nullable=False, index=True),
    Column("state", String(16), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("received", Integer, nullable=False),
    Column("size", Integer, nullable=False, default=0),
    Column("view_mismatch", Integer, nullable=False, default=0),
    Column("dataset_id", LargeBinary(32), unique=True),
    Column(
        "chosen", LargeBinary
    ),  # one bit for each report taken, in order of arrival, least significant first
    Index("datasets_by_age", "created_at", "handle"),
)

dropped_reports: Final = Table(
    "dropped_reports",
    metadata,
    Column("handle", LargeBinary(HANDLE_BYTES), ForeignKey("datasets.handle"), primary_key=True),
    Column("role", Integer, primary_key=True),
    Column("reason", String(40), primary_key=True),
    Column("reports", Integer, nullable=False),
)

# Reports as they came in: a row is written once, and nothing of it changes until it is deleted. One whose
# ciphertexts lie in object storage has its place (`PLACE_BYTES`) for `ciphertext_0`, and no bytes for
# `ciphertext_1`: a column of its own would take 8 bytes of every row without one.
reports: Final = Table(
    "reports",
    metadata,
    # In order of arrival (of one transaction: by report id); a page of reports is "the next ones after this
    # number".
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("task_id", LargeBinary(32), ForeignKey("tasks.task_id"), nullable=False),
    *_report_columns(),
    UniqueConstraint("digest"),
)

# Buckets that ciphertexts of reports lie in.
report_buckets: Final = Table(
    "report_buckets",
    metadata,
    Column("bucket", Integer, primary_key=True),
    Column("folder", String(16), nullable=False, unique=True),  # of this database alone: names begin with it
    Column("url", Text, nullable=False, unique=True),
)

# The manifest: objects with ciphertexts of reports, each of one task. A row is written with its reports.
report_objects: Final = Table(
    "report_objects",
    metadata,
    Column("object", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("bucket", Integer, ForeignKey("report_buckets.bucket"), nullable=False),
    Column("name", String(64), nullable=False, unique=True),
    Column("task_id", LargeBinary(TASK_ID_BYTES), nullable=False, index=True),
    Column("num_bytes", Integer, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),  # SHA-256
    Column("reports", Integer, nullable=False),
)

# What became of each of them: a row for each, made and deleted in one transaction with the other. Ciphertexts
# are wide, and a dataset that takes reports rewrites these rows only. Without foreign keys, which would be
# looked up for each row.
report_states: Final = Table(
    "report_states",
    metadata,
    Column("task_id", LargeBinary(TASK_ID_BYTES), nullable=False),
    # The dataset that took this report; no bytes: none.
    Column("handle", LargeBinary(HANDLE_BYTES), nullable=False),
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), nullable=False, autoincrement=False),
    Column("state", String(8), nullable=False),
    PrimaryKeyConstraint("task_id", "handle", "sequence"),
    sqlite_with_rowid=False,
)

# How many of `reports` there are: changed with them in one transaction, so that nobody counts a million rows.
report_counts: Final = Table(
    "report_counts",
    metadata,
    Column("task_id", LargeBinary(32), ForeignKey("tasks.task_id"), primary_key=True),
    Column("state", String(8), primary_key=True),
    Column("reports", BigInteger, nullable=False),
)

# How many came in, in a row for each slot, to be added to those above: intakes that store reports of one task
# at the same time have slots of their own, and so wait for nobody's row. What leaves `received` is counted
# above, where that row is negative therefore.
arrived_reports: Final = Table(
    "arrived_reports",
    metadata,
    Column("task_id", LargeBinary(32), ForeignKey("tasks.task_id"), primary_key=True),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("reports", BigInteger, nullable=False),
)

jobs: Final = Table(
    "jobs",
    metadata,
    Column("job_id", LargeBinary(16), primary_key=True),
    Column("plan", LargeBinary, nullable=False),  # canonical, of one of three kinds
    Column("submitted_at_s", Float, nullable=False),
    Column("state", String(16), nullable=False, index=True),
    Column("reason", String(32)),
    Column("cause", Text),
    Column("rounds_done", Integer, nullable=False),
    Column("is_closed", Boolean, nullable=False),
    Column("rounds_charged", Integer),
    Column("lease_owner", String(32)),
    Column("lease_until_s", Float, nullable=False),
    # Workers that died on it since its last round, or since it was last queued by a person.
    Column("workers_lost", Integer, nullable=False, default=0),
    # Of the plan, to be looked for by; a federated job has no dataset.
    Column("task_id", LargeBinary(32)),
    Column("dataset_id", LargeBinary(32)),
    # What its owner calls it and wants to remember; helpers do not see them.
    Column("name", String(MOST_JOB_NAME), nullable=False, default=""),
    Column("note", String(MOST_JOB_NOTE), nullable=False, default=""),
    Column("eval_set_digest", LargeBinary(32)),
    # Of a job without helpers: accepted updates; and of draw and discard a running mean.
    Column("updates", BigInteger),
    Column("in_flight", Double),
    Index("jobs_by_age", "submitted_at_s", "job_id"),
    Index("jobs_by_state_and_age", "state", "submitted_at_s", "job_id"),
    Index("jobs_by_dataset", "task_id", "dataset_id"),
)

job_rounds: Final = Table(
    "job_rounds",
    metadata,
    Column("job_id", LargeBinary(16), ForeignKey("jobs.job_id"), nullable=False),
    Column("rounds_done", Integer, nullable=False),
    Column("finished_at_s", Float, nullable=False),
    Column("learning_rate", Float),
    Column("gradient_norm", Float),
    Column("noise_to_signal", Float),
    Column("loss", Float),
    Column("accuracy", Float),
    Column("auc", Float),
    Column("auc_low", Float),
    Column("auc_high", Float),
    Column("calibrated_loss", Float),
    PrimaryKeyConstraint("job_id", "rounds_done"),
)

# What a job was submitted with, in parts, and its latest checkpoint, which on SQLite is a file.
job_files: Final = Table(
    "job_files",
    metadata,
    Column("job_id", LargeBinary(16), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("rounds_done", Integer, primary_key=True, autoincrement=False),  # of a checkpoint; 0 of others
    Column("part", Integer, primary_key=True, autoincrement=False),
    Column("content", LargeBinary, nullable=False),
)

# Without helpers: draw and discard's model, an instance a row, written whole.
model_instances: Final = Table(
    "model_instances",
    metadata,
    Column("job_id", LargeBinary(16), ForeignKey("jobs.job_id"), primary_key=True),
    Column("place", Integer, primary_key=True, autoincrement=False),
    Column("encoded", LargeBinary, nullable=False),  # int64, little-endian
)

# Without helpers: LINE's model and the sum of the round that is open.
noised_rounds: Final = Table(
    "noised_rounds",
    metadata,
    Column("job_id", LargeBinary(16), ForeignKey("jobs.job_id"), primary_key=True),
    Column("state", LargeBinary, nullable=False),  # ServerState
    Column("total", LargeBinary, nullable=False),  # int64, little-endian
)

# Without helpers: the updates that were accepted.
local_updates: Final = Table(
    "local_updates",
    metadata,
    Column("job_id", LargeBinary(16), ForeignKey("jobs.job_id"), primary_key=True),
    Column("digest", LargeBinary(16), primary_key=True),  # LocalUpdate.digest
)

queries: Final = Table(
    "queries",
    metadata,
    Column("query_id", LargeBinary(QUERY_ID_BYTES), primary_key=True),
    Column("task_id", LargeBinary(32), ForeignKey("tasks.task_id"), nullable=False),
    Column("dataset_id", LargeBinary(32), nullable=False),
    Column("asked_at", Double, nullable=False),  # Unix seconds
    Column("kind", String(16), nullable=False),
    Column("spec", LargeBinary, nullable=False),  # canonical
    Column(
        "codes", LargeBinary, nullable=False
    ),  # what is sent beside the query: codes, or an evaluation's model
    Column("words", Text, nullable=False),  # JSON, `AskedWords`
    # SHA-256 of the request: it may be repeated under the id, and nothing else may be asked under it.
    Column("request", LargeBinary(32)),
    Index("queries_by_age", "asked_at", "query_id"),
    Index("queries_by_dataset", "dataset_id", "asked_at"),
)

query_answers: Final = Table(
    "query_answers",
    metadata,
    Column("query_id", LargeBinary(QUERY_ID_BYTES), ForeignKey("queries.query_id"), primary_key=True),
    Column("total", LargeBinary, nullable=False),  # int64 little-endian, both helpers' shares added
    # What the dataset had spent with it; infinite without noise.
    Column("epsilon", Double, nullable=False),
    Column("collusion_epsilon", Double, nullable=False),
)

helper_receipts: Final = Table(
    "helper_receipts",
    metadata,
    Column("helper_id", LargeBinary(16), primary_key=True),
    Column("receipt", LargeBinary, nullable=False),
)

helper_addresses: Final = Table(
    "helper_addresses",
    metadata,
    Column("address", String(300), primary_key=True),
    Column("helper_id", LargeBinary(16), nullable=False),  # who answered there last
)

helper_keys: Final = Table(
    "helper_keys",
    metadata,
    Column("fingerprint", LargeBinary(32), primary_key=True),  # SHA-256 of a public key
    Column("first_seen_at", Double, nullable=False),  # Unix seconds
)

# Who may use the admin API and the dashboard. No secret is kept, only its digest.
access_grants: Final = Table(
    "access_grants",
    metadata,
    Column("digest", LargeBinary(32), primary_key=True),  # SHA-256 of the secret
    Column("kind", String(8), nullable=False),
    Column("scope", String(8), nullable=False),
    Column("name", String(100), nullable=False),
    Column("created_at", Double, nullable=False),  # Unix seconds
    Column("expires_at", Double, nullable=False),  # Unix seconds
)

audit_log: Final = audit_table_of(metadata)

update_rounds: Final = Table(
    "update_rounds",
    metadata,
    Column("round_id", LargeBinary(32), primary_key=True),
    Column("task_id", LargeBinary(32), ForeignKey("tasks.task_id"), nullable=False, index=True),
    Column("job_id", LargeBinary(16), nullable=False),
    Column("round_index", Integer, nullable=False),
    Column("round", LargeBinary, nullable=False),  # UpdateRound, canonical
    Column("content", LargeBinary, nullable=False),  # what devices download
    Column("state", String(8), nullable=False),
    Column("opened_at", Double, nullable=False),  # Unix seconds
    Column("handle", LargeBinary(HANDLE_BYTES)),
    Column(
        "chosen", LargeBinary
    ),  # one bit for each stored update, in order of arrival, least significant first
    Column("dataset_id", LargeBinary(32)),
    UniqueConstraint("job_id", "round_index"),
)

update_reports: Final = Table(
    "update_reports",
    metadata,
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("round_id", LargeBinary(32), ForeignKey("update_rounds.round_id"), nullable=False),
    *_report_columns(),
    UniqueConstraint("round_id", "digest"),
)
