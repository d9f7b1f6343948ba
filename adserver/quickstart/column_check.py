"""What is wrong with the columns of a project's table, and with the settings that name them.

problems = list(find_table_problems(table, report, settings, kept))
# ("[data] ignore names 'agee', but visits.csv has no such column; did you mean 'age'? ...",)
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import Final

from adserver.quickstart.measurement import (
    MeasurementPlan,
    describe_long_words,
    find_wrong_names,
    plan_measurement,
)
from adserver.quickstart.measurement_forecast import suggest_bounds
from adserver.quickstart.people import divide, why_not_learned
from adserver.quickstart.settings import DataSettings, MeasureSettings, Settings, TrainingSettings
from adserver.quickstart.table_report import MOST_CLASSES, TableReport, Use
from maskedlark.encoding import dates
from maskedlark.encoding.cells import number
from maskedlark.encoding.close_names import list_known
from maskedlark.encoding.column_kinds import ColumnKind
from maskedlark.encoding.encoder import ID_ROWS, MAX_ROWS, TOP, Column, Encoder, IdColumn
from maskedlark.encoding.fit import FitSettings, PlannedTraining, fit, id_column
from maskedlark.encoding.identifiers import why_codes, why_identifiers
from maskedlark.encoding.people_columns import find_people_columns
from maskedlark.encoding.table import Table
from maskedlark.errors import InvalidTask, JobRefused
from maskedlark.terminal.exit_status import how_to_install
from maskedlark.terminal.plural import plural

_FEWEST_OF_PANEL: Final = 100
# A key of more numbers is an amount, of which a group each says little
_MOST_NUMBERS: Final = MOST_CLASSES


def find_table_problems(
    table: Table, report: TableReport, settings: Settings, kept: Collection[str]
) -> Iterator[str]:
    """Yield what is wrong with the columns and classes that a project names, apart from its measurement.

    Args:
        table: The project's.
        report: What it holds.
        settings: The project's.
        kept: The columns that become features.
    """
    yield from _problems_of_columns(table, report, settings.data, kept)
    yield from _problems_of_words(settings.data, kept)
    yield from _problems_of_federated(table, settings)
    yield from find_person_problems(table, settings)
    yield from _problems_of_classes({**report.classes, **report.other_labels}, settings.data)


def feature_columns(table: Table, settings: Settings) -> tuple[str, ...]:
    """Return the columns that become features: those that are measured are secret."""
    data, measured = settings.data, {one.column for one in settings.measure.values}
    others = {data.label, *data.ignore, *measured}
    others |= {settings.person} - {""}
    return tuple(name for name in table.columns if name not in others)


def warn_of_codes(report: TableReport, data: DataSettings, kept: Collection[str]) -> Iterator[str]:
    """Yield a line for each column of codes that has more words than bytes."""
    for column in report.columns:
        is_code = column.name in data.codes and column.name in kept
        if is_code and column.distinct > TOP and column.name not in data.vocabularies():
            yield (
                f"[data] codes: column {column.name!r} holds {column.distinct:,} different words, of which "
                f"the encoder tells the {TOP} most frequent apart: add {column.name + '=planned'!r} to words"
            )


def warn_of_kept(report: TableReport, data: DataSettings, kept: Collection[str]) -> Iterator[str]:
    """Yield a line for each feature of which no setting says what it holds, as far as `new` would say it.

    These are columns that `new` leaves out, and numbers or dates that a few other cells make words. Leaks,
    and words that look like identifiers, are told of elsewhere.
    """
    answered = {*data.date_orders(), *data.codes, *data.publish, *data.vocabularies()}
    for column in report.columns:
        if column.name not in kept or column.name in answered:
            continue
        if column.use is Use.WORDS and column.unread:
            yield (
                f"[data] column {column.name!r} is read as words: {column.unread}; if it is none, name it in "
                "codes"
            )
        elif column.use is Use.LEFT_OUT and not column.leak and not column.looks_like:
            yield (
                f"[data] ignore: column {column.name!r} is a feature, and `new` leaves it out: {column.why}"
            )


def warn_of_bare_ids(columns: Iterable[Column]) -> Iterator[str]:
    """Yield a line for each column of ids of which no word has a row of its own."""
    for column in columns:
        if isinstance(column, IdColumn) and not column.words:
            yield (
                f"[data] words: no word of column {column.name!r} is in as many rows as one needs for a row "
                "of its own, so the feature says only whether the cell is empty: name it in ignore"
            )


def plan_ids(table: Table, data: DataSettings, reported: int) -> Iterator[IdColumn]:
    """Yield the columns of ids as the encoder will have them for so many reports and the default epsilon."""
    planned = PlannedTraining(reports=max(1, reported), epsilon=TrainingSettings().epsilon)
    learned = [row for row, why in enumerate(why_not_learned(table, data)) if not why]
    for name, most in data.vocabularies().items():
        cells = table.columns[name]
        yield id_column(name, [cells[row] for row in learned], most, planned)


def warn_of_measured(table: Table, measure: MeasureSettings) -> Iterator[str]:
    """Yield a line for each column of codes or people that is summed, and of people or amounts that groups.

    And for each that groups by words of which some are too long.

    Columns that are not there are passed over.
    """
    summed = {one.column for one in measure.values if not one.word} & table.columns.keys()
    keys = set(measure.keys) & table.columns.keys()
    people = find_people_columns(table, summed | keys).named
    for name in (one for one in table.columns if one in summed | keys):
        counts = Counter(cell for cell in table.numbers(name) if cell is not None)
        are_numbers = all(number(cell) is not None for cell in counts)
        named = "ids of people" if name in people else ""
        if name in summed:
            why = named or (why_identifiers(name, counts) or why_codes(name, counts) if are_numbers else "")
            if why:
                yield (
                    f"[measure] values: column {name!r} is summed, and seems to hold {why}: name a column of "
                    "amounts, or add ==WORD to count the rows with a word"
                )
        elif named:
            yield (
                f"[measure] keys: column {name!r} seems to hold {named}; helpers see the key of each report, "
                "and anybody the task's list of them: name a column of groups"
            )
        elif are_numbers and len(counts) > _MOST_NUMBERS and not why_codes(name, counts):
            yield (
                f"[measure] keys: column {name!r} holds {len(counts):,} different numbers, and each makes a "
                "group: name it in values to add them up, or a column of a few ranges to group by"
            )
        if name in keys and (told := describe_long_words(table, name)):
            yield f"[measure] keys: {told}"


def warn_of_panel(data: DataSettings, panel: int) -> Iterator[str]:
    """Yield a line if a panel that was made smaller has few rows."""
    if panel < _FEWEST_OF_PANEL and data.panel < DataSettings().panel:
        wanted = min(0.5, max(DataSettings().panel, data.panel * _FEWEST_OF_PANEL / max(1, panel)))
        yield (
            f"[data] panel is {data.panel:g}, which is {plural(panel, 'row')} to test and calibrate the "
            f"model on: raise it to {wanted:.2g}"
        )


def plan_measured(
    table: Table, settings: Settings, reported: int
) -> tuple[MeasurementPlan | None, tuple[str, ...]]:
    """Plan what `[measure]` names; return the plan, if there is one, and what is wrong with the settings.

    Args:
        table: The project's.
        settings: The project's.
        reported: Rows that browsers will report.
    """
    whole = settings.measure
    try:
        plan = plan_measurement(table, settings.data, whole)
    except InvalidTask as error:
        found = dict.fromkeys((*find_measure_problems(table, settings.data, whole), str(error)))
        return None, (*found, *_missing_bounds(whole, {}))
    if plan is None or all(one.most is not None or one.word for one in whole.values):
        return plan, ()
    best = dict[str, str]()
    with suppress(InvalidTask, JobRefused):  # what is wrong has a line of its own
        suggested = suggest_bounds(table, settings.data, whole, settings.task, reported=reported, plan=plan)
        best = {one.column: f": write most = {one.most:g}" for one in suggested if not one.word}
    return plan, (*_missing_bounds(whole, best),)


def find_measure_problems(table: Table, data: DataSettings, whole: MeasureSettings) -> Iterator[str]:
    """Yield all that is wrong with names, values and keys, because a plan ends with its first error."""
    found = dict.fromkeys(find_wrong_names(whole, data))
    yield from found
    for one in (
        *(replace(whole, values=(value,), keys=()) for value in whole.values),
        *(replace(whole, values=(), keys=(key,)) for key in whole.keys),
    ):
        try:
            plan_measurement(table, data, one)
        except InvalidTask as error:
            if str(error) not in found:
                yield str(error)


def _missing_bounds(measure: MeasureSettings, best: Mapping[str, str]) -> Iterator[str]:
    for one in measure.values:
        if one.most is None and not one.word:
            yield (
                f"[measure] values: {one.column!r} has no most, the most that a row counts"
                f"{best.get(one.column, '')}"
            )


def _problems_of_federated(table: Table, settings: Settings) -> Iterator[str]:
    person, training = settings.federated.person, settings.training
    if not person:
        return
    yield from _find_wrong_person("[federated]", person, table, settings)
    if settings.measure.is_asked:
        yield "[measure] needs reports, but devices send updates only: empty values and keys, or person"
    for name in ("learning_rate", "batch_size"):
        if getattr(training, name) is not None:
            yield f"[training] {name} is of jobs over reports: remove it, and set [federated] {name}"
    if find_spec("torch") is None:
        yield f"[federated] person: {how_to_install('torch', __name__, needs='training on devices')}"


def _find_wrong_person(section: str, person: str, table: Table, settings: Settings) -> Iterator[str]:
    """Yield why a column that a section of lark.toml names cannot be the person's; nothing if it can."""
    if person not in table.columns:
        known = list_known(person, table.columns)
        yield f"{section} person names {person!r}, but {table.name} has no such column; {known}"
    elif person == settings.data.label:
        yield f"{section} person names {person!r}, which is the label: name the column of the person"


def find_person_problems(table: Table, settings: Settings) -> Iterator[str]:
    """Yield what is wrong with the column of the person in `[task]`, and with the most rows of one."""
    task, measure = settings.task, settings.measure
    person = task.person
    if not person:
        if task.rows_per_person is not None:
            yield (
                f"[task] rows_per_person is {task.rows_per_person}, but person is empty: name the column of "
                "the person, or remove rows_per_person"
            )
        return
    yield from _find_wrong_person("[task]", person, table, settings)
    if settings.federated.person:
        yield (
            "[task] person is for reports, and [federated] person for devices, whose epsilon is of a person "
            "anyway: empty one of them"
        )
    others = {settings.data.label, *measure.columns}
    if person in table.columns and person not in others and settings.data.label in {"", *table.columns}:
        yield from _find_empty_sides(table, settings)
    for setting, names in (("values", [one.column for one in measure.values]), ("keys", measure.keys)):
        if person in names:
            yield f"[task] person names {person!r}, which [measure] {setting} names too: remove it there"
    if person in settings.data.not_people:
        yield f"[task] person names {person!r}, which [data] not_people names too: remove it in one of them"


def _find_empty_sides(table: Table, settings: Settings) -> Iterator[str]:
    """Yield what is wrong where all people would report, or none."""
    data, person = settings.data, settings.task.person
    division = divide(table, data, person)
    people = len({name for name in table.columns[person] if name is not None})
    needs_panel = not data.has_no_label and data.panel > 0
    if not division.people or (needs_panel and not len(division.panel)):
        side = "test the model" if division.people else "report"
        yield (
            f"[task] person is {person!r}, of {plural(people, 'person', 'people')}: with [data] panel = "
            f"{data.panel:g} nobody is left to {side}: name a column of more people"
        )


def warn_of_rows_per_person(table: Table, settings: Settings) -> Iterator[str]:
    """Yield a line if nobody has as many rows as settled settings allow a person, as noise follows them."""
    person, allowed = settings.task.person, settings.task.rows_per_person
    if not person or allowed is None:
        return
    counts = Counter(name for name in table.columns[person] if name is not None)
    if (most := max(counts.values(), default=allowed)) < allowed:
        yield (
            f"[task] rows_per_person is {allowed}, but nobody has more than {plural(most, 'row')}: lower it "
            f"to {most}, for less noise"
        )


def _named_columns(data: DataSettings) -> list[tuple[str, str]]:
    """Return each setting of `[data]` that lists columns, with each column that it names."""
    lists = {
        "ignore": data.ignore,
        "dates": tuple(data.date_orders()),
        "codes": data.codes,
        "publish": data.publish,
        "not_people": data.not_people,
        "words": tuple(data.vocabularies()),
    }
    return [(setting, name) for setting, names in lists.items() for name in names]


def find_named_problems(table: Table, data: DataSettings) -> Iterator[str]:
    """Yield which columns that `[data]` names do not exist, or are the label."""
    for setting, name in _named_columns(data):
        if name not in table.columns:
            known = list_known(name, table.columns)
            yield f"[data] {setting} names {name!r}, but {table.name} has no such column; {known}"
        elif data.label and name == data.label:
            yield f"[data] {setting} names {name!r}, which is the label: remove it there"


def _problems_of_columns(
    table: Table, report: TableReport, data: DataSettings, kept: Collection[str]
) -> Iterator[str]:
    """Yield what is wrong with the columns that `[data]` names, and with those that become features."""
    yield from find_named_problems(table, data)
    is_name_missing = any(name not in table.columns for _, name in _named_columns(data))
    if not kept:
        yield "[data] ignore leaves out every column: leave out fewer"
    for column in report.columns:
        if column.name not in kept:
            continue
        if column.use is Use.LEFT_OUT and not column.name:
            yield '[data] ignore must name the column without a name, "": it is no feature'
        is_named = column.name in data.date_orders() or column.name in data.publish
        # A misspelled name may have been meant for this column: it has its line already
        if column.looks_like and not is_named and not is_name_missing:
            if column.unread:
                yield f"[data] column {column.name!r}: {column.unread}, or name it in ignore"
                continue
            settings = "dates, ignore" if column.use is Use.DATE else "ignore"
            yield (
                f"[data] column {column.name!r} looks like identifiers ({column.looks_like}), and the "
                f"encoder is public: name it in {settings} or publish"
            )
    if len(data.date_orders()) < len(data.dates):
        yield "[data] dates names a column twice: keep one of them"
    for name in data.date_orders():
        if name in kept and (why := _why_no_dates(table, name, data)):
            yield f"[data] dates names {name!r}: {why}"


def _problems_of_words(data: DataSettings, kept: Collection[str]) -> Iterator[str]:
    for name, count in data.vocabularies().items():
        if count is not None and count > MAX_ROWS - ID_ROWS:
            yield f"[data] words has {count} for {name!r}: a column has rows for {MAX_ROWS - ID_ROWS} words"
    for setting, names in (("words", data.vocabularies()), ("codes", data.codes)):
        for name in names:
            # What is no feature may stand in any list
            if name in data.date_orders() and name in kept:
                yield f"[data] {setting} names {name!r}, which dates names too: remove it in one of them"
    if len(data.vocabularies()) < len(data.words):
        yield "[data] words names a column twice: keep one of them"


def _why_no_dates(table: Table, name: str, data: DataSettings) -> str:
    try:
        dates.parts(table.columns, name, data.date_orders()[name])
    except dates.UnknownOrder as error:
        day, month = (
            json.dumps([f"{one}={order}" if one == name else one for one in data.dates], ensure_ascii=False)
            for order in dates.DateOrder
        )
        return f"{error}: write dates = {day} if the day does, or dates = {month} if the month does"
    except dates.WrongDate as wrong:
        return f"{table.name}, line {table.lines[wrong.row]}: {wrong.why}"
    except InvalidTask as error:
        return str(error)
    return ""


def fit_encoder(table: Table, kept: Collection[str], data: DataSettings, planned: PlannedTraining) -> Encoder:
    """Return the encoder that a run fits with `browser-sim encode`, to the rows that are learned."""
    learned = table.take([row for row, why in enumerate(why_not_learned(table, data)) if not why])
    columns = dict[str, Sequence[str | None]]()
    orders = dict[str, dates.DateOrder]()
    for name in kept:
        if name in data.date_orders():
            columns |= dates.parts(learned.columns, name, data.date_orders()[name])
            if order := data.date_orders()[name] or dates.find_order(learned.columns[name]):
                orders[name] = order
        else:
            columns[name] = learned.columns[name]
    kinds = dict.fromkeys((name for name in data.codes if name in columns), ColumnKind.CATEGORY)
    words = {name: most for name, most in data.vocabularies().items() if name in columns}
    numbers = {name: one.cells for name, one in learned.amounts.items()}
    settings = FitSettings(kinds=kinds, words=words, training=planned, dates=orders)
    return fit(columns, settings, numbers)


def _problems_of_classes(counts: dict[str, int], data: DataSettings) -> Iterator[str]:
    for name in data.classes:
        if name not in counts:
            known = list_known(name, counts)
            yield f"[data] classes names {name!r}, but column {data.label!r} has no such label; {known}"
    if len(set(data.classes)) == 1:
        yield "[data] classes names one class only: name two or more, or none for all"
