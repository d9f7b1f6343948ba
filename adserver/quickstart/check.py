"""What is wrong in a project's settings, all of it, before anything is started, signed or sealed.

    found = check(project)
    found.problems      # ("[training] epsilon is 5, but [task] epsilon, the budget, is 3: ...",)

A setting's type and range are checked when `lark.toml` is read (`adserver.quickstart.wrong_settings`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from adserver.quickstart.budget_check import unsigned_task, why_devices_over_budget, why_over_budget
from adserver.quickstart.measurement import plan_measurement
from adserver.quickstart.measurement_forecast import (
    GroupForecast,
    describe_measurement,
    forecast_groups,
    plan_measured_query,
    suggest_bounds,
)
from adserver.quickstart.people import count_rows, divide, why_not_learned
from adserver.quickstart.project import Project
from adserver.quickstart.settings import DataSettings, ModelSettings, Settings, TrainingSettings
from adserver.quickstart.table_report import TableReport, Use, read_report
from adserver.quickstart.wrong_settings import WrongSetting
from maskedlark.encoding import dates
from maskedlark.encoding.close_names import list_columns
from maskedlark.encoding.column_kinds import ColumnKind
from maskedlark.encoding.encoder import ID_ROWS, MAX_ROWS, TOP, Encoder
from maskedlark.encoding.fit import FitSettings, PlannedTraining, fit
from maskedlark.encoding.table import Table, parse_table
from maskedlark.errors import InvalidModel, InvalidTask, JobRefused
from maskedlark.frozen import frozen
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss, check_loss
from maskedlark.terminal.exit_status import how_to_install
from maskedlark.terminal.plural import plural

if TYPE_CHECKING:
    from adserver.training.model_file import PreparedModel
    from maskedlark.privacy.accounting import Charge

SAMPLE_ROWS: Final = 569
SAMPLE_FEATURES: Final = 30
# Reports have a feature and two classes at least: where nothing is learned, both are 0 in every report.
MEASURED_FEATURES: Final = 1
MEASURED_CLASSES: Final = 2
_FEWEST_OF_PANEL: Final = 100
_DECIDE_OF_ROWS: Final = frozenset(
    {"data", "measure", "values", "federated", "person", *(one.name for one in fields(DataSettings))}
)


@frozen
class Checked:
    """What a project's settings lead to.

    Attributes:
        problems: One line for each wrong setting, with its name and the remedy.
        rows: Rows that are used: they have a label that is learned, and where devices train a person.
        reported: Those that browsers report, or people's devices hold; the rest is the panel.
        left_out: How many rows of the table are not used, by column and reason.
        devices: How many people's devices train; None where browsers report.
        num_features: Bytes of a report.
        num_classes: Classes of the label.
        loss: The loss that is trained; None where columns are measured alone.
        encoder: How columns become those bytes; None for the sample, and where there are problems.
        why_general: What forces the project's own model to the general path; None without one, where devices
            train it, and where there are problems.
        warnings: One line for each kind of column that the project's own model reads as another, and for a
            loss that gives no chances.
        table_warnings: One line for each column that becomes a feature and tells the label by itself, and
            for what is too few or too many.
        forecasts: How wide the intervals of the measured sums will be; empty where there are problems.
        measured_notes: What the table tells of those sums, as of `describe_measurement`.
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
    left_out: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    table_warnings: tuple[str, ...] = ()
    forecasts: tuple[GroupForecast, ...] = ()
    measured_notes: tuple[str, ...] = ()

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
    reported, devices = _count_reported(rows, settings), None
    encoder: Encoder | None = None
    table_warnings: tuple[str, ...] = ()
    left_out: Mapping[str, int] = {}
    table: Table | None = None
    # Without a label, reading the table would raise and hide the other problems.
    if settings.data.csv and not problems:
        table = read_table(project.path(settings.data.csv))
        report = read_report(table, settings.data.label)
        kept = _feature_columns(table, settings)
        problems += _problems_of_columns(table, report, settings.data, kept)
        problems += _problems_of_words(settings.data)
        problems += _problems_of_federated(table, settings)
        counts = {**report.classes, **report.other_labels}
        chosen = settings.data.classes or tuple(counts)
        problems += _problems_of_classes(counts, settings.data)
        classes = len(chosen)
        rows, reported, devices, left_out = _divide_rows(table, settings)
        problems += _problems_of_measure(table, settings, reported)
        table_warnings = (
            *report.warn_of_leaks(kept),
            *report.warn_of_spellings({*kept, *settings.measure.columns}),
            *_warn_of_codes(report, settings.data, kept),
            *_warn_of_panel(settings.data, rows - reported),
        )
        if not problems:
            planned = PlannedTraining(reports=reported, epsilon=settings.training.epsilon)
            encoder = _fit(_select_learned(table, settings.data), kept, settings.data, planned)
            features = encoder.num_features
    loss = choose_loss(project, features, classes)
    problems += _problems_of_training(settings, reported)
    problems += _problems_of_task(settings, reported, devices)
    forecasts: tuple[GroupForecast, ...] = ()
    measured_notes: tuple[str, ...] = ()
    if table is not None and not problems:
        forecasts, measured_notes, refused = _forecast(table, settings, reported)
        problems += refused
    # How many features a table has is known once its columns are right
    if encoder is not None or not settings.data.csv:
        problems += _problems_of_model(project, features, classes, loss, encoder)
    elif settings.model.onnx and not (path := project.path(settings.model.onnx)).is_file():
        problems.append(f"[model] onnx: cannot read {path}: there is no such file")
    is_own = bool(settings.model.onnx) and not problems
    own = _own_model(project, features, encoder) if is_own else None
    is_on_devices = bool(settings.federated.person)
    why_general = None if own is None or is_on_devices else _why_general(own.parsed, loss)
    if not problems:
        problems += _problems_of_budgets(table, settings, reported, devices, why_general or ())
    return Checked(
        problems=tuple(problems),
        rows=rows,
        reported=reported,
        devices=devices,
        num_features=features,
        num_classes=classes,
        loss=loss,
        encoder=encoder,
        why_general=None if problems else why_general,
        left_out=left_out,
        warnings=() if own is None else tuple(_warn_of_own(own, loss, classes, encoder)),
        table_warnings=table_warnings,
        forecasts=forecasts,
        measured_notes=measured_notes,
    )


def _check_measured_alone(project: Project) -> Checked:
    """Find every wrong setting of a project without a label, whose rows are all reported."""
    settings = project.settings
    table = read_table(project.path(settings.data.csv))
    reported = len(table)
    problems = [
        *_problems_without_label(settings),
        *_problems_of_named(table, settings.data),
        *_problems_of_measure(table, settings, reported),
        *_problems_of_task(settings, reported, None),
    ]
    forecasts: tuple[GroupForecast, ...] = ()
    measured_notes: tuple[str, ...] = ()
    if not problems:
        forecasts, measured_notes, refused = _forecast(table, settings, reported)
        problems += refused
    return Checked(
        problems=tuple(problems),
        rows=reported,
        reported=reported,
        devices=None,
        num_features=MEASURED_FEATURES,
        num_classes=MEASURED_CLASSES,
        loss=None,
        encoder=None,
        why_general=None,
        table_warnings=read_report(table, "").warn_of_spellings(settings.measure.columns),
        forecasts=forecasts,
        measured_notes=measured_notes,
    )


def _forecast(
    table: Table, settings: Settings, reported: int
) -> tuple[tuple[GroupForecast, ...], tuple[str, ...], list[str]]:
    """Return `forecasts` and `measured_notes`, as of `Checked`, and why the measurement is refused."""
    try:
        forecasts = forecast_groups(table, settings.data, settings.measure, settings.task, reported=reported)
        return forecasts, describe_measurement(table, settings.data, settings.measure, forecasts), []
    except (InvalidTask, JobRefused) as error:
        return (), (), [f"[measure] cannot be asked: {error}"]


def problems_of(project: Project, wrong: Sequence[WrongSetting]) -> list[str]:
    """Return a line for each wrong setting, and for what is wrong with those that can be read.

    Args:
        project: As of `Project.read`: wrong settings have their defaults.
        wrong: The wrong settings. A problem that their defaults may cause is left out.
    """
    try:
        others = check(project).problems
    except InvalidTask as error:
        others = (str(error),)
    hidden = frozenset[str]().union(*(one.hides for one in wrong))
    told = [one.text for one in wrong]
    for problem in others:
        is_of_names = problem.startswith(("[data]", "[measure] values", "[measure] keys", "[federated]"))
        # Columns and rows decide about features, and about how many rows are reported
        if not hidden.isdisjoint(_DECIDE_OF_ROWS) and (not is_of_names or "identifiers" in problem):
            continue
        if not any(one.may_cause(problem) for one in wrong):
            told.append(problem)
    return told


def _divide_rows(table: Table, settings: Settings) -> tuple[int, int, int | None, Mapping[str, int]]:
    """Return `rows`, `reported`, `devices` and `left_out`, as of `Checked`."""
    person = settings.federated.person
    if person and person in table.columns:  # a column of row numbers often has an empty name
        division = divide(table, settings.data, person)
        reported = len(division.on_devices)
        return reported + len(division.panel), reported, division.people, division.left_out
    rows, left_out = count_rows(table, settings.data)
    return rows, _count_reported(rows, settings), None, left_out


def _count_reported(rows: int, settings: Settings) -> int:
    return rows - round(settings.data.panel_share * rows)


def choose_loss(project: Project, features: int, classes: int) -> Loss:
    """Return the loss that the settings name, or the usual one for the classes and the model's outputs."""
    from adserver.training.model_file import why_loss_misfits

    settings = project.settings
    usual = usual_loss(classes, is_on_devices=bool(settings.federated.person))
    if settings.training.loss or not settings.model.onnx or usual is Loss.CROSS_ENTROPY:
        return settings.training.loss or usual
    try:
        model = _own_model(project, features).parsed
    except (OSError, InvalidModel, InvalidTask):
        return usual  # what is wrong with the file has a line of its own
    if model.output_width == classes:
        return Loss.CROSS_ENTROPY
    return Loss.BINARY_CROSS_ENTROPY if why_loss_misfits(model, usual) else usual


def usual_loss(num_classes: int, *, is_on_devices: bool = False) -> Loss:
    """Return the usual loss for so many classes, for a model with linear outputs; devices know one only."""
    is_binary = num_classes == 2 and not is_on_devices
    return Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS if is_binary else Loss.CROSS_ENTROPY


def usual_outputs(num_classes: int, *, is_on_devices: bool = False) -> int:
    """Return the width of the output of a model for the usual loss."""
    return num_classes if usual_loss(num_classes, is_on_devices=is_on_devices) is Loss.CROSS_ENTROPY else 1


def _problems_of_names(settings: Settings) -> Iterator[str]:
    data, person = settings.data, settings.federated.person
    if person and not data.csv:
        yield f"[federated] person is {person!r}, but [data] csv is empty: name your table, or empty person"
    if data.csv and not data.label:
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


def _feature_columns(table: Table, settings: Settings) -> tuple[str, ...]:
    """Return the columns that become features: those that are measured are secret."""
    data, measured = settings.data, {one.column for one in settings.measure.values}
    others = {data.label, *data.ignore, *measured}
    others |= {settings.federated.person} - {""}
    return tuple(name for name in table.columns if name not in others)


def _warn_of_codes(report: TableReport, data: DataSettings, kept: Collection[str]) -> Iterator[str]:
    for column in report.columns:
        is_code = column.name in data.codes and column.name in kept
        if is_code and column.distinct > TOP and column.name not in data.vocabularies():
            yield (
                f"[data] codes: column {column.name!r} holds {column.distinct:,} different words, of which "
                f"the encoder tells the {TOP} most frequent apart: add {column.name + '=planned'!r} to words"
            )


def _warn_of_panel(data: DataSettings, panel: int) -> Iterator[str]:
    if panel < _FEWEST_OF_PANEL and data.panel < DataSettings().panel:
        yield (
            f"[data] panel is {data.panel:g}, which is {plural(panel, 'row')} to test and calibrate the "
            f"model on: raise it to {DataSettings().panel:g}, or to {_FEWEST_OF_PANEL} rows"
        )


def _problems_of_measure(table: Table, settings: Settings, reported: int) -> Iterator[str]:
    whole = settings.measure
    values = [replace(whole, values=(one,), keys=()) for one in whole.values]
    keys = [replace(whole, values=(), keys=(one,)) for one in whole.keys]
    found = list[str]()
    # One by one, because a plan ends with its first error; then all, since no key may be a value
    for one in (*values, *keys, whole):
        try:
            plan_measurement(table, settings.data, one)
        except InvalidTask as error:
            found.append(str(error))
    yield from dict.fromkeys(found)
    unbounded = [one.column for one in whole.values if one.most is None and not one.word]
    if not unbounded:
        return
    best = dict[str, str]()
    with suppress(InvalidTask, JobRefused):  # what is wrong has a line of its own
        suggested = suggest_bounds(table, settings.data, whole, settings.task, reported=reported)
        best = {one.column: f": write most = {one.most:g}" for one in suggested if not one.word}
    for column in unbounded:
        yield f"[measure] values: {column!r} has no most, the most that a row counts{best.get(column, '')}"


def _problems_of_federated(table: Table, settings: Settings) -> Iterator[str]:
    person, training = settings.federated.person, settings.training
    if not person:
        return
    if person not in table.columns:
        known = list_columns(person, table.columns)
        yield f"[federated] person names {person!r}, but {table.name} has no such column; {known}"
    elif person == settings.data.label:
        yield f"[federated] person names {person!r}, which is the label: name the column of the person"
    if settings.measure.is_asked:
        yield "[measure] needs reports, but devices send updates only: empty values and keys, or person"
    for name in ("learning_rate", "batch_size"):
        if getattr(training, name) is not None:
            yield f"[training] {name} is of jobs over reports: remove it, and set [federated] {name}"
    if find_spec("torch") is None:
        yield f"[federated] person: {how_to_install('torch', __name__, needs='training on devices')}"


def _named_columns(data: DataSettings) -> list[tuple[str, str]]:
    """Return each setting of `[data]` that lists columns, with each column that it names."""
    lists = {
        "ignore": data.ignore,
        "dates": data.dates,
        "codes": data.codes,
        "publish": data.publish,
        "words": tuple(data.vocabularies()),
    }
    return [(setting, name) for setting, names in lists.items() for name in names]


def _problems_of_named(table: Table, data: DataSettings) -> Iterator[str]:
    """Yield which columns that `[data]` names do not exist, or are the label."""
    for setting, name in _named_columns(data):
        if name not in table.columns:
            known = list_columns(name, table.columns)
            yield f"[data] {setting} names {name!r}, but {table.name} has no such column; {known}"
        elif data.label and name == data.label:
            yield f"[data] {setting} names {name!r}, which is the label: remove it there"


def _problems_of_columns(
    table: Table, report: TableReport, data: DataSettings, kept: Collection[str]
) -> Iterator[str]:
    """Yield what is wrong with the columns that `[data]` names, and with those that become features."""
    yield from _problems_of_named(table, data)
    is_name_missing = any(name not in table.columns for _, name in _named_columns(data))
    if not kept:
        yield "[data] ignore leaves out every column: leave out fewer"
    for column in report.columns:
        if column.name not in kept:
            continue
        if column.use is Use.LEFT_OUT and not column.name:
            yield '[data] ignore must name the column without a name, "": it is no feature'
        is_named = column.name in data.dates or column.name in data.publish
        # A misspelled name may have been meant for this column: it has its line already
        if column.looks_like and not is_named and not is_name_missing:
            settings = "dates, ignore" if column.use is Use.DATE else "ignore"
            yield (
                f"[data] column {column.name!r} looks like identifiers ({column.looks_like}), and the "
                f"encoder is public: name it in {settings} or publish"
            )
    for name in data.dates:
        if name in kept and (why := _why_no_dates(table, name)):
            yield f"[data] dates names {name!r}: {why}"


def _problems_of_words(data: DataSettings) -> Iterator[str]:
    for name, count in data.vocabularies().items():
        if count is not None and count > MAX_ROWS - ID_ROWS:
            yield f"[data] words has {count} for {name!r}: a column has rows for {MAX_ROWS - ID_ROWS} words"
        if name in data.dates:
            yield f"[data] words names {name!r}, which dates names too: remove it in one of them"
    if len(data.vocabularies()) < len(data.words):
        yield "[data] words names a column twice: keep one of them"


def _why_no_dates(table: Table, name: str) -> str:
    try:
        dates.parts(table.columns, name)
    except InvalidTask as error:
        return str(error)
    return ""


def _select_learned(table: Table, data: DataSettings) -> Table:
    """Return the rows whose label is learned, as `browser-sim encode` takes them."""
    return table.take([row for row, why in enumerate(why_not_learned(table, data)) if not why])


def _fit(learned: Table, kept: Collection[str], data: DataSettings, planned: PlannedTraining) -> Encoder:
    """Return the encoder that a run fits to the same rows with `browser-sim encode`."""
    columns = dict[str, Sequence[str | None]]()
    for name in kept:
        if name in data.dates:
            columns |= dates.parts(learned.columns, name)
        else:
            columns[name] = learned.columns[name]
    kinds = dict.fromkeys((name for name in data.codes if name in columns), ColumnKind.CATEGORY)
    words = {name: most for name, most in data.vocabularies().items() if name in columns}
    return fit(columns, FitSettings(kinds=kinds, words=words, training=planned))


def _problems_of_classes(counts: dict[str, int], data: DataSettings) -> Iterator[str]:
    for name in data.classes:
        if name not in counts:
            known = ", ".join(list(counts)[:10])
            yield f"[data] classes names {name!r}, but no row has this label; there are {known}"
    if len(set(data.classes)) == 1:
        yield "[data] classes names one class only: name two or more, or none for all"


def _problems_of_training(settings: Settings, reported: int) -> Iterator[str]:
    task, training = settings.task, settings.training
    if settings.measure.is_asked and not settings.data.csv:
        yield "[measure] names columns, but [data] csv is empty: name your table"
    if training.epsilon > task.epsilon:
        yield (
            f"[training] epsilon is {training.epsilon:g}, but the budget, [task] epsilon, is "
            f"{task.epsilon:g}: lower "
            "the first or raise the second"
        )
    if training.batch_size is not None and training.batch_size > reported:
        yield (
            f"[training] batch_size is {training.batch_size:g}, but browsers report {reported} rows: "
            "lower it, or leave it out for all of them"
        )


def _problems_of_task(settings: Settings, reported: int, devices: int | None) -> Iterator[str]:
    task = settings.task
    if task.collusion_epsilon < task.epsilon:
        yield (
            f"[task] collusion_epsilon is {task.collusion_epsilon:g}, below epsilon, {task.epsilon:g}: a "
            "helper that "
            "joins the ad server never sees less than the ad server alone"
        )
    if devices is not None and devices < task.min_batch_size:
        yield (
            f"[task] min_batch_size is {task.min_batch_size}, but {devices} people's devices train: take a "
            "table with more people, or lower min_batch_size"
        )
    elif reported < task.min_batch_size:
        yield (
            f"[task] min_batch_size is {task.min_batch_size}, but browsers report {reported} rows: take "
            f"a table with more {'labelled ' if settings.data.label else ''}rows, or lower min_batch_size"
        )


def _problems_of_budgets(
    table: Table | None,
    settings: Settings,
    reported: int,
    devices: int | None,
    why_general: Sequence[str],
) -> Iterator[str]:
    """Yield what the ad server or the helpers would refuse of the measurement and the training together."""
    if devices is not None:
        yield from why_devices_over_budget(settings, devices=devices)
        return
    measure = settings.measure
    plan = None if table is None else plan_measurement(table, settings.data, measure)
    task = unsigned_task(settings.task)
    measured: tuple[Charge, ...] = ()
    if table is not None and plan is not None:
        task = unsigned_task(settings.task, measurement=plan.declared)
        measured = plan_measured_query(plan, task, measure.epsilon, reported).charges(task, 1)
    yield from why_over_budget(settings, task, measured=measured, reports=reported, why_general=why_general)


def _own_model(project: Project, features: int, encoder: Encoder | None = None) -> "PreparedModel":
    """Read the model that the settings name.

    Raises:
        OSError, InvalidModel, InvalidTask: it cannot be read, is no model of so many features, or has a
            table with fewer rows than a column of the encoder names.
    """
    from adserver.training.model_file import prepare_model, read_model

    given = read_model(project.path(project.settings.model.onnx))
    return prepare_model(given, num_features=features, encoder=encoder)


def _warn_of_own(own: "PreparedModel", loss: Loss, classes: int, encoder: Encoder | None) -> Iterator[str]:
    # Loads onnxruntime, which light commands do without.
    from adserver.training.column_uses import warn_of_columns
    from adserver.training.model_file import warn_of_loss

    if line := warn_of_loss(own.parsed, loss, classes):
        yield line
    if encoder is not None:
        yield from warn_of_columns(own.file, encoder)


def _why_general(model: Model, loss: Loss) -> tuple[str, ...]:
    # Loads numpy, which light commands do without.
    from maskedlark.model.exactness import why_general

    return why_general(model, loss)


def _problems_of_model(
    project: Project, features: int, classes: int, loss: Loss, encoder: Encoder | None
) -> Iterator[str]:
    """Yield what is wrong with the model, and with the loss for it."""
    from adserver.training.model_file import why_loss_misfits
    from maskedlark.model.dense import dense_network
    from maskedlark.model.onnx_file import parse

    settings = project.settings.model
    where = "[model] onnx" if settings.onnx else "[model] hidden"
    try:
        if settings.onnx:
            model = _own_model(project, features, encoder).parsed
        else:
            # The encoder of the default network does not exist yet: a dense one has the same outputs.
            outputs = usual_outputs(classes, is_on_devices=bool(project.settings.federated.person))
            encoded = dense_network(
                [features, *(settings.hidden or ()), outputs], "relu", seed=settings.seed, final="linear"
            )
            model = parse(encoded, num_features=features)
    except OSError as error:
        yield f"{where}: cannot read {project.path(settings.onnx)}: {error.strerror}"
        return
    except (InvalidModel, InvalidTask) as error:
        yield f"{where}: {error} (reports have {features} features)"
        return
    try:
        check_loss(model, loss, classes)
    except InvalidModel as error:
        yield f"[training] loss: {error}"
        return
    if why := why_loss_misfits(model, loss):
        yield f"[training] loss: {why}"
    # Devices train any model themselves; helpers only add up their updates.
    is_of_reports = not project.settings.federated.person
    if is_of_reports and (reasons := _why_general(model, loss)) and find_spec("torch") is None:
        yield (
            f"{where}: {'; '.join(reasons)}: change that, or install torch for the helpers: "
            f"{how_to_install('torch', __name__, needs='this model')}"
        )
