"""The floors that a project's two helpers are started with, and which settings they would refuse.

helpers = FLOORS.options                        # ("--min-batch-size-floor", "20", "--max-epsilon", ...)
problems = [*FLOORS.find_task_problems(task)]   # ("[task] epsilon is 30, but this project's helpers ...",)
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from adserver.quickstart.settings import TaskSettings
from maskedlark.frozen import frozen
from maskedlark.model.limits import HELPER_PARAMETERS

if TYPE_CHECKING:
    from maskedlark.model.graph import Model
    from maskedlark.reports.task import Task


@frozen
class HelperFloors:
    """Limits of both helpers of a project, by the names of `lark-helper serve`.

    Theirs of delta, decoys and reports follow from no setting, and that of a round's memory from the machine.

    Attributes:
        min_batch_size: The least `min_batch_size` of a task, and `min_cell_count` of its measurement.
        max_epsilon: The most that one dataset may spend against the ad server.
        max_collusion_epsilon: The same, against the ad server together with the other helper.
        max_dataset_bytes: The most bytes that the largest dataset of a task may take.
        max_round_seconds: The most processor time of one core that one round may take, by estimate.
        max_parameters: The most parameters of a model.
    """

    min_batch_size: int = 20
    max_epsilon: float = 8.0
    max_collusion_epsilon: float = 16.0
    max_dataset_bytes: int = 4 << 30
    max_round_seconds: float = 3_600.0
    max_parameters: int = HELPER_PARAMETERS

    @property
    def options(self) -> tuple[str, ...]:
        """The options of `lark-helper serve`."""
        named = {
            "--min-batch-size-floor": self.min_batch_size,
            "--max-epsilon": self.max_epsilon,
            "--max-collusion-epsilon": self.max_collusion_epsilon,
            "--max-dataset-bytes": self.max_dataset_bytes,
            "--max-round-seconds": self.max_round_seconds,
            "--max-parameters": self.max_parameters,
        }
        return tuple(part for name, value in named.items() for part in (name, str(value)))

    def find_task_problems(self, task: TaskSettings) -> Iterator[str]:
        """Yield which settings of `[task]` both helpers would refuse to sign."""
        if task.min_batch_size < self.min_batch_size:
            yield (
                f"[task] min_batch_size is {task.min_batch_size}, but this project's helpers require at "
                f"least {self.min_batch_size}: raise it"
            )
        for name, value, most in (
            ("epsilon", task.epsilon, self.max_epsilon),
            ("collusion_epsilon", task.collusion_epsilon, self.max_collusion_epsilon),
        ):
            if value > most:
                yield (
                    f"[task] {name} is {value:g}, but this project's helpers allow at most {most:g}: lower it"
                )

    def find_size_problems(self, task: "Task") -> Iterator[str]:
        """Yield a line if a dataset of a task may take more bytes than both helpers hold.

        Args:
            task: With the features, labels, measurement or updates of the project's.
        """
        if task.max_dataset_size * task.opened_length > self.max_dataset_bytes:
            what, remedy = "[data] csv", "leave out columns ([data] ignore)"
            if task.updates is not None:
                what, remedy = "[model]", "take a smaller one"
            yield (
                f"{what}: up to {task.max_dataset_size:,} reports of {task.opened_length:,} bytes each are "
                f"over the {self.max_dataset_bytes:,} bytes that this project's helpers hold: {remedy}"
            )

    def find_model_problems(
        self, model: "Model", *, where: str, is_exact: bool, records: float, candidates: int
    ) -> Iterator[str]:
        """Yield which of a model's sizes both helpers would refuse a job for.

        Args:
            model: The project's.
            where: The setting that names it.
            is_exact: Whether it takes the exact path.
            records: The most that a round evaluates.
            candidates: Labels of each record.
        """
        from maskedlark.model.core_seconds import round_seconds

        if model.num_parameters > self.max_parameters:
            yield (
                f"{where} has {model.num_parameters:,} parameters, but this project's helpers allow at most "
                f"{self.max_parameters:,}: take a smaller model"
            )
        path = "exact" if is_exact else "general"
        seconds = round_seconds(model, path, records=round(records), candidates=candidates)
        if seconds > self.max_round_seconds:
            yield (
                f"{where}: a round would take about {seconds:,.0f} core seconds, but this project's helpers "
                f"allow at most {self.max_round_seconds:,g}: take a smaller model, or lower [training] "
                "batch_size"
            )


FLOORS: Final = HelperFloors()
"""Those of every project, which are a helper's own defaults."""
