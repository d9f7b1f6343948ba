"""A submission becomes a stored job: planned against its dataset's budgets, its files written, queued."""

import os
import time
from pathlib import Path

from sqlalchemy import Engine

from adserver.budgets.reservations import Budgets
from adserver.records.submissions import Submission
from adserver.store.datasets import Dataset
from adserver.store.job_files import submit
from adserver.store.tasks import StoredTask, TaskStore
from adserver.training.submission import JOB_ID_BYTES, plan_job


def submit_job(
    engine: Engine, data: Path, submission: Submission, dataset: Dataset, *, task: StoredTask | None = None
) -> bytes:
    """Check a submission and queue it; the job's id. `adserver serve` runs it.

    Args:
        engine: The ad server's database.
        data: Its data folder.
        submission: What is asked for.
        dataset: What is trained on.
        task: By default the dataset's.

    Raises:
        MaskedLarkError: as `plan_job`.
    """
    stored = task or TaskStore(engine).find(dataset.task_id.hex())
    job_id = os.urandom(JOB_ID_BYTES)
    plan = plan_job(
        submission,
        task=stored.bundle.task,
        dataset=dataset,
        job_id=job_id,
        now_s=time.time(),
        already=Budgets(engine=engine, clock=time.time).held(dataset),
    )
    submit(engine, data, plan, model=submission.model, eval_set=submission.eval_set, clock=time.time)
    return job_id
