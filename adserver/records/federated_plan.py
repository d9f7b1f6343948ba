"""A federated job as the ad server holds it: what helpers and devices hold too, and how long rounds last."""

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from maskedlark.canonical import canonical
from maskedlark.releases.update import UpdateJob
from maskedlark.reports.task import Task

if TYPE_CHECKING:
    from maskedlark.releases.instructions import Read


@canonical
class FederatedPlan:
    """A federated job without its evaluation set.

    Attributes:
        version: Of this record's layout.
        task: The job's task.
        federated: What helpers and devices hold too.
        window_s: How long devices have for a round, unless all have answered before.
        least_devices: A round stays open until so many devices have answered, however long that takes.
        seed: Of the model's first weights.
        eval_every: Evaluate after every so many rounds, and after the last one.
    """

    version: Literal[1] = 1
    task: Task
    federated: UpdateJob
    window_s: Annotated[float, Field(ge=0.0, le=31 * 86_400.0)]
    least_devices: Annotated[int, Field(ge=1)]
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    eval_every: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.task.task_id != self.federated.task_id:
            raise ValueError("the job belongs to another task")
        if self.least_devices < self.task.min_batch_size:
            raise ValueError(
                "least_devices must be at least the task's min_batch_size: a round of fewer devices "
                "would be only noise"
            )
        return self

    @property
    def job(self) -> UpdateJob:
        """The job, under the name that it has in every plan."""
        return self.federated

    def is_evaluated(self, rounds_done: int) -> bool:
        """Return whether the model is evaluated after so many rounds."""
        return rounds_done % self.eval_every == 0 or rounds_done == self.federated.rounds

    def read_instructions(self) -> "Read":
        """Read the strategy and the model of the job, loading their modules only where such a job exists.

        Raises:
            InvalidTask, InvalidModel: as `maskedlark.releases.instructions.read_instructions`.
        """
        from maskedlark.releases.instructions import read_instructions

        return read_instructions(self.federated)
