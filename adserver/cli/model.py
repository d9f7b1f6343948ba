"""`adserver model`: create, show, evaluate, predict, compare, export, calibrate."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adserver.cli.options import FreezeOption, JsonOption, OneJobOption, TrainOption
from adserver.cli.target import server_of
from adserver.records.exported_model import InputForm, ModelWeights
from adserver.views.printing import print_json, print_table
from maskedlark.escape import escape
from maskedlark.model.activations import FINAL_ACTIVATIONS, HIDDEN_ACTIVATIONS
from maskedlark.model.losses import Loss
from maskedlark.terminal.options import option, takes
from maskedlark.terminal.plural import plural

if TYPE_CHECKING:
    from adserver.client.ad_server import AdServer

ModelArgument = Annotated[
    Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="The ONNX file to read.")
]
WeightsOption = Annotated[
    ModelWeights,
    option("The job's latest weights, or those of the round that did best on its evaluation set."),
]
OutArgument = Annotated[Path, typer.Argument(metavar="OUT", dir_okay=False, help="The ONNX file to write.")]


def _create_command(
    out: OutArgument,
    *,
    layers: Annotated[
        str | None,
        option("Layer widths from the features to the outputs, for example 30,50,50,1.", metavar="N,N,..."),
    ] = None,
    encoder: Annotated[
        Path | None,
        option(
            "Instead of --layers: an encoder file, for a network with a table for each of its columns.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    hidden: Annotated[
        str, option("For --encoder: widths of the layers between tables and outputs.", metavar="N,N,...")
    ] = "",
    outputs: Annotated[int, option("For --encoder: the number of outputs.", min=1)] = 1,
    word_tables_only: Annotated[
        bool,
        option(
            "For --encoder: no tables for numbers, which thousands of reports can train and fewer cannot.",
            "--word-tables-only",
        ),
    ] = False,
    activation: Annotated[
        str, option("Activation after every layer except the last.", metavar="|".join(HIDDEN_ACTIVATIONS))
    ] = "relu",
    final: Annotated[
        str, option("Activation after the last layer.", metavar="|".join(FINAL_ACTIVATIONS))
    ] = "linear",
    centred_on: Annotated[
        Path | None,
        option(
            "Records of your own (.npz) on whose means numbers are centred, which trains in fewer rounds; "
            "default: none for --layers, the middle of their range for --encoder.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    base_rate: Annotated[
        float | None,
        option("For --encoder: the share of label 1, at which predictions begin.", min=1e-6, max=1 - 1e-6),
    ] = None,
    seed: Annotated[int, option("Seed for the initial weights.")] = 0,
) -> None:
    """Write a network with random weights: fully connected, or over the columns of an encoder.

    A network over an encoder has a table of rows for each column, whose bytes pick a row, and each number is
    an input next to its table. Without --hidden it is linear in what the tables say.
    """
    from adserver.collecting.task_settings import encoder_from
    from adserver.training.eval_set import read_eval_set
    from maskedlark.model.dense import dense_network
    from maskedlark.model.table_network import table_network
    from maskedlark.runtime.durable_file import write_durably

    if (layers is None) == (encoder is None):
        raise typer.BadParameter("expected exactly one of --layers and --encoder")
    centres = None if centred_on is None else read_eval_set(centred_on.read_bytes()).mean_bytes()
    if (fitted := encoder_from(encoder)) is None:
        made = dense_network(
            _widths("--layers", layers or ""), activation, seed=seed, final=final, centres=centres
        )
    else:
        made = table_network(
            fitted,
            hidden=_widths("--hidden", hidden) if hidden else (),
            outputs=outputs,
            seed=seed,
            are_numbers_in_tables=not word_tables_only,
            base_rate=base_rate,
            centres=centres,
        )
    write_durably(out, made)


def _widths(name: str, given: str) -> list[int]:
    try:
        return [int(width) for width in given.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{name} is {given!r}: expected widths separated by commas, for example 30,50,50,1"
        ) from None


def _show_command(
    file: ModelArgument,
    *,
    num_features: Annotated[
        int | None,
        option(
            "Width of the model's input: the task's number of features.",
            min=1,
            show_default="as the file says",
        ),
    ] = None,
    loss: Annotated[
        Loss | None, option("The loss that a job would train, which may decide what helpers compute.")
    ] = None,
    encoder: Annotated[
        Path | None,
        option(
            "The task's encoder: what the model reads as another kind of column is warned of.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    train: TrainOption = None,
    freeze: FreezeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a model's tensors, which of them a job would train, and what helpers compute and receive.

    A model on the general path takes a hundred times as long and needs more noise; each reason is shown.
    """
    from adserver.collecting.task_settings import encoder_from
    from adserver.collecting.task_settings import num_features as width_of
    from adserver.training.any_records import TAKES_ONE_RECORD, take_any_records, takes_one_record
    from adserver.training.column_uses import check_vocabulary, warn_of_columns
    from adserver.training.merged_parameters import separate_parameters
    from adserver.training.model_file import declared_width, parse_chosen, read_model
    from adserver.training.pipeline import check_is_scaled, notes_of
    from adserver.views.plan import describe_path
    from maskedlark.model.exactness import why_general
    from maskedlark.model.onnx_file import parse
    from maskedlark.model.weights import length_in_bytes
    from maskedlark.numbers.field import ELEMENT_BYTES

    encoded = separate_parameters(read_model(file))
    check_is_scaled(notes_of(encoded))
    if (columns := encoder_from(encoder)) is not None:
        num_features = width_of(num_features, columns)
    num_features = num_features or declared_width(encoded)
    # Some ONNX files leave the width of their input open, as exporters write it for dynamic axes
    if num_features is None:
        raise typer.BadParameter(f"{file} does not say how wide its input is: give --num-features")
    # The whole as well, for the tensors that a job would freeze
    whole = parse(encoded, num_features=num_features)
    model = parse_chosen(encoded, num_features=num_features, train=train or (), freeze=freeze or ())
    if columns is not None:
        check_vocabulary(encoded, columns)
    warnings = () if columns is None else warn_of_columns(encoded, columns)
    reasons = why_general(model, loss)
    moved = {
        "sent_bytes": length_in_bytes(model.parameters),
        "returned_bytes": ELEMENT_BYTES * model.num_parameters,
    }
    if as_json:
        tensors = [
            {"name": tensor.name, "shape": list(tensor.shape), "trained": tensor in model.parameters}
            for tensor in whole.parameters
        ]
        print_json(
            {
                "digest": model.digest.hex(),
                "outputs": model.output_width,
                "parameters": whole.num_parameters,
                "trained": model.num_parameters,
                **moved,
                "tensors": tensors,
                "path": "general" if reasons else "exact",
                "why_general": list(reasons),
                "warnings": list(warnings),
            }
        )
        return
    print_table(
        ("tensor", "shape", "numbers", "trained"),
        [
            (
                tensor.name,
                "x".join(map(str, tensor.shape)),
                tensor.size,
                "yes" if tensor in model.parameters else "no",
            )
            for tensor in whole.parameters
        ],
    )
    typer.echo(
        f"{plural(whole.num_parameters, 'parameter')}, {plural(model.output_width, 'output')}, "
        f"digest {model.digest.hex()}"
    )
    typer.echo(
        f"a round trains {model.num_parameters} of them: {moved['sent_bytes']} bytes go to each helper, "
        f"{moved['returned_bytes']} come back from each"
    )
    for line in describe_path(reasons):
        typer.echo(line)
    if takes_one_record(take_any_records(encoded)):
        typer.echo(TAKES_ONE_RECORD)
    for warning in warnings:
        typer.echo(f"warning: {escape(warning)}", err=True)


def _evaluate_command(
    file: ModelArgument,
    eval_set: Annotated[Path, option("An .npz file with features and labels.", exists=True, dir_okay=False)],
    loss: Annotated[Loss | None, option("The loss to measure.", show_default="as the file says")] = None,
    heads: Annotated[
        Path | None,
        option("Instead of --loss: a .json file with the heads of the model.", exists=True, dir_okay=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a model's loss, a classifier's accuracy and base rate, and its AUC, on plain examples."""
    from adserver.cli.heads import read_loss
    from adserver.records.scored_loss import scored_loss
    from adserver.training.eval_set import read_eval_set
    from adserver.training.inference import evaluate, evaluate_heads
    from adserver.training.model_file import read_model
    from adserver.training.pipeline import LOSS_IS, encoder_of, notes_of, without_encoder
    from maskedlark.model.heads import Heads, check_trained, trained_loss
    from maskedlark.model.onnx_file import parse

    examples = read_eval_set(eval_set.read_bytes())
    width = examples.features.shape[1]
    encoded = without_encoder(read_model(file), num_features=width, encoder=None)
    examples.check_encoder(encoder_of(encoded), owner="model")
    if loss is None and heads is None and LOSS_IS in (notes := notes_of(encoded)):
        loss = Loss.named(notes[LOSS_IS])
    measured, model = read_loss(loss, heads, encoded), parse(encoded, num_features=width)
    if measured is None:
        raise typer.BadParameter(
            "give exactly one of --loss and --heads; neither only where the file says its loss"
        )
    trained = trained_loss(measured)
    # Against the heads' own number of codes, as no task is there to say how many labels it has
    if isinstance(trained, Heads):
        check_trained(model, trained, len(trained.heads[0].targets))
    examples.check_fits(model, trained)
    trained = scored_loss(trained, model.output_width)
    evaluation = evaluate(encoded, examples.features, examples.labels, trained)
    each = (
        evaluate_heads(encoded, examples.features, examples.labels, trained)
        if isinstance(trained, Heads)
        else {}
    )
    if as_json:
        found = {"examples": len(examples), **asdict(evaluation), "warnings": evaluation.warnings()}
        print_json({**found, "heads": {name: asdict(one) for name, one in each.items()}} if each else found)
        return
    for name, one in each.items():
        typer.echo(f"{name}: {one.describe()}")
    typer.echo(f"{evaluation.describe()} on {plural(len(examples), 'example')}")
    for warning in evaluation.warnings():
        typer.echo(f"warning: {warning}", err=True)


def _predict_command(
    file: ModelArgument,
    *,
    csv: Annotated[
        Path, option("The table to score, with the encoder's columns.", exists=True, dir_okay=False)
    ],
    out: Annotated[
        Path,
        option(
            "Write the table with its predictions to this file, in the table's own encoding, delimiter and "
            "decimal sign.",
            dir_okay=False,
        ),
    ],
    force: Annotated[bool, option("Replace the --out file if there is one.", "--force")] = False,
    encoder: Annotated[
        Path | None,
        option(
            "The encoder that the model was trained with; a file that takes raw columns has it.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    loss: Annotated[
        Loss | None, option("What the model was trained with.", show_default="as the file says")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Score a table of your own with an exported model: its rows, with the chance that the model gives.

    A row that cannot be read has the reason in place of a prediction, in the column `not scored because`. A
    word that the encoder does not name is scored as `other`; how many rows have one is printed by column, as
    are gaps where the encoder was fitted to none, or in most rows.
    """
    from adserver.collecting.task_settings import encoder_from
    from adserver.training.model_file import read_model
    from adserver.training.scoring import NOT_SCORED, find_encoder, score_table
    from maskedlark.encoding.table import append_columns, parse_table
    from maskedlark.runtime.durable_file import write_durably

    _check_is_free(out, [one for one in (csv, file, encoder) if one is not None], is_replaced=force)
    content = csv.read_bytes()
    encoded, table = read_model(file), parse_table(content, csv.name, are_short_rows_kept=True)
    scored = score_table(encoded, find_encoder(encoded, encoder_from(encoder)), table, loss)
    added = (*scored.columns, NOT_SCORED)
    # A second column of the name would make the file's readers take either
    if taken := [name for name in added if name in table.columns]:
        raise typer.BadParameter(f"{csv.name} has a column {taken[0]!r} already: rename it")
    # Every row is there, scored or not, so that the file can be laid beside the table
    predicted: dict[str, Sequence[str | float]] = {
        name: ["" if row is None else row[place] for row in scored.rows]
        for place, name in enumerate(scored.columns)
    }
    # Commas that part cells are no decimal commas of what is added
    if scored.have_commas and table.form.delimiter != ",":
        table = replace(table, form=replace(table.form, are_commas_decimal=True))
    write_durably(out, append_columns(content, table, {**predicted, NOT_SCORED: scored.why}))
    left_out = scored.count_left_out()
    count = len(table) - sum(left_out.values())
    if as_json:
        print_json(
            {
                "read": len(table),
                "scored": count,
                "left_out": left_out,
                "unknown_words": {one.column: one.rows for one in scored.unknown},
                "gaps": {one.column: one.rows for one in scored.gaps},
                "units": scored.units,
                "columns": scored.columns,
            }
        )
    else:
        rows = plural(len(table), "row is", "rows are")
        typer.echo(
            escape(
                f"{count} of {rows} scored, in {out}: {', '.join(scored.columns)}; written as {csv.name} is: "
                f"{table.written}"
            )
        )
        for line in scored.remarks():
            typer.echo(escape(line))
    # A table of which nothing could be read is a failure to whatever runs this
    if len(table) and not count:
        raise typer.Exit(1)


def _compare_command(
    file: ModelArgument,
    other: Annotated[
        Path,
        typer.Argument(metavar="OTHER", exists=True, dir_okay=False, help="The ONNX file to compare with."),
    ],
    *,
    csv: Annotated[
        Path,
        option(
            "A table of labelled rows that neither was trained on, with the encoder's columns.",
            exists=True,
            dir_okay=False,
        ),
    ],
    label: Annotated[str, option("Its column of the label.", metavar="COLUMN")],
    encoder: Annotated[
        Path | None,
        option(
            "The encoder that both were trained with; files that take raw columns have theirs.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    loss: Annotated[
        Loss | None, option("What both were trained with.", show_default="as the files say")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say which of two models is better on the same labelled rows, with a 95 % interval of the difference.

    Two classes are compared by AUC, more by accuracy. A row that one of them cannot score, or that has no
    label, is left out for both. The interval is for other rows like these, if no two are of one person; it
    does not hold the noise of training.
    """
    import warnings

    from adserver.client.comparison import compare
    from maskedlark.encoding.table import parse_table

    labels = parse_table(csv.read_bytes(), csv.name).cells(label)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = compare(file, other, csv, labels, encoder=encoder, loss=loss)
    # Both models may say the same of a row
    remarks = list(dict.fromkeys(str(one.message) for one in caught))
    if as_json:
        print_json({**asdict(found), "verdict": found.verdict, "warnings": remarks})
        return
    typer.echo(repr(found))
    for remark in remarks:
        typer.echo(f"warning: {escape(remark)}", err=True)


def _check_is_free(out: Path, inputs: Collection[Path], *, is_replaced: bool) -> None:
    """Refuse to write over a file that is read, and over any other unless it is to be replaced."""
    if not out.exists():
        return
    if any(out.samefile(one) for one in inputs):
        raise typer.BadParameter(f"--out names {out}, which this command reads: name another file")
    if not is_replaced:
        raise typer.BadParameter(f"{out} exists already: name another file, or add --force to replace it")


@takes(server=server_of)
def _export_command(
    *,
    server: "AdServer",
    out: OutArgument,
    job: OneJobOption = "",
    with_encoder: Annotated[
        bool,
        option("Export a graph that takes raw columns: it includes the task's encoder.", "--with-encoder"),
    ] = False,
    with_bytes: Annotated[
        bool,
        option(
            "Export a graph that takes features as bytes: it includes the division by 256.", "--with-bytes"
        ),
    ] = False,
    encoder: Annotated[
        Path | None,
        option(
            "The encoder file for --with-encoder, if the task does not name an encoder.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    weights: WeightsOption = ModelWeights.LATEST,
    as_json: JsonOption = False,
) -> None:
    """Write the submitted model file with weights of the job.

    The graph's input is float32, each feature's byte divided by 256, unless --with-encoder or
    --with-bytes is given.
    """
    from adserver.client.job import Job
    from adserver.collecting.task_settings import encoder_from
    from adserver.messages.job import calibrate_command
    from adserver.training.any_records import TAKES_ONE_RECORD, takes_one_record
    from maskedlark.runtime.durable_file import write_durably

    if with_encoder and with_bytes:
        raise typer.BadParameter("--with-encoder and --with-bytes exclude each other: give only one")
    form = InputForm.COLUMNS if with_encoder else InputForm.BYTES if with_bytes else InputForm.SCALED
    found = server.job(job)
    # By way of `Job`, which puts in an encoder that the task does not name
    made = Job(job_id=found.job_id, at=server).exported(form, encoder_from(encoder), weights)
    write_durably(out, made.encoded)
    if as_json:
        print_json({"rounds_done": made.rounds_done})
        return
    shown = {
        InputForm.SCALED: "bytes over 256, float32",
        InputForm.BYTES: "bytes, uint8",
        InputForm.COLUMNS: "raw columns",
    }
    is_local = found.plan.task is None
    after = found.progress if is_local else f"{made.rounds_done} of {plural(found.rounds or 0, 'round')}"
    typer.echo(f"exported the weights after {after}; the graph takes {shown[form]}")
    if takes_one_record(made.encoded):
        typer.echo(TAKES_ONE_RECORD)
    if (command := calibrate_command(found)) is not None:
        # The calibrated file is to take and hold what this one does
        command += f" --takes {form.value}" if form is not InputForm.SCALED and encoder is None else ""
        command += f" --weights {weights.value}" if weights is not ModelWeights.LATEST else ""
        typer.echo(
            "not calibrated: its predictions may add up to too little or too much; to fit them to rows of "
            f"your own, run: {command}"
        )


@takes(server=server_of)
def _calibrate_command(
    *,
    server: "AdServer",
    out: OutArgument,
    job: OneJobOption = "",
    evaluation: Annotated[
        str, option("Fit to an earlier evaluation of the job, by the start of its id.", metavar="ID")
    ] = "",
    panel: Annotated[
        Path | None,
        option("Or to an .npz file of features and labels of your own.", exists=True, dir_okay=False),
    ] = None,
    input_form: Annotated[
        InputForm, option("What the graph takes: scaled (bytes over 256), bytes, or raw columns.", "--takes")
    ] = InputForm.SCALED,
    weights: WeightsOption = ModelWeights.LATEST,
    as_json: JsonOption = False,
) -> None:
    """Write the job's model with its logit scaled and shifted, so that predictions add up.

    The two numbers are fitted to `adserver evaluate --job` (epsilon 0.1 is enough for thousands of reports),
    at no further cost, or to a panel.
    """
    from adserver.client.job import Job

    if (panel is None) == (not evaluation):
        raise typer.BadParameter("expected exactly one of --evaluation and --panel")
    found = Job(job_id=server.job(job).job_id, at=server)
    made = found.calibrate(
        out, evaluation=evaluation, panel=panel, takes=input_form.value, weights=weights.value
    )
    if as_json:
        figures = {name: getattr(made, name) for name in ("scale", "shift", "warning")}
        print_json({"rounds_done": made.exported.rounds_done, **figures})
        return
    typer.echo(f"calibrated: the logit is multiplied by {made.scale:.4f} and increased by {made.shift:+.4f}")
