"""`adserver job plan`: what fits a dataset's budgets, before anything is spent."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from adserver.cli.federated import (
    federated,
    read_federated_options,
)
from adserver.cli.heads import read_loss
from adserver.cli.options import DatasetOption, JsonOption, sampling_of
from adserver.cli.target import server_of
from adserver.records.defaults import MAX_EPOCHS, MAX_ROUNDS
from adserver.records.sampling_options import SamplingOptions
from adserver.views.printing import print_json
from maskedlark.model.losses import Loss
from maskedlark.terminal.options import option, panel, takes

if TYPE_CHECKING:
    from adserver.budgets.planner import OnProgress
    from adserver.client.ad_server import AdServer
    from adserver.records.submissions import FederatedSubmission

_PATIENCE_S: Final = 1.0
_job = panel("The job: omit the options that the planner should find")


@takes(
    federated_job=read_federated_options,
    server=server_of,
    samples=sampling_of,
    without=["window", "least_devices", "model_seed", "eval_set", "eval_every"],
)
def plan_command(
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
    task: Annotated[
        str, federated("The start of the id of a task of updates; may be omitted if there is only one.")
    ] = "",
    loss: Annotated[
        Loss | None, option("If given, checked against model and task; the noise does not depend on it.")
    ] = None,
    heads: Annotated[
        Path | None,
        option("Instead of --loss: a .json file with the heads of the model.", exists=True, dir_okay=False),
    ] = None,
    dataset: DatasetOption = "",
    epsilon: Annotated[
        float | None, _job("Epsilon that the job may cost against this ad server; default: all that is left.")
    ] = None,
    rounds: Annotated[int | None, _job("Optimizer steps.", min=1, max=MAX_ROUNDS)] = None,
    max_epochs: Annotated[
        int,
        _job("If no other option is given: the most epochs over the dataset.", min=1, max=10_000),
    ] = MAX_EPOCHS,
    batch_size: Annotated[float | None, _job("Expected number of reports in a round.")] = None,
    noise_multiplier: Annotated[float | None, _job("Each helper's noise, divided by the clip norm.")] = None,
    samples: SamplingOptions,
    momentum: Annotated[
        float, option("Momentum of your optimizer, 0 for none: correlated noise is fitted to it.", min=0.0)
    ] = 0.9,
    gradient_norm: Annotated[
        float | None,
        option(
            "Expected norm of a round's mean gradient; default: the clip norm, its largest possible value."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the noise, batch size or rounds that fit a dataset's budgets, and predict noise over signal.

    Planning spends no budget.

    Give two of --rounds, --batch-size and --noise-multiplier to find the third. Give only --rounds to find
    noise and batch size. Give none to find all three, for the job that is worth the most steps without noise.
    With --strategy, give --rounds to find the noise, or only --noise-multiplier to find the most rounds
    that fit.
    """
    from adserver.messages.federated import FederatedForecastMessage
    from adserver.messages.plan import PlanMessage
    from adserver.records.submissions import PlanConstraints, PlanRequest
    from adserver.training.model_file import read_model
    from adserver.views.federated import print_forecast
    from adserver.views.plan import print_plan

    if federated_job is not None:
        expected = server.plan(federated_job)
        print_json(FederatedForecastMessage.of(expected)) if as_json else print_forecast(expected)
        return
    if model is None:
        raise typer.BadParameter("no model is named: give --model, or --strategy")
    request = PlanRequest(
        model=read_model(model),
        wish=PlanConstraints(
            rounds=rounds, batch_size=batch_size, noise_multiplier=noise_multiplier, max_epochs=max_epochs
        ),
        epsilon=epsilon,
        loss=read_loss(loss, heads),
        gradient_norm=gradient_norm,
        momentum=momentum,
        dataset=dataset,
        **samples.sampling(),
    )
    found = server.plan(request, _report_after(_PATIENCE_S))
    if as_json:
        print_json(PlanMessage.of(found))
    else:
        print_plan(*found)


def _report_after(seconds: float) -> "OnProgress":
    """Say once, on standard error, how far a search is that has taken some time."""
    started, is_told = time.monotonic(), False

    def tell(done: int, of: int) -> None:
        nonlocal is_told
        if not is_told and time.monotonic() - started >= seconds:
            typer.echo(f"checking job {done + 1} of {of} ...", err=True)
            is_told = True

    return tell
