"""`adserver job plan`: what fits a dataset's budgets, before anything is spent."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from adserver.cli.federated import read_federated_options
from adserver.cli.heads import read_loss
from adserver.cli.options import (
    CheckColumnsOption,
    DatasetOption,
    FreezeOption,
    JsonOption,
    TrainOption,
    sampling_of,
)
from adserver.cli.submission import schedule_of
from adserver.cli.target import server_of
from adserver.records.defaults import MAX_EPOCHS, MAX_ROUNDS, TEST_SHARE
from adserver.records.sampling_options import SamplingOptions
from adserver.views.printing import print_json
from maskedlark.model.losses import Loss
from maskedlark.terminal.options import option, panel, takes

if TYPE_CHECKING:
    from adserver.budgets.planner import OnProgress
    from adserver.client.ad_server import AdServer
    from adserver.records.submissions import FederatedSubmission
    from adserver.records.training_plan import Schedule

# A plan that is found sooner shows no progress
_PATIENCE_S: Final = 1.0
_job = panel("The job: omit the options that the planner should find")
_steps = panel("Its steps, to predict the error of the weights")
_divided = panel("A budget to divide, before anything is collected")


@takes(
    federated_job=read_federated_options,
    server=server_of,
    rates=schedule_of,
    samples=sampling_of,
    # Neither the cost nor the noise of a job on devices depends on these
    without=["window", "least_devices", "model_seed", "spam_test", "eval_set", "eval_every"],
)
def _plan_command(
    *,
    server: "AdServer",
    model: Annotated[
        Path | None,
        option(
            "The model as an ONNX file; a model with more parameters receives more noise.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    federated_job: "FederatedSubmission | None",
    parameters: Annotated[
        int | None, option("Instead of --model: the number of weights that the model will have.", min=1)
    ] = None,
    task: Annotated[
        str,
        option(
            "With --reports or --strategy: the start of the task's id; may be omitted if there is only one."
        ),
    ] = "",
    loss: Annotated[
        Loss | None, option("If given, checked against model and task; the noise does not depend on it.")
    ] = None,
    heads: Annotated[
        Path | None,
        option("Instead of --loss: a .json file with the heads of the model.", exists=True, dir_okay=False),
    ] = None,
    train: TrainOption = None,
    freeze: FreezeOption = None,
    check_columns: CheckColumnsOption = True,
    dataset: DatasetOption = "",
    epsilon: Annotated[
        float | None,
        _job(
            "Epsilon that the job, or all that is planned, may cost against this ad server; default: all "
            "that is left."
        ),
    ] = None,
    rounds: Annotated[int | None, _job("Optimizer steps.", min=1, max=MAX_ROUNDS)] = None,
    max_epochs: Annotated[
        int | None,
        _job(
            "If rounds, batch and noise are all open: the most epochs over the dataset.",
            min=1,
            max=10_000,
            show_default=f"{MAX_EPOCHS} with --gradient-norm, else the rounds of `job submit`",
        ),
    ] = None,
    batch_size: Annotated[float | None, _job("Expected number of reports in a round.")] = None,
    noise_multiplier: Annotated[float | None, _job("Each helper's noise, divided by the clip norm.")] = None,
    samples: SamplingOptions,
    momentum: Annotated[
        float, option("Momentum of your optimizer, 0 for none: correlated noise is fitted to it.", min=0.0)
    ] = 0.9,
    learning_rate: Annotated[
        float | None,
        _steps(
            "Learning rate of SGD, with or without momentum; an adaptive clip divides by its bound first."
        ),
    ] = None,
    rates: "Schedule | None",
    clip_norm: Annotated[
        float | None,
        _steps(
            "The clip bound of all rounds, at most the task's, instead of an adaptive one.",
            show_default="the task's",
        ),
    ] = None,
    reports: Annotated[
        int | None,
        _divided("Plan for a dataset of so many reports, which need not be there yet.", min=1),
    ] = None,
    jobs: Annotated[int, _divided("Plan so many equal jobs on one budget.", min=1, max=1_000)] = 1,
    tests: Annotated[
        int, _divided("Plan so many private evaluations on the same budget.", min=0, max=10_000)
    ] = 0,
    test_share: Annotated[
        float, _divided("The part of the budget that all evaluations together have, between 0 and 1.")
    ] = TEST_SHARE,
    gradient_norm: Annotated[
        float | None,
        option(
            "Expected norm of a round's mean gradient, such as an earlier job's curves have; without it no "
            "job's worth is predicted, and noise over signal is the least possible."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the noise, batch size or rounds that fit a dataset's budgets, and predict noise over signal.

    Planning spends no budget.

    Give two of --rounds, --batch-size and --noise-multiplier to find the third. Give only --rounds to find
    the noise of rounds of all reports, which no smaller batch betters at the same rounds and epsilon, and
    what smaller ones would be. Give none to find what `job submit` does by itself; with --gradient-norm, the
    job that is worth the most steps without noise: of jobs within 3 %, the one that costs least against this
    ad server with one helper.
    With --strategy, give --rounds to find the noise, or only --noise-multiplier to find the most rounds
    that fit.

    With --reports, --jobs and --tests, a budget is divided before anything is collected: the noise of each
    job and the epsilon of each evaluation, which all fit one after another.
    """
    from adserver.messages.federated import forecast_message
    from adserver.messages.plan import PlanMessage
    from adserver.records.optimizer_kinds import ScheduleKind
    from adserver.records.submissions import PlanConstraints, PlanRequest
    from adserver.records.training_plan import Schedule
    from adserver.training.model_file import read_model
    from adserver.views.federated import print_forecast
    from adserver.views.plan import print_plan

    if federated_job is not None:
        # They divide a dataset's budget; devices spend a person's, over all rounds of the task
        if reports is not None or jobs > 1 or tests:
            raise typer.BadParameter("--reports, --jobs and --tests are of jobs over a dataset")
        expected = server.plan(federated_job)
        print_json(forecast_message(expected)) if as_json else print_forecast(expected)
        return
    # The noise depends on the model only by its number of weights, which may be known before the model is
    if (model is None) == (parameters is None):
        raise typer.BadParameter("give one of --model, --parameters and --strategy")
    encoded = None if model is None else read_model(model)
    request = PlanRequest(
        model=encoded,
        num_parameters=parameters,
        wish=PlanConstraints(
            rounds=rounds, batch_size=batch_size, noise_multiplier=noise_multiplier, max_epochs=max_epochs
        ),
        epsilon=epsilon,
        loss=read_loss(loss, heads, encoded),
        are_columns_checked=check_columns,
        gradient_norm=gradient_norm,
        momentum=momentum,
        learning_rate=learning_rate,
        schedule=rates or Schedule(kind=ScheduleKind.COSINE),
        clip_norm=clip_norm,
        train=tuple(train or ()),
        freeze=tuple(freeze or ()),
        dataset=dataset,
        reports=reports,
        task=task,
        jobs=jobs,
        tests=tests,
        test_share=test_share,
        **samples.sampling(),
    )
    found = server.plan(request, _report_after(_PATIENCE_S))
    if as_json:
        print_json(PlanMessage.of(found, request))
        return
    print_plan(found, request)


def _report_after(seconds: float) -> "OnProgress":
    """Say once, on standard error, how far a search is that has taken some time."""
    started, is_told = time.monotonic(), False

    def tell(done: int, of: int) -> None:
        nonlocal is_told
        if not is_told and time.monotonic() - started >= seconds:
            typer.echo(f"checking job {done + 1} of {of} ...", err=True)
            is_told = True

    return tell
