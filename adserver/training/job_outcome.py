"""Why a job stopped: the reasons that a worker itself gives, and what an error makes of a job."""

import logging
from typing import Final

from adserver.records.job_record import JobRecord, Stop
from adserver.records.job_state import JobEvent
from adserver.records.training_plan import TrainingPlan
from adserver.training.cost import privacy_line
from maskedlark.errors import (
    HelperUnavailable,
    InvalidModel,
    JobReason,
    JobRefused,
    MaskedLarkError,
    ModelReason,
)
from maskedlark.runtime.database import is_away

_LOG = logging.getLogger(__name__)

HELPER_UNAVAILABLE: Final = "helper_unavailable"
FEW_DEVICES: Final = "few_devices"
INVALID_TASK: Final = "invalid_task"
INTERNAL_ERROR: Final = "internal_error"
BUDGET_SPENT: Final = "budget_spent"
"""The reason of a job that is done because its budget is: it was submitted with --until-budget."""


def outcome_of_done(job: JobRecord) -> tuple[JobEvent, Stop | None]:
    """Return the outcome of a job whose last round has run."""
    if not isinstance(job.plan, TrainingPlan) or not job.plan.is_until_budget:
        return JobEvent.FINISH, None
    return JobEvent.FINISH, Stop(reason=BUDGET_SPENT, cause=_budget_spent_line(job.plan))


def outcome_of(error: Exception) -> tuple[JobEvent, Stop | None]:
    """Return the outcome of a job that failed with an error."""
    match error:
        case JobRefused(reason=JobReason.CANCELLED):
            return JobEvent.RELEASE, None
        # Nothing is wrong with the job: it goes on from its last round, here or at another worker.
        case _ if is_away(error):
            return JobEvent.RELEASE, None
        case HelperUnavailable():
            event, reason = JobEvent.FAIL, HELPER_UNAVAILABLE
        # What training did to the weights, so no helper's refusal, although a helper may be first to say so.
        case InvalidModel(reason=ModelReason.NOT_FINITE | ModelReason.DIVERGED):
            event, reason = JobEvent.FAIL, error.reason.value
        case JobRefused() | InvalidModel():
            event, reason = JobEvent.REFUSE, error.reason.value
        case MaskedLarkError():
            event, reason = JobEvent.REFUSE, INVALID_TASK
        case _:
            _LOG.error("a job failed", exc_info=error)
            return JobEvent.FAIL, Stop(
                reason=INTERNAL_ERROR, cause=f"{type(error).__name__}: see the ad server's log"
            )
    return event, Stop(reason=reason, cause=str(error))


def _budget_spent_line(plan: TrainingPlan) -> str:
    """Explain why a job that was to run until its budget ends has stopped."""
    rounds = plan.job.rounds
    return (
        f"{rounds} rounds are what the budget held when the job was submitted: {privacy_line(plan, rounds)}"
    )
