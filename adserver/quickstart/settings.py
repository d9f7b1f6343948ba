"""What `lark.toml` says, table by table: types and ranges are checked when it is read."""

from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.training.defaults import ROUNDS
from maskedlark.canonical import canonical
from maskedlark.encoding.dates import DateOrder, split_order
from maskedlark.model.losses import Loss

PLANNED: Final = "planned"

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# A column's name may hold = and line breaks: the last = ends it.
ColumnWords = Annotated[
    str,
    Field(pattern=r"^(?s:.+)=(planned|[0-9]{1,7})$", description='"COLUMN=planned" or "COLUMN=N"'),
]
# Loopback alone, because the servers of a project talk without TLS.
_ADDRESS: Final = r"^(127\.[0-9.]+|localhost|\[::1\]):[0-9]{1,5}$"
_EXPECTED: Final = 'an address of this machine with a port, such as "127.0.0.1:28000"'
Address = Annotated[str, Field(pattern=_ADDRESS, description=_EXPECTED)]


@canonical
class Servers:
    """Where the three servers listen on this machine, as host:port.

    Attributes:
        dashboard: Where the ad server shows its dashboard; empty for none.
    """

    helper_0: Address
    helper_1: Address
    adserver_grpc: Address
    adserver_http: Address
    dashboard: Annotated[str, Field(pattern=_ADDRESS + "|^$", description=f'{_EXPECTED}, or ""')] = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        taken = [self.helper_0, self.helper_1, self.adserver_grpc, self.adserver_http, self.dashboard]
        if len(set(taken)) < len(taken):
            raise ValueError("two servers have the same address: give each a port of its own")
        return self


@canonical
class DataSettings:
    """What browsers report.

    Attributes:
        csv: A table, seen from the project's folder; empty for the sample.
        label: Its column of labels; empty to measure its columns and train nothing.
        classes: The label's classes; rows with another label are left out. Empty: all that there are.
        ignore: Its columns that are no features, whatever the lists below name.
        dates: Its columns of dates, which become a weekday, a day and an hour; as COLUMN=dmy or COLUMN=mdy
            where it is known whether the day or the month stands first in dates with slashes.
        codes: Its columns of numbers that name things, which are read as words.
        words: Its columns of ids, as COLUMN=N, whose N most frequent words have rows of their own in the
            model, or as COLUMN=planned, as many as the reports and epsilon carry.
        publish: Its columns whose words may stand in the public encoder though they look like identifiers.
        not_people: Its columns of ids that name no people, such as articles: `check` does not ask about them.
        panel: The share of rows that are never reported: the trained model is tested on them. Without a
            label, all rows are reported.
    """

    csv: str = ""
    label: str = ""
    classes: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    words: tuple[ColumnWords, ...] = ()
    publish: tuple[str, ...] = ()
    not_people: tuple[str, ...] = ()
    panel: Annotated[float, Field(gt=0, lt=1)] = 0.2

    @property
    def has_no_label(self) -> bool:
        """Return whether a table is named and no label: nothing can be trained."""
        return bool(self.csv) and not self.label

    def count_reported(self, rows: int) -> int:
        """Return how many of so many rows browsers report: those that are not in the panel."""
        return rows if self.has_no_label else rows - round(self.panel * rows)

    def date_orders(self) -> dict[str, DateOrder | None]:
        """Return what stands first in the slashed dates of each column of dates; None: its cells show it."""
        return dict(map(split_order, self.dates))

    def vocabularies(self) -> dict[str, int | None]:
        """Return how many words of each column of ids have rows; None: as many as are planned."""
        asked = (one.rpartition("=") for one in self.words)
        return {column: None if count == PLANNED else int(count) for column, _, count in asked}


@canonical
class TaskSettings:
    """What both helpers sign. Of its budget, training leaves a part to measurements and evaluations.

    Attributes:
        person: The column that names the person, which is no feature: epsilon is of all rows of one. Empty:
            of one row.
        rows_per_person: The most rows of a person that are reported; None: by
            `adserver.quickstart.people.choose_rows_per_person`.
    """

    person: str = ""
    rows_per_person: Annotated[int, Field(ge=1, le=1 << 10)] | None = None
    min_batch_size: Annotated[int, Field(ge=1)] = 100
    clip_norm: Positive = 10.0
    epsilon: Positive = 4.0
    collusion_epsilon: Positive = 8.0


@canonical
class ModelSettings:
    """What is trained.

    Attributes:
        onnx: A file, seen from the project's folder; empty for a network over the table's columns.
        standardise: Whether features of that file are centred and scaled by the panel if it is untrained.
        hidden: That network's hidden widths; None: by `adserver.training.defaults`.
        seed: Of its weights.
    """

    onnx: str = ""
    standardise: bool = True
    hidden: tuple[Annotated[int, Field(ge=1, le=1 << 16)], ...] | None = None
    seed: int = 1


@canonical
class TrainingSettings:
    """How it is trained. Without a batch size, a round takes all reports.

    An empty loss follows from the labels, and a learning rate of None from reports, epsilon and
    model (`adserver.training.defaults`), as do rounds of None with a model of the person's own.
    """

    rounds: Annotated[int, Field(ge=1)] | None = None
    optimizer: OptimizerKind = OptimizerKind.MOMENTUM
    schedule: ScheduleKind = ScheduleKind.COSINE
    learning_rate: Positive | None = None
    epsilon: Positive = 3.0
    batch_size: Positive | None = None
    loss: Loss | None = None

    @property
    def usual_rounds(self) -> int:
        """The rounds that are named, or of every network but a person's own.

        Of all reports, any number costs the same.
        """
        return self.rounds or ROUNDS


@canonical
class Measured:
    """A column whose sums are released.

    Attributes:
        column: Its name; its cells are secret, so it is no feature.
        most: The most that a row counts, in either direction: noise follows it. Numbers need one.
        word: Count the rows with this word instead of adding up numbers.
        quantiles: Shares of rows: of numbers, release the value that each share does not exceed, too. Their
            histogram takes a part of epsilon.
    """

    column: str
    most: Positive | None = None
    word: str = ""
    quantiles: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = ()

    @property
    def bound(self) -> float:
        """The most that a row counts: of a word, and where a bound is not chosen yet, 1."""
        return 1.0 if self.most is None else self.most


@canonical
class MeasureSettings:
    """What is measured in addition to training: sums, counts, means and quantiles by groups.

    Nothing without values and keys; with keys alone, the rows of each group are counted.

    Attributes:
        values: What is summed.
        keys: Columns to group by, the coarsest first; helpers see them.
        epsilon: What the measurement may cost.
    """

    values: tuple[Measured, ...] = ()
    keys: tuple[str, ...] = ()
    epsilon: Positive = 0.5

    @property
    def is_asked(self) -> bool:
        """Return whether anything is measured."""
        return bool(self.values or self.keys)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are summed, counted or grouped by."""
        return (*(one.column for one in self.values), *self.keys)


def suggest_epsilon(data: DataSettings, task: TaskSettings) -> float:
    """Return what a measurement may cost: little next to training, and without it half of the budget."""
    return task.epsilon / 2 if data.has_no_label else MeasureSettings().epsilon


@canonical
class FederatedSettings:
    """How devices train on people's own rows, one device a person; nothing without a column of persons.

    Attributes:
        person: The column that names the person; it is no feature.
        sampling_rate: The share of devices that train in a round. Below 1 costs more noise with one
            helper, which knows which devices those are.
        epochs: Passes over a device's rows in a round.
        batch_size: Rows in a step on a device.
        learning_rate: Of plain SGD on a device.
    """

    person: str = ""
    sampling_rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    epochs: Annotated[int, Field(ge=1, le=1000)] = 1
    batch_size: Annotated[int, Field(ge=1, le=1 << 20)] = 10
    learning_rate: Positive = 2.0


@canonical
class Settings:
    """What `lark.toml` says."""

    servers: Servers
    data: DataSettings = DataSettings()
    task: TaskSettings = TaskSettings()
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    measure: MeasureSettings = MeasureSettings()
    federated: FederatedSettings = FederatedSettings()

    @property
    def is_measured_alone(self) -> bool:
        """Return whether a table's columns are measured and no model is trained."""
        return self.measure.is_asked and self.data.has_no_label and not self.federated.person

    @property
    def person(self) -> str:
        """The column of the person, whose rows browsers report or whose device trains; empty for none."""
        return self.federated.person or self.task.person

    @property
    def epsilon_of_row(self) -> float:
        """The epsilon of training at which as much noise would be added if it were of one row.

        The defaults of model, rate and vocabularies are by that noise.
        """
        return self.training.epsilon / (self.task.rows_per_person or 1)
