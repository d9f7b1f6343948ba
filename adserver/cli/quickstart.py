"""`adserver quickstart`: new, run, up, down."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from adserver.cli.options import JsonOption
from adserver.views.printing import print_json, print_table
from maskedlark.terminal.options import option

quickstart_app = typer.Typer(
    no_args_is_help=True,
    help="Run both helpers and an ad server on this machine from one project folder, with your table "
    "and model.",
)

FolderArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", file_okay=False, help="The project's folder.")
]


@quickstart_app.command("new")
def new_command(
    folder: FolderArgument,
    csv: Annotated[
        Path | None, option("Your table as CSV; default: a sample.", exists=True, dir_okay=False)
    ] = None,
    label: Annotated[str, option("The table's label column.", metavar="COLUMN")] = "",
    model: Annotated[
        Path | None, option("Your ONNX model; default: a dense network.", exists=True, dir_okay=False)
    ] = None,
) -> None:
    """Create a project folder with its settings in `lark.toml`, without starting anything."""
    from adserver.quickstart.ports import free_ports
    from adserver.quickstart.project import DataSettings, ModelSettings, Servers, Settings, new_project

    if (csv is None) != (not label):
        raise typer.BadParameter("--csv and --label require each other: give both, or neither for the sample")
    ports = free_ports(4)
    project = new_project(
        folder,
        Settings(
            servers=Servers(
                helper_0=f"127.0.0.1:{ports[0]}",
                helper_1=f"127.0.0.1:{ports[1]}",
                adserver_grpc=f"127.0.0.1:{ports[2]}",
                adserver_http=f"127.0.0.1:{ports[3]}",
            ),
            data=DataSettings(csv=str(csv.resolve()) if csv else "", label=label),
            model=ModelSettings(onnx=str(model.resolve()) if model else ""),
        ),
    )
    typer.echo(f"check {folder / 'lark.toml'}, then run: adserver quickstart run {folder}")
    typer.echo(f"to use other commands with these servers, first run: . {project.environment_file}", err=True)


@quickstart_app.command("run")
def run_command(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """Run the training that `lark.toml` describes, from browsers' reports to a tested model in `runs/`."""
    from adserver.quickstart.project import Project
    from adserver.quickstart.recipe import run_project

    result = run_project(Project.open(folder), tell=_tell)
    told = asdict(result)
    if as_json:
        print_json(told)
    else:
        print_table(("", ""), list(told.items()))


@quickstart_app.command("up")
def up_command(folder: FolderArgument) -> None:
    """Start the project's two helpers and ad server in the background, and wait until they answer."""
    from adserver.quickstart.project import Project
    from adserver.quickstart.running import RunningFleet

    RunningFleet(Project.open(folder), tell=_tell).up()


@quickstart_app.command("down")
def down_command(folder: FolderArgument) -> None:
    """Stop the project's servers. Their files stay in the project's folder."""
    from adserver.quickstart.project import Project
    from adserver.quickstart.running import RunningFleet

    RunningFleet(Project.open(folder), tell=_tell).down()


def _tell(what: str) -> None:
    typer.echo(what, err=True)
