"""The page that divides a budget before anything is collected: its form, and what each job and test gets."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Self

from adserver.admin.admin_context import AdminContext
from adserver.dashboard.typed_number import read_number, read_whole
from adserver.messages.plan import PlanMessage
from adserver.records.submissions import PlanConstraints, PlanRequest
from adserver.records.training_plan import TrainingPlan
from adserver.training.defaults import ROUNDS
from maskedlark.errors import HelperUnavailable, InvalidTask, MaskedLarkError
from maskedlark.frozen import frozen
from maskedlark.model.limits import MOST_PARAMETERS
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.task import Task

MOST_SHOWN_JOBS: Final = 50
MOST_SHOWN_TESTS: Final = 500
_MOST_TASKS: Final = 200
# Fields as their form calls them, where that is not by their name
_CALLED: Final = {
    "epsilon": "ε",
    "gradient": "mean gradient",
    "test_share": "the evaluations' part of ε",
    "tests": "evaluations",
    "weights": "weights of the model",
}
_REPORTS: Final = 50_000
_WEIGHTS: Final = 10_000


@frozen
class PlanForm:
    """What is asked of the page.

    Attributes:
        task: The start of the task's id; empty for the newest that can be planned for.
        reports: How many its dataset will have; None for as many as its newest one, or `_REPORTS`.
        epsilon: To divide; None for the task's budget.
        jobs: That share it.
        tests: Private evaluations that share it.
        test_share: In percent, of all evaluations together.
        weights: Of the model; None for as many as the task's newest job trains, or `_WEIGHTS`.
        gradient: How long the mean gradient is assumed to be, over the clip bound.
    """

    task: str = ""
    reports: int | None = None
    epsilon: float | None = None
    jobs: int = 5
    tests: int = 10
    test_share: int = 10
    weights: int | None = None
    gradient: float = 0.2

    @classmethod
    def read(cls, typed: Mapping[str, str]) -> Self:
        """Return what was typed; fields that are empty have their defaults.

        Raises:
            InvalidTask: a field is no number, or out of the page's range.
        """
        numbers: dict[str, Any] = {"task": typed.get("task", "")}
        for name in ("reports", "jobs", "tests", "test_share", "weights"):
            if typed.get(name):
                numbers[name] = read_whole(_CALLED.get(name, name), typed[name])
        for name in ("epsilon", "gradient"):
            if typed.get(name):
                numbers[name] = read_number(_CALLED[name], typed[name])
        form = cls(**numbers)
        # Everyone who may read can ask: the page's plans are kept as small as a page can show
        if form.jobs > MOST_SHOWN_JOBS or not 0 <= form.tests <= MOST_SHOWN_TESTS:
            raise InvalidTask(
                f"this page plans up to {MOST_SHOWN_JOBS} jobs and {MOST_SHOWN_TESTS} tests: for more, use "
                "`adserver job plan --jobs --tests`"
            )
        return form

    def fill(self, site: AdminContext, task: Task) -> Self:
        """Return the same with a number of reports and of weights."""
        filled = self
        if self.reports is None:
            sizes = [one.size for one in site.datasets.of_task(task.task_id) if one.size]
            filled = replace(filled, reports=sizes[-1] if sizes else _REPORTS)
        if self.weights is None:
            plans = [one.plan for one in site.jobs.page(limit=1, task_id=task.task_id)]
            trained = [one.num_parameters for one in plans if isinstance(one, TrainingPlan)]
            filled = replace(filled, weights=next(filter(None, trained), _WEIGHTS))
        return filled

    def divide(self, site: AdminContext, task: Task) -> dict[str, Any]:
        """Return the plans of all jobs and tests, and that of one job alone, or why no plan is possible."""
        if wrong := self._say_wrong_field():
            return {"refusal": wrong}
        request = PlanRequest(
            num_parameters=self.weights,
            wish=PlanConstraints(rounds=None, batch_size=None, noise_multiplier=None),
            epsilon=self.epsilon,
            gradient_norm=self.gradient * task.clip_norm,
            reports=self.reports,
            task=task.task_id.hex(),
            jobs=self.jobs,
            tests=self.tests,
            test_share=min(max(self.test_share, 0), 100) / 100,  # any integer may be typed
        )
        # For the comparison: what dividing the budget costs each job
        one = replace(request, jobs=1, tests=0)
        try:
            searched, usual = _plan_both(site, request)
            divided, alone = _better(searched, usual), _better(*_plan_both(site, one))
        # No refusal of the plan: it is not kept, and the next look asks again
        except HelperUnavailable:
            raise
        except MaskedLarkError as refusal:
            return {"refusal": str(refusal)}
        shown = {"divided": divided, "alone": alone, "usual": usual, "searched": searched}
        return {"refusal": "", **{name: plan.model_dump(mode="json") for name, plan in shown.items()}}

    def _say_wrong_field(self) -> str:
        """Say which field is out of its range, by its name in the form; empty if none is."""
        for name, given, is_right, expected in (
            ("jobs", self.jobs, self.jobs >= 1, f"1 to {MOST_SHOWN_JOBS}"),
            (_CALLED["weights"], self.weights,
             self.weights is None or 1 <= self.weights <= MOST_PARAMETERS,
             f"1 to {MOST_PARAMETERS:,}, the largest model"),
            (_CALLED["epsilon"], self.epsilon, self.epsilon is None or 0 < self.epsilon < math.inf,
             "a number above 0"),
            (_CALLED["gradient"], self.gradient, 0 < self.gradient <= 1,
             "a part of the clip bound, above 0 and at most 1"),
            (_CALLED["test_share"], self.test_share, not self.tests or 0 < self.test_share < 100,
             "1 to 99 %"),
        ):  # fmt: skip
            if not is_right:
                return f"{name} is {given}: expected {expected}"
        return ""


def _plan_both(site: AdminContext, request: PlanRequest) -> tuple[PlanMessage, PlanMessage]:
    """Return the plan of most worth in `MAX_EPOCHS` epochs, and that of `job submit`'s usual 120 rounds."""
    usual = replace(request, wish=replace(request.wish, rounds=ROUNDS))
    searched, by_itself = (PlanMessage.of(site.server.plan(asked), asked) for asked in (request, usual))
    return searched, by_itself


def _better(searched: PlanMessage, usual: PlanMessage) -> PlanMessage:
    """Return the plan whose job is worth more; the usual one, which has more epochs, if both are alike."""
    worth = searched.recommended.steps_worth or 0.0, usual.recommended.steps_worth or 0.0
    return searched if worth[0] > worth[1] else usual


def tasks_to_plan(site: AdminContext) -> list[Task]:
    """Return the newest tasks of labels with noise."""
    found = (stored.bundle.task for stored in site.tasks.page(limit=_MOST_TASKS))
    return [one for one in found if _has_labels_with_noise(one)]


def find_task_to_plan(site: AdminContext, prefix: str) -> Task:
    """Return the task whose id starts so.

    Raises:
        JobRefused(UNKNOWN_TASK): none does, or several do.
        InvalidTask: it has no labels with noise.
    """
    task = site.tasks.find(prefix).bundle.task
    if not _has_labels_with_noise(task):
        raise InvalidTask(
            f"task {task.name!r} has no labels with noise, so no budget to divide: choose another"
        )
    return task


def _has_labels_with_noise(task: Task) -> bool:
    return task.updates is None and task.mechanism is not Mechanism.NONE
