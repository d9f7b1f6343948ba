"""Made-up shop sessions with the columns of UCI's "Online Shoppers Purchasing Intention".

`python -m docs.tutorial.sessions FILE`.

Nobody's data, so that the pages run without a download. The real table
(https://archive.ics.uci.edu/dataset/468) has these columns too, and a few more.
"""

import csv
import random
import sys
from pathlib import Path
from typing import Final

COLUMNS: Final = (
    "Administrative",
    "ProductRelated",
    "ProductRelated_Duration",
    "BounceRates",
    "PageValues",
    "SpecialDay",
    "Month",
    "Browser",
    "Region",
    "VisitorType",
    "Weekend",
    "Revenue",
)
MONTHS: Final = ("Feb", "Mar", "May", "June", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
ROWS: Final = 4_000


def session(chance: random.Random) -> tuple[object, ...]:
    """One session: who looks at pages that sell, late in the year, buys more often."""
    pages = 1 + int(chance.expovariate(1 / 25))
    value = round(chance.expovariate(1 / 25), 2) if chance.random() < 0.25 else 0
    month, is_new = chance.choice(MONTHS), chance.random() < 0.15
    odds = 0.03 + 0.012 * min(value, 50) + 0.06 * (month == "Nov") + 0.05 * is_new
    return (
        int(chance.expovariate(0.5)),
        pages,
        round(pages * chance.expovariate(1 / 40), 1),
        round(chance.random() * 0.2 / pages, 4),
        value,
        chance.choice((0, 0, 0, 0, 0.4, 0.8)),
        month,
        chance.randint(1, 4),
        chance.choices(range(1, 10), weights=(30, 8, 16, 8, 2, 5, 5, 3, 3))[0],
        "New_Visitor" if is_new else "Returning_Visitor",
        "TRUE" if chance.random() < 0.23 else "FALSE",
        "TRUE" if chance.random() < odds else "FALSE",
    )


def main() -> None:
    """Write the table."""
    chance = random.Random(1)  # noqa: S311  made-up data
    with Path(sys.argv[1]).open("w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(COLUMNS)
        lines.writerows(session(chance) for _ in range(ROWS))


if __name__ == "__main__":
    main()
