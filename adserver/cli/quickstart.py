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
    help="A whole fleet on this machine, in one project folder: your table, your model, one settings file.",
)

FolderArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", file_okay=False, help="The project's folder.")
]


@quickstart_app.command("new")
def new_command(
    folder: FolderArgument,
    csv: Annotated[
        Path | None, option("Your table; without one, a sample.", exists=True, dir_okay=False)
    ] = None,
    label: Annotated[str, option("Its column of labels.", metavar="COLUMN")] = "",
    model: Annotated[
        Path | None, option("Your ONNX model; without one, a dense network.", exists=True, dir_okay=False)
    ] = None,
) -> None:
    """Make a project folder with its settings in `lark.toml`; nothing is started."""
    from adserver.quickstart.ports import free_ports
    from adserver.quickstart.project import DataSettings, ModelSettings, Servers, Settings, new_project

    if (csv is None) != (not label):
        raise typer.BadParameter("--csv and --label go together")
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
    typer.echo(f"look at {folder / 'lark.toml'}, then: adserver quickstart run {folder}")
    typer.echo(f"and for other commands on this fleet: . {project.environment_file}", err=True)


@quickstart_app.command("run")
def run_command(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """Train once as `lark.toml` says, from browsers' reports to a tested model in `runs/`."""
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
    """Start the project's two helpers and its ad server in the background; returns once they answer."""
    from adserver.quickstart.project import Project
    from adserver.quickstart.running import RunningFleet

    RunningFleet(Project.open(folder), tell=_tell).up()


@quickstart_app.command("down")
def down_command(folder: FolderArgument) -> None:
    """End the project's servers; what they keep stays in its folder."""
    from adserver.quickstart.project import Project
    from adserver.quickstart.running import RunningFleet

    RunningFleet(Project.open(folder), tell=_tell).down()


def _tell(what: str) -> None:
    typer.echo(what, err=True)
