"""Requests for a job of each kind, and for a plan of one, as every face passes them to an ad server.

`adserver.training.submitting` turns one into a stored job, and `adserver.training.planning` into a forecast.
"""

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, TypeAlias

from adserver.records.defaults import MOMENTUM, MOST_JOB_NAME, MOST_JOB_NOTE, TEST_SHARE
from adserver.records.optimizer_kinds import ScheduleKind
from adserver.records.sampling_options import SamplingOptions
from adserver.records.training_plan import Optimizer, Schedule
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.model.heads import Heads
from maskedlark.privacy.adaptive_clip import AdaptiveClip

# Control characters but tabs and line ends; and surrogates, as which a terminal's broken bytes arrive.
_NOT_TEXT: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


@frozen
class Submission(SamplingOptions):
    """A request for a job over a dataset; its samples and noise are those of `SamplingOptions`.

    Attributes:
        model: An ONNX file; training begins at its weights.
        loss: A name of `maskedlark.model.losses.Loss`, or several heads with what each label code means.
        rounds: How many; None: those of the rule (`adserver.training.defaults`), unless the job is until its
            budget.
        batch_size: Expected reports in a round; None: the whole dataset in every round.
        epsilon: What all rounds together may cost against the ad server, at the task's delta; None: what the
            dataset has left.
        noise_multiplier: Each helper's noise over the sensitivity; None: the least that fits. With noise, one
            of the two is given, and of a job until its budget the multiplier, where epsilon is a limit.
        optimizer: The optimizer; None: momentum, at the rate of the rule (`adserver.training.defaults`).
        schedule: Its learning rate's; None: constant, or with the rule cosine.
        eval_set: An .npz file, or None.
        eval_every: Rounds between evaluations; None: about fifty evaluations in all.
        clip_norm: The largest clip bound, at most the task's; None: the task's. Without `adaptive_clip` it is
            the bound of all rounds.
        adaptive_clip: How the clip bound follows a quantile of the gradients' norms; None: the
            quantile `CLIP_QUANTILE`, unless one bound holds in all rounds: with `clip_norm`,
            `is_clip_per_layer`, correlated noise, or in a task without noise.
        is_until_budget: Whether it has as many rounds as fit at its noise multiplier, in place of `rounds`,
            so that it stops with its budget.
        is_clip_per_layer: Whether each layer's gradient is clipped by itself.
        train: The parameters to train, by name or pattern such as `head.*`; empty: all.
        freeze: Those of them that keep the values of the file, in the same way.
        is_standardised: Whether an untrained model's features are centred and scaled by the evaluation set
            (`adserver.training.standardising`).
        are_columns_checked: Whether a model is refused that looks up numbers, or one byte of an id, as rows
            of a table, by the task's encoder.
        dataset: The start of the id of the dataset to train on; not needed if there is only one.
        task: The start of its task's id; by default the dataset's.
        name: What you call the job; helpers do not see it.
        note: What you want to remember of it; helpers do not see it.
    """

    model: bytes = field(repr=False)
    loss: str | Heads
    rounds: int | None
    batch_size: float | None
    epsilon: float | None
    noise_multiplier: float | None
    optimizer: Optimizer | None
    schedule: Schedule | None
    eval_set: bytes | None = field(repr=False)
    eval_every: int | None
    clip_norm: float | None = None
    adaptive_clip: AdaptiveClip | None = None
    is_until_budget: bool = False
    is_clip_per_layer: bool = False
    train: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    is_standardised: bool = True
    are_columns_checked: bool = True
    dataset: str = ""
    task: str = ""
    name: str = ""
    note: str = ""

    @property
    def inertia(self) -> float:
        """The share of a step's direction that the next one keeps."""
        return MOMENTUM if self.optimizer is None else self.optimizer.inertia


@frozen
class FederatedSubmission:
    """A request for a job on devices: both helpers sum their updates, or each device noises its own.

    Attributes:
        kind: A name of `strategies.STRATEGIES`; without helpers, line or draw-and-discard.
        settings: The strategy's, as docs/reference/strategies.md lists them; what the task says need not be
            repeated.
        widths: Of the dense model that devices train; empty with `model`. Exactly two for draw-and-discard.
        epsilon: What all rounds may cost a person against the ad server; None where `settings` have the
            noise.
        window_s: How long devices have for a round.
        least_devices: Fewer keep a round open; None: the task's min_batch_size.
        model: An ONNX file that devices with torch train from its own weights, or None.
        seed: Of the first weights of a dense model.
        eval_set: An .npz file, or None.
        eval_every: Rounds between evaluations; None: about fifty in all.
        task: The start of the id of a task of updates; not needed if there is only one task.
        name: What you call the job; helpers and devices do not see it.
        note: What you want to remember of it; helpers and devices do not see it.
        is_without_helpers: Whether each device noises its own updates. Such a job has no task, rounds end
            when enough updates have come, and its settings have the noise: `window_s` is not used, and
            `epsilon`, `least_devices`, `model`, `eval_set`, `eval_every` and `task` are not given.
        is_tested: Whether draw-and-discard rejects models that are too far from its instances. The limits
            are those of noise alone, so it suits jobs whose noise is well above a gradient.
        updates_each: Without helpers: the updates that a person is expected to send; only a plan uses it.
    """

    kind: str
    settings: Mapping[str, Any]
    widths: tuple[int, ...]
    epsilon: float | None = None
    window_s: float = 60.0
    least_devices: int | None = None
    model: bytes | None = field(default=None, repr=False)
    seed: int = 0
    eval_set: bytes | None = field(default=None, repr=False)
    eval_every: int | None = None
    task: str = ""
    name: str = ""
    note: str = ""
    is_without_helpers: bool = False
    is_tested: bool = False
    updates_each: int = 1


AnySubmission: TypeAlias = Submission | FederatedSubmission


def check_label(name: str, note: str) -> None:
    """Check what an owner calls a job and notes of it.

    Raises:
        InvalidTask: it is too long, or holds a control character.
    """
    for what, given, most in (("name", name, MOST_JOB_NAME), ("note", note, MOST_JOB_NOTE)):
        if len(given) > most:
            raise InvalidTask(f"the job's {what} has {len(given)} characters: at most {most} are kept")
        if _NOT_TEXT.search(given):
            raise InvalidTask(
                f"the job's {what} has a control character, which not every database keeps: leave it out"
            )


@frozen
class PlanConstraints:
    """What a person fixes of a job; None is left open.

    Attributes:
        rounds: Optimizer steps.
        batch_size: Expected reports in a round.
        noise_multiplier: As the job names it.
        max_epochs: Where all three are open, how often at most the helpers go through the dataset; None:
            `MAX_EPOCHS`, or as often as a job that names no rounds.
    """

    rounds: int | None
    batch_size: float | None
    noise_multiplier: float | None
    max_epochs: int | None = None


@frozen
class PlanRequest(SamplingOptions):
    """A request for a job over a dataset that fits; its samples and noise are those of `SamplingOptions`.

    Attributes:
        model: An ONNX file; or
        num_parameters: How many weights the model will have.
        wish: What is fixed of it, and what is to be found.
        epsilon: What all that is planned may cost against the ad server; None: all that is left.
        loss: Checked against model and task, if it is given.
        are_columns_checked: See `Submission`.
        gradient_norm: How long a round's mean gradient is expected to be; None: the clip norm.
        momentum: Of the optimizer that will be used.
        learning_rate: Of that, if it is SGD or momentum and the error of the weights is to be predicted.
        schedule: The learning rate's.
        clip_norm: The job's clip bound; None: the task's.
        train: See `Submission`.
        freeze: See `Submission`.
        dataset: The start of the id of the dataset to train on; not needed if there is only one.
        reports: Instead of a dataset: how many reports one of the task will have. Nothing is held on it.
        task: With `reports`, the start of the task's id; not needed if there is only one.
        jobs: How many equal jobs share the budget.
        tests: How many private evaluations share it too.
        test_share: The part of the budget that the evaluations have together.
    """

    model: bytes | None = field(default=None, repr=False)
    num_parameters: int | None = None
    wish: PlanConstraints
    epsilon: float | None = None
    loss: str | Heads | None = None
    are_columns_checked: bool = True
    gradient_norm: float | None = None
    momentum: float = 0.9
    learning_rate: float | None = None
    schedule: Schedule = Schedule(kind=ScheduleKind.COSINE)
    clip_norm: float | None = None
    train: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    dataset: str = ""
    reports: int | None = None
    task: str = ""
    jobs: int = 1
    tests: int = 0
    test_share: float = TEST_SHARE
