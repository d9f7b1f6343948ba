"""What this ad server holds of its datasets' budgets, by its own records.

The helpers decide by their own ledgers. An open job counts here with all its rounds, whether it has reached
the helpers yet or not; a closed one with the rounds that the helpers said they charged; and a query from
the moment that it is asked. So spent and reserved together are at least what both ledgers hold. What is
spent of an open job may be less than in the ledgers: a round that both helpers charged counts once its step
was taken.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sqlalchemy import Engine

from adserver.budgets.asked_epsilon import epsilon_left
from adserver.records.dataset_state import DatasetState
from adserver.records.federated_plan import FederatedPlan
from adserver.records.job_record import JobRecord
from adserver.records.training_plan import TrainingPlan
from adserver.store.database import Clock
from adserver.store.datasets import Dataset, DatasetStore
from adserver.store.jobs import JobStore
from adserver.store.queries import QueryStore
from adserver.store.tasks import TaskStore
from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen
from maskedlark.privacy.accounting import Charge
from maskedlark.privacy.relation import Relation
from maskedlark.releases import budget
from maskedlark.releases.budget import BudgetUse, DatasetBudget, PlannedJob
from maskedlark.reports.task import Task
from maskedlark.reports.task_kinds import PrivacyUnit


@frozen
class Budgets:
    """The budgets of this ad server's datasets.

    Attributes:
        engine: The store.
        clock: Unix seconds.
    """

    engine: Engine
    clock: Clock

    def of_all(
        self,
        *,
        task: str = "",
        dataset: str = "",
        planned: PlannedJob | None = None,
        relation: Relation = Relation.ZERO,
    ) -> tuple[DatasetBudget, ...]:
        """Return the budgets of all committed datasets, oldest first, then of people in tasks of updates.

        Only of one task or dataset, by the start of its id.

        Raises:
            JobRefused(UNKNOWN_TASK, UNKNOWN_DATASET): there is no such task or dataset.
            InvalidTask: the planned job's numbers are out of range.
        """
        store = DatasetStore(self.engine)
        found = [store.find(dataset)] if dataset else store.all()
        tasks = TaskStore(self.engine)
        wanted = tasks.find(task).task_id if task else None
        of_datasets = (
            self.of(one, planned, relation)
            for one in found
            if one.state is DatasetState.COMMITTED
            and one.dataset_id is not None
            and wanted in (None, one.task_id)
        )
        of_people = (
            self.of_people(one.bundle.task, relation)
            for one in ([] if dataset else tasks.all())
            if one.bundle.task.updates is not None and wanted in (None, one.task_id)
        )
        return (*of_datasets, *of_people)

    def of_people(self, task: Task, relation: Relation = Relation.ZERO) -> DatasetBudget:
        """Return a person's budgets in a task of updates, over all its jobs and rounds."""
        jobs = list(self._iterate_federated(task))
        devices = max((plan.read_instructions().strategy.devices for _, plan in jobs), default=0)
        costed = budget.BudgetedDataset(dataset_id=task.task_id, task=task, size=devices, is_person=True)
        uses = [_read_federated_job(task, job, plan) for job, plan in jobs]
        return _find_budget(costed, uses, relation=relation)

    def of(
        self, dataset: Dataset, planned: PlannedJob | None = None, relation: Relation = Relation.ZERO
    ) -> DatasetBudget:
        """Return the budgets of one committed dataset.

        Raises:
            InvalidTask: the planned job's numbers are out of range.
        """
        task = self._task(dataset)
        if dataset.dataset_id is None:
            raise JobRefused(
                JobReason.UNKNOWN_DATASET,
                "the dataset is not sealed yet: finish it with `adserver dataset seal`",
            )
        costed = budget.BudgetedDataset(dataset_id=dataset.dataset_id, task=task, size=dataset.size)
        return _find_budget(costed, self._uses(task, dataset.dataset_id), planned, relation)

    def reservations_of_dataset(self, dataset: Dataset) -> tuple[Charge, ...]:
        """Return the charges spent or reserved on a dataset: a new job must fit next to them."""
        if dataset.dataset_id is None:
            return ()
        return tuple(
            charge for use in self._uses(self._task(dataset), dataset.dataset_id) for charge in use.held
        )

    def _task(self, dataset: Dataset) -> Task:
        return TaskStore(self.engine).find(dataset.task_id.hex()).bundle.task

    def reservations_of_task(self, task: Task) -> tuple[Charge, ...]:
        """Return the charges spent or reserved on a task whose unit is a person.

        The task's next job must fit into what these leave of the budget.
        """
        federated = [
            charge
            for job, plan in self._iterate_federated(task)
            for charge in _read_federated_job(task, job, plan).held
        ]
        datasets = [one for one in DatasetStore(self.engine).of_task(task.task_id) if one.dataset_id]
        # With a person as the unit, any dataset counts what all of them hold
        held = self.reservations_of_dataset(datasets[0]) if datasets else ()
        return (*held, *federated)

    def _iterate_federated(self, task: Task) -> Iterator[tuple[JobRecord, FederatedPlan]]:
        """Yield the federated jobs of a task with their plans."""
        for job in JobStore(self.engine, self.clock).of_task(task.task_id, [None]):
            if isinstance(job.plan, FederatedPlan):
                yield job, job.plan

    def _uses(self, task: Task, dataset_id: bytes) -> Sequence[BudgetUse]:
        # A person may have reports in each dataset of a task, and has one budget over all of them
        together = [dataset_id]
        if task.unit is PrivacyUnit.USER:
            of_task = DatasetStore(self.engine).of_task(task.task_id)
            together = [one.dataset_id for one in of_task if one.dataset_id is not None]
        jobs = [
            _job(task, job, plan)
            for job, plan in _jobs_on_labels(
                JobStore(self.engine, self.clock).of_task(task.task_id, together)
            )
        ]
        return [
            *jobs,
            *(
                BudgetUse.of_query(task, spec)
                for one in together
                for spec in QueryStore(self.engine).of_dataset(one)
            ),
        ]


def _find_budget(
    dataset: budget.BudgetedDataset,
    uses: Sequence[BudgetUse],
    planned: PlannedJob | None = None,
    relation: Relation = Relation.ZERO,
) -> DatasetBudget:
    """Return both budgets, and what a next release may ask for."""
    found = DatasetBudget.of(dataset, uses, planned, relation)
    if not found.is_noisy:
        return found
    held = [charge for use in uses for charge in use.held]
    return replace(found, next_epsilon=epsilon_left(dataset.task, held))


def _jobs_on_labels(jobs: Sequence[JobRecord]) -> Iterator[tuple[JobRecord, TrainingPlan]]:
    """Yield the jobs that train on one dataset's labels with their plans."""
    for job in jobs:
        if isinstance(job.plan, TrainingPlan):
            yield job, job.plan


def _job(task: Task, job: JobRecord, plan: TrainingPlan) -> BudgetUse:
    charged = job.rounds_done if job.rounds_charged is None else job.rounds_charged
    return BudgetUse.of_job(
        task, plan.job, state=job.state.value, rounds_answered=charged, is_open=not job.is_closed
    )


def _read_federated_job(task: Task, job: JobRecord, plan: FederatedPlan) -> BudgetUse:
    charged = job.rounds_done if job.rounds_charged is None else job.rounds_charged
    strategy, _ = plan.read_instructions()
    return BudgetUse.of_update(
        task,
        plan.job,
        what=strategy.kind,
        devices=strategy.devices,
        state=job.state.value,
        rounds_charged=charged,
        is_open=not job.is_closed,
    )
