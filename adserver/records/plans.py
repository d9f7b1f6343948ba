"""Plans of each kind of job, as they are stored."""

from functools import lru_cache
from typing import TypeAlias

from adserver.records.federated_plan import FederatedPlan
from adserver.records.local_plan import LocalPlan
from adserver.records.training_plan import TrainingPlan
from maskedlark.canonical import decode

AnyPlan: TypeAlias = TrainingPlan | FederatedPlan | LocalPlan
"""What a stored job may be."""


def plan_columns(plan: AnyPlan) -> dict[str, bytes | None]:
    """Return the columns of a plan by which a job can be looked up."""
    # A column beside the plan, since no database looks into its JSON.
    dataset_id = plan.job.dataset_id if isinstance(plan, TrainingPlan) else None
    task_id = None if isinstance(plan, LocalPlan) else plan.job.task_id
    return {"task_id": task_id, "dataset_id": dataset_id}


@lru_cache(maxsize=256)
def read_plan(encoded: bytes) -> AnyPlan:
    """Decode a stored plan: that of a job on devices has `federated` or `local` among its first fields.

    A caller that follows a job reads its row, with the same plan, several times a second.
    """
    # Canonical JSON sorts its fields, so the kind of a plan shows at the front, before any large one.
    if b'"federated":' in encoded[:64]:
        return decode(FederatedPlan, encoded)
    if b'"local":' in encoded[:64]:
        return decode(LocalPlan, encoded)
    return decode(TrainingPlan, encoded)
