"""What a job needs, small and in memory.

Two honest helpers that hold a real dataset, a store, and a plan to run on them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from threading import Event, Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Engine

from adserver.peers.retrying import Backoff
from adserver.records.job_record import JobRecord
from adserver.records.optimizer_kinds import OptimizerKind
from adserver.records.training_plan import Optimizer, Schedule, TrainingPlan
from adserver.store.database import create_tables, default_url
from adserver.store.job_files import JobFiles, submit
from adserver.store.jobs import JobStore
from adserver.training.worker import JobWorker
from helper.gradient.exact.engine import ExactEngine
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused
from maskedlark.model import weights
from maskedlark.model.dense import dense_network
from maskedlark.model.graph import Model
from maskedlark.model.heads import TrainedLoss
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.numbers.field import add, from_signed, multiply, total
from maskedlark.privacy import adaptive_clip
from maskedlark.privacy.clip import Clip
from maskedlark.privacy.noise import noise_vector
from maskedlark.randomness import seeded
from maskedlark.releases import round as rounds
from maskedlark.releases.job import JobSpec
from maskedlark.releases.release import AggregateShare
from maskedlark.releases.round import MaskedSum
from maskedlark.releases.samples import Samples
from maskedlark.releases.started_job import StartedJob
from maskedlark.reports.dataset import OpenedDataset
from maskedlark.reports.input_shares import InputShares
from maskedlark.runtime.database import open_database
from tests.builders import NOW, World, examples, of_shares, reports, world
from tests.patience import HANGS_S

NUMERICS = bytes(32)
NUM_FEATURES = 4
RECORDS = 40
PATIENT = Backoff(first_s=0.01, longest_s=0.02, give_up_after_s=HANGS_S)
IMPATIENT = Backoff(first_s=0.01, longest_s=0.02, give_up_after_s=0.1)
"""For helpers that stay away."""
ENCODED_MODEL = dense_network([NUM_FEATURES, 1], "relu", seed=1)
MODEL = parse(ENCODED_MODEL, num_features=NUM_FEATURES)


class Killed(BaseException):
    """The process dies: nothing may catch this."""


@dataclass
class SetClock:
    """A clock that stands still until it is set."""

    now_s: float = float(NOW)

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Fuse:
    """Kills the process at the n-th point that it passes; 0 for never."""

    burns_at: int = 0
    passed: list[str] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def point(self, name: str) -> None:
        with self.lock:
            self.passed.append(name)
            if len(self.passed) == self.burns_at:
                raise Killed(name)


def clipped_gradients(
    tensors: tuple[weights.QuantisedTensor, ...],
    features: NDArray[np.uint8],
    labels: NDArray[Any],
    clip: Clip,
) -> NDArray[np.int64]:
    """Per (record, label): the logistic loss's gradient of a linear model, clipped in L2, in units, toward
    zero.

    Shapes: features (n, d), labels (n, L) -> (n, L, d + 1), and one more if the clip counts who is within.
    """
    weight, bias = (tensor.to_float() for tensor in tensors)
    inputs = np.hstack([features / 256.0, np.ones((len(features), 1))])
    logits = inputs @ np.append(weight[0], bias)
    deltas = 1 / (1 + np.exp(-logits))[:, None] - labels
    gradients = deltas[:, :, None] * inputs[:, None, :]
    norms = np.linalg.norm(gradients, axis=2, keepdims=True)
    clipped = gradients * np.minimum(1.0, clip.bound / np.maximum(norms, 1e-300))
    units: NDArray[np.int64] = np.trunc(np.ldexp(clipped * (1 - 2.0**-40), clip.frac_bits)).astype(np.int64)
    counts = np.where(norms <= clip.bound, clip.count_units, -clip.count_units)
    return np.concatenate([units, counts], 2) if clip.is_counted else units


def masked_sum(clip: Clip, tensors: tuple[weights.QuantisedTensor, ...], batch: InputShares) -> MaskedSum:
    values = clipped_gradients(tensors, batch.features, batch.labels, clip)
    products = multiply(from_signed(values), np.broadcast_to(batch.mask_shares[:, :, None], values.shape))
    return MaskedSum(
        vector=total(products.reshape(-1, values.shape[2])),
        values_digest=sha256(values.tobytes()).digest(),
        sensitivity=clip.released_sensitivity,
    )


def _exact_sum(
    model: Model,
    loss: TrainedLoss,
    clip: Clip,
    tensors: tuple[weights.QuantisedTensor, ...],
    batch: InputShares,
) -> MaskedSum:
    return ExactEngine(model, loss, clip).masked_sum(tensors, batch)


@dataclass
class MemoryHelper:
    """An honest helper: answers a round once and stores the answer.

    Its attributes are what a test changes.
    """

    role: int
    of: World
    dataset: OpenedDataset
    fuse: Fuse = field(default_factory=Fuse)
    failures: list[Exception] = field(default_factory=list)
    down_from_round: int | None = None
    hold: Event | None = None
    holding: Event = field(default_factory=Event)
    spoil: Callable[[AggregateShare], AggregateShare] = lambda share: share
    numerics: bytes = NUMERICS
    jobs: dict[bytes, JobSpec] = field(default_factory=dict)
    models: dict[bytes, bytes] = field(default_factory=dict)
    closed: set[bytes] = field(default_factory=set)
    answers: dict[tuple[bytes, int], tuple[bytes, bytes]] = field(default_factory=dict)
    computed: int = 0
    asked: list[int] = field(default_factory=list)

    def start_job(self, job: JobSpec, model: bytes) -> StartedJob:
        self._fail()
        if job.job_id in self.closed:
            raise JobRefused(JobReason.JOB_CLOSED, "closed")
        self.jobs[job.job_id], self.models[job.job_id] = job, model
        parsed = parse(model, num_features=NUM_FEATURES, trained=job.trained)
        return StartedJob(
            path="exact",
            reason="",
            numerics_digest=self.numerics,
            num_parameters=parsed.num_parameters,
            epsilon_spent=0.0,
            collusion_epsilon_spent=0.0,
            rounds_answered=sum(job_id == job.job_id for job_id, _ in self.answers),
        )

    def run_round(
        self,
        job: JobSpec,
        round_index: int,
        encoded: bytes,
        num_parameters: int,
        *,
        cancelled: Event | None = None,
    ) -> AggregateShare:
        self.fuse.point(f"helper {self.role} asked")
        self.asked.append(round_index)
        self._fail()
        if self.down_from_round is not None and round_index >= self.down_from_round:
            raise HelperUnavailable("down")
        if self.hold is not None:
            self.holding.set()
            while not self.hold.wait(0.01):
                if cancelled is not None and cancelled.is_set():
                    raise JobRefused(JobReason.CANCELLED, "the call was cancelled")
        job_id = job.job_id
        if (job_id, round_index) not in self.answers:
            self.answers[job_id, round_index] = (
                encoded,
                self._answer(self.jobs[job_id], round_index, encoded, num_parameters),
            )
        asked, answer = self.answers[job_id, round_index]
        if asked != encoded:
            raise JobRefused(JobReason.ROUND_CHANGED, "the same round with other weights")
        self.fuse.point(f"helper {self.role} stored")
        return self.spoil(AggregateShare.decode(answer, num_parameters))

    def close_job(self, job: JobSpec) -> int:
        self._fail()
        self.closed.add(job.job_id)
        return sum(answered == job.job_id for answered, _ in self.answers)

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)

    def _answer(self, job: JobSpec, round_index: int, encoded: bytes, num_parameters: int) -> bytes:
        self.computed += 1
        sent, clip = encoded, job.clip(self.of.task)
        if job.is_clip_adaptive:
            sent, bound = adaptive_clip.RoundInput.decode(encoded, clip)
            clip = job.clip(self.of.task, bound)
        function, model = masked_sum, MODEL
        if job.trained is not None:  # of any model: by the real engine
            model = parse(self.models[job.job_id], num_features=NUM_FEATURES, trained=job.trained)
            function = partial(_exact_sum, model, job.loss)
        tensors = weights.decode(sent, model.parameters)
        return rounds.aggregate(
            task=self.of.task,
            job=job,
            pair=self.of.pair(self.role),
            round_index=round_index,
            round_transcript=job.round_transcript(
                round_index=round_index, weights=encoded, numerics=NUMERICS
            ),
            records=len(self.dataset),
            masked_sum=of_shares(self.dataset.shares, partial(function, clip, tensors)),
            num_values=num_parameters,
            clip=clip,
            noise=partial(noise_vector, randomness=seeded(round_index, f"noise of helper {self.role}")),
        ).encode()


@dataclass(frozen=True, kw_only=True)
class Sealed:
    """A task with a dataset that both helpers hold: made once, used by many tests."""

    of: World
    datasets: tuple[OpenedDataset, OpenedDataset]

    @property
    def real_labels(self) -> NDArray[np.int64]:
        """(n,), in canonical order; only this test knows them."""
        first, second = (dataset.shares for dataset in self.datasets)
        is_real = add(first.mask_shares, second.mask_shares)
        labels: NDArray[np.int64] = (first.labels * is_real).sum(axis=1).astype(np.int64)
        return labels


def sealed(**changes: Any) -> Sealed:
    of = world(num_features=NUM_FEATURES, **changes)
    return Sealed(of=of, datasets=of.datasets(reports(of, examples(of.task, RECORDS))))


def plan_for(of: Sealed, **changes: Any) -> TrainingPlan:
    """A plan; `changes` are of the plan, or of the job under its own field names."""
    chosen = {"rounds": 5, "batch_size": 20.0, "noise_multiplier": 0.0, "job_id": bytes(range(16)), **changes}
    plan = {name: changes[name] for name in ("optimizer", "schedule", "eval_every") if name in changes}
    return TrainingPlan(
        task=of.of.task,
        job=JobSpec(
            job_id=chosen["job_id"],
            task_id=of.of.task.task_id,
            dataset_id=of.datasets[0].dataset_id,
            model_digest=MODEL.digest,
            loss=Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS,
            rounds=chosen["rounds"],
            sampling_numerator=Samples.numerator(
                expected_batch_size=chosen["batch_size"], dataset_size=RECORDS
            ),
            noise_multiplier=chosen["noise_multiplier"],
        ),
        dataset_size=RECORDS,
        num_parameters=MODEL.num_parameters,
        **{
            "optimizer": Optimizer(kind=OptimizerKind.MOMENTUM, learning_rate=0.5),
            "schedule": Schedule(),
            "eval_every": 2,
            **plan,
        },
    )


@dataclass
class Site:
    """One ad server's data folder and the two helpers that it asks."""

    data_dir: Path
    of: Sealed
    clock: SetClock = field(default_factory=SetClock)
    fuse: Fuse = field(default_factory=Fuse)
    url: str | None = None

    def __post_init__(self) -> None:
        self.engine: Engine = open_database(self.url or default_url(self.data_dir))
        create_tables(self.engine)
        self.store = JobStore(self.engine, self.clock)
        first, second = (
            MemoryHelper(role=role, of=self.of.of, dataset=self.of.datasets[role], fuse=self.fuse)
            for role in (0, 1)
        )
        self.helpers = (first, second)

    def submit(self, plan: TrainingPlan, eval_set: bytes | None = None) -> bytes:
        submit(self.engine, self.data_dir, plan, model=ENCODED_MODEL, eval_set=eval_set, clock=self.clock)
        return plan.job.job_id

    def worker(self, *, data_dir: Path | None = None, **changes: Any) -> JobWorker:
        """A fresh process's worker, with a data folder of its own if one is given."""
        settings = {"backoff": PATIENT, "lease_s": 15.0, "poll_s": 0.01, "monotonic": self.clock, **changes}
        return JobWorker(self.engine, self.helpers, data_dir or self.data_dir, self.clock, **settings)

    def run(self, plan: TrainingPlan, eval_set: bytes | None = None, **changes: Any) -> JobRecord:
        """Submit a job and run it until it stops."""
        job_id = self.submit(plan, eval_set)
        self.worker(**changes).run_one()
        return self.store.get(job_id)

    def folder(self, job_id: bytes) -> JobFiles:
        return JobFiles(self.engine, self.data_dir, job_id)


def eval_set_npz(of: Sealed) -> bytes:
    """The dataset itself in the clear, as if its people had agreed."""
    stored = BytesIO()
    np.savez(stored, features=of.datasets[0].shares.features, labels=of.real_labels)
    return stored.getvalue()
