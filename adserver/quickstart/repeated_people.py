"""Whether people have several rows in a table, as an epsilon is of one row.

`find_people_columns` finds the columns. Ids of things repeat as well: of words alone the warning asks, and
`[data] not_people` answers.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from maskedlark.encoding.close_names import fold
from maskedlark.encoding.people_columns import find_people_columns
from maskedlark.encoding.table import Table

_MOST_ASKED: Final = 2


def warn_of_repeated_people(
    table: Table,
    label: str,
    measured: Collection[str] = (),
    not_people: Collection[str] = (),
    *,
    person: str = "",
    section: str = "task",
) -> tuple[str, ...]:
    """Return lines if a column seems to name people who have several rows, as epsilon is of one row.

    If names of columns say so, it is of the one with the fewest people. Otherwise up to two columns are asked
    about whose words look like ids, those of the most different words first.

    Where settings name the person, a line says if nobody has two rows: the column names rows then, such as by
    an order's number, and other columns are warned of and asked about as if no person was named. If people do
    repeat, only a column is warned of that says people and puts several of them together. Another line says,
    without an id, if ids differ in their spelling only.

    Args:
        table: The project's.
        label: The column of the label; "" for none.
        measured: Columns that are measured, which are not asked about.
        not_people: Columns of which the owner says that they name no people.
        person: The column that settled settings name; "" for none.
        section: Where they name it: "federated" if devices train, one for each person.
    """
    # None of a name that is wrong, which is a problem of its own; a table may have a column without a name
    cells = table.columns.get(person, ()) if person else ()
    people = Counter(cell for cell in cells if cell is not None)
    is_of_rows = max(people.values(), default=0) == 1
    found = find_people_columns(table, table.columns.keys() - {label, person, *not_people})
    named: Mapping[str, Counter[str]] = found.named
    if people and not is_of_rows:
        named = {name: counts for name, counts in named.items() if _unites(table, name, counts, person)}
    once = (_describe_rows(section, person, len(people)),) if is_of_rows else ()
    folded = {fold(one) for one in people}
    if len(folded) < len(people):
        once = (*once, _describe_ids(section, person, len(people), len(folded)))
    if named:
        name = min(named, key=lambda name: (len(named[name]), name))
        if max(named[name].values()) == 1:
            return once
        warned = (
            f"{_describe(name, named[name])}: {_advise(section, name, person)}; "
            f"if it names no people, {_deny(name)}"
        )
        return (*once, warned)
    if people and not is_of_rows:
        return once
    asked = {name: counts for name, counts in found.asked.items() if name not in measured}
    most_first = sorted(asked, key=lambda name: (-len(asked[name]), name))
    return (
        *once,
        *(
            f"{_describe(name, asked[name])}: if it names people, {_advise(section, name, person)}; "
            f"if not, {_deny(name)}"
            for name in most_first[:_MOST_ASKED]
        ),
    )


def _describe_rows(section: str, person: str, rows: int) -> str:
    said = f"[{section}] person is {person!r}, which is different in each of {rows:,} rows: "
    if section == "federated":
        return (
            f"{said}a device holds one row, and epsilon is of one row; name the column of people, unless "
            "each person has one row"
        )
    return (
        f"{said}epsilon is of one row, as without it; name the column of people, or if each person has one "
        "row, empty person"
    )


def _describe_ids(section: str, person: str, ids: int, people: int) -> str:
    return (
        f"[{section}] person is {person!r}, whose ids partly differ in case, accents or space only: {ids:,} "
        f"different ids, {people:,} without that; each spelling has an epsilon of its own: if they mean the "
        "same person, write them in one way"
    )


def _unites(table: Table, name: str, counts: Counter[str], person: str) -> bool:
    """Return whether a column's words are fewer than the persons in the same rows.

    Counted in these rows alone: an address of each person that is empty in some rows puts nobody together.
    """
    persons = {
        of for one, of in zip(table.columns[name], table.columns[person], strict=True) if one is not None
    }
    return len(counts) < len(persons - {None})


def _describe(name: str, counts: Counter[str]) -> str:
    different = f"{len(counts):,} different in {counts.total():,} rows"
    return f"column {name!r} repeats ({different}, up to {max(counts.values()):,} each)"


def _advise(section: str, name: str, person: str) -> str:
    unit = f"{person!r}" if person else "row"
    return (
        f"epsilon is of one {unit}, and of all rows of one such person more; "
        f"[{section}] person = {_quote(name)} makes it of a person"
    )


def _deny(name: str) -> str:
    return f"[data] not_people = [{_quote(name)}] says so"


def _quote(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
