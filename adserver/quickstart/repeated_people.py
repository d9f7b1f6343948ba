"""Whether people have several rows in a table, as an epsilon is of one row.

`find_people_columns` finds the columns. Ids of things repeat as well: of words alone the warning asks, and
`[data] not_people` answers.
"""

import json
from collections import Counter
from collections.abc import Collection
from typing import Final

from maskedlark.encoding.people_columns import find_people_columns
from maskedlark.encoding.table import Table

_MOST_ASKED: Final = 2


def warn_of_repeated_people(
    table: Table, label: str, measured: Collection[str] = (), not_people: Collection[str] = ()
) -> tuple[str, ...]:
    """Return a line if a column seems to name people who have several rows, as epsilon is of one row.

    If names of columns say so, it is of the one with the fewest people. Otherwise up to two columns are asked
    about whose words look like ids, those of the most different words first.

    Args:
        table: The project's.
        label: The column of the label; "" for none.
        measured: Columns that are measured, which are not asked about.
        not_people: Columns of which the owner says that they name no people.
    """
    found = find_people_columns(table, table.columns.keys() - {label, *not_people})
    if named := found.named:
        name = min(named, key=lambda name: (len(named[name]), name))
        if max(named[name].values()) == 1:
            return ()
        return (f"{_describe(name, named[name])}: {_advise(name)}; if it names no people, {_deny(name)}",)
    asked = {name: counts for name, counts in found.asked.items() if name not in measured}
    most_first = sorted(asked, key=lambda name: (-len(asked[name]), name))
    return tuple(
        f"{_describe(name, asked[name])}: if it names people, {_advise(name)}; if not, {_deny(name)}"
        for name in most_first[:_MOST_ASKED]
    )


def _describe(name: str, counts: Counter[str]) -> str:
    different = f"{len(counts):,} different in {counts.total():,} rows"
    return f"column {name!r} repeats ({different}, up to {max(counts.values()):,} each)"


def _advise(name: str) -> str:
    return (
        "epsilon is of one row, and of all rows of one such person more; "
        f"[task] person = {_quote(name)} makes it of a person"
    )


def _deny(name: str) -> str:
    return f"[data] not_people = [{_quote(name)}] says so"


def _quote(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
