"""The statements that a helper runs in every round, or for every chunk of reports, made once.

Building one anew takes SQLAlchemy longer than SQLite needs to run it. Each names its parameters. Report ids
are one parameter, the ids one after the other, which the database cuts: a parameter for each took four times
as long as to look it up.
"""

from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    Integer,
    LargeBinary,
    bindparam,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from helper.ledger.schema import AUDIT_LOG, DATASETS, JOBS, QUERIES, ROUNDS, TASKS, USED_REPORTS
from maskedlark.reports.task import REPORT_ID_BYTES
from maskedlark.runtime.audit_table import AuditTable

TASK: Final = select(TASKS.c.task, TASKS.c.origin, TASKS.c.role, TASKS.c.signature).where(
    TASKS.c.task_id == bindparam("task_id")
)
_NAMES: Final[BindParameter[Any]] = bindparam("names", expanding=True)
TASK_OF: Final = TASK.where(or_(TASKS.c.origin.in_(_NAMES), TASKS.c.host.in_(_NAMES)))
DATASET: Final = select(DATASETS.c.task_id, DATASETS.c.size).where(
    DATASETS.c.dataset_id == bindparam("dataset_id")
)
DATASET_OF: Final = DATASET.where(DATASETS.c.task_id == bindparam("task_id"))
_IS_JOB: Final = (JOBS.c.task_id == bindparam("of_task"), JOBS.c.job_id == bindparam("of_job"))
JOB: Final = select(JOBS.c.spec, JOBS.c.rounds_answered, JOBS.c.is_closed).where(*_IS_JOB)
JOB_MODEL: Final = select(JOBS.c.model).where(*_IS_JOB)
JOB_TO_CHANGE: Final = JOB.with_for_update()
CLOSE_JOB: Final = (
    update(JOBS)
    .where(*_IS_JOB, JOBS.c.spec == bindparam("as_spec"), JOBS.c.is_closed.is_(False))
    .values(is_closed=True, model=b"")
)
_IS_OF_JOB: Final = (ROUNDS.c.task_id == bindparam("of_task"), ROUNDS.c.job_id == bindparam("of_job"))
_IS_ROUND: Final = (*_IS_OF_JOB, ROUNDS.c.round_index == bindparam("index"))
ROUND: Final = select(ROUNDS.c.weights_digest, ROUNDS.c.answer, ROUNDS.c.sealed_seed).where(*_IS_ROUND)
ADD_ROUND: Final = insert(ROUNDS)
COUNT_ROUND: Final = update(JOBS).where(*_IS_JOB).values(rounds_answered=bindparam("answered"))
FORGET_ROUND: Final = update(ROUNDS).where(*_IS_ROUND).values(answer=None, sealed_seed=None)
FORGET_ROUNDS: Final = (
    update(ROUNDS).where(*_IS_OF_JOB, ROUNDS.c.answer.is_not(None)).values(answer=None, sealed_seed=None)
)
QUERY: Final = select(QUERIES.c.kind, QUERIES.c.spec, QUERIES.c.answer).where(
    QUERIES.c.task_id == bindparam("of_task"), QUERIES.c.query_id == bindparam("query_id")
)
LOG: Final = AuditTable(AUDIT_LOG)

_IDS: Final = bindparam("report_ids", type_=LargeBinary)
# The places 1, 17, 33, ... of the ids in the one parameter: `substr` counts from 1 on both databases.
_FIRST: Final = select(literal(1, Integer).label("place")).cte("places", recursive=True)
_PLACES: Final = _FIRST.union_all(
    select(_FIRST.c.place + REPORT_ID_BYTES).where(_FIRST.c.place + REPORT_ID_BYTES <= func.length(_IDS))
)
# Of at least one id.
_GIVEN: Final = select(
    bindparam("of_task", type_=LargeBinary).label("task_id"),
    func.substr(_IDS, _PLACES.c.place, REPORT_ID_BYTES, type_=LargeBinary).label("report_id"),
)
ADD_USED: Final = insert(USED_REPORTS).from_select(["task_id", "report_id"], _GIVEN)
_ASKED: Final = _GIVEN.subquery("asked")
USED_AMONG: Final = select(_ASKED.c.report_id).where(
    exists().where(USED_REPORTS.c.task_id == _ASKED.c.task_id, USED_REPORTS.c.report_id == _ASKED.c.report_id)
)
