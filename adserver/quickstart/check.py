"""What is wrong in a project's settings, all of it, before anything is started, signed or sealed.

    found = check(project)
    found.problems      # ("[training] epsilon is 5, but [task] epsilon, the budget, is 3: ...",)

A setting's type and range are checked when `lark.toml` is read (`adserver.quickstart.wrong_settings`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from adserver.quickstart.budget_check import (
    compare_noise,
    unsigned_task,
    why_devices_over_budget,
    why_over_budget,
)
from adserver.quickstart.column_check import (
    feature_columns,
    find_named_problems,
    find_person_problems,
    find_table_problems,
    fit_encoder,
    plan_measured,
    warn_of_bare_ids,
    warn_of_codes,
    warn_of_kept,
    warn_of_measured,
    warn_of_panel,
    warn_of_rows_per_person,
)
from adserver.quickstart.helper_floors import FLOORS
from adserver.quickstart.measurement import MeasurementPlan
from adserver.quickstart.measurement_forecast import (
    GroupForecast,
    compare_intervals,
    describe_measurement,
    forecast_groups,
    plan_measured_query,
    warn_of_forecasts,
)
from adserver.quickstart.model_check import (
    choose_loss,
    find_model_problems,
    read_own_model,
    warn_of_own_model,
)
from adserver.quickstart.people import count_use, divide_by_settings, settle
from adserver.quickstart.project import Project
from adserver.quickstart.repeated_people import warn_of_repeated_people
from adserver.quickstart.settings import (
    DataSettings,
    MeasureSettings,
    ModelSettings,
    Settings,
    TaskSettings,
    TrainingSettings,
)
from adserver.quickstart.table_report import read_report, warn_of_points, warn_of_spellings
from adserver.quickstart.wrong_settings import WrongSetting
from maskedlark.encoding.encoder import Encoder
from maskedlark.encoding.fit import PlannedTraining
from maskedlark.encoding.table import Table, parse_table
from maskedlark.errors import InvalidTask, JobRefused
from maskedlark.frozen import frozen
from maskedlark.model.losses import Loss
from maskedlark.terminal.plural import plural

if TYPE_CHECKING:
    from adserver.training.model_file import PreparedModel
    from maskedlark.privacy.accounting import Charge

SAMPLE_ROWS: Final = 569
SAMPLE_FEATURES: Final = 30
# Reports have a feature and two classes at least: where nothing is learned, both are 0 in every report.
MEASURED_FEATURES: Final = 1
MEASURED_CLASSES: Final = 2
_DECIDE_OF_ROWS: Final = frozenset(
    {"data", "measure", "values", "federated", "person", *(one.name for one in fields(DataSettings))}
)


@frozen
class Checked:
    """What a project's settings lead to.

    Attributes:
        problems: One line for each wrong setting, with its name and the remedy.
        rows: Rows that are used: they have a label that is learned and, where people are named, a person.
        reported: Those that browsers report, or people's devices hold; the rest is the panel.
        left_out: How many rows of the table are not used, by column and reason.
        devices: How many people's devices train; None where browsers report.
        people: How many people's browsers report the rows, where `[task]` names the person; else None.
        num_features: Bytes of a report.
        num_classes: Classes of the label.
        loss: The loss that is trained; None where columns are measured alone.
        encoder: How columns become those bytes; None for the sample, and where there are problems.
        why_general: What forces the project's own model to the general path; None without one, where devices
            train it, and where there are problems.
        warnings: One line for each kind of column that the project's own model reads as another, and for a
            loss that gives no chances.
        table_warnings: One line for each column that becomes a feature and tells the label by itself, for
            what is too few or too many, and for people who have several rows.
        leaks: Those of them that are of a column that tells the label by itself, without the advice.
        forecasts: How wide the intervals of the measured sums will be; empty where there are problems.
        measured_notes: What the table tells of those sums, as of `describe_measurement`.
        person_notes: What it costs that epsilon is of a person; empty where it is of one row, and where there
            are problems.
    """

    problems: tuple[str, ...]
    rows: int
    reported: int
    devices: int | None
    num_features: int
    num_classes: int
    loss: Loss | None
    encoder: Encoder | None
    why_general: tuple[str, ...] | None
    people: int | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    table_warnings: tuple[str, ...] = ()
    leaks: tuple[str, ...] = ()
    forecasts: tuple[GroupForecast, ...] = ()
    measured_notes: tuple[str, ...] = ()
    person_notes: tuple[str, ...] = ()

    def list_warnings(self, measure: MeasureSettings) -> tuple[str, ...]:
        """Return the warnings that `adserver quickstart check` shows of the table and its measurement."""
        return (*self.table_warnings, *warn_of_forecasts(self.forecasts, measure))

    def require(self) -> None:
        """Raise InvalidTask with every problem if there are any."""
        if self.problems:
            raise InvalidTask("; ".join(self.problems))


def read_table(path: Path) -> Table:
    """Read a table's file.

    Raises:
        InvalidTask: it cannot be read, or is no table.
    """
    try:
        return parse_table(path.read_bytes(), path.name)
    except OSError as error:
        raise InvalidTask(f"cannot read {path}: {error.strerror}") from None


def check(project: Project) -> Checked:
    """Find every wrong setting of a project.

    Raises:
        InvalidTask: the table cannot be read, or nothing can be learned from it.
    """
    settings = project.settings
    if settings.is_measured_alone:
        return _check_measured_alone(project)
    problems = list(_problems_of_names(settings))
    rows, features, classes = SAMPLE_ROWS, SAMPLE_FEATURES, 2
    reported, people = settings.data.count_reported(rows), None
    encoder: Encoder | None = None
    table_warnings: tuple[str, ...] = ()
    leaks: tuple[str, ...] = ()
    left_out: Mapping[str, int] = {}
    table: Table | None = None
    plan: MeasurementPlan | None = None
    # Without a label, reading the table would raise and hide the other problems.
    if settings.data.csv and not problems:
        table = read_table(project.path(settings.data.csv))
        report = read_report(table, settings.data.label)
        settings = settle(table, settings)
        kept = feature_columns(table, settings)
        problems += find_table_problems(table, report, project.settings, kept)
        classes = len(settings.data.classes or {**report.classes, **report.other_labels})
        use = count_use(table, settings)
        rows, reported, people, left_out = use.rows, use.reported, use.people, use.left_out
        plan, refused = plan_measured(table, settings, reported)
        problems += refused
        leaks = report.find_leaks(kept)
        table_warnings = (
            *report.warn_of_leaks(kept),
            *report.warn_of_spellings({*kept, *settings.measure.columns}),
            *warn_of_points(table, {*kept, *settings.measure.columns}),
            *warn_of_codes(report, settings.data, kept),
            *warn_of_kept(report, settings.data, kept),
            *warn_of_measured(table, settings.measure),
            *warn_of_panel(settings.data, rows - reported),
            *_warn_of_repeated_people(table, settings),
            *warn_of_rows_per_person(table, settings),
        )
        if not problems:
            planned = PlannedTraining(reports=reported, epsilon=settings.epsilon_of_row)
            encoder = fit_encoder(table, kept, settings.data, planned)
            features = encoder.num_features
            table_warnings = (*table_warnings, *warn_of_bare_ids(encoder.columns))
    loss = choose_loss(project, features, classes)
    problems += _problems_of_limits(settings)
    problems += _problems_of_training(settings, reported)
    devices = people if settings.federated.person else None
    problems += _problems_of_rows(settings.task, reported, devices, is_labelled=bool(settings.data.label))
    forecasts: tuple[GroupForecast, ...] = ()
    measured_notes: tuple[str, ...] = ()
    if table is not None and plan is not None and not problems:
        forecasts, measured_notes, refused = _forecast(table, plan, settings)
        problems += refused
    # How many features a table has is known once its columns are right
    if encoder is not None or not settings.data.csv:
        problems += find_model_problems(
            project, loss, encoder, features=features, classes=classes, reports=devices or reported
        )
    elif settings.model.onnx and not (path := project.path(settings.model.onnx)).is_file():
        problems.append(f"[model] onnx: cannot read {path}: there is no such file")
    is_own = bool(settings.model.onnx) and not problems
    own = read_own_model(project, features, encoder) if is_own else None
    why_general = None if own is None or settings.federated.person else _why_general(own, loss)
    if not problems:
        problems += _problems_of_budgets(
            plan,
            settings,
            reported,
            devices,
            why_general or (),
            features=features,
            classes=classes,
        )
    return Checked(
        problems=tuple(problems),
        rows=rows,
        reported=reported,
        devices=devices,
        num_features=features,
        num_classes=classes,
        people=people if settings.task.person else None,
        loss=loss,
        encoder=encoder,
        why_general=None if problems else why_general,
        left_out=left_out,
        warnings=() if own is None else tuple(warn_of_own_model(own, loss, classes, encoder)),
        table_warnings=table_warnings,
        leaks=leaks,
        forecasts=forecasts,
        measured_notes=measured_notes,
        person_notes=() if problems else tuple(_describe_person(settings, plan, reported)),
    )


def _why_general(own: "PreparedModel", loss: Loss) -> tuple[str, ...]:
    # Loads numpy, which light commands do without.
    from maskedlark.model import exactness

    return exactness.why_general(own.parsed, loss)


def _check_measured_alone(project: Project) -> Checked:
    """Find every wrong setting of a project without a label, which has no panel."""
    table = read_table(project.path(project.settings.data.csv))
    settings = settle(table, project.settings)
    use = count_use(table, settings)
    reported = use.reported
    plan, refused = plan_measured(table, settings, reported)
    problems = [
        *_problems_without_label(settings),
        *find_named_problems(table, settings.data),
        *find_person_problems(table, project.settings),
        *refused,
        *_problems_of_limits(settings),
        *_problems_of_rows(settings.task, reported, None, is_labelled=False),
    ]
    forecasts: tuple[GroupForecast, ...] = ()
    measured_notes: tuple[str, ...] = ()
    if plan is not None and not problems:
        forecasts, measured_notes, refused = _forecast(table, plan, settings)
        problems += refused
    return Checked(
        problems=tuple(problems),
        rows=reported,
        reported=reported,
        devices=None,
        people=use.people,
        left_out=use.left_out,
        num_features=MEASURED_FEATURES,
        num_classes=MEASURED_CLASSES,
        loss=None,
        encoder=None,
        why_general=None,
        table_warnings=(
            *warn_of_spellings(table, settings.measure.columns),
            *warn_of_points(table, settings.measure.columns),
            *warn_of_measured(table, settings.measure),
            *_warn_of_repeated_people(table, settings),
            *warn_of_rows_per_person(table, settings),
        ),
        forecasts=forecasts,
        measured_notes=measured_notes,
        person_notes=() if problems else tuple(_describe_person(settings, plan, reported)),
    )


def _warn_of_repeated_people(table: Table, settings: Settings) -> tuple[str, ...]:
    """Return `warn_of_repeated_people` of settled settings."""
    data = settings.data
    return warn_of_repeated_people(
        table,
        data.label,
        settings.measure.columns,
        data.not_people,
        person=settings.person,
        section="federated" if settings.federated.person else "task",
    )


def _describe_person(settings: Settings, plan: MeasurementPlan | None, reported: int) -> Iterator[str]:
    """Yield a line on what it costs that epsilon is of a person, where settled settings name one."""
    task, most = settings.task, settings.task.rows_per_person
    if not task.person or most is None:
        return
    costs = []
    if not settings.is_measured_alone:
        costs.append(f"the noise of training {compare_noise(settings, reports=reported):.3g} times that")
    if plan is not None:
        width = compare_intervals(plan, task, settings.measure, reported=reported)
        costs.append(f"[measure] intervals {width:.3g} times as wide as those")
    yield (
        f"[task] epsilon is of a person {task.person!r} with up to {plural(most, 'row')}"
        + (f", which makes {' and '.join(costs)} of an epsilon of one row" if most > 1 else "")
        + "; fewer rows_per_person make it less, and leave out more rows" * (most > 1)
    )


def _forecast(
    table: Table, plan: MeasurementPlan, settings: Settings
) -> tuple[tuple[GroupForecast, ...], tuple[str, ...], tuple[str, ...]]:
    """Return `forecasts` and `measured_notes`, as of `Checked`, and why the measurement is refused."""
    data, measure, task = settings.data, settings.measure, settings.task
    reported = count_use(table, settings).reported
    if task.person:
        # Not a fair part of all rows: those who have many rows report some of them
        table = divide_by_settings(table, settings).reported
    try:
        forecasts = forecast_groups(table, data, measure, task, reported=reported, plan=plan)
        return forecasts, describe_measurement(table, data, measure, forecasts, plan), ()
    except (InvalidTask, JobRefused) as error:
        return (), (), (f"[measure] cannot be asked: {error}",)


def problems_of(project: Project, wrong: Sequence[WrongSetting]) -> list[str]:
    """Return a line for each wrong setting, and for what is wrong with those that can be read.

    Args:
        project: As of `Project.read`: wrong settings have their defaults.
        wrong: The wrong settings. A problem that their defaults may cause is left out.
    """
    limits = tuple(_problems_of_limits(project.settings))
    try:
        others = check(project).problems
    except InvalidTask as error:
        others = (str(error), *limits)
    hidden = frozenset[str]().union(*(one.hides for one in wrong))
    told = [one.text for one in wrong]
    for problem in others:
        is_of_names = problem.startswith(
            ("[data]", "[measure] values", "[measure] keys", "[federated]", "[task] person")
        )
        # Columns and rows decide about features, and about how many rows are reported
        is_of_cells = problem.startswith("[data] column ") or "identifiers" in problem
        is_of_rows = problem not in limits and (not is_of_names or is_of_cells)
        if is_of_rows and not hidden.isdisjoint(_DECIDE_OF_ROWS):
            continue
        if not any(one.may_cause(problem) for one in wrong):
            told.append(problem)
    return told


def _problems_of_names(settings: Settings) -> Iterator[str]:
    data = settings.data
    for section, person in (("federated", settings.federated.person), ("task", settings.task.person)):
        if person and not data.csv:
            yield (
                f"[{section}] person is {person!r}, but [data] csv is empty: name your table, or empty person"
            )
    if data.has_no_label:
        yield (
            "[data] label is empty: set it to the label column of your table, or to measure without training "
            "name columns in [measure] values or keys"
        )
    if not data.csv and data.label:
        yield f"[data] label is {data.label!r}, but csv is empty: name your table, or empty the label"


def _problems_without_label(settings: Settings) -> Iterator[str]:
    """Yield which settings of training are there, though nothing can be trained without a label."""
    usual, data = DataSettings(), settings.data
    of_training = ("classes", "ignore", "dates", "codes", "words", "panel")
    said = [f"[data] {name}" for name in of_training if getattr(data, name) != getattr(usual, name)]
    said += ["[model]"] if settings.model != ModelSettings() else []
    said += ["[training]"] if settings.training != TrainingSettings() else []
    for name in said:
        yield (
            f"{name} is for training, but [data] label is empty, so columns are measured and no model is "
            "trained: remove it, or set label to the label column of your table"
        )


def _problems_of_training(settings: Settings, reported: int) -> Iterator[str]:
    training = settings.training
    if settings.measure.is_asked and not settings.data.csv:
        yield "[measure] names columns, but [data] csv is empty: name your table"
    if training.batch_size is not None and training.batch_size > reported:
        yield (
            f"[training] batch_size is {training.batch_size:g}, but browsers report "
            f"{plural(reported, 'row')}: lower it, or leave it out for all of them"
        )


def _why_over_task(section: str, epsilon: float, task: TaskSettings) -> Iterator[str]:
    if epsilon > task.epsilon:
        yield (
            f"{section} epsilon is {epsilon:g}, but the budget, [task] epsilon, is {task.epsilon:g}: lower "
            f"it to {task.epsilon:g} at most, or raise the budget"
        )


def _problems_of_limits(settings: Settings) -> Iterator[str]:
    """Yield what is wrong with the epsilons and floors by themselves, whatever the rows are."""
    task = settings.task
    yield from FLOORS.find_task_problems(task)
    if not settings.is_measured_alone:
        yield from _why_over_task("[training]", settings.training.epsilon, task)
    if settings.measure.is_asked:
        yield from _why_over_task("[measure]", settings.measure.epsilon, task)
    if task.collusion_epsilon < task.epsilon:
        yield (
            f"[task] collusion_epsilon is {task.collusion_epsilon:g}, below epsilon, {task.epsilon:g}: a "
            "helper that joins the ad server never sees less than the ad server alone"
        )


def _problems_of_rows(
    task: TaskSettings, reported: int, devices: int | None, *, is_labelled: bool
) -> Iterator[str]:
    if devices is not None and devices < task.min_batch_size:
        yield (
            f"[task] min_batch_size is {task.min_batch_size}, but {devices} people's devices train: take a "
            "table with more people, or lower min_batch_size"
        )
    elif reported < task.min_batch_size:
        yield (
            f"[task] min_batch_size is {task.min_batch_size}, but browsers report "
            f"{plural(reported, 'row')}: take a table with more "
            f"{'labelled ' if is_labelled else ''}rows, or lower min_batch_size"
        )


def _problems_of_budgets(
    plan: MeasurementPlan | None,
    settings: Settings,
    reported: int,
    devices: int | None,
    why_general: Sequence[str],
    *,
    features: int,
    classes: int,
) -> Iterator[str]:
    """Yield what the ad server or the helpers would refuse of the measurement and the training together."""
    if devices is not None:
        yield from why_devices_over_budget(settings, devices=devices)
        return
    budgets = partial(why_over_budget, settings, reports=reported, why_general=why_general)
    measurement = None if plan is None else plan.declared
    task = unsigned_task(settings.task, measurement=measurement, features=features, classes=classes)
    yield from FLOORS.find_size_problems(task)
    if plan is None:
        yield from budgets(task)
        return

    def charge_query(epsilon: float) -> "tuple[Charge, ...]":
        return plan_measured_query(plan, task, epsilon, reported).charges(task, 1)

    yield from budgets(task, measured=charge_query)
