"""A job as quickstart chooses it, in one process: the exact engine, 120 rounds, both helpers' noise."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adserver.quickstart.model_check import usual_loss
from adserver.quickstart.settings import TaskSettings
from adserver.records.defaults import CLIP_QUANTILE
from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.training_plan import Optimizer, Schedule
from adserver.training.defaults import ROUNDS, Network, choose_learning_rate, choose_network
from adserver.training.eval_set import EvalSet
from maskedlark.encoding.encoder import Encoder
from maskedlark.model.heads import Heads, TrainedLoss
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse, replace_parameters
from maskedlark.model.table_network import table_network
from maskedlark.privacy.accounting import Epsilons, spent
from maskedlark.privacy.adaptive_clip import AdaptiveClip
from maskedlark.privacy.mechanism import Mechanism
from tests.bench.examples import Split
from tests.bench.in_process import train_in_process
from tests.builders import fitting_noise, job_spec, world
from tests.training_plans import training_plan

DELTA: Final = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The trained model's file, its loss, the rate of gradients over the clip bound, and the job's cost."""

    onnx: bytes
    loss: TrainedLoss
    learning_rate: float
    cost: Epsilons


def train_by_defaults(
    encoder: Encoder,
    split: Split,
    *,
    epsilon: float,
    seed: int,
    heads: Sequence[Mapping[str, Any]] = (),
    learning_rate: float | None = None,
    network: Network | None = None,
    clip_quantile: float = CLIP_QUANTILE,
) -> Trained:
    """Train what quickstart would on the split's reports.

    Args:
        encoder: Of the features.
        split: Labels are classes, or codes where there are heads.
        epsilon: Against the ad server.
        seed: Of the initial weights, and names the job.
        heads: As `Heads.of` takes them, without their outputs: the network has one for each.
        learning_rate: See `train_as_quickstart`.
        network: Another network and clip bound than quickstart's.
        clip_quantile: See `train_as_quickstart`.
    """
    panel, classes = split.panel, int(split.panel.labels.max()) + 1
    is_binary = classes == 2 and not heads
    base_rate = float((panel.labels.sum() + 0.5) / (len(panel.labels) + 1)) if is_binary else 0.5
    network = network or choose_network(
        rows=len(split.reported.labels),
        epsilon=epsilon,
        columns=encoder.num_features,
        rarest=min(base_rate, 1 - base_rate),
    )
    centres = EvalSet(features=panel.features, labels=panel.labels).mean_bytes()
    untrained = table_network(
        encoder,
        hidden=network.hidden,
        outputs=len(heads) or (1 if is_binary else classes),
        seed=seed,
        are_numbers_in_tables=network.are_numbers_in_tables,
        base_rate=None if network.clip_norm is None else base_rate,
        centres=None if network.are_numbers_in_tables else centres,
    )
    (output, _), *_ = parse(untrained, num_features=encoder.num_features).outputs
    listed = [{**head, "output": f"{output}[{place}]"} for place, head in enumerate(heads)]
    return train_as_quickstart(
        untrained,
        split.reported.features,
        split.reported.labels,
        network=network,
        epsilon=epsilon,
        seed=seed,
        loss=Heads.of(listed) if heads else usual_loss(classes),
        classes=classes,
        learning_rate=learning_rate,
        clip_quantile=clip_quantile,
    )


def train_as_quickstart(
    onnx: bytes,
    features: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    network: Network,
    epsilon: float,
    seed: int,
    loss: TrainedLoss = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS,
    classes: int = 2,
    learning_rate: float | None = None,
    collusion_epsilon: float | None = None,
    clip_quantile: float = CLIP_QUANTILE,
    rounds: int = ROUNDS,
) -> Trained:
    """Train a file on all records in each round.

    Args:
        onnx: The network.
        features: (records, bytes).
        labels: (records,), 0 to `classes` - 1.
        network: What the file is to the rule of rates, and its clip bound.
        epsilon: Against the ad server, and what the network and rate are chosen by; infinite: no noise.
        seed: Names the job.
        loss: Of the network's output, or its heads.
        classes: The task's, or how many label codes there are.
        learning_rate: Of gradients over the clip bound; None: the rule's.
        collusion_epsilon: Against the ad server with one helper; None: quickstart's.
        clip_quantile: Of the gradients' norms that the clip bound follows, where the network fixes none.
        rounds: Steps, which share the epsilon.
    """
    rows, width = features.shape
    model, settings = parse(onnx, num_features=width), TaskSettings()
    is_noisy, colluding = math.isfinite(epsilon), collusion_epsilon or settings.collusion_epsilon
    of = world(
        num_features=width,
        labels={"kind": "classes", "size": classes},
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
        loss=loss,
        rounds=rounds,
        noise_multiplier=fitting_noise(
            epsilon,
            DELTA,
            mechanism=of.task.mechanism,
            sampling_rate=1.0,
            rounds=rounds,
            already=(),
            collusion_epsilon=colluding,
        )
        if is_noisy
        else 0.0,
        is_clip_adaptive=network.clip_norm is None,
        clip_norm=network.clip_norm,
    )
    rate = learning_rate or choose_learning_rate(
        rows=rows,
        epsilon=epsilon,
        parameters=model.num_parameters,
        network=network,
        heads=len(loss.heads) if isinstance(loss, Heads) else 1,
    )
    plan = training_plan(
        of.task,
        job,
        records=rows,
        optimizer=Optimizer(kind=OptimizerKind.MOMENTUM, learning_rate=rate / (network.clip_norm or 1.0)),
        schedule=Schedule(kind=ScheduleKind.COSINE),
        adaptive_clip=AdaptiveClip(quantile=clip_quantile) if network.clip_norm is None else None,
    )
    values = train_in_process(of, plan, model, features, labels)
    return Trained(
        onnx=replace_parameters(onnx, model, values),
        loss=loss,
        learning_rate=rate,
        cost=spent([job.charge(of.task, rounds)], DELTA),
    )
