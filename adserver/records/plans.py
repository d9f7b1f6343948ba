"""Plans of either kind, as they are stored."""

from functools import lru_cache

from adserver.records.federated_plan import AnyPlan, FederatedPlan
from adserver.records.training_plan import TrainingPlan
from maskedlark.canonical import decode


def plan_columns(plan: AnyPlan) -> dict[str, bytes | None]:
    """Return the columns of a plan by which a job can be looked up."""
    dataset_id = plan.job.dataset_id if isinstance(plan, TrainingPlan) else None
    return {"task_id": plan.job.task_id, "dataset_id": dataset_id}


@lru_cache(maxsize=256)
def read_plan(encoded: bytes) -> AnyPlan:
    """Decode a stored plan of either kind: the encoding of a federated job begins with the field `federated`.

    A caller that follows a job reads its row, with the same plan, several times a second.
    """
    if b'"federated":' in encoded[:64]:
        return decode(FederatedPlan, encoded)
    return decode(TrainingPlan, encoded)
