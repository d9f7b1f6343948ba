"""The statements that a helper runs in every round, made once.

Building one anew takes SQLAlchemy longer than SQLite needs to run it. Each names its parameters.
"""

from typing import Final

from sqlalchemy import bindparam, insert, select, update

from helper.ledger.schema import CHAIN, DATASETS, JOBS, ROUNDS, TASKS

TASK: Final = select(TASKS.c.task, TASKS.c.role, TASKS.c.signature).where(
    TASKS.c.task_id == bindparam("task_id")
)
DATASET: Final = select(DATASETS.c.task_id, DATASETS.c.size).where(
    DATASETS.c.dataset_id == bindparam("dataset_id")
)
JOB: Final = select(JOBS.c.spec, JOBS.c.rounds_answered, JOBS.c.is_closed).where(
    JOBS.c.job_id == bindparam("job_id")
)
JOB_TO_CHANGE: Final = JOB.with_for_update()
ROUND: Final = select(ROUNDS.c.weights_digest, ROUNDS.c.answer, ROUNDS.c.sealed_seed).where(
    ROUNDS.c.job_id == bindparam("job_id"), ROUNDS.c.round_index == bindparam("round_index")
)
ADD_ROUND: Final = insert(ROUNDS)
COUNT_ROUND: Final = (
    update(JOBS).where(JOBS.c.job_id == bindparam("of_job")).values(rounds_answered=bindparam("answered"))
)
FORGET_ROUND: Final = (
    update(ROUNDS)
    .where(ROUNDS.c.job_id == bindparam("of_job"), ROUNDS.c.round_index == bindparam("index"))
    .values(answer=None, sealed_seed=None)
)
HEAD: Final = select(CHAIN.c.head).where(CHAIN.c.sequence == bindparam("sequence"))
HEAD_TO_CHANGE: Final = HEAD.with_for_update()
NEWEST_LINK: Final = select(CHAIN.c.sequence, CHAIN.c.head).order_by(CHAIN.c.sequence.desc()).limit(1)
ADD_LINK: Final = insert(CHAIN)
