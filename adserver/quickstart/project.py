"""A project folder: `lark.toml`, which people read and change, and where everything else lies.

project = Project.open(Path("play"))
project.settings.training.rounds
"""

import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from adserver.quickstart.lark_toml import config_text
from adserver.quickstart.settings import Settings
from adserver.quickstart.wrong_settings import WrongSetting, read_settings
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.runtime.durable_file import write_durably

CONFIG: Final = "lark.toml"
SAMPLE: Final = "wbcd"
"""The Wisconsin breast-cancer data, which come with scikit-learn."""


@frozen
class Project:
    """A folder and its settings."""

    folder: Path
    settings: Settings

    @classmethod
    def open(cls, folder: Path) -> "Project":
        """Read a project's settings.

        Raises:
            InvalidTask: there is no `lark.toml`, it is no TOML, or settings are wrong or unknown: all of them
                are named.
        """
        project, wrong = cls.read(folder)
        if wrong:
            raise InvalidTask(f"{folder / CONFIG}: {'; '.join(one.text for one in wrong)}")
        return project

    @classmethod
    def read(cls, folder: Path) -> "tuple[Project, tuple[WrongSetting, ...]]":
        """Read the settings that can be read; the wrong ones, returned too, have their defaults.

        Raises:
            InvalidTask: there is no `lark.toml`, or it is no TOML.
        """
        path, text = folder / CONFIG, ""
        try:
            text = path.read_text(encoding="utf-8")
            said = tomllib.loads(text)
        except OSError:
            raise InvalidTask(
                f"{path} does not exist: create it with `adserver quickstart new {folder}`"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidTask(f"{path} is not valid TOML: {error}{_hint(text, str(error))}") from None
        settings, wrong = read_settings(said)
        # Absolute: servers are found again by a path among their arguments, from any folder.
        return cls(folder=folder.resolve(), settings=settings), wrong

    @property
    def parties(self) -> Path:
        """The folder with each server's own folder and log."""
        return self.folder / "parties"

    @property
    def environment_file(self) -> Path:
        """The file that a shell sources so that `adserver` commands find these servers."""
        return self.folder / "env.sh"

    def path(self, said: str) -> Path:
        """Resolve the path of a file that the settings name."""
        return self.folder / said

    def last_run(self) -> Path | None:
        """Return the folder of the last run, or None."""
        runs = self.folder / "runs"
        taken = [int(one.name) for one in runs.glob("*") if one.name.isdigit()]
        return runs / str(max(taken)) if taken else None

    def new_run(self) -> Path:
        """Create a new, empty folder for one run's results: `runs/1`, `runs/2`, ..."""
        last = self.last_run()
        made = self.folder / "runs" / str(1 if last is None else int(last.name) + 1)
        made.parent.mkdir(exist_ok=True)
        # A run keeps rows of the table, and with a network on devices what each of them answered.
        made.mkdir(mode=0o700)
        return made

    def environment(self) -> dict[str, str]:
        """Return the variables by which `adserver` commands, and a shell's browsers, find these servers."""
        servers = self.settings.servers
        return {
            "ADSERVER_DATA": str(self.parties / "adserver"),
            "ADSERVER_HELPER_0": servers.helper_0,
            "ADSERVER_HELPER_1": servers.helper_1,
            "ADSERVER_INSECURE": "1",
            "ADSERVER_GRPC_LISTEN": servers.adserver_grpc,
            "ADSERVER_HTTP_LISTEN": servers.adserver_http,
        }

    def write_environment(self) -> None:
        """Write `environment_file` anew, for this folder and the addresses that the settings have now."""
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in self.environment().items()]
        write_durably(self.environment_file, "".join(lines).encode())


def _hint(text: str, error: str) -> str:
    """Return what helps with a line of a file that is no TOML, where that can be told."""
    place = re.search(r"at line ([0-9]+)", error)
    line = text.splitlines()[int(place[1]) - 1] if place else ""
    comma = re.search(r"=\s*([-+]?[0-9]+),([0-9]+)", line)
    return f": numbers have a point: {comma[1]}.{comma[2]}" if comma else ""


def new_project(folder: Path, settings: Settings, notes: Mapping[str, str] | None = None) -> Project:
    """Make a project's folder with `env.sh` and `lark.toml`, which counts rows and is for this user alone.

    Args:
        folder: The folder.
        settings: What `lark.toml` says.
        notes: A comment for each value of `[data]` that has one.

    Raises:
        InvalidTask: the folder has a `lark.toml` already; or a file that the settings name is missing.
    """
    project = Project(folder=folder.resolve(), settings=settings)
    for said in (settings.data.csv, settings.model.onnx):
        if said and not project.path(said).is_file():
            raise InvalidTask(f"{project.path(said)} does not exist: correct the path in lark.toml")
    if (folder / CONFIG).exists():
        raise InvalidTask(
            f"{folder / CONFIG} exists already: run it with `adserver quickstart run {folder}`; to make a "
            "project anew, name another folder, or remove this one yourself, with its runs"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(folder / CONFIG, config_text(settings, notes or {}).encode())
    project.write_environment()
    return project
