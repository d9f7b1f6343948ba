"""`adserver evaluate`: how good a model is on a dataset's reports, by one private release."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adserver.cli.options import JsonOption, TracesOption, release_options
from adserver.cli.target import connected_server_of, trace
from adserver.records.defaults import ASSUMED_AUC, DEFAULT_BINS
from adserver.records.exported_model import ModelWeights
from adserver.views.printing import check_parts, print_json
from maskedlark.errors import InvalidModel, InvalidTask, JobRefused, MaskedLarkError
from maskedlark.escape import escape
from maskedlark.observability.traces import Traces
from maskedlark.terminal.options import option, panel, takes

if TYPE_CHECKING:
    from adserver.client.ad_server import AdServer

_what = panel("The model to evaluate")


@takes(server=connected_server_of, charged=release_options)
def _evaluate_command(
    *,
    server: "AdServer",
    model: Annotated[
        Path | None, _what("An ONNX file that includes its weights.", exists=True, dir_okay=False)
    ] = None,
    job: Annotated[
        str, _what("Or a job, by the start of id or name, to evaluate its weights.", metavar="JOB")
    ] = "",
    head: Annotated[
        str,
        _what("Of a job with several heads, the one to evaluate; --model may be given beside the job."),
    ] = "",
    weights: Annotated[
        ModelWeights,
        _what("Of a job: its latest weights, or those of the round that did best on its evaluation set."),
    ] = ModelWeights.LATEST,
    again: Annotated[
        str,
        _what("Or the start of the id of an earlier evaluation, to show it again at no cost.", metavar="ID"),
    ] = "",
    charged: dict[str, Any],
    bins: Annotated[int, option("Number of score bins; more bins have more noise.")] = DEFAULT_BINS,
    base_rate: Annotated[
        float | None,
        option(
            "The share of reports of label 1 that the forecast assumes, or with more than two classes of "
            "right first choices; default: 0.1, or 0.5."
        ),
    ] = None,
    auc: Annotated[
        float, option("The AUC that the forecast assumes of the model, from 0.5 up and below 1.")
    ] = ASSUMED_AUC,
    plan: Annotated[
        bool, option("Print the cost and how wide intervals will be, and charge nothing.", "--plan")
    ] = False,
    plot: Annotated[Path | None, option("Draw ROC, PR and calibration curves to this .png file.")] = None,
    traces: TracesOption = Traces.NONE,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a model on a dataset.

    Accuracy, AUC, loss and calibration from one noised histogram, charged to its privacy budget. Before
    it is charged, its cost and how wide intervals will be are printed to stderr.
    """
    from adserver.client.client import Client
    from adserver.messages.evaluation import EvaluationForecastMessage, EvaluationMessage
    from adserver.training.model_file import read_model
    from adserver.views.evaluation import print_evaluation, write_plot

    shared = {
        "bins": bins,
        "base_rate": base_rate,
        "auc": auc,
        "epsilon": charged["epsilon"],
        "dataset": charged["dataset"],
    }
    if plan:
        forecast = Client.of(server).forecast_evaluation(**shared)
        if as_json:
            print_json(EvaluationForecastMessage.of(forecast))
        else:
            typer.echo(repr(forecast))
        if forecast.refusal:
            raise typer.Exit(1)
        return
    # With a head a job may go with the model: the job's table says what each label means for the head
    if sum(map(bool, (model if not head else None, job, again))) != 1:
        raise typer.BadParameter("expected exactly one of --model, --job and --again")
    # Before the charge, which a picture that cannot be drawn would not give back
    check_parts([plot] if plot else (), (".png",), "curves are")
    with trace(server, "evaluate", traces):
        if again:
            result = server.repeat_evaluate(again)
        else:
            file = None if model is None else read_model(model)
            # A head reads labels in its own way, of which the forecast knows nothing
            if not head:
                _check_exact(server, file, job=job, weights=weights, dataset=charged["dataset"])
                # What is wrong with the request itself, the evaluation refuses
                try:
                    typer.echo(repr(Client.of(server).forecast_evaluation(**shared)), err=True)
                except (InvalidModel, InvalidTask, JobRefused) as odd:
                    typer.echo(f"no forecast: {escape(str(odd))}", err=True)
            result = server.evaluate(file, job=job, head=head, weights=weights, bins=bins, **charged)
    if plot is not None:
        write_plot(result, plot)
    if as_json:
        print_json(EvaluationMessage.of(result))
        return
    print_evaluation(result)
    for warning in result.warnings():
        typer.echo(f"warning: {warning}", err=True)


def _check_exact(
    server: "AdServer", file: bytes | None, *, job: str, weights: ModelWeights, dataset: str
) -> None:
    """Refuse what no helper evaluates before its cost is forecast."""
    from adserver.measuring.evaluator import check_is_exact
    from adserver.training.model_file import without_notes
    from adserver.training.pipeline import without_encoder
    from maskedlark.model.onnx_file import parse

    task = server.task(server.dataset(dataset).task_id.hex()).stored.bundle.task
    if file is None:
        # Of a job whose weights are not to be had the evaluation says so
        with suppress(MaskedLarkError):
            file = server.export(server.job(job).job_id, weights=weights).encoded
    if file is None:
        return
    alone = without_encoder(without_notes(file), num_features=task.num_features, encoder=task.encoder)
    check_is_exact(parse(alone, num_features=task.num_features))
