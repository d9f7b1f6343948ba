"""What a federated job tells devices, in canonical bytes that its digest binds: the strategy and the model.

    job = update_job(job_id=..., task_id=..., strategy=strategy, model=model)                 # ad server
    strategy, model = read_instructions(job)                                        # device

Helpers see the job too, and read of it only how likely a device is drawn and how much noise they add.
"""

from itertools import groupby
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from maskedlark.canonical import canonical, decode, encode
from maskedlark.errors import InvalidTask
from maskedlark.federated import strategies
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.graph_model import MAX_GRAPH_CHARACTERS, GraphModel
from maskedlark.federated.strategy import Round, Strategy
from maskedlark.releases.update import Phase, UpdateJob, UpdateRound
from maskedlark.reports.task import Task


@canonical
class Instructions:
    """The content of `UpdateJob.instructions` where devices train a dense network.

    Attributes:
        strategy: The canonical bytes of the strategy, as text.
        widths: Of the dense model: features, hidden widths, classes.
    """

    strategy: Annotated[str, Field(max_length=8_192)]
    widths: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=2, max_length=64)]


@canonical
class GraphInstructions:
    """The content of `UpdateJob.instructions` where devices train an ONNX graph.

    Attributes:
        version: Of this layout.
        graph: `GraphModel.packed`.
        layer_sizes: `GraphModel.layer_sizes`.
        strategy: The canonical bytes of the strategy, as text.
        widths: Features and classes.
    """

    version: Literal[1] = 1
    graph: Annotated[str, Field(max_length=MAX_GRAPH_CHARACTERS)]
    layer_sizes: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, max_length=256)]
    strategy: Annotated[str, Field(max_length=8_192)]
    widths: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=2, max_length=2)]


# How the canonical spelling of `GraphInstructions` begins, and that of `Instructions` does not.
_GRAPH_FIRST = b'{"graph":'


class Read(NamedTuple):
    """What a device reads."""

    strategy: Strategy
    model: DenseModel | GraphModel


def update_job(
    *, job_id: bytes, task_id: bytes, strategy: Strategy, model: DenseModel | GraphModel
) -> UpdateJob:
    """Build the job of a strategy: rounds at the same settings are one phase. Called by the ad server."""
    terms = [strategy.terms(index) for index in range(strategy.rounds)]
    settings = ((one.sampling_rate, one.noise_multiplier) for one in terms)
    phases = tuple(
        Phase(rounds=len(list(same)), sampling_rate=rate, noise_multiplier=noise)
        # Neighbours only: phases keep the order of rounds.
        for (rate, noise), same in groupby(settings)
    )
    spelt = encode(strategy).decode("ascii")
    written: Instructions | GraphInstructions = Instructions(strategy=spelt, widths=model.widths)
    if isinstance(model, GraphModel):
        written = GraphInstructions(
            graph=model.packed, layer_sizes=model.layer_sizes, strategy=spelt, widths=model.widths
        )
    return UpdateJob(
        job_id=job_id, task_id=task_id, phases=phases, instructions=encode(written).decode("ascii")
    )


def read_instructions(job: UpdateJob) -> Read:
    """Read the strategy and the model of a job. Called by the device, and by the ad server.

    Raises:
        InvalidTask: not canonical, an unknown strategy, or a setting out of range.
        InvalidModel: no such model.
    """
    spelt = job.instructions.encode("ascii", "replace")
    if spelt.startswith(_GRAPH_FIRST):
        graph = decode(GraphInstructions, spelt)
        features, classes = graph.widths
        model = GraphModel(widths=(features, classes), layer_sizes=graph.layer_sizes, packed=graph.graph)
        return Read(strategies.decode(graph.strategy.encode("ascii", "replace")), model)
    written = decode(Instructions, spelt)
    return Read(
        strategies.decode(written.strategy.encode("ascii", "replace")), DenseModel(widths=written.widths)
    )


def update_round(job: UpdateJob, asked: Round) -> UpdateRound:
    """Build the round that devices bind, from what the strategy asks.

    Called by the ad server, and by the device to compare.
    """
    return UpdateRound(
        job=job,
        round_index=asked.terms.index,
        content_digest=asked.digest(),
        clip_norm=asked.terms.bound.clip_norm,
    )


def check_fits(task: Task, strategy: Strategy, model: DenseModel | GraphModel) -> None:
    """Refuse a strategy or model that the task's reports do not hold.

    Called by every party that reads it, before anything runs.

    Raises:
        InvalidTask: naming the setting.
    """
    form, bound = task.updates, strategy.bound
    if form is None:
        raise InvalidTask("the task declares no updates: its reports contain masked labels")
    pairs = (
        ("the number of parameters of the model", model.size, form.num_parameters),
        ("the strategy's bound.frac_bits", bound.frac_bits, task.frac_bits),
        ("the strategy's bound.is_weight_summed", bound.is_weight_summed, form.has_weight),
        ("the strategy's bound.is_counted", bound.is_counted, form.has_clip_count),
        ("the strategy's cover_rate", strategy.cover_rate, form.cover),
    )
    for name, asked, held in pairs:
        if asked != held:
            raise InvalidTask(f"{name} is {asked}, but the task requires {held}")
    if bound.clip_norm > task.clip_norm:
        raise InvalidTask(
            f"bound.clip_norm is {bound.clip_norm:g}, but the task allows at most {task.clip_norm:g}"
        )
    if model.widths[0] != task.num_features or model.widths[-1] != task.labels.size:
        raise InvalidTask(
            f"the model has {model.widths[0]} features and {model.widths[-1]} classes, but the task "
            f"has {task.num_features} and {task.labels.size}"
        )
