"""Small tables that are made up: the columns of public data sets for machines without a network.

They are drawn from fixed seeds, so that each is the same file everywhere. A label follows from some columns,
so that there is something to learn; nothing else is like the real data.
"""

from collections.abc import Callable, Sequence
from math import exp
from pathlib import Path
from random import Random
from typing import Final

ROWS: Final = 6_000

ADULT_COLUMNS: Final = (
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation",
    "relationship", "race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country",
    "income",
)  # fmt: skip
SHOPPER_COLUMNS: Final = (
    "Administrative", "Administrative_Duration", "Informational", "Informational_Duration", "ProductRelated",
    "ProductRelated_Duration", "BounceRates", "ExitRates", "PageValues", "SpecialDay", "Month",
    "OperatingSystems", "Browser", "Region", "TrafficType", "VisitorType", "Weekend", "Revenue",
)  # fmt: skip

_EDUCATION: Final = ("9th", "HS-grad", "Some-college", "Bachelors", "Masters", "Doctorate")
_YEARS: Final = (5, 9, 10, 13, 14, 16)
_WORK: Final = ("Private", "Self-emp-not-inc", "Local-gov", "State-gov", "Federal-gov", "?")
_MARITAL: Final = ("Married-civ-spouse", "Never-married", "Divorced", "Widowed")
_JOBS: Final = ("Craft-repair", "Sales", "Exec-managerial", "Prof-specialty", "Other-service", "?")
_KIN: Final = ("Husband", "Wife", "Not-in-family", "Own-child", "Unmarried")
_RACES: Final = ("White", "Black", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other")
_LANDS: Final = ("United-States", "Mexico", "Germany", "India", "?")
_MONTHS: Final = ("Feb", "Mar", "May", "June", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_VISITORS: Final = ("Returning_Visitor", "New_Visitor", "Other")


def write_sample(name: str, folder: Path) -> Path:
    """Write the sample of a data set's name into a folder; the file's path.

    Raises:
        KeyError: there is no sample of this name.
    """
    columns, row = SAMPLES[name]
    random = Random(name)  # noqa: S311 # made up, and the same everywhere
    lines = [",".join(columns), *(",".join(map(str, row(random))) for _ in range(ROWS))]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _person(random: Random) -> list[object]:
    age = min(90, 17 + int(random.gammavariate(3.0, 7.5)))
    education = random.choices(range(6), (10, 32, 24, 20, 9, 5))[0]
    marital = random.choices(_MARITAL, (46, 33, 14, 7))[0]
    hours = min(99, max(1, round(random.gauss(40, 11))))
    gain = random.choice((2174, 3103, 7688, 15024)) if random.random() < 0.06 else 0
    loss = 1902 if random.random() < 0.04 else 0
    score = (
        -5.5
        + 0.028 * (age - 38)
        + 0.9 * education
        + 2.3 * (marital == _MARITAL[0])
        + 0.035 * (hours - 40)
        + 0.0004 * gain
    )
    income = ">50K" if random.random() < 1 / (1 + exp(-score)) else "<=50K"
    return [
        age,
        random.choices(_WORK, (70, 8, 6, 4, 3, 5))[0],
        random.randrange(13_000, 600_000),
        _EDUCATION[education],
        _YEARS[education],
        marital,
        random.choice(_JOBS),
        random.choices(_KIN, (40, 5, 26, 15, 14))[0],
        random.choices(_RACES, (85, 9, 3, 1, 2))[0],
        random.choices(("Male", "Female"), (2, 1))[0],
        gain,
        loss,
        hours,
        random.choices(_LANDS, (90, 3, 1, 1, 2))[0],
        income,
    ]


def _session(random: Random) -> list[object]:
    pages = int(random.lognormvariate(2.8, 1.0))
    value = round(random.expovariate(1 / 22), 6) if random.random() < 0.22 else 0
    month = random.choices(_MONTHS, (2, 15, 27, 2, 4, 4, 4, 4, 24, 14))[0]
    visitor = random.choices(_VISITORS, (85, 14, 1))[0]
    score = -3.2 + 0.09 * min(value, 50) + 0.25 * (month == "Nov") + 0.5 * (visitor == "New_Visitor")
    bounced = round(random.betavariate(0.4, 18), 9)
    return [
        min(27, int(random.expovariate(0.4))),
        round(random.expovariate(1 / 80), 6),
        min(24, int(random.expovariate(2.0))),
        round(random.expovariate(1 / 35), 6),
        pages,
        round(pages * random.expovariate(1 / 38), 6),
        bounced,
        round(bounced + random.betavariate(1, 40), 9),
        value,
        random.choices((0, 0.2, 0.4, 0.6, 0.8, 1), (90, 1, 2, 3, 3, 1))[0],
        month,
        random.randint(1, 8),
        random.randint(1, 13),
        random.randint(1, 9),
        random.randint(1, 20),
        visitor,
        random.choices(("TRUE", "FALSE"), (1, 3))[0],
        "TRUE" if random.random() < 1 / (1 + exp(-score)) else "FALSE",
    ]


SAMPLES: Final[dict[str, tuple[Sequence[str], Callable[[Random], list[object]]]]] = {
    "adult": (ADULT_COLUMNS, _person),
    "online_shoppers": (SHOPPER_COLUMNS, _session),
}
"""By the name of the data set: its columns, and what draws one row."""
