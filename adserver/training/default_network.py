"""The network that quickstart trains where nobody names one, and the job that trains it by its rule.

    made = choose_default(task, encoder, panel, reports=50_000, epsilon=3.0, outputs=1, loss=loss)
    rate, job = submit_default(submission, task, made, reports=50_000, epsilon=3.0)

`adserver.training.defaults` has the rule, and docs/explanation/defaults.md what it was measured on.
"""

from dataclasses import field, replace
from typing import Final

from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.submissions import Submission
from adserver.records.training_plan import Optimizer, Schedule
from adserver.training.default_optimizer import epsilon_of_report
from adserver.training.defaults import (
    ROUNDS,
    Network,
    choose_learning_rate,
    choose_network,
    creation_options,
)
from adserver.training.eval_set import EvalSet
from maskedlark.encoding.encoder import Encoder
from maskedlark.frozen import frozen
from maskedlark.model.dense import dense_network
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.model.table_network import table_network
from maskedlark.releases.sampling import StepNoise
from maskedlark.reports.task import Task

ENCODER_FILE: Final = "ENCODER"
PANEL_FILE: Final = "PANEL"


@frozen
class DefaultNetwork:
    """A default network, before training.

    Attributes:
        network: What the rule chose.
        model: Its ONNX file.
        options: Those of `adserver model create` that write the same file, with `ENCODER_FILE` and
            `PANEL_FILE` for what they read.
        num_parameters: How many it has.
        loss: That its outputs are of.
    """

    network: Network
    model: bytes = field(repr=False)
    options: tuple[str, ...]
    num_parameters: int
    loss: Loss


def make_default_network(
    network: Network, encoder: Encoder | None, panel: EvalSet, *, outputs: int, loss: Loss
) -> DefaultNetwork:
    """Return the file of a default network.

    Args:
        network: As the rule chose it, with a clip bound that the task allows.
        encoder: Of the features; None: each is a number.
        panel: On whose means numbers without tables are centred, and whose base rate predictions of a rare
            label begin at.
        outputs: Of the network.
        loss: Of these, which are no probabilities.
    """
    rate = find_base_rate(panel) if network.clip_norm is not None else None
    centres = None if network.are_numbers_in_tables else panel.mean_bytes()
    width = panel.features.shape[1]
    if encoder is None:
        widths = [width, *network.hidden, outputs]
        model = dense_network(widths, "relu", seed=0, final="linear", centres=centres)
    else:
        model = table_network(
            encoder,
            hidden=network.hidden,
            outputs=outputs,
            seed=0,
            are_numbers_in_tables=network.are_numbers_in_tables,
            base_rate=rate,
            centres=centres,
        )
    options = creation_options(
        network,
        encoder_file=None if encoder is None else ENCODER_FILE,
        panel_file=PANEL_FILE,
        features=width,
        outputs=outputs,
        base_rate=rate,
    )
    return DefaultNetwork(
        network=network,
        model=model,
        options=tuple(options),
        num_parameters=parse(model, num_features=width).num_parameters,
        loss=loss,
    )


def choose_default(
    task: Task,
    encoder: Encoder | None,
    panel: EvalSet,
    *,
    reports: int,
    epsilon: float,
    outputs: int,
    loss: Loss,
) -> DefaultNetwork:
    """Return the default network for a job on so many reports of a task; see `make_default_network`."""
    network = choose_network(
        rows=reports,
        epsilon=epsilon_of_report(epsilon, task),
        columns=task.num_features,
        rarest=find_rarest(panel),
    )
    if network.clip_norm is not None:
        # Helpers refuse a bound above the one that they signed
        network = replace(network, clip_norm=min(network.clip_norm, task.clip_norm))
    return make_default_network(network, encoder, panel, outputs=outputs, loss=loss)


def find_base_rate(panel: EvalSet) -> float | None:
    """Return the share of label 1 in a panel, half a row away from 0 and 1; None for more labels."""
    if panel.labels.max(initial=1) > 1:
        return None
    # A panel without one of the labels would give an infinite logit to begin at
    return float((panel.labels.sum() + 0.5) / (len(panel) + 1))


def submit_default(
    submission: Submission, task: Task, made: DefaultNetwork, *, reports: int, epsilon: float
) -> tuple[float, Submission]:
    """Return the learning rate of a default network, and its job with the rounds and the batch of another.

    Rounds that the other leaves open, its samples, noise and clip are those of the rule.
    """
    clip = made.network.clip_norm
    rate = choose_learning_rate(
        rows=reports,
        epsilon=epsilon_of_report(epsilon, task),
        parameters=made.num_parameters,
        network=made.network,
    )
    if clip is not None:
        # A fixed bound divides no gradient, while the rule's rate is of gradients over the bound
        rate /= clip
    job = replace(
        submission,
        model=made.model,
        loss=made.loss.value,
        rounds=None if submission.is_until_budget else submission.rounds or ROUNDS,
        optimizer=Optimizer(kind=OptimizerKind.MOMENTUM, learning_rate=rate),
        schedule=Schedule(kind=ScheduleKind.COSINE),
        clip_norm=clip,
        adaptive_clip=None,
        is_clip_per_layer=False,
        noise=StepNoise.INDEPENDENT,
        carried=None,
        is_sample_public=False,
        train=(),
        freeze=(),
        is_standardised=False,
    )
    return rate, job


def find_rarest(panel: EvalSet) -> float:
    """Return the share of the rarer one of two labels in a panel; a half of more labels."""
    rate = find_base_rate(panel)
    return 0.5 if rate is None else min(rate, 1 - rate)
