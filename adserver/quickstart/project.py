"""A project folder: `lark.toml`, which people read and change, and where everything else lies.

project = Project.open(Path("play"))
project.settings.training.rounds
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from adserver.quickstart.defaults import ROUNDS
from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from maskedlark.canonical import build, canonical
from maskedlark.errors import InvalidTask
from maskedlark.escape import DELETE, escape
from maskedlark.frozen import frozen
from maskedlark.model.losses import Loss

CONFIG: Final = "lark.toml"
PLANNED: Final = "planned"
SAMPLE: Final = "wbcd"
"""The Wisconsin breast-cancer data, which come with scikit-learn."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
ColumnWords = Annotated[str, Field(pattern=r"^(?s:.+)=(planned|[0-9]{1,7})$")]
Address = Annotated[str, Field(pattern=r"^(127\.[0-9.]+|localhost|\[::1\]):[0-9]{1,5}$")]


@canonical
class Servers:
    """Where the three servers listen on this machine, as host:port."""

    helper_0: Address
    helper_1: Address
    adserver_grpc: Address
    adserver_http: Address

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({self.helper_0, self.helper_1, self.adserver_grpc, self.adserver_http}) < 4:
            raise ValueError("two servers have the same address: give each a port of its own")
        return self


@canonical
class DataSettings:
    """What browsers report.

    Attributes:
        csv: A table, seen from the project's folder; empty for the sample.
        label: Its column of labels.
        classes: The label's classes; rows with another label are left out. Empty: all that there are.
        ignore: Its columns that are no features.
        dates: Its columns of dates, which become a weekday, a day and an hour.
        codes: Its columns of numbers that name things, which are read as words.
        words: Its columns of ids, as COLUMN=N, whose N most frequent words have rows of their own in the
            model, or as COLUMN=planned, as many as the reports and epsilon carry.
        publish: Its columns whose words may stand in the public encoder though they look like identifiers.
        panel: The share of rows that are never reported: the trained model is tested on them.
    """

    csv: str = ""
    label: str = ""
    classes: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    words: tuple[ColumnWords, ...] = ()
    publish: tuple[str, ...] = ()
    panel: Annotated[float, Field(gt=0, lt=1)] = 0.2

    def vocabularies(self) -> dict[str, int | None]:
        """Return how many words of each column of ids have rows; None: as many as are planned."""
        asked = (one.rpartition("=") for one in self.words)
        return {column: None if count == PLANNED else int(count) for column, _, count in asked}


@canonical
class TaskSettings:
    """What both helpers sign."""

    min_batch_size: Annotated[int, Field(ge=1)] = 100
    clip_norm: Positive = 10.0
    epsilon: Positive = 3.0
    collusion_epsilon: Positive = 8.0


@canonical
class ModelSettings:
    """What is trained.

    Attributes:
        onnx: A file, seen from the project's folder; empty for a network over the table's columns.
        hidden: That network's hidden widths; None: by `adserver.quickstart.defaults`.
        seed: Of its weights.
    """

    onnx: str = ""
    hidden: tuple[Annotated[int, Field(ge=1, le=1 << 16)], ...] | None = None
    seed: int = 1


@canonical
class TrainingSettings:
    """How it is trained. Without a batch size, a round takes all reports.

    An empty loss follows from the labels, and a learning rate of None from reports, epsilon and
    model (`adserver.quickstart.defaults`).
    """

    rounds: Annotated[int, Field(ge=1)] = ROUNDS
    optimizer: OptimizerKind = OptimizerKind.MOMENTUM
    schedule: ScheduleKind = ScheduleKind.COSINE
    learning_rate: Positive | None = None
    epsilon: Positive = 3.0
    batch_size: Positive | None = None
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
            said = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError:
            raise InvalidTask(
                f"{path} does not exist: create it with `adserver quickstart new {folder}`"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidTask(f"{path} is not valid TOML: {error}") from None
        try:
            return cls(folder=folder.resolve(), settings=build(Settings, said))
        except InvalidTask as error:
            raise InvalidTask(f"{path}: {str(error).removeprefix('Settings: ')}") from None

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


def new_project(folder: Path, settings: Settings, notes: Mapping[str, str] | None = None) -> Project:
    """Make a project's folder with its `lark.toml` and `env.sh`.

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
        raise InvalidTask(f"{folder / CONFIG} exists already: run it with `adserver quickstart run {folder}`")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(config_text(settings, notes or {}), encoding="utf-8")
    lines = [f"export {name}='{value}'\n" for name, value in project.environment().items()]
    project.environment_file.write_text("".join(lines))
    return project


def config_text(settings: Settings, notes: Mapping[str, str]) -> str:
    """Write `lark.toml` with a comment at each setting, and notes at values of `[data]`."""
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
classes = {_list(data.classes, notes)}  # its classes; rows with other labels are left out; [] for all
ignore = {_list(data.ignore, notes)}           # columns that are no features
dates = {_list(data.dates, notes)}            # columns of dates: weekday, day and hour become features
codes = {_list(data.codes, notes)}            # columns of numbers that name things: read as words
words = {_list(data.words, notes)}            # columns of many words: "item=1000" or "item=planned" rows
publish = {_list(data.publish, notes)}          # columns of identifiers whose words may be public
panel = {data.panel:g}            # the share of rows that nobody reports: the model is tested on them

[task]                 # what both helpers sign, for good
min_batch_size = {task.min_batch_size}
clip_norm = {task.clip_norm:g}         # a ceiling: the job's bound follows the gradients below it
epsilon = {task.epsilon:g}            # the budget of a dataset against the ad server
collusion_epsilon = {task.collusion_epsilon:g}  # against the ad server together with one helper

[model]
onnx = {_text(model.onnx)}              # your model, seen from this folder; "" for one over your columns
{_hidden(model.hidden)}
seed = {model.seed}

[training]
rounds = {training.rounds}
optimizer = {_text(training.optimizer)}
schedule = {_text(training.schedule)}
{_rate(training.learning_rate)}
epsilon = {training.epsilon:g}            # what this job may cost
# batch_size = 256     # expected reports in a round; without it, all of them
# loss = "cross_entropy"  # without it: by the labels

[servers]              # on this machine alone, without TLS
helper_0 = {_text(servers.helper_0)}
helper_1 = {_text(servers.helper_1)}
adserver_grpc = {_text(servers.adserver_grpc)}
adserver_http = {_text(servers.adserver_http)}
"""


def _hidden(widths: tuple[int, ...] | None) -> str:
    if widths is None:
        return "# hidden = [32]      # widths of hidden layers; without it: by the number of rows and columns"
    return f"hidden = [{', '.join(map(str, widths))}]"


def _rate(rate: float | None) -> str:
    if rate is None:
        return (
            "# learning_rate = 1  # of the gradient over the clip bound; without it: by rows, epsilon, model"
        )
    return f"learning_rate = {rate:g}"


def _list(values: tuple[str, ...], notes: Mapping[str, str]) -> str:
    """Format a TOML list of strings: with a line for each value if one has a note."""
    if not any(value in notes for value in values):
        return f"[{', '.join(map(_text, values))}]"
    lines = [
        f"  {_text(value)},{f'  # {escape(notes[value])}' if value in notes else ''}\n" for value in values
    ]
    return f"[\n{''.join(lines)}]"


def _text(value: str) -> str:
    """Format a TOML string."""
    return json.dumps(value, ensure_ascii=False).replace(DELETE, "\\u007f")
