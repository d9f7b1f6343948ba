"""What a federated job tells devices, in canonical bytes that its digest binds: the strategy and the model.

    job = update_job(job_id=..., task_id=..., strategy=strategy, model=model)                 # ad server
    strategy, model = read_instructions(job)                                        # device

Helpers see the job too, and read of it only how likely a device is drawn and how much noise they add.
"""

from itertools import groupby
from typing import Annotated, NamedTuple

from pydantic import Field

from maskedlark.canonical import canonical, decode, encode
from maskedlark.errors import InvalidTask
from maskedlark.federated import strategies
from maskedlark.federated.dense import DenseModel
from maskedlark.federated.strategy import Round, Strategy
from maskedlark.releases.update import Phase, UpdateJob, UpdateRound
from maskedlark.reports.task import Task


@canonical
class Instructions:
    """The content of `UpdateJob.instructions`.

    Attributes:
        strategy: `strategies.encode` of the strategy.
        widths: Of the dense model: features, hidden widths, classes.
    """

    strategy: Annotated[str, Field(max_length=8_192)]
    widths: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=2, max_length=64)]


class Read(NamedTuple):
    """What a device reads."""

    strategy: Strategy
    model: DenseModel


def update_job(*, job_id: bytes, task_id: bytes, strategy: Strategy, model: DenseModel) -> UpdateJob:
    """The job of a strategy: rounds at the same settings are one phase. Called by the ad server."""
    terms = [strategy.terms(index) for index in range(strategy.rounds)]
    settings = ((one.sampling_rate, one.noise_multiplier) for one in terms)
    phases = tuple(
        Phase(rounds=len(list(same)), sampling_rate=rate, noise_multiplier=noise)
        for (rate, noise), same in groupby(settings)
    )
    written = Instructions(strategy=strategies.encode(strategy).decode("ascii"), widths=model.widths)
    return UpdateJob(
        job_id=job_id, task_id=task_id, phases=phases, instructions=encode(written).decode("ascii")
    )


def read_instructions(job: UpdateJob) -> Read:
    """The strategy and the model of a job. Called by the device, and by the ad server.

    Raises:
        InvalidTask: not canonical, an unknown strategy, or a setting out of range.
        InvalidModel: no such model.
    """
    written = decode(Instructions, job.instructions.encode("ascii", "replace"))
    return Read(
        strategies.decode(written.strategy.encode("ascii", "replace")), DenseModel(widths=written.widths)
    )


def update_round(job: UpdateJob, asked: Round) -> UpdateRound:
    """The round that devices bind, of what the strategy asks.

    Called by the ad server, and by the device to compare.
    """
    return UpdateRound(
        job=job,
        round_index=asked.terms.index,
        content_digest=asked.digest(),
        clip_norm=asked.terms.bound.clip_norm,
    )


def check_fits(task: Task, strategy: Strategy, model: DenseModel) -> None:
    """Refuse a strategy or model that the task's reports do not hold.

    Called by all who read it, before anything runs.

    Raises:
        InvalidTask: naming the setting.
    """
    form, bound = task.updates, strategy.bound
    if form is None:
        raise InvalidTask("the task declares no updates: its reports hold masked labels")
    pairs = (
        ("the model's parameters", model.size, form.num_parameters),
        ("bound.frac_bits", bound.frac_bits, task.frac_bits),
        ("bound.is_weight_summed", bound.is_weight_summed, form.has_weight),
        ("bound.is_counted", bound.is_counted, form.has_clip_count),
        ("cover_rate", strategy.cover_rate, form.cover),
    )
    for name, asked, held in pairs:
        if asked != held:
            raise InvalidTask(f"{name} of the strategy is {asked}, the task says {held}")
    if bound.clip_norm > task.clip_norm:
        raise InvalidTask(f"bound.clip_norm is {bound.clip_norm:g}, the task allows up to {task.clip_norm:g}")
    if model.widths[0] != task.num_features or model.widths[-1] != task.labels.size:
        raise InvalidTask(
            f"the model is of {model.widths[0]} features and {model.widths[-1]} classes, the task of "
            f"{task.num_features} and {task.labels.size}"
        )
