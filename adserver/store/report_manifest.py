"""The rows that name objects of reports: which names are in use, and which rows go with a task's reports."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Engine, delete, exists, select

from adserver.store.schema import report_objects, report_states
from maskedlark.runtime.database import reading

_PAGE: Final = 1_000


def find_named(engine: Engine, names: Sequence[str]) -> frozenset[str]:
    """Return which of some objects a row names."""
    if not names:
        return frozenset()
    with reading(engine) as connection:
        found = connection.execute(select(report_objects.c.name).where(report_objects.c.name.in_(names)))
        return frozenset(found.scalars())


def forget_objects(engine: Engine, task_id: bytes) -> int:
    """Delete the rows of a task's objects, in short transactions, if none of its reports is left; how many.

    The objects themselves go with the next sweep that finds them old.

    Guarantees: the row of an object with a report that is stored meanwhile stays.
    """
    c, count = report_objects.c, 0
    some = select(c.object).where(c.task_id == task_id).limit(_PAGE)
    is_left = exists().where(report_states.c.task_id == task_id)
    deleting = delete(report_objects).where(c.object.in_(some), ~is_left)
    while True:
        with engine.begin() as connection:
            gone = connection.execute(deleting).rowcount
        count += gone
        if gone < _PAGE:
            return count
