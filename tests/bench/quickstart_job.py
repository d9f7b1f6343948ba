"""A job as quickstart chooses it, in one process: the exact engine, 120 rounds, both helpers' noise."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adserver.quickstart.defaults import ROUNDS, Network, choose_learning_rate
from adserver.quickstart.settings import TaskSettings
from adserver.records.defaults import CLIP_QUANTILE
from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.training_plan import Optimizer, Schedule
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse, replace_parameters
from maskedlark.privacy.accounting import Epsilons, spent
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.job import charge
from tests.bench.in_process import train_in_process
from tests.builders import fitting_noise, job_spec, world
from tests.training_plans import training_plan

DELTA: Final = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The trained model's file, the rate of gradients over the clip bound, and what the job cost."""

    onnx: bytes
    learning_rate: float
    cost: Epsilons


def train_as_quickstart(
    onnx: bytes,
    features: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    network: Network,
    epsilon: float,
    seed: int,
    learning_rate: float | None = None,
    collusion_epsilon: float | None = None,
) -> Trained:
    """Train a file on all records in each round.

    Args:
        onnx: One output, the logit of label 1.
        features: (records, bytes).
        labels: (records,), 0 or 1.
        network: What the file is to the rule of rates, and its clip bound.
        epsilon: Against the ad server, and what the network and rate are chosen by; infinite: no noise.
        seed: Names the job.
        learning_rate: Of gradients over the clip bound; None: the rule's.
        collusion_epsilon: Against the ad server with one helper; None: quickstart's.
    """
    rows, width = features.shape
    model, settings = parse(onnx, num_features=width), TaskSettings()
    is_noisy, colluding = math.isfinite(epsilon), collusion_epsilon or settings.collusion_epsilon
    of = world(
        num_features=width,
        min_batch_size=settings.min_batch_size,
        mechanism=Mechanism.GAUSSIAN if is_noisy else Mechanism.NONE,
        clip_norm=settings.clip_norm,
        epsilon=epsilon if is_noisy else colluding,
        collusion_epsilon=colluding,
        delta=DELTA,
    )
    job = job_spec(
        of.task.task_id,
        job_id=seed.to_bytes(16, "big"),
        model_digest=model.digest,
        loss=Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS,
        rounds=ROUNDS,
        noise_multiplier=fitting_noise(
            epsilon,
            DELTA,
            mechanism=of.task.mechanism,
            sampling_rate=1.0,
            rounds=ROUNDS,
            already=(),
            collusion_epsilon=colluding,
        ),
        is_clip_adaptive=network.clip_norm is None,
        clip_norm=network.clip_norm,
    )
    rate = learning_rate or choose_learning_rate(
        rows=rows, epsilon=epsilon, parameters=model.num_parameters, network=network
    )
    plan = training_plan(
        of.task,
        job,
        records=rows,
        optimizer=Optimizer(kind=OptimizerKind.MOMENTUM, learning_rate=rate / (network.clip_norm or 1.0)),
        schedule=Schedule(kind=ScheduleKind.COSINE),
        adaptive_clip=AdaptiveClip(quantile=CLIP_QUANTILE) if network.clip_norm is None else None,
    )
    values = train_in_process(of, plan, model, features, labels)
    return Trained(
        onnx=replace_parameters(onnx, model, values),
        learning_rate=rate,
        cost=spent([charge(of.task, job, ROUNDS)], DELTA),
    )
