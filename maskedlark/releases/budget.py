"""A dataset's two budgets as its parties show them.

What is spent, reserved and left, and what each job and query takes alone.

Helpers and ad server keep their own records and call the same sum. A helper *holds* for an open job all the
rounds that it planned, since it reserved them when the job was opened; of a closed job only those that it
answered. What is held beyond what is spent is *reserved*.

Epsilons do not add up: two jobs together cost less than the sum of what each costs alone. So only the spent,
reserved and left of the whole dataset add up to its budget.
"""

from collections.abc import Sequence

from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.privacy.accounting import Charge, Epsilons, spent, spent_in_turn
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.relation import Relation
from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import QueryLike
from maskedlark.releases.samples import Samples
from maskedlark.releases.update import UpdateJob
from maskedlark.reports.task import Task


@frozen
class BudgetUse:
    """One job or query on a dataset.

    Attributes:
        use_id: 16 bytes.
        what: For people: the loss, or query.
        state: For people.
        rounds_answered: Of a query 1; of a federated job all up to the highest answered.
        rounds_held: Answered, or still to be asked for.
        noise_multiplier: As the job or query names it.
        sampling_rate: 1 of a query.
        spent: The charges of what was answered.
        held: The charges of what is answered or reserved.
        devices: Of a federated job, where its settings are read; None: its dataset's size counts.
    """

    use_id: bytes
    what: str
    state: str
    rounds_answered: int
    rounds_held: int
    noise_multiplier: float
    sampling_rate: float
    spent: tuple[Charge, ...]
    held: tuple[Charge, ...]
    devices: int | None = None

    @classmethod
    def of_job(
        cls, task: Task, spec: JobSpec, *, state: str, rounds_answered: int, is_open: bool
    ) -> "BudgetUse":
        """Return a job's part of its dataset's budgets. Called by all parties."""
        held = spec.rounds if is_open else rounds_answered
        return cls(
            use_id=spec.job_id,
            what=spec.loss.value,
            state=state,
            rounds_answered=rounds_answered,
            rounds_held=held,
            noise_multiplier=spec.noise_multiplier,
            sampling_rate=spec.sampling_rate,
            spent=spec.charges(task, rounds_answered),
            held=spec.charges(task, held),
        )

    @classmethod
    def of_update(
        cls,
        task: Task,
        job: UpdateJob,
        *,
        what: str,
        state: str,
        rounds_charged: int,
        is_open: bool,
        devices: int | None = None,
    ) -> "BudgetUse":
        """Return a federated job's part of a person's budgets. Called by all parties.

        Args:
            task: The job's.
            job: The job.
            what: See `BudgetUse`.
            state: See `BudgetUse`.
            rounds_charged: 1 + the index of the highest round that was answered: skipped ones count.
            is_open: Whether the rest of its rounds are held.
            devices: See `BudgetUse`.
        """
        held = job.rounds if is_open else rounds_charged
        # Shown are the settings of the next round; of a job that is through, those of its last one.
        phase = job.phase(min(rounds_charged, job.rounds - 1))
        return cls(
            use_id=job.job_id,
            what=what,
            state=state,
            rounds_answered=rounds_charged,
            rounds_held=held,
            noise_multiplier=phase.noise_multiplier,
            sampling_rate=phase.sampling_rate,
            spent=job.charges(task, rounds_charged),
            held=job.charges(task, held),
            devices=devices,
        )

    @classmethod
    def of_query(cls, task: Task, spec: QueryLike) -> "BudgetUse":
        """Return an answered query's part of its dataset's budgets. Called by all parties."""
        charged = spec.charges(task, 1)
        return cls(
            use_id=spec.query_id,
            what="query",
            state="answered",
            rounds_answered=1,
            rounds_held=1,
            noise_multiplier=spec.noise_multiplier,
            sampling_rate=1.0,
            spent=charged,
            held=charged,
        )


@frozen
class BudgetedDataset:
    """What a budget is of: the public facts of a dataset, or of a task whose unit is a person.

    Attributes:
        dataset_id: Of the dataset, or of the task.
        task: The task.
        size: Reports of the dataset, or the most devices of a job.
        is_person: Whether the budget is a person's, over all rounds of the task, and not a dataset's.
    """

    dataset_id: bytes
    task: Task
    size: int
    is_person: bool = False


@frozen
class Standing:
    """One of a dataset's two budgets.

    Attributes:
        budget: What all releases together may cost.
        spent: What was answered costs.
        held: What was answered and what is reserved cost.
    """

    budget: float
    spent: float
    held: float

    @property
    def reserved(self) -> float:
        """The epsilon that open jobs may add to the spent part."""
        return self.held - self.spent

    @property
    def left(self) -> float:
        """The epsilon that a new job may add; never negative."""
        return max(0.0, self.budget - self.held)

    @property
    def is_kept(self) -> bool:
        """True if spent and reserved epsilons are within the budget."""
        return self.held <= self.budget


@frozen
class CostedUse:
    """A job or query, with what it costs if it were alone on its dataset."""

    use: BudgetUse
    spent: Epsilons
    held: Epsilons


@frozen
class PlannedJob:
    """A job that is planned and not yet submitted.

    Attributes:
        rounds: At least 1.
        batch_size: Expected reports in a round; None: the whole dataset.
        noise_multiplier: As the job would name it.
        is_allocated: Whether it samples by random allocation.
    """

    rounds: int
    batch_size: float | None
    noise_multiplier: float
    is_allocated: bool = False

    def charge(self, dataset: BudgetedDataset) -> Charge:
        """Return what all its rounds would be charged as.

        Raises:
            InvalidTask: a value is outside its range.
        """
        batch_size = dataset.size if self.batch_size is None else self.batch_size
        if not 0 < batch_size <= dataset.size:
            raise InvalidTask(
                f"batch_size is {batch_size:g}: expected more than 0 and at most {dataset.size}, "
                "the dataset's size"
            )
        try:
            samples = Samples.of(
                dataset.task,
                batch_size=batch_size,
                dataset_size=dataset.size,
                is_allocated=self.is_allocated,
            )
            return samples.charge(dataset.task, self.noise_multiplier, rounds=self.rounds)
        except ValueError as error:
            raise InvalidTask(f"the planned job: {error}") from None


@frozen
class Forecast:
    """What a planned job would do to a dataset's budgets.

    Attributes:
        job: Which.
        alone: What it would cost if nothing else were held.
        ad_server: The budget against the ad server alone, with it.
        colluding: The budget against the ad server with one helper, with it.
    """

    job: PlannedJob
    alone: Epsilons
    ad_server: Standing
    colluding: Standing

    @property
    def fits(self) -> bool:
        """True if both helpers would open it."""
        return self.ad_server.is_kept and self.colluding.is_kept


@frozen
class DatasetBudget:
    """Both budgets of a dataset.

    Attributes:
        dataset: Which.
        ad_server: The budget against the ad server alone; its delta is the task's.
        colluding: The budget against the ad server with one helper.
        uses: What takes of them, in the order given.
        forecast: Of the job that was asked about, if one was, in a task with noise.
        labels: What all that is held costs if one real label of a report is to be distinguished from another,
            if that was asked for. The budgets are of telling whether the report adds anything.
        next_epsilon: The most epsilon that a next query, or a job with Gaussian noise whose rounds take all
            reports, may ask for within both budgets, as the ad server plans; with Laplace noise a job of more
            than one round gets less. None at a helper, and without noise.
    """

    dataset: BudgetedDataset
    ad_server: Standing
    colluding: Standing
    uses: tuple[CostedUse, ...]
    forecast: Forecast | None
    labels: Epsilons | None = None
    next_epsilon: float | None = None

    @classmethod
    def of(
        cls,
        dataset: BudgetedDataset,
        uses: Sequence[BudgetUse],
        planned: PlannedJob | None = None,
        relation: Relation = Relation.ZERO,
    ) -> "DatasetBudget":
        """Return a dataset's budgets, with everything reserved or spent on it. Called by all parties.

        Args:
            dataset: Which.
            uses: What is recorded for it.
            planned: A job to forecast.
            relation: `LABEL` to find `DatasetBudget.labels` too.

        Guarantees: the held is what a helper compares with the budgets, if `uses` is what it has recorded;
            infinite without noise.

        Raises:
            InvalidTask: the planned job's numbers are out of range.
        """
        delta = dataset.task.delta
        # In turn, for a later job may have been chosen by what earlier ones released.
        before = spent_in_turn([use.spent for use in uses], delta)
        held = [use.held for use in uses]
        ad_server, colluding = _standings(dataset.task, before, spent_in_turn(held, delta))
        forecast = None
        if planned is not None and dataset.task.mechanism is not Mechanism.NONE:
            new = planned.charge(dataset)
            after = _standings(dataset.task, before, spent_in_turn([*held, (new,)], delta))
            forecast = Forecast(
                job=planned, alone=spent([new], delta), ad_server=after[0], colluding=after[1]
            )
        return cls(
            dataset=dataset,
            ad_server=ad_server,
            colluding=colluding,
            uses=tuple(
                CostedUse(use=use, spent=spent(use.spent, delta), held=spent(use.held, delta)) for use in uses
            ),
            forecast=forecast,
            labels=_cost_of_labels(held, delta) if relation is Relation.LABEL else None,
        )

    def __repr__(self) -> str:
        """Show what it is of and what is held, not keys and charges."""
        of, first, second = self.dataset, self.ad_server, self.colluding
        return (
            f"DatasetBudget({of.dataset_id.hex()[:12]} of {of.task.name!r}: {of.size} "
            f"{'devices' if of.is_person else 'reports'}, held {first.held:.4g} of {first.budget:.4g}, "
            f"against the ad server with one helper {second.held:.4g} of {second.budget:.4g}"
            f"{'' if self.next_epsilon is None else f', next epsilon up to {self.next_epsilon:.4g}'})"
        )

    @property
    def is_noisy(self) -> bool:
        """False for a debug task.

        It adds no noise, so nothing is private, every cost is infinite and no budget is kept.
        """
        return self.dataset.task.mechanism is not Mechanism.NONE


def _cost_of_labels(held: Sequence[Sequence[Charge]], delta: float) -> Epsilons:
    """Return what releases cost if one contribution of a report is to be distinguished from another."""
    return spent_in_turn([[charge.of_labels() for charge in job] for job in held], delta)


def _standings(task: Task, before: Epsilons, after: Epsilons) -> tuple[Standing, Standing]:
    """Return both budgets.

    A bound on a longer list of releases bounds the shorter one, too, and is now and then the smaller
    number.
    """
    return (
        Standing(budget=task.epsilon, spent=min(before.ad_server, after.ad_server), held=after.ad_server),
        Standing(
            budget=task.collusion_epsilon, spent=min(before.colluding, after.colluding), held=after.colluding
        ),
    )
