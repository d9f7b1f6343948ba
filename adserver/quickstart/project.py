"""A project folder: `lark.toml`, which people read and change, and where everything else lies.

project = Project.open(Path("play"))
project.settings.training.rounds
"""

import tomllib
from pathlib import Path
from typing import Final

from maskedlark.canonical import build, canonical
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.model.losses import Loss

CONFIG: Final = "lark.toml"
SAMPLE: Final = "wbcd"
"""The Wisconsin breast-cancer data, which come with scikit-learn."""


@canonical
class Servers:
    """Where the three servers listen, as host:port."""

    helper_0: str
    helper_1: str
    adserver_grpc: str
    adserver_http: str


@canonical
class DataSettings:
    """What browsers report.

    Attributes:
        csv: A table, seen from the project's folder; empty for the sample.
        label: Its column of labels.
        ignore: Its columns that are no features.
        panel: The share of rows that are never reported: the trained model is tested on them.
    """

    csv: str = ""
    label: str = ""
    ignore: tuple[str, ...] = ()
    panel: float = 0.2


@canonical
class TaskSettings:
    """What both helpers sign."""

    min_batch_size: int = 100
    clip_norm: float = 1.0
    epsilon: float = 3.0
    collusion_epsilon: float = 8.0


@canonical
class ModelSettings:
    """What is trained.

    Attributes:
        onnx: A file, seen from the project's folder; empty for a dense network with random weights.
        hidden: That network's hidden widths.
        seed: Of its weights.
    """

    onnx: str = ""
    hidden: tuple[int, ...] = (50, 50)
    seed: int = 1


@canonical
class TrainingSettings:
    """How it is trained. Without a batch size, a round takes all reports.

    An empty loss follows from the labels.
    """

    rounds: int = 60
    optimizer: str = "momentum"
    learning_rate: float = 0.3
    epsilon: float = 3.0
    batch_size: float | None = None
    loss: Loss | None = None


@canonical
class Settings:
    """What `lark.toml` says."""

    servers: Servers
    data: DataSettings = DataSettings()
    task: TaskSettings = TaskSettings()
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()


@frozen
class Project:
    """A folder and its settings."""

    folder: Path
    settings: Settings

    @classmethod
    def open(cls, folder: Path) -> "Project":
        """Read a project's settings.

        Raises:
            InvalidTask: there is no `lark.toml`, it is no TOML, or a setting is wrong or unknown.
        """
        path = folder / CONFIG
        try:
            said = tomllib.loads(path.read_text())
        except OSError:
            raise InvalidTask(
                f"{path} does not exist: create it with `adserver quickstart new {folder}`"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidTask(f"{path} is not valid TOML: {error}") from None
        return cls(folder=folder.resolve(), settings=build(Settings, said))

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

    def new_run(self) -> Path:
        """Create a new, empty folder for one run's results: `runs/1`, `runs/2`, ..."""
        runs = self.folder / "runs"
        taken = [int(one.name) for one in runs.glob("*") if one.name.isdigit()]
        made = runs / str(max(taken, default=0) + 1)
        made.mkdir(parents=True)
        return made

    def environment(self) -> dict[str, str]:
        """Return the variables by which `adserver` commands find these servers."""
        servers = self.settings.servers
        return {
            "ADSERVER_DATA": str(self.parties / "adserver"),
            "ADSERVER_HELPER_0": servers.helper_0,
            "ADSERVER_HELPER_1": servers.helper_1,
            "ADSERVER_INSECURE": "1",
        }


def new_project(folder: Path, settings: Settings) -> Project:
    """Make a project's folder with its `lark.toml` and `env.sh`.

    Raises:
        InvalidTask: the folder has a `lark.toml` already; or a file that the settings name is missing.
    """
    project = Project(folder=folder.resolve(), settings=settings)
    for said in (settings.data.csv, settings.model.onnx):
        if said and not project.path(said).is_file():
            raise InvalidTask(f"{project.path(said)} does not exist: correct the path in lark.toml")
    if (folder / CONFIG).exists():
        raise InvalidTask(f"{folder / CONFIG} exists already: run it with `adserver quickstart run {folder}`")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(config_text(settings))
    lines = [f"export {name}='{value}'\n" for name, value in project.environment().items()]
    project.environment_file.write_text("".join(lines))
    return project


def config_text(settings: Settings) -> str:
    """Write `lark.toml` with a comment at each setting."""
    data, task, model, training, servers = (
        settings.data,
        settings.task,
        settings.model,
        settings.training,
        settings.servers,
    )
    return f"""\
# What `adserver quickstart run` does. Change a line and run it again: each run makes a new task, and leaves
# its results in runs/.

[data]
csv = {_text(data.csv)}              # your table, seen from this folder; "" for the sample
label = {_text(data.label)}            # its column of labels
ignore = [{", ".join(map(_text, data.ignore))}]           # columns that are no features
panel = {data.panel:g}            # the share of rows that nobody reports: the model is tested on them

[task]                 # what both helpers sign, for good
min_batch_size = {task.min_batch_size}
clip_norm = {task.clip_norm:g}
epsilon = {task.epsilon:g}            # the budget of a dataset against the ad server
collusion_epsilon = {task.collusion_epsilon:g}  # against the ad server together with one helper

[model]
onnx = {_text(model.onnx)}              # your model, seen from this folder; "" for a dense network
hidden = [{", ".join(map(str, model.hidden))}]
seed = {model.seed}

[training]
rounds = {training.rounds}
optimizer = {_text(training.optimizer)}
learning_rate = {training.learning_rate:g}
epsilon = {training.epsilon:g}            # what this job may cost
# batch_size = 256     # expected reports in a round; without it, all of them
# loss = "cross_entropy"  # without it: by the labels

[servers]              # on this machine alone, without TLS
helper_0 = {_text(servers.helper_0)}
helper_1 = {_text(servers.helper_1)}
adserver_grpc = {_text(servers.adserver_grpc)}
adserver_http = {_text(servers.adserver_http)}
"""


def _text(value: str) -> str:
    """Format a TOML string."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
