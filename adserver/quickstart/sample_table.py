"""A made-up table of people's visits to a shop, for a first try without a table of one's own.

Its rows are drawn from fixed seeds, so that everybody has the same file. No real person is in it.
"""

from collections.abc import Iterator
from random import Random
from typing import Final

PEOPLE: Final = 400
_COLUMNS: Final = "person,device,minutes,pages,bought"
_DEVICES: Final = ("phone", "desktop", "tablet")
# The fewest and the most of a person.
_VISITS: Final = (5, 25)
# The score of a visit from which the person buys.
_BOUGHT_FROM: Final = 22.0


def sample_table() -> str:
    """Return the table as CSV: its person, device, minutes and pages say whether the person bought."""
    rows = (row for person in range(PEOPLE) for row in _visits_of(person))
    return "\n".join([_COLUMNS, *rows]) + "\n"


def _visits_of(person: int) -> Iterator[str]:
    # A stream for each person: another number of people leaves the rows of the first ones as they are.
    chance = Random(person)  # noqa: S311  made up, and the same everywhere: a test has its digest
    device, taste = chance.choice(_DEVICES), chance.gauss(0, 3)
    for _ in range(chance.randint(*_VISITS)):
        minutes = chance.expovariate(0.1)
        pages = 1 + int(minutes * chance.random())
        score = minutes + pages + 10 * (device == "desktop") + taste + chance.gauss(0, 3)
        bought = "yes" if score > _BOUGHT_FROM else "no"
        yield f"person-{person}@mail.example,{device},{minutes:.1f},{pages},{bought}"
