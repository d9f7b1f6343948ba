"""What `adserver quickstart` prints of a table, a measurement and its runs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from adserver.views.printing import print_table
from maskedlark.escape import escape
from maskedlark.terminal.plural import plural

if TYPE_CHECKING:
    from adserver.quickstart.measurement_forecast import GroupForecast
    from adserver.quickstart.runs import RunResult
    from adserver.quickstart.settings import MeasureSettings
    from adserver.quickstart.table_report import TableReport
    from maskedlark.encoding.encoder import Encoder

_NAMES: Final = {
    "read": "rows read",
    "reported": "rows reported",
    "panel": "rows of the panel",
    "auc": "AUC",
    "last_auc": "last AUC",
    "collusion_epsilon": "epsilon against the ad server with one helper",
    "rows_per_person": "most rows of a person",
}
# A job's own figures, in `job show`, `job compare` and the dashboard, are those before calibration
_NAMES_CALIBRATED: Final = {"loss": "loss, calibrated", "last_loss": "last loss, calibrated"}
_NAMES_WITH_MEASUREMENT: Final = {
    "epsilon": "epsilon of training",
    "collusion_epsilon": "epsilon of training against the ad server with one helper",
    "epsilon_with_measurement": "epsilon of training and measurement",
    "collusion_epsilon_with_measurement": "the same against the ad server with one helper",
}
_NAMES_OF_PERSON: Final = {
    "epsilon": "epsilon of a person",
    "collusion_epsilon": "the same against the ad server with one helper",
}
_NAMES_OF_PERSON_WITH_BOTH: Final = {
    "epsilon": "epsilon of a person, for training",
    "collusion_epsilon": "the same against the ad server with one helper",
    "epsilon_with_measurement": "epsilon of a person, for training and measurement",
    "collusion_epsilon_with_measurement": "both against the ad server with one helper",
}
_NAMES_ON_DEVICES: Final = {"reported": "rows on devices", **_NAMES_OF_PERSON}
# Of what `status` knows of a run, what is no column of the table
_BELOW_THE_RUNS: Final = (
    "epsilon_with_measurement",
    "is_calibrated",
    "private_minus_plain",
    "private_minus_panel_alone",
    "verdict",
    "measured_csv",
    "rows_per_person",
    "why",
)
# Characters of a dataset's id that are shown
_ID: Final = 12
# Characters of an example cell that are shown
_EXAMPLE: Final = 30
# Columns whose places are listed: a picture has one for each pixel
_MOST_COLUMNS: Final = 50


def show_report(report: "TableReport") -> None:
    """Print what the table holds and, with a label, what becomes of it."""
    written = f"{plural(report.rows, 'row')}, read as {report.written}"
    if not report.label:
        print_table(
            ("column", "different", "gaps", "for example"),
            [(one.name, one.distinct, one.gaps, one.example[:_EXAMPLE]) for one in report.columns],
        )
        typer.echo(written)
        return
    print_table(
        ("column", "becomes", "different", "gaps", "for example", "why"),
        [
            (one.name, one.use.value, one.distinct, one.gaps, one.example[:_EXAMPLE], one.why)
            for one in report.columns
        ],
    )
    typer.echo(written)
    classes = ", ".join(f"{name!r} {count}" for name, count in report.classes.items())
    typer.echo(escape(f"label {report.label!r}: {classes}; empty in {plural(report.unlabelled, 'row')}"))
    if len(report.classes) == 2:
        predicted = list(report.classes)[1]
        typer.echo(escape(f"the model will give the chance of {predicted!r}, the second of `classes`"))
    if report.other_labels:
        others = ", ".join(f"{name!r} {count}" for name, count in report.other_labels.items())
        typer.echo(escape(f"left out, since too few rows have these labels: {others}"))


def describe_features(encoder: "Encoder") -> str:
    """Return each column's places among the features, and of words the rows that an `nn.Embedding` needs."""
    from adserver.client.columns import columns_of

    columns = columns_of(encoder)
    told = [
        f"{one.places[0]}{f' to {one.places[-1]}' if one.places[1:] else ''} {one.name}"
        + (f" ({one.rows} rows)" if one.rows else "")
        for one in columns[:_MOST_COLUMNS]
    ]
    if len(columns) > _MOST_COLUMNS:
        told.append(f"... up to {encoder.num_features - 1}")
    return ", ".join(told)


def show_forecasts(
    forecasts: "Sequence[GroupForecast]", measure: "MeasureSettings", notes: Sequence[str] = ()
) -> None:
    """Print how wide the intervals of a measurement will be, what is to be known, and what is too wide."""
    from adserver.quickstart.measurement_forecast import describe_forecasts, warn_of_width

    if forecasts:
        typer.echo(escape(describe_forecasts(forecasts, measure)))
    for note in notes:
        typer.echo(escape(f"[measure] {note}"))
    show_warnings(warn_of_width(forecasts, measure))


def show_warnings(warnings: Sequence[str]) -> None:
    """Print each warning to stderr."""
    for warning in warnings:
        typer.secho(f"warning: {escape(warning)}", fg="yellow", err=True)


def show_measured(measured: Mapping[str, Any], rows_per_person: int | None = None) -> None:
    """Print the groups of a measurement, and how it is read; of a person with so many rows, or of one row."""
    from adserver.messages.query import ResultMessage
    from adserver.views.query import kept_in, means_in, print_groups, summary_lines

    said = json.loads(Path(measured["json"]).read_bytes())
    # A run that an older version began names none
    quantiles = kept_in(said, measured.get("quantiles", ()))
    result = ResultMessage.model_validate(said).value()
    statistics = (*means_in(result), *quantiles)
    print_groups(result, statistics, is_all_shown=False, where=f"{measured['csv']} has all")
    for line in summary_lines(result, statistics):
        typer.echo(escape(line))
    if rows_per_person is not None:
        typer.echo(f"epsilon is of a person with up to {plural(rows_per_person, 'row')}")
    # A run that an older version began has no such file
    own_table = measured.get("own_table")
    notes = json.loads(Path(own_table).read_bytes())["notes"] if own_table else []
    if notes:
        typer.echo(escape(f"of your own table, exact and no part of epsilon ({own_table}):"))
    for note in notes:
        typer.echo(escape(f"  {note}"))


def summary_rows(result: "RunResult") -> list[tuple[str, object]]:
    """Return what a run's summary shows to people, each with its name."""
    told = asdict(result)
    rows, plain = told.pop("rows"), told.pop("plain", None) or {}
    alone, told["verdict"] = plain.pop("panel_alone", None) or {}, plain.pop("verdict", "")
    uncalibrated = told.pop("calibration", None) or {}
    # The run has just printed its warnings, a line each; the verdict may be in one
    warnings = told.pop("warnings")
    if any(told["verdict"] and told["verdict"] in one for one in warnings):
        del told["verdict"]
    for figures in (told, plain, alone):
        # Beside the AUC: a panel of few positives leaves it open by more than runs differ
        if (interval := figures.pop("auc_interval", None)) is not None:
            figures["auc"] = "{:.4g} (99 %: {:.3f} to {:.3f})".format(figures["auc"], *interval)
        # Paired on the same rows, so it is narrower
        if (paired := figures.pop("private_minus_this", None)) is not None:
            name = f"private model's {_NAMES.get(paired['metric'], paired['metric'])} less this"
            figures[name] = "{difference:+.4f} (95 %: {low:+.4f} to {high:+.4f})".format(**paired)
    names = _NAMES | (_NAMES_CALIBRATED if uncalibrated else {})
    if told.get("devices") is not None:
        names |= _NAMES_ON_DEVICES
        # Devices send no reports and there is no dataset: zeros would read as a failure
        del told["reports"], told["dataset_size"]
    if told.pop("measured") and told.get("epsilon_with_measurement") is not None:
        names |= _NAMES_WITH_MEASUREMENT if told["rows_per_person"] is None else _NAMES_OF_PERSON_WITH_BOTH
    elif told["rows_per_person"] is not None:
        names |= _NAMES_OF_PERSON
    return [
        *((names[name], rows[name]) for name in ("read", "reported", "panel")),
        *((f"rows left out: {reason}", count) for reason, count in rows["left_out"].items()),
        *(
            (names.get(name, name.replace("_", " ")), _figure(value))
            for name, value in told.items()
            if value not in ("", None)
        ),
        *(
            (f"before calibration: {name.replace('_', ' ')}", _figure(uncalibrated[name]))
            for name in ("mean_over_rate", "loss", "accuracy")
            if name in uncalibrated
        ),
        *(
            (f"{what}: {name.replace('_', ' ')}", _figure(value))
            for what, figures in (("without privacy", plain), ("panel alone", alone))
            for name, value in figures.items()
        ),
    ]


def _cell_of_run(one: Mapping[str, Any], name: str) -> object:
    """Return what the table of runs has for a figure of one."""
    value, both = one[name], one["epsilon_with_measurement"]
    if name == "dataset_id":
        return (value or "")[:_ID]
    if name == "loss" and one["is_calibrated"]:
        return f"{_figure(value)}, calibrated"
    if name == "epsilon":
        whole = "" if both is None else f", with measurement {_figure(both)}"
        return f"{_figure(value)}{whole}{' of a person' if one['rows_per_person'] else ''}"
    return _figure(value)


def _figure(value: object) -> object:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else value


def show_runs(runs: Sequence[Mapping[str, Any]]) -> None:
    """Print a row for each run, and below them what is no column."""
    print_table(
        (
            "run",
            "state",
            "name",
            "dataset",
            "auc",
            "plain auc",
            "panel auc",
            "base rate",
            "loss",
            "accuracy",
            "epsilon",
            "note",
        ),
        [tuple(_cell_of_run(one, name) for name in one if name not in _BELOW_THE_RUNS) for one in runs],
    )
    for one in runs:
        sums = one["measured_csv"] and f"sums by groups in {one['measured_csv']}"
        for line in filter(None, (one["verdict"], sums, one["why"])):
            typer.echo(escape(f"run {one['run']}: {line}"))
