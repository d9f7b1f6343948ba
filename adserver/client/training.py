"""Training from Python: plan, submit and follow jobs."""

from pathlib import Path
from typing import Any

from adserver.client.connection import Connection
from adserver.client.job import Job, LocalAdServer
from adserver.client.remote import RemoteAdServer
from adserver.messages.plan import PlanMessage
from adserver.records.submissions import PlanConstraints, PlanRequest, Submission
from adserver.records.training_plan import Optimizer, Schedule
from adserver.store.datasets import Dataset, DatasetStore
from adserver.training.as_onnx import as_onnx
from adserver.training.planning import plan_job
from adserver.training.submitting import submit_job
from maskedlark.canonical import build
from maskedlark.errors import InvalidTask
from maskedlark.releases.sampling import StepNoise
from maskedlark.reports.task import Task


class Training(Connection):
    """What a client does with jobs."""

    def plan(
        self,
        model: Any,
        *,
        rounds: int | None = None,
        batch_size: float | None = None,
        noise_multiplier: float | None = None,
        epsilon: float | None = None,
        noise: str = StepNoise.INDEPENDENT.value,
        momentum: float = 0.9,
        dataset: str = "",
    ) -> dict[str, Any]:
        """Return what fits a dataset's budgets, and how much noise: `adserver job plan --json`.

        It spends nothing. Give two of rounds, batch_size and noise_multiplier, and the third is found; give
        rounds alone, and both others are. `noise` is independent or correlated, which is fitted to the
        `momentum` of your optimizer; both are compared.

        Raises:
            InvalidModel, JobRefused
        """
        found, task = self._over(dataset)
        request = PlanRequest(
            model=as_onnx(model, task.num_features),
            wish=PlanConstraints(rounds=rounds, batch_size=batch_size, noise_multiplier=noise_multiplier),
            epsilon=epsilon,
            noise=_step_noise(noise),
            momentum=momentum,
        )
        if self._far is not None:
            found_plan = self._far.plan(request, (found.dataset_id or b"").hex())
            return PlanMessage.of(found_plan).model_dump(mode="json")
        return PlanMessage.of(plan_job(self._engine, request, found)).model_dump(mode="json")

    def train(
        self,
        model: Any,
        *,
        loss: str,
        learning_rate: float,
        rounds: int,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        batch_size: float | None = None,
        optimizer: str = "sgd",
        momentum: float = 0.9,
        schedule: Schedule | None = None,
        eval_set: str | Path | None = None,
        noise: str = StepNoise.INDEPENDENT.value,
        carried: int | None = None,
        dataset: str = "",
        wait: bool = True,
        progress: bool = True,
    ) -> Job:
        """Train a model on a dataset's reports. `adserver serve` runs the job, also when this process ends.

        Args:
            model: An ONNX file or its bytes, a torch module, or a fitted linear model or MLP of scikit-learn;
                training begins at its weights.
            loss: A name of `maskedlark.model.losses.Loss`.
            learning_rate: Of the optimizer.
            rounds: Optimizer steps.
            epsilon: What it may cost against this ad server; decides the noise.
            noise_multiplier: Instead of epsilon: each helper's noise over the clip norm.
            batch_size: Expected reports in a round; by default the whole dataset.
            optimizer: sgd, momentum, adam or adagrad.
            momentum: Of momentum.
            schedule: How the learning rate changes.
            eval_set: An .npz of features and labels of your own, for the curves.
            noise: independent, or correlated: each round takes a part of the last one's noise out again.
            carried: Of correlated noise, how many 64ths; by default what fits the optimizer best.
            dataset: The start of its id; not needed if there is only one.
            wait: Watch the job until it stops.
            progress: Show a bar while waiting.

        Raises:
            InvalidModel, InvalidTask, JobRefused: what is wrong, before anything is spent.
        """
        found, task = self._over(dataset)
        submission = Submission(
            model=as_onnx(model, task.num_features),
            loss=loss,
            rounds=rounds,
            batch_size=batch_size,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            optimizer=build(
                Optimizer,
                {"kind": optimizer, "learning_rate": learning_rate, "momentum": momentum},
            ),
            schedule=schedule or Schedule(),
            eval_set=None if eval_set is None else Path(eval_set).read_bytes(),
            eval_every=None,
            is_allocated=True,
            noise=_step_noise(noise),
            carried=carried,
        )
        if self._far is None:
            job = self._job(submit_job(self._engine, self._data, submission, found))
        else:
            job = self._job(self._far.submit(submission, dataset=(found.dataset_id or b"").hex()))
        return job.watch(progress=progress) if wait else job

    def job(self, job: str = "") -> Job:
        """Return a job by the start of its id, which is not needed if there is only one.

        Raises:
            JobRefused(UNKNOWN_JOB)
        """
        return self._job(self._at.jobs.find(job).job_id)

    def jobs(self) -> list[Job]:
        """Return all jobs, oldest first."""
        return [self._job(one.job_id) for one in self._at.jobs.all()]

    def _job(self, job_id: bytes) -> Job:
        return Job(job_id=job_id, at=self._at)

    @property
    def _at(self) -> LocalAdServer | RemoteAdServer:
        return LocalAdServer(engine=self._engine, data=self._data) if self._far is None else self._far

    def _over(self, dataset: str) -> tuple[Dataset, Task]:
        """Return a dataset by the start of its id, and its task."""
        if self._far is None:
            found = DatasetStore(self._engine).find(dataset)
            return found, self._task(found).bundle.task
        found = self._far.dataset(dataset)
        return found, self._far.task(found.task_id.hex()).bundle.task


def _step_noise(name: str) -> StepNoise:
    """Return the kind of noise of a name.

    Raises:
        InvalidTask
    """
    try:
        return StepNoise(name)
    except ValueError:
        raise InvalidTask(f"noise must be independent or correlated, not {name!r}") from None
