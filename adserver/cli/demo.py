"""`lark demo`: a first training with nothing prepared."""

from pathlib import Path
from typing import Annotated

import typer

from adserver.cli.options import JsonOption
from adserver.cli.quickstart import new_command, run_command
from adserver.quickstart.project import CONFIG


def demo_command(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", file_okay=False, help="Where the demo's files go.")
    ] = Path("lark-demo"),
    as_json: JsonOption = False,
) -> None:
    """Train a model on sample medical records through two helpers and an ad server on this machine.

    The folder is a quickstart project: change its `lark.toml` and run the demo again, or continue with
    `lark quickstart`. Takes about a minute, plus a minute of compilation at the first start on a machine.
    """
    if not (folder / CONFIG).exists():
        new_command(folder)
    run_command(folder, as_json)
