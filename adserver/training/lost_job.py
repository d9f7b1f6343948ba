"""Jobs that helpers hold and the store does not: of a server that was restored from an older backup."""

from collections.abc import Sequence
from time import time

from sqlalchemy import Engine

from adserver.peers.client import HelperClient
from adserver.store.audit_log import log_act
from adserver.store.jobs import JobStore
from adserver.store.tasks import TaskStore
from maskedlark.audit_log import AuditAct
from maskedlark.errors import JobReason, JobRefused


def close_lost_job(engine: Engine, helpers: tuple[HelperClient, HelperClient], job_id: bytes) -> int:
    """Close a job at both helpers that the store does not hold, and log that.

    Helpers find it by each task of the store. One that does not know it, as it never reached it, has reserved
    nothing for it.

    Returns:
        How many rounds stay charged, at the helper that answered more.

    Raises:
        JobRefused(WRONG_STATE): the store holds the job.
        JobRefused(UNKNOWN_JOB): no helper knows it.
        HelperUnavailable: a helper does not answer; the first one may have closed it: repeat the call.
    """
    if JobStore(engine, time).holds(job_id):
        raise JobRefused(
            JobReason.WRONG_STATE,
            f"this ad server has the job: stop it with `adserver job cancel {job_id.hex()[:12]}`",
        )
    tasks = [stored.task_id for stored in TaskStore(engine).all()]
    charged = [found for helper in helpers if (found := _close(helper, tasks, job_id)) is not None]
    if not charged:
        raise JobRefused(
            JobReason.UNKNOWN_JOB,
            f"no helper knows a job {job_id.hex()} in a task of this ad server: nothing is reserved for it",
        )
    with engine.begin() as connection:
        log_act(connection, AuditAct.CANCEL_JOB, job=job_id.hex())
    return max(charged)


def _close(helper: HelperClient, tasks: Sequence[bytes], job_id: bytes) -> int | None:
    """Close a job at one helper; return its answered rounds, or None if the helper does not know it."""
    for task_id in tasks:
        try:
            return helper.close_lost_job(task_id, job_id)
        except JobRefused as refusal:
            if refusal.reason not in (JobReason.UNKNOWN_JOB, JobReason.UNKNOWN_TASK):
                raise
    return None
