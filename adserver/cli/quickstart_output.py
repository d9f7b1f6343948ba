"""What `adserver quickstart` prints of a table, a measurement and its runs."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from adserver.views.printing import print_table
from maskedlark.escape import escape
from maskedlark.terminal.plural import plural

if TYPE_CHECKING:
    from adserver.quickstart.measurement_forecast import GroupForecast
    from adserver.quickstart.runs import Rows, RunResult
    from adserver.quickstart.settings import MeasureSettings
    from adserver.quickstart.table_report import TableReport
    from maskedlark.encoding.encoder import Encoder

# Of what `status` knows of a run, what is no column of the table
_BELOW_THE_RUNS: Final = (
    "epsilon_with_measurement",
    "is_calibrated",
    "private_minus_plain",
    "private_minus_panel_alone",
    "verdict",
    "leaks",
    "measured_csv",
    "rows_per_person",
    "panel",
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
    gaps = f"empty in {plural(report.unlabelled, 'row')}{report.label_gaps}"
    typer.echo(escape(f"label {report.label!r}: {classes}; {gaps}"))
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
    forecasts: "Sequence[GroupForecast]", measure: "MeasureSettings", notes: Sequence[str]
) -> None:
    """Print how wide the intervals of a measurement will be, what is to be known, and what is not good."""
    from adserver.quickstart.measurement_forecast import (
        FORECAST_COLUMNS,
        describe_forecasts,
        tabulate_forecasts,
        warn_of_forecasts,
    )

    if forecasts:
        typer.echo(escape(describe_forecasts(forecasts, measure)))
        print_table(FORECAST_COLUMNS, tabulate_forecasts(forecasts))
    for note in notes:
        typer.echo(escape(f"[measure] {note}"))
    show_warnings(warn_of_forecasts(forecasts, measure))


def show_warnings(warnings: Sequence[str]) -> None:
    """Print each warning to stderr."""
    for warning in warnings:
        typer.secho(f"warning: {escape(warning)}", fg="yellow", err=True)


def show_measured(measured: Mapping[str, Any], rows: "Rows", rows_per_person: int | None = None) -> None:
    """Print the groups of a measurement, and how it is read.

    Args:
        measured: The result's `measured`.
        rows: What became of the table's rows.
        rows_per_person: The most of a person that epsilon is of; None: epsilon is of one row.
    """
    from adserver.messages.query import ResultMessage
    from adserver.views.query import kept_in, means_in, print_groups, summary_lines

    said = json.loads(Path(measured["json"]).read_bytes())
    # A run that an older version began names none
    quantiles = kept_in(said, measured.get("quantiles", ()))
    result = ResultMessage.model_validate(said).value()
    statistics = (*means_in(result), *quantiles)
    where = f"{measured['csv']} has all"
    print_groups(result, statistics, is_all_shown=False, where=where)
    for line in summary_lines(result, statistics):
        typer.echo(escape(line))
    if rows_per_person is not None:
        typer.echo(f"epsilon is of a person with up to {plural(rows_per_person, 'row')}")
    if rows.reported < rows.read:
        typer.echo(f"these groups are of the {rows.reported:,} reported rows, of {rows.read:,} in the table")
    # A run that an older version began has no such file
    if own_table := measured.get("own_table"):
        typer.echo(
            escape(f"what bounds cut off of your own table, exact and no part of epsilon: {own_table}")
        )


def describe_result(result: "RunResult", folder: Path) -> list[str]:
    """Return the lines by which a run is told to people; its summary has the rest.

    Args:
        result: The run's.
        folder: The run's, as the owner writes it.
    """
    from adserver.quickstart.runs import SUMMARY

    told = dict[str, str]()
    said, plain = asdict(result), getattr(result, "plain", None) or {}
    if verdict := plain.get("verdict"):
        # The warning has the verdict and what to do about it
        told["verdict"] = next((one for one in result.warnings if verdict in one), verdict)
    if "auc" in said:
        told |= _describe_model(said)
    told["rows"] = _describe_rows(said)
    told |= _describe_epsilons(said)
    ids = {what: said.get(f"{what}_id") for what in ("task", "dataset", "job")}
    named = (f"{what} {one[:_ID]}" for what, one in ids.items() if one)
    told["run"] = ", ".join((" ".join(filter(None, (said["run"], said["name"]))), *named))
    told["results"] = f"{folder}; every figure and warning is in {folder / SUMMARY}"
    width = max(map(len, told))
    return [f"{name:<{width}}  {escape(value)}" for name, value in told.items()]


def _describe_model(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield how a model does on the panel, and which weights it has."""
    if said["auc"] is not None:
        yield "AUC", _area_of(said)
    if said["leaks"]:
        yield "warning", _describe_leaks(said["leaks"])
    if said["base_rate"] is not None:
        of = f" of {said['predicts']!r}" if said["predicts"] else " of the most frequent class"
        yield "base rate", f"{_figure(said['base_rate'])}{of}"
    calibrated = "" if said["calibration"] is None else ", calibrated"
    accuracy = "" if said["accuracy"] is None else f"; accuracy {_figure(said['accuracy'])}"
    yield "loss", f"{_figure(said['loss'])}{calibrated}{accuracy}"
    yield "weights", f"of round {said['chosen_round']} of {said['rounds']}"


def _describe_leaks(leaks: Sequence[str]) -> str:
    return f"{'; '.join(leaks)}: the figures are worth nothing unless that is known before the label"


def _describe_rows(said: Mapping[str, Any]) -> str:
    rows, devices = said["rows"], said.get("devices")
    at = "reported" if devices is None else f"on {plural(devices, 'device')}"
    told = [f"{rows['read']} read", f"{rows['reported']} {at}"]
    told += [f"{rows['panel']} in the panel"] if rows["panel"] else []
    if rows["left_out"]:
        reasons = "; ".join(f"{reason}: {count}" for reason, count in rows["left_out"].items())
        told.append(f"{sum(rows['left_out'].values())} left out ({reasons})")
    return ", ".join(told)


def _describe_epsilons(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    most, both = said["rows_per_person"], said.get("epsilon_with_measurement")
    is_of_person = most is not None or said.get("devices") is not None
    whose = " of a person" if is_of_person else ""
    whose += "" if most is None else f" with up to {plural(most, 'row')}"
    for name, suffix in (("epsilon", ""), ("with sums", "_with_measurement")):
        if suffix and both is None:
            continue
        alone, colluding = (_figure(said[f"{one}{suffix}"]) for one in ("epsilon", "collusion_epsilon"))
        of = " of training" if both is not None and not suffix else ""
        yield name, f"{alone}{of}{whose} against the ad server, {colluding} with one helper"


def show_comparison(result: "RunResult") -> None:
    """Print a row for the private model, and for each that it is compared with; nothing without one."""
    said, plain = asdict(result), getattr(result, "plain", None)
    if not plain:
        return
    is_ranked, rows = said["auc"] is not None, list[tuple[str, str, str]]()
    for name, figures in (("private", said), ("plain", plain), ("panel alone", plain.get("panel_alone"))):
        if figures is None:
            continue
        paired = figures.get("private_minus_this")
        less = "{difference:+.4f} ({low:+.4f} to {high:+.4f})".format(**paired) if paired else ""
        rows.append((name, _area_of(figures) if is_ranked else str(_figure(figures["accuracy"])), less))
    typer.echo()
    print_table(("", "AUC" if is_ranked else "accuracy", "private less this (95 %)"), rows)


def _area_of(figures: Mapping[str, Any]) -> str:
    """Return an AUC with its interval: a panel of few positives leaves it open by more than runs differ."""
    interval = figures.get("auc_interval")
    return f"{_figure(figures['auc'])}" + (
        "" if interval is None else " (99 %: {:.3f} to {:.3f})".format(*interval)
    )


def _cell_of_run(one: Mapping[str, Any], name: str) -> object:
    """Return what the table of runs has for a figure of one."""
    value, both = one[name], one["epsilon_with_measurement"]
    if name == "dataset_id":
        return (value or "")[:_ID]
    if name == "loss" and one["is_calibrated"]:
        return f"{_figure(value)}, calibrated"
    if name == ("accuracy" if one["auc"] is None else "auc") and one["leaks"]:
        return f"{_figure(value)}, a leak?"
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
    # Runs of one table have the same ones
    by_leaks: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for one in runs:
        by_leaks[tuple(one["leaks"] or ())].append(one["run"])
    for leaks, which in by_leaks.items():
        if leaks:
            named = f"run{'s' * (len(which) > 1)} {', '.join(which)}"
            typer.echo(escape(f"{named}: warning: {_describe_leaks(leaks)}"))
