"""A table divided by people: most of them report, or train on their devices, and the rest are the panel.

    division = divide(table, data, person="customer")
    division.people, len(division.reported), len(division.panel)     # 320, 4812, 1207

A person is on one side only, so that the panel tests what the model does for people it has not met.
"""

import csv
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from typing import Final

from adserver.quickstart.settings import DataSettings, Settings
from maskedlark.encoding.cells import number
from maskedlark.encoding.dates import in_one_form, split_order
from maskedlark.encoding.table import Table
from maskedlark.federated.local_training import shuffle
from maskedlark.frozen import frozen
from maskedlark.randomness import seeded
from maskedlark.terminal.plural import plural

# Of the panel: runs of one table are compared on the same people.
_SEED: Final = 1
MOST_ROWS_PER_PERSON: Final = 1 << 10
"""The most that a task takes."""
# The share of rows that the default number of rows of a person keeps
_KEPT: Final = 0.9


@frozen
class Division:
    """What became of a table's rows.

    Attributes:
        people: Those whose browsers report, or whose devices train.
        reported: Their rows, with which they do.
        panel: The rows of the others.
        left_out: How many rows are on neither side, by column and reason.
    """

    people: int
    reported: Table
    panel: Table
    left_out: Mapping[str, int]


def divide(table: Table, data: DataSettings, person: str, most: int | None = None) -> Division:
    """Divide the rows that have a label and a person; of the people, `data.panel` is the panel's share.

    Guarantees: each row is on one side or counted as left out; the same table is divided in the same way.

    Args:
        table: The project's.
        data: Its columns; without a label there is no panel.
        person: The column of the person.
        most: The most rows of a person that are reported, drawn without a look at any other column; None: all
            are. The panel's people have all of theirs.
    """
    rows_of: dict[str, list[int]] = {}
    left_out = Counter[str]()
    for row, (why, name) in enumerate(zip(why_not_learned(table, data), table.columns[person], strict=True)):
        if why or name is None:
            left_out[why or f"column {person!r}: no person"] += 1
        else:
            rows_of.setdefault(name, []).append(row)
    # By name and not by first row: a table in another order is divided in the same way.
    names = sorted(rows_of)
    order = shuffle(len(names), seeded(_SEED, "panel of people")).tolist()
    of_panel = {names[place] for place in order[: 0 if data.has_no_label else round(data.panel * len(names))]}
    ranks = shuffle(len(table), seeded(_SEED, "rows of people")).tolist()
    reported, panel = list[int](), list[int]()
    for name, rows in rows_of.items():
        if name in of_panel:
            panel += rows
            continue
        # Drawn: the first rows of a file that is sorted by the label would all have the same one
        kept = rows if most is None else sorted(rows, key=ranks.__getitem__)[:most]
        reported += kept
        left_out[f"column {person!r}: beyond {plural(most or 0, 'row')} of a person"] += len(rows) - len(kept)
    return Division(
        people=len(names) - len(of_panel),
        reported=table.take(sorted(reported)),
        panel=table.take(sorted(panel)),
        left_out=+left_out,
    )


def choose_rows_per_person(table: Table, data: DataSettings, person: str) -> int:
    """Return the fewest rows of a person with which nine of ten rows are reported.

    Noise follows this number, so that rows of the few people who have the most are worth less than they cost.
    """
    learned = zip(why_not_learned(table, data), table.columns[person], strict=True)
    rows_of = Counter(name for why, name in learned if name is not None and not why)
    sizes, most = Counter(rows_of.values()), 1
    while most < MOST_ROWS_PER_PERSON:
        kept = sum(min(rows, most) * people for rows, people in sizes.items())
        if kept >= _KEPT * rows_of.total():
            break
        most += 1
    return most


def settle(table: Table, settings: Settings) -> Settings:
    """Return settings with the rows of a person that a task is signed for, where `[task]` names the person.

    Its column is then nothing else: `new` may have suggested it as codes or words. A column that the table
    lacks, or that is the label or measured, counts as none: what is wrong with it has a line of its own.
    """
    task, data = settings.task, settings.data
    person = task.person
    known = {name for name in table.columns if name}  # a column of row numbers often has no name
    if person not in known - {data.label, *settings.measure.columns}:
        return replace(settings, task=replace(task, person="", rows_per_person=None))

    def keep(columns: Sequence[str]) -> tuple[str, ...]:
        return tuple(one for one in columns if one != person)

    words = tuple(one for one in data.words if one.rpartition("=")[0] != person)
    dates = tuple(one for one in data.dates if split_order(one)[0] != person)
    data = replace(data, dates=dates, codes=keep(data.codes), words=words, publish=keep(data.publish))
    most = task.rows_per_person or choose_rows_per_person(table, data, person)
    return replace(settings, data=data, task=replace(task, rows_per_person=most))


def divide_by_settings(table: Table, settings: Settings) -> Division:
    """Divide a table by the person that settled settings name.

    Dates are of one form on both sides: only all of them together may show what stands first.
    """
    data = settings.data
    # A key's words are the cells as they are
    written = {
        name: in_one_form(table.columns[name], order)
        for name, order in data.date_orders().items()
        if name in table.columns and name not in settings.measure.columns
    }
    table = replace(table, columns={**table.columns, **written})
    return divide(table, data, settings.person, settings.task.rows_per_person)


def count_rows(table: Table, data: DataSettings) -> tuple[int, Mapping[str, int]]:
    """Return how many rows browsers report or the panel has, and how many are left out, by reason."""
    left_out = Counter(why_not_learned(table, data))
    return left_out.pop("", 0), left_out


def count_reported(table: Table, data: DataSettings) -> int:
    """Return how many rows of a table browsers report."""
    rows, _ = count_rows(table, data)
    return data.count_reported(rows)


def describe_left_out(left_out: Mapping[str, int]) -> Iterator[str]:
    """Yield a line for each reason why rows are left out."""
    for reason, count in left_out.items():
        yield f"{plural(count, 'row is', 'rows are')} left out: {reason}"


@frozen
class RowUse:
    """What a project uses a table's rows for.

    Attributes:
        rows: Rows that are used: they have a label that is learned and, where people are named, a person.
        reported: Those that browsers report, or people's devices hold; the rest is the panel.
        people: How many people's browsers report or devices train; None where nobody is named.
        left_out: How many rows are not used, by column and reason.
    """

    rows: int
    reported: int
    people: int | None
    left_out: Mapping[str, int]


def count_use(table: Table, settings: Settings) -> RowUse:
    """Count the rows that a project uses, and for what; its settings are settled."""
    data, person = settings.data, settings.person
    if person and person in table.columns:  # a column of row numbers often has an empty name
        division = divide_by_settings(table, settings)
        reported = len(division.reported)
        return RowUse(
            rows=reported + len(division.panel),
            reported=reported,
            people=division.people,
            left_out=division.left_out,
        )
    rows, left_out = count_rows(table, data)
    return RowUse(rows=rows, reported=data.count_reported(rows), people=None, left_out=left_out)


def take_reported(table: Table, data: DataSettings, panel: Collection[int]) -> Table:
    """Return the rows that browsers report: all that are learned, but for those on the panel's lines."""
    learned = zip(why_not_learned(table, data), table.lines, strict=True)
    return table.take([row for row, (why, line) in enumerate(learned) if not why and line not in panel])


def why_not_learned(table: Table, data: DataSettings) -> Iterator[str]:
    """Yield for each row why its label is not learned, in the words of `browser-sim`; empty if it is.

    Without a column of labels no row is left out.
    """
    if not data.label:
        yield from ("" for _ in range(len(table)))
        return
    numbers = {number(name) for name in data.classes} - {None}
    unlabelled = f"column {data.label!r}: no label{table.explain_gaps(data.label)}"
    for cell in table.columns[data.label]:
        if cell is None:
            yield unlabelled
        elif data.classes and cell not in data.classes and number(cell) not in numbers:
            yield f"column {data.label!r}: not a declared class"
        else:
            yield ""


def write_table(table: Table) -> bytes:
    """Return the file of a table, which `parse_table` reads as the same cells."""
    text = StringIO()
    text.write("sep=,\r\n")  # nothing is guessed
    writer = csv.writer(text)
    writer.writerow(table.columns)
    writer.writerows(zip(*table.columns.values(), strict=True))
    return text.getvalue().encode()
