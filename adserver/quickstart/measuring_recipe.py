"""One run of a project without a label: its table's columns are measured, and no model is trained.

From the user's table to its sums: task, browsers, dataset, measurement.
"""

from typing import Final

from adserver.quickstart.base_recipe import BaseRecipe
from adserver.quickstart.check import MEASURED_CLASSES, MEASURED_FEATURES
from adserver.quickstart.runs import MeasuredRun

# What `browser-sim run` reports of a table without a label
_NOTHING_LEARNED: Final = (
    *("--num-features", str(MEASURED_FEATURES), "--classes", str(MEASURED_CLASSES)),
    *("--default-label", "0"),
)


class MeasuringRecipe(BaseRecipe[MeasuredRun]):
    """Measures a project's table, or goes on with a run that was interrupted; its servers are up."""

    def _run(self) -> MeasuredRun:
        steps = self._steps
        # Nothing is tested, so no row is kept back
        sealed = self._collect(_NOTHING_LEARNED, None)
        if sealed.measured is None:
            raise AssertionError("only a project with [measure] has no label")
        return MeasuredRun(
            run=steps.folder.name,
            task_id=sealed.task_id,
            rows=sealed.rows,
            reports=sealed.sent["accepted"],
            dataset_size=sealed.dataset["admitted"],
            dataset_id=sealed.dataset["dataset_id"],
            warnings=self._warnings,
            epsilon=sealed.measured["epsilon"],
            collusion_epsilon=sealed.measured["collusion_epsilon"],
            measured=sealed.measured,
            name=steps.options.name,
            note=steps.options.note,
            rows_per_person=self._settings.task.rows_per_person,
        )
