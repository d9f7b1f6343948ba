"""A table divided by people: most of them train on their own devices, and the rest are the panel.

    division = divide(table, data, person="customer")
    division.people, len(division.on_devices), len(division.panel)     # 320, 4812, 1207

A person is on one side only, so that the panel tests what the model does for people it has not met.
"""

import csv
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from io import StringIO
from typing import Final

from adserver.quickstart.settings import DataSettings, Settings
from maskedlark.encoding.cells import number
from maskedlark.encoding.identifiers import FEWEST_ROWS
from maskedlark.encoding.table import Table
from maskedlark.federated.local_training import shuffle
from maskedlark.frozen import frozen
from maskedlark.randomness import seeded

# Of the panel: runs of one table are compared on the same people.
_SEED: Final = 1
# Last words of the names of columns that name people: `user_id`, `CustomerNo`, `ad_visitor_key`
_PEOPLE: Final = frozenset(
    {
        "account", "anonymous", "buyer", "client", "consumer", "cookie", "customer", "device", "email",
        "guest", "member", "patient", "person", "player", "shopper", "subscriber", "user", "visitor",
    }
)  # fmt: skip
# Of these, the ones that name something else without an id word: `device` holds phone and desktop
_NOT_ALONE: Final = frozenset({"account", "anonymous", "cookie", "device"})
_ID_WORD: Final = r"(?:id|uuid|guid|key|no|nr|number|code|hash|token|email|mail|phone)"
_PERSON_ID: Final = re.compile(f"(?:.* )?(?:{'|'.join(sorted(_PEOPLE))})s?(?: ?{_ID_WORD})+")
_NAME_PART: Final = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@frozen
class Division:
    """What became of a table's rows.

    Attributes:
        people: Those whose devices train.
        on_devices: Their rows.
        panel: The rows of the others.
        left_out: How many rows are on neither side, by column and reason.
    """

    people: int
    on_devices: Table
    panel: Table
    left_out: Mapping[str, int]


def divide(table: Table, data: DataSettings, person: str) -> Division:
    """Divide the rows that have a label and a person; of the people, `data.panel` is the panel's share.

    Guarantees: each row is on one side or counted as left out; the same table is divided in the same way.
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
    of_panel = {names[place] for place in order[: round(data.panel * len(names))]}
    sides: tuple[list[int], list[int]] = ([], [])
    for name, rows in rows_of.items():
        sides[name in of_panel].extend(rows)
    return Division(
        people=len(names) - len(of_panel),
        on_devices=table.take(sorted(sides[False])),
        panel=table.take(sorted(sides[True])),
        left_out=left_out,
    )


def count_rows(table: Table, data: DataSettings) -> tuple[int, Mapping[str, int]]:
    """Return how many rows browsers report or the panel has, and how many are left out, by reason."""
    left_out = Counter(why_not_learned(table, data))
    return left_out.pop("", 0), left_out


def count_reported(table: Table, data: DataSettings) -> int:
    """Return how many rows of a table browsers report."""
    rows, _ = count_rows(table, data)
    return data.count_reported(rows)


@frozen
class RowUse:
    """What a project uses a table's rows for.

    Attributes:
        rows: Rows that are used: they have a label that is learned, and where devices train a person.
        reported: Those that browsers report, or people's devices hold; the rest is the panel.
        devices: How many people's devices train; None where browsers report.
        left_out: How many rows are not used, by column and reason.
    """

    rows: int
    reported: int
    devices: int | None
    left_out: Mapping[str, int]


def count_use(table: Table, settings: Settings) -> RowUse:
    """Count the rows that a project uses, and for what."""
    data, person = settings.data, settings.federated.person
    if person and person in table.columns:  # a column of row numbers often has an empty name
        division = divide(table, data, person)
        reported = len(division.on_devices)
        return RowUse(
            rows=reported + len(division.panel),
            reported=reported,
            devices=division.people,
            left_out=division.left_out,
        )
    rows, left_out = count_rows(table, data)
    return RowUse(rows=rows, reported=data.count_reported(rows), devices=None, left_out=left_out)


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
    for cell in table.columns[data.label]:
        if cell is None:
            yield f"column {data.label!r}: no label"
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


def warn_of_repeated_people(table: Table, label: str) -> tuple[str, ...]:
    """Return a line if a column looks like ids of people who have several rows, as epsilon is of one row.

    Of several such columns it is of the one with the fewest people. A table without a label has none, "".
    """
    named = [
        (len(counts), name, counts)
        for name, cells in table.columns.items()
        if name != label and _names_people(name)
        # Of few words, a column `user` holds kinds of users
        and len(counts := Counter(cell for cell in cells if cell is not None)) >= FEWEST_ROWS
    ]
    if not named:
        return ()
    people, name, counts = min(named, key=lambda one: one[:2])
    most = max(counts.values())
    if most == 1:
        return ()
    return (
        f"column {name!r} repeats, up to {most} rows each ({people:,} different in {counts.total():,} rows): "
        "epsilon is of one row, and of all rows of one such person more; for an epsilon of a person, make a "
        "task by `adserver task create --unit user`",
    )


def _names_people(column: str) -> bool:
    """Return whether a column's name says that it names people, one by one."""
    name = " ".join(_NAME_PART.findall(column)).lower()
    return name in _PEOPLE - _NOT_ALONE or bool(_PERSON_ID.fullmatch(name))
