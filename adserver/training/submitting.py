"""A submission becomes a stored job: planned against its budgets, its files written, queued."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from sqlalchemy import Engine

from adserver.budgets.reservations import Budgets
from adserver.records.plans import AnyPlan
from adserver.records.submissions import FederatedSubmission, Submission, check_label
from adserver.store.datasets import DatasetStore
from adserver.store.job_files import submit
from adserver.store.jobs import JobStore
from adserver.store.tasks import TaskStore
from maskedlark.frozen import pick_attributes

JOB_ID_BYTES: Final = 16


def submit_job(engine: Engine, data: Path, submission: Submission | FederatedSubmission) -> bytes:
    """Check a submission and queue it, or open it to devices; return the job's id. `adserver serve` runs it.

    Raises:
        MaskedLarkError: as `plan_job`, `plan_federated` and `plan_local`; or there is no such dataset or
            task.
        InvalidTask: name or note are too long, or hold control characters.
    """
    check_label(submission.name, submission.note)
    job_id = os.urandom(JOB_ID_BYTES)
    if isinstance(submission, FederatedSubmission) and submission.is_without_helpers:
        _open_to_devices(engine, submission, job_id)
    elif isinstance(submission, FederatedSubmission):
        _submit_federated(engine, data, submission, job_id)
    else:
        _submit_training(engine, data, submission, job_id)
    return job_id


def _submit_training(engine: Engine, data: Path, submission: Submission, job_id: bytes) -> None:
    # Imported by kind: what one kind of job loads, such as onnx, others do not need.
    from adserver.training.model_file import check_loss_fits, prepare_model
    from adserver.training.panel_note import is_noted_trained
    from adserver.training.standardising import standardise_submission
    from adserver.training.submission import plan_job
    from maskedlark.model.heads import trained_loss

    dataset = DatasetStore(engine).find(submission.dataset)
    task = TaskStore(engine).find(submission.task or dataset.task_id.hex()).bundle.task
    encoder = TaskStore(engine).encoder(task.task_id)
    loss = trained_loss(submission.loss)
    check_loss_fits(submission.model, loss, num_features=task.num_features)
    begun = standardise_submission(submission)
    model = prepare_model(
        begun.model,
        num_features=task.num_features,
        encoder=encoder,
        are_columns_checked=submission.are_columns_checked,
    ).file
    plan = plan_job(
        replace(submission, model=model),
        task=task,
        dataset=dataset,
        job_id=job_id,
        now_s=time.time(),
        already=Budgets(engine=engine, clock=time.time).reservations_of_dataset(dataset),
        is_trained=begun.is_trained or is_noted_trained(submission.model),
    )
    _store(engine, data, submission, plan, model)


def _submit_federated(engine: Engine, data: Path, submission: FederatedSubmission, job_id: bytes) -> None:
    from adserver.training.federated.model import read_submitted_model
    from adserver.training.federated.submission import plan_federated

    task = TaskStore(engine).find(submission.task).bundle.task
    plan = plan_federated(
        submission,
        task=task,
        job_id=job_id,
        now_s=time.time(),
        already=Budgets(engine=engine, clock=time.time).reservations_of_task(task),
    )
    submitted = read_submitted_model(
        submission.model,
        submission.widths,
        task,
        seed=submission.seed,
        encoder=TaskStore(engine).encoder(task.task_id),
    )
    _store(engine, data, submission, plan, submitted.file)


def _open_to_devices(engine: Engine, submission: FederatedSubmission, job_id: bytes) -> None:
    from adserver.store.local.models import LocalModels
    from adserver.training.local_jobs import plan_local

    plan = plan_local(submission, job_id)
    add_model = LocalModels(engine).prepare(plan)
    JobStore(engine, time.time).submit(plan, name=submission.name, note=submission.note, add_files=add_model)


def _store(
    engine: Engine, data: Path, submission: Submission | FederatedSubmission, plan: AnyPlan, model: bytes
) -> None:
    """Keep a planned job, with what is known of it here only."""
    known = pick_attributes(submission, ("eval_set", "name", "note"))
    digest = None if submission.eval_set is None else _digest_rows(submission.eval_set)
    submit(engine, data, plan, model=model, eval_set_digest=digest, clock=time.time, **known)


def _digest_rows(eval_set: bytes) -> bytes:
    """Return the digest of an evaluation set's rows: the same rows compare, however they are written."""
    from adserver.training.eval_set import read_eval_set
    from adserver.training.panel_note import digest_panel

    return bytes.fromhex(digest_panel(read_eval_set(eval_set)))
