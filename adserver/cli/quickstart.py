"""`adserver quickstart`: sample, new, check, run, up, down, status, logs. `lark demo` is new and run."""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from adserver.cli.options import JsonOption
from adserver.cli.quickstart_output import (
    describe_features,
    describe_result,
    show_comparison,
    show_forecasts,
    show_measured,
    show_report,
    show_runs,
    show_warnings,
)
from adserver.views.printing import print_json, print_table
from maskedlark.escape import escape
from maskedlark.runtime.signals import ending_on_sigterm
from maskedlark.terminal.lazy_commands import NearGroup
from maskedlark.terminal.options import option
from maskedlark.terminal.plural import plural

if TYPE_CHECKING:
    from adserver.quickstart.project import Project
    from adserver.quickstart.settings import DataSettings
    from adserver.quickstart.table_report import TableReport
    from maskedlark.encoding.table import Table

quickstart_app = typer.Typer(
    cls=NearGroup,
    no_args_is_help=True,
    help="Run both helpers and an ad server on this machine from one project folder, with your table "
    "and model.",
)

FolderArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", file_okay=False, help="The project's folder.")
]


@quickstart_app.command("sample")
def _sample_command(
    out: Annotated[Path, typer.Argument(metavar="CSV", dir_okay=False, help="The file to write.")],
) -> None:
    """Write a made-up table of people's visits to a shop, the same every time, to try quickstart on."""
    from adserver.quickstart.sample_table import PEOPLE, sample_table

    # The name may be that of the owner's own table
    if out.exists():
        raise typer.BadParameter(f"{out} exists already: name another file")
    table = sample_table()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(table, encoding="utf-8")
    typer.echo(f"{table.count(chr(10)) - 1} made-up visits of {PEOPLE} people who do not exist: {out}")


@quickstart_app.command("new")
def _new_command(
    folder: FolderArgument,
    *,
    csv: Annotated[
        Path | None, option("Your table as CSV; default: a sample.", exists=True, dir_okay=False)
    ] = None,
    label: Annotated[
        str, option("The table's label column; without it, nothing is trained.", metavar="COLUMN")
    ] = "",
    model: Annotated[
        Path | None, option("Your ONNX model; default: a dense network.", exists=True, dir_okay=False)
    ] = None,
    value: Annotated[
        list[str] | None,
        option(
            "A column of numbers to sum privately, or COLUMN==WORD to count a word; repeatable.",
            metavar="COLUMN",
        ),
    ] = None,
    key: Annotated[
        list[str] | None,
        option("A column to group those sums by, the coarsest first; repeatable.", metavar="COLUMN"),
    ] = None,
    person: Annotated[
        str,
        option(
            "The column that names the person: each person's device then trains on the person's own rows.",
            metavar="COLUMN",
        ),
    ] = "",
) -> None:
    """Create a project folder with its settings in `lark.toml`, without starting anything.

    A table is read and described: what each column holds and becomes, and what is left out and why.
    """
    project = _make_project(
        folder, csv=csv, label=label, model=model, values=value or (), keys=key or (), person=person
    )
    typer.echo(f"check {folder / 'lark.toml'}, then run: adserver quickstart run {folder}")
    typer.echo(f"to use other commands with these servers, first run: . {project.environment_file}", err=True)


_OF_A_PERSON = (
    '. Epsilon of a person, of reports, is person = "COLUMN" under [task] in the lark.toml that is made'
)


def _check_options(
    csv: Path | None, *, label: str, model: Path | None, is_measured: bool, person: str
) -> None:
    """Raise typer.BadParameter for options of `new` that do not go together."""
    if csv is None and label:
        raise typer.BadParameter("--label names a column of a table: give --csv, or neither for the sample")
    if csv is not None and not (label or is_measured):
        raise typer.BadParameter(
            "--csv needs --label to train a model, or --value or --key to measure without training: name a "
            "column"
        )
    if csv is not None and not label and (person or model):
        raise typer.BadParameter(
            "--person and --model train a model, which needs a label: name its column with --label, or leave "
            f"both out to measure alone{_OF_A_PERSON if person else ''}"
        )
    if csv is None and (is_measured or person):
        raise typer.BadParameter(
            "--value, --key and --person name columns of a table: give --csv; `adserver quickstart sample` "
            "writes a made-up one"
        )
    if person and is_measured:
        raise typer.BadParameter(
            f"--person lets devices train, which report no values: leave out --value, --key{_OF_A_PERSON}"
        )
    if person and person == label:
        raise typer.BadParameter(f"--person and --label both name {label!r}: name the column of the person")


def _make_project(
    folder: Path,
    *,
    csv: Path | None = None,
    label: str = "",
    model: Path | None = None,
    values: Sequence[str] = (),
    keys: Sequence[str] = (),
    person: str = "",
) -> "Project":
    from adserver.quickstart.check import check
    from adserver.quickstart.column_check import plan_ids, warn_of_bare_ids, warn_of_measured
    from adserver.quickstart.measurement import plan_measurement
    from adserver.quickstart.measurement_forecast import (
        forecast_groups,
        suggest_values,
        warn_of_forecasts,
    )
    from adserver.quickstart.people import count_reported
    from adserver.quickstart.ports import free_ports
    from adserver.quickstart.project import new_project
    from adserver.quickstart.repeated_people import warn_of_repeated_people
    from adserver.quickstart.settings import (
        DataSettings,
        FederatedSettings,
        MeasureSettings,
        ModelSettings,
        Servers,
        Settings,
        TaskSettings,
        TrainingSettings,
        suggest_epsilon,
    )
    from adserver.quickstart.table_report import read_report
    from adserver.training.defaults import CLIP_ON_DEVICES, ROUNDS_ON_DEVICES

    _check_options(csv, label=label, model=model, is_measured=bool(values or keys), person=person)
    data, measure = DataSettings(), MeasureSettings(keys=tuple(keys))
    notes, found_in_table = dict[str, str](), list[str]()
    report: TableReport | None = None
    warnings: tuple[str, ...] = ()
    if csv is not None:
        table = _read_named(csv, label, person, values, keys)
        # Without the person: the report would call its column an identifier, and leave it out as such
        report = read_report(table.without(person) if person else table, label)
        if person:
            named = Counter(table.columns[person])
            found_in_table.append(
                f"person {person!r}: {plural(len(named.keys() - {None}), 'person', 'people')}; "
                f"empty in {plural(named[None], 'row')}"
            )
        # Absolute, because the project's folder may lie anywhere
        data = DataSettings(csv=str(csv.resolve()))
        if label:
            data, notes = _data_settings(csv.resolve(), report), _notes(report)
        measure = replace(measure, epsilon=suggest_epsilon(data, TaskSettings()))
        measured = suggest_values(table, data, values, measure)
        measure = replace(measure, values=measured)
        # Its errors too: a project whose measurement cannot run is not made
        reported = count_reported(table, data)
        plan = plan_measurement(table, data, measure)
        forecasts = forecast_groups(table, data, measure, TaskSettings(), reported=reported, plan=plan)
        secret = {one.column for one in measured}
        learned = {*table.columns} - {*data.ignore} if label else set()
        warnings = (
            *report.warn_of_leaks(learned - secret),
            *report.warn_of_spellings(learned | {*measure.columns}),
            *warn_of_bare_ids(one for one in plan_ids(table, data, reported) if one.name in learned - secret),
            *warn_of_repeated_people(
                table, label, measure.columns, person=person, section="federated" if person else "task"
            ),
            *warn_of_measured(table, measure),
            *warn_of_forecasts(forecasts, measure),
        )
        no_feature = ", and the model does not learn from it" if label else ""
        found_in_table += [
            f"{column!r} is measured, so nobody sees it{no_feature}" for column in sorted(secret - {label})
        ]
        if not label:
            found_in_table.append("without --label no model is trained, and every row is reported")
    # Chosen once and written down, so that the servers come back at the same addresses
    ports = free_ports(5)
    project = new_project(
        folder,
        Settings(
            servers=Servers(
                helper_0=f"127.0.0.1:{ports[0]}",
                helper_1=f"127.0.0.1:{ports[1]}",
                adserver_grpc=f"127.0.0.1:{ports[2]}",
                adserver_http=f"127.0.0.1:{ports[3]}",
                dashboard=f"127.0.0.1:{ports[4]}",
            ),
            data=data,
            task=TaskSettings(clip_norm=CLIP_ON_DEVICES) if person else TaskSettings(),
            model=ModelSettings(onnx=str(model.resolve()) if model else ""),
            training=TrainingSettings(rounds=ROUNDS_ON_DEVICES) if person else TrainingSettings(),
            measure=measure,
            federated=FederatedSettings(person=person),
        ),
        notes,
    )
    # Shown once the project is made: an error would be overlooked below a table of columns
    if report is not None:
        show_report(report)
    for line in found_in_table:
        typer.echo(escape(line))
    if measure.is_asked:
        typer.echo(escape(f"how wide intervals of the sums will be: adserver quickstart check {folder}"))
    show_warnings(warnings)
    # Told and not refused: the file stays, and is what its owner corrects
    if model is not None:
        found = check(project)
        for problem in found.problems:
            typer.secho(f"to correct before it runs: {escape(problem)}", fg="yellow", err=True)
        show_warnings(found.warnings)
    return project


def _read_named(csv: Path, label: str, person: str, values: Sequence[str], keys: Sequence[str]) -> "Table":
    """Read a table, or end with a line for each column that the options of `new` name wrongly, if several."""
    from adserver.quickstart.check import read_table
    from adserver.quickstart.column_check import find_measure_problems
    from adserver.quickstart.measurement import parse_value
    from adserver.quickstart.settings import DataSettings, MeasureSettings
    from maskedlark.encoding.close_names import list_known

    table = read_table(csv)
    found = [
        f"{option} names {name!r}, but {table.name} has no such column; {list_known(name, table.columns)}"
        for option, name in (("--label", label), ("--person", person))
        if name and name not in table.columns
    ]
    # What else is wrong with a label is found once the names are right
    data = DataSettings()
    measure = MeasureSettings(values=tuple(parse_value(table, one) for one in values), keys=tuple(keys))
    # One alone is said by what reads it
    if len(wrong := [*found, *find_measure_problems(table, data, measure)]) > 1:
        _refuse(wrong)
    return table


@quickstart_app.command("check")
def _check_command(folder: FolderArgument) -> None:
    """Check every setting of `lark.toml` against the table and the model, without starting anything."""
    from adserver.quickstart.check import check
    from adserver.quickstart.people import describe_left_out

    project = _open(folder)
    found = check(project)
    if found.problems:
        _refuse(found.problems)
    if found.encoder is not None:
        told = describe_features(found.encoder)
        typer.echo(f"features, those of words with the rows of a table for them: {told}")
    if found.why_general is not None:
        from adserver.views.plan import describe_path

        typer.echo("\n".join(describe_path(found.why_general)))
    show_warnings((*found.table_warnings, *found.warnings))
    show_forecasts(found.forecasts, project.settings.measure, found.measured_notes)
    for line in (*found.person_notes, *describe_left_out(found.left_out)):
        typer.echo(escape(line))
    by = "" if found.people is None else f" by {plural(found.people, 'person', 'people')}"
    if found.loss is None:
        typer.echo(
            f"{plural(found.rows, 'row')}, all of them reported{by} and measured; no model is trained, since "
            f"[data] label is empty: run it with `adserver quickstart run {folder}`"
        )
        return
    whose = f"reported{by}" if found.devices is None else f"on {found.devices} people's devices"
    typer.echo(
        f"{plural(found.rows, 'row')} of {plural(found.num_classes, 'class', 'classes')}, "
        f"{found.reported} of them {whose} and {found.rows - found.reported} in the panel; "
        f"{plural(found.num_features, 'feature')}; loss {found.loss.value}: "
        f"run it with `adserver quickstart run {folder}`"
    )


def _open(folder: Path) -> "Project":
    """Read a project, or end with a line for each setting that cannot be read and all else that is wrong."""
    from adserver.quickstart.check import problems_of
    from adserver.quickstart.project import Project

    project, wrong = Project.read(folder)
    if wrong:
        _refuse(problems_of(project, wrong))
    return project


def _refuse(problems: Sequence[str]) -> NoReturn:
    for problem in problems:
        typer.secho(f"InvalidTask: {escape(problem)}", fg="red", err=True)
    raise typer.Exit(1)


@quickstart_app.command("run")
def _run_command(
    folder: FolderArgument,
    as_json: JsonOption = False,
    *,
    name: Annotated[str, option("What you call this run, in `status` and its summary.")] = "",
    note: Annotated[str, option("What you want to remember of this run.")] = "",
    compare_plain: Annotated[
        bool,
        option(
            "Also train the same network, and a linear model, without privacy: on the same rows, for what "
            "privacy costs, and on the panel alone, for what the reports are worth.",
            "--compare-plain",
        ),
    ] = False,
) -> None:
    """Run what `lark.toml` describes, from browsers' reports to a tested model and sums in `runs/`.

    Settings are checked first, as by `check`. A run that was interrupted is gone on with, and keeps its name,
    note and comparison unless others are given. The model has the weights of the round that does best on the
    rows that were not reported; the last round's figures are next to it.
    """
    from adserver.quickstart.project_run import run_project
    from adserver.quickstart.runs import RunOptions, Trained

    options = RunOptions(name=name, note=note, compare_plain=compare_plain)
    with ending_on_sigterm():
        result = run_project(_open(folder), _tell, options)
    if as_json:
        print_json(asdict(result))
        return
    results = folder / "runs" / result.run
    typer.echo("\n".join(("", *describe_result(result, results))))
    show_comparison(result)
    if result.measured:
        show_measured(result.measured, result.rows, result.rows_per_person)
    if isinstance(result, Trained) and result.encoder:
        model, encoder = (
            shlex.quote(str(results / Path(one).name)) for one in (result.model, result.encoder)
        )
        files = f"{model} --encoder {encoder}"
        typer.echo(f"to score another table: adserver model predict {files} --csv NEW.csv --out scored.csv")


def _demo_command(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", file_okay=False, help="Where the demo's files go.")
    ] = Path("lark-demo"),
    as_json: JsonOption = False,
) -> None:
    """Train a model on sample medical records through two helpers and an ad server on this machine.

    The folder is a quickstart project: change its `lark.toml` and run the demo again, or continue with
    `lark quickstart`. Takes about a minute, plus a minute of compilation at the first start on a machine.
    """
    from adserver.quickstart.project import CONFIG

    # A second demo in the folder is the first one's project, with whatever was changed in it
    if not (folder / CONFIG).exists():
        _make_project(folder)
    _run_command(folder, as_json)


@quickstart_app.command("up")
def _up_command(
    folder: FolderArgument,
    *,
    dashboard: Annotated[
        bool, option("Print a link that logs one browser in to the dashboard.", "--dashboard")
    ] = False,
    opened: Annotated[bool, option("Open that link in your browser, too.", "--open")] = False,
) -> None:
    """Start the project's two helpers and ad server in the background, and wait until they answer.

    They stay until `down`, also if a run that is at work started them.
    """
    import webbrowser

    from adserver.quickstart.project import Project
    from adserver.quickstart.running import RunningFleet

    fleet = RunningFleet(Project.open(folder), tell=_tell)
    with ending_on_sigterm():
        fleet.up(is_held=True)
    if dashboard or opened:
        link = fleet.login_link()
        typer.echo(link)
        # The link works once: it is printed before a browser that may not open takes it
        if opened and not webbrowser.open(link):
            _tell("no browser could be opened here: open the link yourself, within ten minutes")


@quickstart_app.command("status")
def _status_command(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """Show which of the project's servers run, where, what became of its runs, and why one is not done."""
    from adserver.quickstart.project import Project
    from adserver.quickstart.run_states import describe_runs, warn_of_panels
    from adserver.quickstart.running import RunningFleet

    project = Project.open(folder)
    states = RunningFleet(project, tell=_tell).states()
    runs = describe_runs(project, is_short=not as_json)
    if as_json:
        servers = [{**asdict(one), "log": str(one.log)} for one in states]
        print_json({"servers": servers, "runs": runs, "warning": warn_of_panels(runs)})
        return
    print_table(
        ("server", "state", "listens on", "log"),
        [
            (one.name, f"runs as {one.process}" if one.process else "stopped", one.listens_on, one.log)
            for one in states
        ],
    )
    typer.echo()
    show_runs(runs)
    if warning := warn_of_panels(runs):
        typer.echo(f"warning: {warning}")


@quickstart_app.command("logs")
def _logs_command(
    folder: FolderArgument,
    lines: Annotated[int, option("How many lines of each log.", min=1, max=100_000)] = 20,
) -> None:
    """Show the end of each server's log."""
    from adserver.quickstart.project import Project
    from adserver.quickstart.running import RunningFleet

    for name, log in RunningFleet(Project.open(folder), tell=_tell).log_ends(lines).items():
        typer.secho(name, bold=True)
        for line in log or ["nothing yet: it has not been started"]:
            typer.echo(f"  {escape(line)}")


@quickstart_app.command("down")
def _down_command(folder: FolderArgument) -> None:
    """Stop the project's servers. Their files stay in the project's folder."""
    from adserver.quickstart.project import Project
    from adserver.quickstart.running import RunningFleet

    stopped = RunningFleet(Project.open(folder), tell=_tell).down()
    _tell(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")


def _data_settings(csv: Path, report: "TableReport") -> "DataSettings":
    """Return what the report suggests for `[data]`."""
    from adserver.quickstart.settings import PLANNED, DataSettings
    from adserver.quickstart.table_report import Use

    return DataSettings(
        csv=str(csv),
        label=report.label,
        classes=tuple(report.classes),
        ignore=report.named(Use.LEFT_OUT),
        dates=report.dates(),
        codes=report.codes(),
        words=tuple(f"{name}={PLANNED}" for name in report.ids()),
    )


def _notes(report: "TableReport") -> dict[str, str]:
    """Return the comment of each value that `_data_settings` names."""
    of_columns = {column.name: column.why for column in report.columns if column.why}
    return {name: plural(count, "row") for name, count in report.classes.items()} | of_columns


def _tell(what: str) -> None:
    typer.echo(what, err=True)
