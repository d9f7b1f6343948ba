"""Both budgets of a dataset, or of a person, with their uses and the forecast of a planned job."""

import math
from typing import Self

from pydantic_core import to_json

from adserver.messages.base import Amount, Message, Whole
from maskedlark.frozen import pick_attributes
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.budget import (
    BudgetedDataset,
    BudgetUse,
    CostedUse,
    DatasetBudget,
    Forecast,
    PlannedJob,
    Standing,
)
from maskedlark.reports.task import Task
from maskedlark.reports.task_kinds import PrivacyUnit
from maskedlark.terminal.budget_view import SIZES, USE_FIELDS, budget_json


class EpsilonsMessage(Message):
    """An epsilon against the ad server alone, and one against the ad server with one helper."""

    ad_server: Amount
    colluding: Amount

    def value(self) -> Epsilons:
        """Return both."""
        return Epsilons(ad_server=self.ad_server, colluding=self.colluding)


class StandingMessage(Message):
    """One of two budgets."""

    budget: Amount
    spent: Amount
    reserved: Amount
    held: Amount
    left: Amount

    def value(self) -> Standing:
        """Return it."""
        return Standing(budget=self.budget, spent=self.spent, held=self.held)


class UseMessage(Message):
    """A job or a query that takes of the budgets."""

    id: bytes
    what: str
    state: str
    rounds_answered: Whole
    rounds_held: Whole
    noise_multiplier: float
    sampling_rate: float
    devices: Whole | None
    """The devices of a job on devices; null for all others."""
    spent_alone: EpsilonsMessage
    held_alone: EpsilonsMessage

    def value(self) -> CostedUse:
        """Return it without its charges, whose cost alone is sent."""
        use = BudgetUse(use_id=self.id, **pick_attributes(self, USE_FIELDS), spent=(), held=())
        return CostedUse(use=use, spent=self.spent_alone.value(), held=self.held_alone.value())


class ForecastMessage(Message):
    """The budgets after a planned job."""

    rounds: Whole
    batch_size: float | None
    noise_multiplier: float
    alone: EpsilonsMessage
    ad_server: StandingMessage
    colluding: StandingMessage
    fits: bool

    def value(self) -> Forecast:
        """Return it."""
        return Forecast(
            job=PlannedJob(**pick_attributes(self, SIZES)),
            alone=self.alone.value(),
            ad_server=self.ad_server.value(),
            colluding=self.colluding.value(),
        )


class BudgetMessage(Message):
    """Both budgets of a dataset; of a person where `dataset_id` is null."""

    dataset_id: bytes | None
    unit: PrivacyUnit
    task_id: bytes
    task: str
    reports: Whole
    mechanism: Mechanism
    delta: float
    ad_server: StandingMessage
    colluding: StandingMessage
    next_epsilon: float | None
    """The most that a next query, or a job with Gaussian noise whose rounds take all reports, may ask for
    within both budgets; null without noise."""
    uses: tuple[UseMessage, ...]
    labels: EpsilonsMessage | None
    planned: ForecastMessage | None

    @classmethod
    def of(cls, budget: DatasetBudget) -> Self:
        """Describe budgets as the helpers' `lark-helper budget --json` does."""
        # By way of the JSON that `budget --json` prints, so that both are the same to the last field.
        return cls.model_validate_json(to_json(budget_json(budget)))

    def value(self, task: Task) -> DatasetBudget:
        """Return the budgets of a task's dataset or person.

        Raises:
            ValueError: a budget is infinite although the task adds noise.
        """
        for standing in (self.ad_server, self.colluding):
            # Read without trust: with an infinite budget every plan would seem to fit.
            if task.mechanism is not Mechanism.NONE and not 0 < standing.budget < math.inf:
                raise ValueError("a budget is not finite, or not above 0")
        dataset = BudgetedDataset(
            dataset_id=self.dataset_id or task.task_id,
            task=task,
            size=self.reports,
            is_person=self.dataset_id is None,
        )
        return DatasetBudget(
            dataset=dataset,
            ad_server=self.ad_server.value(),
            colluding=self.colluding.value(),
            uses=tuple(one.value() for one in self.uses),
            forecast=None if self.planned is None else self.planned.value(),
            labels=None if self.labels is None else self.labels.value(),
            next_epsilon=self.next_epsilon,
        )
