"""The options of a job over a dataset, as `job submit` and `job rehearse` have them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from adserver.cli.heads import read_loss
from adserver.cli.options import (
    CheckColumnsOption,
    DatasetOption,
    FreezeOption,
    TaskOption,
    TrainOption,
    privacy,
    sampling_of,
)
from adserver.records.defaults import MOMENTUM
from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.sampling_options import SamplingOptions
from maskedlark.model.losses import Loss
from maskedlark.terminal.options import option, panel, takes

if TYPE_CHECKING:
    from adserver.records.submissions import Submission
    from adserver.records.training_plan import Schedule

_training = panel("Training")
_evaluation = panel("Evaluation")


def schedule_of(
    *,
    schedule: Annotated[
        ScheduleKind | None,
        _training(
            "The schedule of the learning rate over the rounds.",
            show_default="cosine; constant with --optimizer and a rate",
        ),
    ] = None,
    final_factor: Annotated[
        float, _training("For --schedule cosine: the last factor of the learning rate.")
    ] = 0.0,
    step_rounds: Annotated[int, _training("For --schedule step: rounds between steps.")] = 100,
    step_factor: Annotated[float, _training("For --schedule step: the factor of each step.")] = 0.5,
    warmup_rounds: Annotated[int, _training("Warm-up rounds, for --schedule linear-warmup.")] = 10,
) -> "Schedule | None":
    """Return how the learning rate changes; None if that is left open."""
    from adserver.records.training_plan import Schedule
    from maskedlark.canonical import build

    if schedule is None:
        return None
    return build(
        Schedule,
        {
            "kind": schedule,
            "final_factor": final_factor,
            "step_rounds": step_rounds,
            "step_factor": step_factor,
            "warmup_rounds": warmup_rounds,
        },
    )


@takes(rates=schedule_of, samples=sampling_of)
def submission_of(
    *,
    model: Annotated[
        Path | None,
        option("The model as an ONNX file; training starts from its weights.", exists=True, dir_okay=False),
    ] = None,
    loss: Annotated[Loss | None, _training("The loss to minimise.")] = None,
    heads: Annotated[
        Path | None,
        _training(
            "Instead of --loss: a .json file with the heads of the model, each with a target for "
            "every label code and, if the model has several outputs, its own.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        _training(
            "Learning rate of the optimizer, before the schedule; an adaptive clip divides the gradient by "
            "its bound first.",
            show_default="by the reports, the epsilon and the parameters, for momentum and cosine",
        ),
    ] = None,
    task: TaskOption = "",
    dataset: DatasetOption = "",
    rounds: Annotated[
        int | None,
        _training(
            "Number of optimizer steps; each sends one request to both helpers.",
            min=1,
            show_default="120; 300 for a hidden layer and many reports",
        ),
    ] = None,
    batch_size: Annotated[
        float | None, _training("Expected number of reports in a round; default: the whole dataset.")
    ] = None,
    optimizer: Annotated[
        OptimizerKind | None,
        _training("The optimizer.", show_default="momentum"),
    ] = None,
    momentum: Annotated[float, _training("Momentum, for --optimizer momentum.")] = MOMENTUM,
    rates: "Schedule | None",
    epsilon: Annotated[
        float | None, privacy("Epsilon that this job may cost against this ad server; determines the noise.")
    ] = None,
    noise_multiplier: Annotated[
        float | None, privacy("Each helper's noise, divided by the clip norm; instead of --epsilon.")
    ] = None,
    until_budget: Annotated[
        bool,
        privacy(
            "Run as many rounds as fit with --noise-multiplier, until the budget (or --epsilon) is "
            "spent; instead of --rounds.",
            "--until-budget",
        ),
    ] = False,
    samples: SamplingOptions,
    per_layer_clip: Annotated[
        bool,
        privacy(
            "Clip each layer's gradient separately, to an equal share of the clip norm.", "--per-layer-clip"
        ),
    ] = False,
    clip_norm: Annotated[
        float | None,
        privacy(
            "The largest clip bound, at most the task's; without --adaptive-clip the bound of all rounds.",
            show_default="the task's",
        ),
    ] = None,
    adaptive_clip: Annotated[
        float | None,
        privacy(
            "Let the clip bound privately follow this quantile (0 to 1) of the gradients' norms, and divide "
            "the gradient by the bound before --learning-rate applies.",
            show_default="0.9, unless --clip-norm, --per-layer-clip or correlated noise fixes the bound",
        ),
    ] = None,
    clip_learning_rate: Annotated[float, privacy("For --adaptive-clip: learning rate of the bound.")] = 0.2,
    initial_clip: Annotated[
        float, privacy("For --adaptive-clip: the first bound, as a share of the largest.")
    ] = 0.1,
    train: TrainOption = None,
    freeze: FreezeOption = None,
    eval_set: Annotated[
        Path | None,
        _evaluation("An .npz file of your own with features and labels.", exists=True, dir_okay=False),
    ] = None,
    eval_every: Annotated[int | None, _evaluation("Rounds between evaluations.", min=1)] = None,
    standardise: Annotated[
        bool,
        _training(
            "Whether features of an untrained model are centred and scaled by your own labelled examples, "
            "and its logit begins at their base rate.",
            "--standardise/--as-it-is",
        ),
    ] = True,
    check_columns: CheckColumnsOption = True,
) -> "Submission | None":
    """Return the job that is asked for; None without a model or a loss."""
    from adserver.records.submissions import Submission
    from adserver.training.default_optimizer import read_steps
    from adserver.training.model_file import read_model
    from maskedlark.canonical import build
    from maskedlark.privacy.adaptive_clip import AdaptiveClip

    encoded = None if model is None else read_model(model)
    minimised = read_loss(loss, heads, encoded)
    # None and no error: with --strategy the same command asks for no job over a dataset
    if encoded is None or minimised is None:
        return None
    steps, schedule = read_steps(optimizer, learning_rate, momentum, rates)
    return Submission(
        model=encoded,
        loss=minimised,
        rounds=rounds,
        is_until_budget=until_budget,
        batch_size=batch_size,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        optimizer=steps,
        schedule=schedule,
        eval_set=eval_set.read_bytes() if eval_set else None,
        eval_every=eval_every,
        is_clip_per_layer=per_layer_clip,
        clip_norm=clip_norm,
        # None lets the server choose, by what else is asked for
        adaptive_clip=None
        if adaptive_clip is None
        else build(
            AdaptiveClip,
            {"quantile": adaptive_clip, "learning_rate": clip_learning_rate, "initial": initial_clip},
        ),
        train=tuple(train or ()),
        freeze=tuple(freeze or ()),
        is_standardised=standardise,
        are_columns_checked=check_columns,
        dataset=dataset,
        task=task,
        **samples.sampling(),
    )
