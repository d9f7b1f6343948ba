"""The ad server from a notebook or a program: what its commands do, in a few lines of Python.

from adserver import Client

with Client(data="play/adserver", helpers=("127.0.0.1:7100", "127.0.0.1:7101"), insecure=True) as client:
    job = client.train(module, loss="cross_entropy", learning_rate=0.3, rounds=60, epsilon=3)
    job.export("trained.onnx", takes="columns")
    result = client.aggregate("count", "purchase", group_by=["month"], epsilon=0.5)
    result.estimate("purchase", "5").value
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from adserver.budgets.headroom import Room
from adserver.budgets.held import Budgets
from adserver.budgets.planner import Planner, Wish
from adserver.client.job import Job
from adserver.client.tasks import read_encoder_of, task_fields
from adserver.collecting.sealing import DatasetSealer
from adserver.collecting.task_creation import create_task
from adserver.measuring.domains import distinct_codes
from adserver.measuring.evaluation_result import EvaluationResult
from adserver.measuring.evaluator import DEFAULT_BINS, Evaluator, plan_evaluation
from adserver.measuring.measurer import Measurer
from adserver.measuring.request import Request
from adserver.measuring.result import AggregateResult
from adserver.peers.client import ROUND_DEADLINE_S
from adserver.peers.opening import Peers
from adserver.peers.retrying import BRIEF, Backoff, with_retries
from adserver.records.asked_query import QUERY_ID_BYTES
from adserver.records.training_plan import Optimizer, Schedule
from adserver.store.database import create_tables, default_url
from adserver.store.datasets import Dataset, DatasetStore
from adserver.store.jobs import JobStore
from adserver.store.queries import QueryStore
from adserver.store.tasks import StoredTask, TaskStore
from adserver.training.as_onnx import as_onnx
from adserver.training.submission import Submission
from adserver.training.submitting import submit_job
from adserver.views.plan import plan_json
from adserver.views.printing import sealing_bars
from maskedlark.canonical import build
from maskedlark.encoding.encoder import Encoder
from maskedlark.errors import InvalidTask
from maskedlark.model.onnx_file import parse
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.query import QuerySpec, key_index, measurement_of
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.runtime.database import open_database

_VARIABLES: Final = ("ADSERVER_DATA", "ADSERVER_HELPER_0", "ADSERVER_HELPER_1")


class Client:
    """An ad server's tasks, datasets, jobs and measurements. Use it in a `with`, or close it."""

    def __init__(
        self,
        *,
        data: str | Path,
        helpers: tuple[str, str],
        insecure: bool = False,
        tls: TlsFiles | None = None,
        database: str | None = None,
        deadline_s: float = 60.0,
        round_deadline_s: float = ROUND_DEADLINE_S,
        backoff: Backoff = BRIEF,
    ) -> None:
        """Reach the ad server's store and both helpers.

        Args:
            data: The ad server's data folder, as of `adserver serve --data`.
            helpers: host:port of both helpers, by role.
            insecure: Speak plaintext, to loopback addresses only; otherwise `tls` is needed.
            tls: This server's TLS files.
            database: SQLAlchemy URL of another database than SQLite in `data`.
            deadline_s: What a helper has for an answer that takes it no time.
            round_deadline_s: What it has for a query or an evaluation.
            backoff: How long a helper that does not answer is asked again.

        Raises:
            ValueError: neither insecure nor TLS files, or both.
        """
        if insecure == (tls is not None):
            raise ValueError("give either insecure=True, for loopback, or tls")
        self._data = Path(data)
        self._engine = open_database(database or default_url(self._data))
        create_tables(self._engine)
        self._stack = ExitStack()
        peers = Peers(addresses=helpers, tls=tls, deadline_s=deadline_s, round_deadline_s=round_deadline_s)
        self._helpers = peers.open(self._stack, self._engine)
        self._backoff = backoff

    @classmethod
    def of(cls, peers: Peers, *, data: Path, database: str | None) -> Self:
        """The same from what a command's options say."""
        return cls(
            data=data,
            helpers=peers.addresses,
            insecure=peers.tls is None,
            tls=peers.tls,
            database=database,
            deadline_s=peers.deadline_s,
            round_deadline_s=peers.round_deadline_s,
            backoff=peers.backoff,
        )

    @classmethod
    def from_environment(cls) -> Self:
        """The ad server that `ADSERVER_DATA`, `ADSERVER_HELPER_0` and the like name, as its commands find it.

        Raises:
            InvalidTask: a variable is missing; without `ADSERVER_INSECURE`, the TLS files lie in the data
                folder.
        """
        missing = [name for name in _VARIABLES if not os.environ.get(name)]
        if missing:
            raise InvalidTask(f"{missing[0]} is not set: source the project's env.sh, or set it")
        data, first, second = (os.environ[name] for name in _VARIABLES)
        insecure = os.environ.get("ADSERVER_INSECURE", "") not in ("", "0", "false")
        folder = Path(data)
        tls = TlsFiles(
            certificate=folder / "tls.crt",
            private_key=folder / "tls.key",
            trusted_authorities=folder / "trusted.crt",
        )
        return cls(
            data=folder,
            helpers=(first, second),
            insecure=insecure,
            tls=None if insecure else tls,
            database=os.environ.get("ADSERVER_DATABASE"),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the helpers and the database."""
        self._stack.close()
        self._engine.dispose()

    def tasks(self) -> list[StoredTask]:
        """All tasks, the oldest first."""
        return TaskStore(self._engine).all()

    def datasets(self) -> list[Dataset]:
        """All datasets, the oldest first."""
        return DatasetStore(self._engine).all()

    def create_task(
        self,
        *,
        name: str,
        origin: str,
        min_batch_size: int,
        clip_norm: float,
        epsilon: float,
        encoder: Encoder | str | Path | None = None,
        num_features: int | None = None,
        classes: int | None = None,
        default_label: int | None = None,
        measurement: Mapping[str, Any] | None = None,
        days: float = 30.0,
        **more: Any,
    ) -> StoredTask:
        """Make a task: both helpers check it against their floors and sign it.

        Args:
            name: What the task is called.
            origin: The ad-tech origin that may use the reports.
            min_batch_size: Fewer reports give only noise.
            clip_norm: The most that one report adds to a sum.
            epsilon: Each dataset's budget against this ad server.
            encoder: How browsers make features, or its file; they are served it.
            num_features: By default as many as the encoder makes.
            classes: By default as many as the encoder has.
            default_label: What an impression reports that expires without a conversion.
            measurement: The values and keys that reports hold, as in the file of `adserver task create`.
            days: How long the task lasts.
            more: Other fields of `maskedlark.reports.task.Task` by their names.

        Raises:
            InvalidTask: a setting is wrong, or a helper refuses it.
            HelperUnavailable: a helper does not answer.
        """
        fitted = read_encoder_of(encoder)
        fields = task_fields(
            name=name,
            origin=origin,
            min_batch_size=min_batch_size,
            clip_norm=clip_norm,
            epsilon=epsilon,
            encoder=fitted,
            features=num_features,
            classes=classes,
            default_label=default_label,
            measurement=measurement,
            days=days,
            more=more,
        )
        bundle = with_retries(lambda: create_task(self._helpers, fields), self._backoff)
        task_id = TaskStore(self._engine).add(bundle, created_at=time.time(), encoder=fitted)
        return TaskStore(self._engine).find(task_id.hex())

    def seal(
        self,
        task: str = "",
        *,
        max_reports: int | None = None,
        allow_small: bool = False,
        progress: bool = True,
    ) -> Dataset:
        """Make the waiting reports of a task a dataset at both helpers.

        Args:
            task: The start of its id; not needed if there is only one.
            max_reports: Take at most so many, the oldest first.
            allow_small: Also seal fewer than the task's min_batch_size, of which every round will be noise.
            progress: Show how far the helpers are.

        Raises:
            JobRefused, InvalidTask: too few reports wait, or a helper refuses.
            HelperUnavailable: a helper does not answer; call it again.
        """
        with sealing_bars(is_shown=progress) as show:
            sealer = DatasetSealer(
                engine=self._engine,
                helpers=self._helpers,
                task=TaskStore(self._engine).find(task).bundle.task,
                clock=time.time,
                randomness=os.urandom,
                progress=show,
                backoff=self._backoff,
            )
            return sealer.seal(max_reports=max_reports, is_small_allowed=allow_small)

    def plan(
        self,
        model: Any,
        *,
        rounds: int | None = None,
        batch_size: float | None = None,
        noise_multiplier: float | None = None,
        epsilon: float | None = None,
        dataset: str = "",
    ) -> dict[str, Any]:
        """What fits a dataset's budgets, and how much noise there will be: `adserver job plan --json`.

        It spends nothing. Give two of rounds, batch_size and noise_multiplier, and the third is found; give
        rounds alone, and both others are.

        Raises:
            InvalidModel, JobRefused
        """
        found = DatasetStore(self._engine).find(dataset)
        task = self._task(found).bundle.task
        room = Room(
            task=task,
            dataset_size=found.size,
            already=Budgets(engine=self._engine, clock=time.time).held(found),
            epsilon=epsilon,
            is_allocated=True,
            is_sample_public=False,
        )
        parsed = parse(as_onnx(model, task.num_features), num_features=task.num_features)
        planner = Planner(room=room, num_parameters=parsed.num_parameters, gradient_norm=None)
        wish = Wish(rounds=rounds, batch_size=batch_size, noise_multiplier=noise_multiplier)
        return plan_json(planner.plan(wish), room)

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
        dataset: str = "",
        wait: bool = True,
        progress: bool = True,
    ) -> Job:
        """Train a model on a dataset's reports. `adserver serve` runs the job, also when this process ends.

        Args:
            model: An ONNX file or its bytes, a torch module, or a fitted linear model or MLP of scikit-learn;
                training begins at its weights.
            loss: A name of `maskedlark.model.graph.Loss`.
            learning_rate: Of the optimizer.
            rounds: Optimizer steps.
            epsilon: What it may cost against this ad server; decides the noise.
            noise_multiplier: Instead of epsilon: each helper's noise over the clip norm.
            batch_size: Expected reports in a round; by default the whole dataset.
            optimizer: sgd, momentum, adam or adagrad.
            momentum: Of momentum.
            schedule: How the learning rate changes.
            eval_set: An .npz of features and labels of your own, for the curves.
            dataset: The start of its id; not needed if there is only one.
            wait: Watch the job until it stops.
            progress: Show a bar while waiting.

        Raises:
            InvalidModel, InvalidTask, JobRefused: what is wrong, before anything is spent.
        """
        found = DatasetStore(self._engine).find(dataset)
        submission = Submission(
            model=as_onnx(model, self._task(found).bundle.task.num_features),
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
        )
        job = self._job(submit_job(self._engine, self._data, submission, found))
        return job.watch(progress=progress) if wait else job

    def job(self, job: str = "") -> Job:
        """A job by the start of its id; not needed if there is only one.

        Raises:
            JobRefused(UNKNOWN_JOB)
        """
        return self._job(JobStore(self._engine, time.time).find(job).job_id)

    def jobs(self) -> list[Job]:
        """All jobs, the oldest first."""
        return [self._job(one.job_id) for one in JobStore(self._engine, time.time).all()]

    def _job(self, job_id: bytes) -> Job:
        return Job(job_id=job_id, _engine=self._engine, _data=self._data)

    def aggregate(
        self,
        *values: str,
        histograms: Sequence[str] = (),
        group_by: Sequence[str] = (),
        where: Mapping[str, str | int] | None = None,
        domains: Mapping[str, Sequence[str | int]] | None = None,
        discover: bool = False,
        roll_up: bool = False,
        epsilon: float | None = None,
        dataset: str = "",
    ) -> AggregateResult:
        """Sum values over groups of a dataset's reports. It is charged to the dataset's budget.

        Args:
            values: Names of declared values, or "count".
            histograms: Names of declared values with buckets.
            group_by: Names of declared keys, the coarsest first.
            where: For keys, the category or code that summed reports have.
            domains: For keys, the categories or codes that get cells of their own; the default is all of a
                key with a size.
            discover: Find the codes of other keys by a private release first.
            roll_up: Release the coarser levels too, up to the total, so that parts add to the whole.
            epsilon: What it may cost against the ad server; by default a tenth of the task's budget.
            dataset: The start of its id; not needed if there is only one.

        Raises:
            MaskedLarkError: what is wrong with the request, or why it is refused; `HelperUnavailable` may be
                tried again.
        """
        found = DatasetStore(self._engine).find(dataset)
        task = self._task(found)
        keys = measurement_of(task.bundle.task)
        request = Request(
            values=values,
            histograms=tuple(histograms),
            group_by=tuple(group_by),
            where={name: str(said) for name, said in (where or {}).items()},
            domains={
                name: distinct_codes([keys.keys[key_index(keys, name)].code(str(one)) for one in listed])
                for name, listed in (domains or {}).items()
            },
            is_discovered=discover,
            is_rolled_up=roll_up,
            epsilon=epsilon,
        )
        return self.measurer(found).measure(request)

    def again(self, query: str) -> AggregateResult:
        """The answer to a query that was asked before, by the start of its id; it costs nothing.

        Raises:
            JobRefused(UNKNOWN_QUERY), HelperUnavailable
        """
        planned = QueryStore(self._engine).find(query, QuerySpec)
        return self.measurer(DatasetStore(self._engine).find(planned.spec.dataset_id.hex())).again(planned)

    def evaluate(
        self,
        model: Any,
        *,
        bins: int = DEFAULT_BINS,
        epsilon: float | None = None,
        dataset: str = "",
    ) -> EvaluationResult:
        """How good a classifier is on a dataset's reports: loss, accuracy, ROC and PR curves, calibration.

        It is charged to the dataset.

        Args:
            model: An ONNX file or its bytes, a torch module, or a fitted model of scikit-learn.
            bins: How many score bins; more of them bear more noise.
            epsilon: What it may cost against the ad server; by default a tenth of the task's budget.
            dataset: The start of its id; not needed if there is only one.

        Raises:
            MaskedLarkError: as `aggregate`.
        """
        found = DatasetStore(self._engine).find(dataset)
        task = self._task(found).bundle.task
        planned = plan_evaluation(
            as_onnx(model, task.num_features),
            task=task,
            dataset=found,
            query_id=os.urandom(QUERY_ID_BYTES),
            epsilon=epsilon,
            num_bins=bins,
        )
        return self.evaluator(found).evaluate(planned)

    def evaluate_again(self, query: str) -> EvaluationResult:
        """The answer to an evaluation that was asked before, by the start of its id; it costs nothing.

        Raises:
            JobRefused(UNKNOWN_QUERY), HelperUnavailable
        """
        planned = QueryStore(self._engine).find(query, EvaluationSpec)
        return self.evaluator(DatasetStore(self._engine).find(planned.spec.dataset_id.hex())).again(planned)

    def evaluator(self, dataset: Dataset) -> Evaluator:
        """What asks evaluations over one dataset."""
        return Evaluator(
            helpers=self._helpers,
            task=self._task(dataset).bundle.task,
            dataset=dataset,
            store=QueryStore(self._engine),
            clock=time.time,
            backoff=self._backoff,
        )

    def measurer(self, dataset: Dataset) -> Measurer:
        """What asks queries over one dataset."""
        return Measurer(
            helpers=self._helpers,
            task=self._task(dataset).bundle.task,
            dataset=dataset,
            store=QueryStore(self._engine),
            clock=time.time,
            randomness=os.urandom,
            backoff=self._backoff,
        )

    def _task(self, dataset: Dataset) -> StoredTask:
        return TaskStore(self._engine).find(dataset.task_id.hex())
