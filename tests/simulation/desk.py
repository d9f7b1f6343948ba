"""The desk: people type the ad server's commands there, and type them again when they fail."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from adserver.collecting.sealing import DatasetSealer
from adserver.measuring.measurer import Measurer
from adserver.measuring.request import Request
from adserver.measuring.result import AggregateResult
from adserver.records.asked_query import PlannedQuery
from adserver.records.dataset_state import DatasetState
from adserver.records.job_record import JobRecord
from adserver.records.job_state import FINAL, JobState
from adserver.records.optimizer_kinds import OptimizerKind
from adserver.records.training_plan import Optimizer, Schedule, TrainingPlan
from adserver.store.datasets import Dataset, DatasetStore
from adserver.store.job_files import submit
from adserver.store.jobs import JobStore
from adserver.store.queries import QueryStore
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused, MaskedLarkError
from maskedlark.model.onnx_file import parse
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.randomness import seeded
from maskedlark.releases.query import QuerySpec
from maskedlark.releases.samples import Samples
from maskedlark.reports.helper_pair_key import SAMPLING_DENOMINATOR
from maskedlark.reports.task import Task
from tests.builders import job_spec
from tests.helper.parties import MODEL as ENCODED_MODEL
from tests.simulation.fleet import Fleet, Running
from tests.simulation.journal import Journal
from tests.simulation.parties import PLACES

MODEL: Final = parse(ENCODED_MODEL, num_features=4)
_COMMANDS: Final = 6
_COMMAND_AGAIN_S: Final = 3.0
_JOB_NOISE: Final = 3.0
"""Of which the noisy task's budget holds four or five rounds."""
_QUERY_EPSILONS: Final = (0.4, 0.8)
_SHAPES: Final = (
    {"values": ("count",)},
    {"values": ("count", "amount"), "group_by": ("place",)},
    {"values": ("amount",), "group_by": ("place",), "is_rolled_up": True},
    {"values": ("count",), "where": {"place": PLACES[0]}},
)


@dataclass(kw_only=True)
class Desk:
    """What people ask for.

    Attributes:
        fleet: Where it is asked.
        journal: What comes of it is written down.
        results: What was read of each query, as often as it was asked.
        given_up: Jobs that were cancelled.
        over_budget: Those of them that were refused for their budget.
    """

    fleet: Fleet
    journal: Journal
    results: dict[bytes, list[AggregateResult]] = field(default_factory=dict)
    given_up: set[bytes] = field(default_factory=set)
    over_budget: set[bytes] = field(default_factory=set)

    def type(self, command: Callable[[Running], str]) -> None:
        """Type a command, if the desk is up."""
        running = self.fleet.desk()
        if not running.process.is_alive:
            return

        def body() -> None:
            try:
                said = command(running)
            except MaskedLarkError as error:
                said = f"{type(error).__name__} {getattr(error, 'reason', '')}"
            self.journal.note(said)

        self.fleet.kernel.spawn(running.process, body, "command")

    def seal(self, task: Task, running: Running, *, most: int = 70) -> str:
        """Seal a dataset; the command is typed again while a helper is away."""
        handles = seeded(self.fleet.faults.seed, f"handles of {task.name} from {self.fleet.kernel.now_s}")
        sealer = DatasetSealer(
            engine=running.engine,
            helpers=self.fleet.clients(running.engine),
            task=task,
            clock=running.process.clock,
            randomness=handles,
        )
        for _ in range(_COMMANDS):
            try:
                return f"sealed {sealer.seal(max_reports=most).size}"
            except HelperUnavailable:
                self.fleet.kernel.sleep(_COMMAND_AGAIN_S)
        return "gave up sealing"

    def seal_due(self, task: Task, number: int, running: Running) -> str:
        """Seal a dataset of a task, unless there are more than `number` of them.

        For who does not know whether the last command died.
        """
        return "sealed already" if len(self._committed(task, running)) > number else self.seal(task, running)

    def finish_commits(self, task: Task, running: Running) -> str:
        """Finish the commits that were begun; one that cannot be finished any more is given up."""
        store = DatasetStore(running.engine)
        while (dataset := store.committing(task.task_id)) is not None:
            try:
                self.seal(task, running)
            except JobRefused as refusal:
                if refusal.reason is not JobReason.DATASET_CHANGED:
                    raise
                store.abandon(dataset)
        return "commits finished"

    def abandon(self, task: Task, running: Running) -> str:
        """Give up the dataset that is being committed."""
        store = DatasetStore(running.engine)
        dataset = store.committing(task.task_id)
        if dataset is None:
            return "nothing to abandon"
        store.abandon(dataset)
        return "abandoned"

    def submit(self, task: Task, number: int, running: Running) -> str:
        """Submit a job over the newest dataset."""
        dataset = self._newest(task, running)
        if dataset is None:
            return "nothing to train on"
        plan = self._plan(task, number, dataset)
        submit(
            running.engine,
            self.fleet.data_dir,
            plan,
            model=ENCODED_MODEL,
            eval_set=None,
            clock=running.process.clock,
        )
        return f"submitted {number}"

    def cancel(self, running: Running) -> str:
        """Cancel the newest job that is not over."""
        store = JobStore(running.engine, running.process.clock)
        left = [job for job in store.all() if job.state not in FINAL]
        if not left:
            return "nothing to cancel"
        self._give_up(store, left[-1])
        return "cancelled"

    def resume(self, running: Running) -> str:
        """Let every job that was refused try again."""
        store = JobStore(running.engine, running.process.clock)
        refused = [job for job in store.all() if job.state in (JobState.REFUSED, JobState.FAILED)]
        for job in refused:
            store.resume(job.job_id)
        return f"resumed {len(refused)}"

    def give_up_refused(self, running: Running) -> str:
        """Cancel every job that was refused for its budget."""
        store = JobStore(running.engine, running.process.clock)
        refused = [job for job in store.all() if _is_over_budget(job)]
        for job in refused:
            self._give_up(store, job)
        return f"gave up {len(refused)}"

    def ask(self, task: Task, number: int, running: Running) -> str:
        """Ask a query over the newest dataset."""
        dataset = self._newest(task, running)
        if dataset is None:
            return "nothing to ask about"
        stream = Random(f"{self.fleet.faults.seed} query {task.name} {number}")
        epsilon = None if task.mechanism is Mechanism.NONE else stream.choice(_QUERY_EPSILONS)
        request = Request(**stream.choice(_SHAPES), epsilon=epsilon)
        return self._read(
            self._measurer(task, dataset, running, f"query {task.name} {number}").measure(request)
        )

    def ask_again(self, running: Running) -> str:
        """Ask every query again that was ever stored: what was charged is given again, for nothing."""
        answered, store = 0, QueryStore(running.engine)
        for dataset in DatasetStore(running.engine).all():
            task = next(
                bundle.task for bundle in self.fleet.bundles.all if bundle.task.task_id == dataset.task_id
            )
            for spec in store.of_dataset(dataset.dataset_id or b""):
                answered += isinstance(spec, QuerySpec) and self._is_answered(
                    store.find(spec.query_id.hex(), QuerySpec),
                    self._measurer(task, dataset, running, "unused"),
                )
        return f"asked {answered} again"

    def _give_up(self, store: JobStore, job: JobRecord) -> None:
        self.given_up.add(job.job_id)  # before it is stored: this process may die at it
        if _is_over_budget(job):
            self.over_budget.add(job.job_id)
        store.cancel(job.job_id)

    def _is_answered(self, planned: PlannedQuery[QuerySpec], measurer: Measurer) -> bool:
        try:
            self._read(measurer.again(planned))
        except MaskedLarkError as error:
            self.journal.note(
                f"query {planned.spec.query_id.hex()[:6]}: {type(error).__name__}"
                f" {getattr(error, 'reason', '')}"
            )
            return False
        return True

    def _read(self, result: AggregateResult) -> str:
        query_id = bytes.fromhex(result.query_id)
        self.results.setdefault(query_id, []).append(result)
        return f"read query {query_id.hex()[:6]}: {[row.estimates[0].value for row in result.rows]}"

    def _measurer(self, task: Task, dataset: Dataset, running: Running, name: str) -> Measurer:
        return Measurer(
            helpers=self.fleet.clients(running.engine),
            task=task,
            dataset=dataset,
            store=QueryStore(running.engine),
            clock=running.process.clock,
            randomness=seeded(self.fleet.faults.seed, name),
        )

    def _newest(self, task: Task, running: Running) -> Dataset | None:
        return next(reversed(self._committed(task, running)), None)

    def _committed(self, task: Task, running: Running) -> list[Dataset]:
        """The datasets of a task, the oldest first."""
        stored = DatasetStore(running.engine).all()
        return [one for one in stored if one.state is DatasetState.COMMITTED and one.task_id == task.task_id]

    def _plan(self, task: Task, number: int, dataset: Dataset) -> TrainingPlan:
        stream = Random(f"{self.fleet.faults.seed} job {task.name} {number}")
        is_noisy = task.mechanism is not Mechanism.NONE
        rounds = stream.randint(1, 3) if is_noisy else stream.randint(2, 8)
        batch_size = dataset.size * (
            1.0 if is_noisy else stream.uniform(0.3, 1)
        )  # without sampling the cost has a closed form: it is quick
        steps = stream.choice((None, 2) if is_noisy else (None, 2, 3))
        numerator = Samples.numerator(expected_batch_size=batch_size, dataset_size=dataset.size)
        is_correlated = is_noisy and steps is not None and number % 2 == 1
        job = job_spec(
            job_id=seeded(self.fleet.faults.seed, f"job {task.name} {number}")(16),
            task_id=task.task_id,
            dataset_id=dataset.dataset_id or b"",
            model_digest=MODEL.digest,
            rounds=rounds,
            sampling_numerator=numerator if steps is None else SAMPLING_DENOMINATOR // steps,
            epoch_steps=steps,
            is_sample_public=is_noisy and steps is not None,
            carried=48 if is_correlated else None,
            noise_multiplier=_JOB_NOISE if is_noisy else 0.0,
        )
        return TrainingPlan(
            task=task,
            job=job,
            dataset_size=dataset.size,
            optimizer=Optimizer(kind=stream.choice(list(OptimizerKind)), learning_rate=0.3),
            schedule=Schedule(),
            eval_every=rounds,
        )


def _is_over_budget(job: JobRecord) -> bool:
    return (
        job.state is JobState.REFUSED
        and job.stop is not None
        and job.stop.reason == JobReason.BUDGET_EXHAUSTED
    )
