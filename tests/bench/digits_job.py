"""A job on digits in one process: secret samples by epochs, momentum, a cosine schedule, a clip of 1."""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.training_plan import Optimizer, Schedule
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import replace_parameters, trained_names
from maskedlark.privacy.accounting import Epsilons, spent
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.helper_pair_key import SAMPLING_DENOMINATOR
from tests.bench.in_process import train_in_process
from tests.builders import fitting_noise, job_spec, world
from tests.training_plans import training_plan

CLASSES: Final = 10
DELTA: Final = 1e-5


def train_digits(
    onnx: bytes,
    model: Model,
    features: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    epochs: int,
    steps: int,
    rate: float,
    epsilon: float,
    seed: int,
) -> tuple[bytes, Epsilons]:
    """Train by the product's functions; return the model's file and what it costs.

    Args:
        onnx: The network's file.
        model: The same, parsed: whole, or with the parameters alone that are trained.
        features: (records, bytes).
        labels: (records,).
        epochs: How often each record takes part.
        steps: Of an epoch; each record takes part in one of them (random allocation).
        rate: Learning rate.
        epsilon: Against the ad server; with a helper there is no limit.
        seed: Names the job.
    """
    width = features.shape[1]
    of = world(
        num_features=width,
        labels={"kind": "classes", "size": CLASSES},
        min_batch_size=20,
        mechanism=Mechanism.GAUSSIAN,
        clip_norm=1.0,
        delta=DELTA,
    )
    job = job_spec(
        of.task.task_id,
        job_id=seed.to_bytes(16, "big"),
        model_digest=model.digest,
        trained=trained_names(model),
        loss=Loss.CROSS_ENTROPY,
        rounds=epochs * steps,
        sampling_numerator=SAMPLING_DENOMINATOR // steps,
        epoch_steps=steps,
        noise_multiplier=fitting_noise(
            epsilon,
            DELTA,
            mechanism=Mechanism.GAUSSIAN,
            sampling_rate=1.0,
            epoch_steps=steps,
            rounds=epochs,
            already=(),
            collusion_epsilon=math.inf,
        ),
    )
    plan = training_plan(
        of.task,
        job,
        records=len(labels),
        optimizer=Optimizer(kind=OptimizerKind.MOMENTUM, learning_rate=rate),
        schedule=Schedule(kind=ScheduleKind.COSINE),
    )
    values = train_in_process(of, plan, model, features, labels)
    return replace_parameters(onnx, model, values), spent([job.charge(of.task, job.rounds)], DELTA)
