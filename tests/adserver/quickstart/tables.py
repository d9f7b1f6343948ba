"""Tables that nobody prepared, as people export them: each is read, or refused in one line that says "
"what to do."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

ROWS = 400
HEADER = ("visit", "device", "minutes", "pages", "bought")


def visits(rows: int = ROWS) -> list[tuple[str, ...]]:
    """Visits of which `bought` follows from the rest, with chance."""
    chance = Random(1)
    made: list[tuple[str, ...]] = []
    for row in range(rows):
        device, minutes = chance.choice(["phone", "desktop", "tablet"]), chance.expovariate(0.1)
        pages = 1 + int(minutes * chance.random())
        bought = "yes" if minutes + pages + 10 * (device == "desktop") + chance.gauss(0, 4) > 18 else "no"
        made.append((str(1000 + row), device, f"{minutes:.1f}", str(pages), bought))
    return made


def text(rows: list[tuple[str, ...]], delimiter: str = ",", header: tuple[str, ...] = HEADER) -> str:
    return "".join(delimiter.join(cells) + "\n" for cells in (header, *rows))


def with_column(name: str, cell: Callable[[int, Random], str]) -> str:
    """The visits with one more column."""
    chance = Random(2)
    rows = [(cell(row, chance), *cells) for row, cells in enumerate(visits())]
    return text(rows, header=(name, *HEADER))


def with_commas(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [(a, b, c.replace(".", ","), d, e) for a, b, c, d, e in rows]


def with_gaps(*, has_dates: bool = False) -> str:
    """In every column, the label's too, every seventh cell is empty; dates have the day first."""
    dates = [(f"{1 + row % 28:02}/{1 + row % 12:02}/2026",) if has_dates else () for row in range(ROWS)]
    return text(
        [
            tuple("" if (row + 3 * place) % 7 == 0 else cell for place, cell in enumerate(cells + date))
            for row, (cells, date) in enumerate(zip(visits(), dates, strict=True))
        ],
        header=(*HEADER, "seen") if has_dates else HEADER,
    )


def dated(row: int, chance: Random) -> str:
    day, month, year = 1 + row % 28, 1 + row % 12, 2024 + row % 2
    return chance.choice(
        [f"{year}-{month:02}-{day:02}", f"{day:02}.{month:02}.{year} 12:30", f"{day}/{month}/{year}"]
    )


def wide() -> str:
    chance = Random(3)
    names = tuple(f"c{column}" for column in range(1_000))
    rows = [(*chance.choices("012345678", k=len(names)), cells[-1]) for cells in visits()]
    return text(rows, header=(*names, "bought"))


UNICODE = "größe 尺寸 🎈"
WORDS = ("\uff37\uff29\uff24\uff25", "日本語", "🎈🎈", "\ufdfa")


@dataclass(frozen=True)
class Case:
    """A table's bytes, and what becomes of it.

    Attributes:
        content: The file.
        features: How many features its rows have; None where it is refused.
        left_out: Columns that are left out.
        refused: What a refusal says.
        unlabelled: Rows without a label.
    """

    content: bytes
    features: int | None = 3
    left_out: tuple[str, ...] = ("visit",)
    refused: str = ""
    unlabelled: int = 0


CASES = {
    "semicolons": Case(text(with_commas(visits()), ";").encode()),
    "latin-1": Case(text([(a, f"é{b}", c, d, e) for a, b, c, d, e in visits()]).encode("latin-1")),
    "gaps": Case(with_gaps(has_dates=True).encode(), features=5, unlabelled=57),
    "one class": Case(
        text([(*cells[:-1], "no") for cells in visits()]).encode(), None, refused="one class only"
    ),
    "all unique": Case(
        text([(f"v{row}", f"d{row}", *cells[2:4], f"b{row}") for row, cells in enumerate(visits())]).encode(),
        None,
        refused="400 different words",
    ),
    "dates": Case(with_column("seen", dated).encode(), features=6),
    "1,000 columns": Case(wide().encode(), features=1_000, left_out=()),
    "50 rows": Case(
        text(visits(50)).encode(), None, refused="min_batch_size is 100, but browsers report 40 rows"
    ),
    "duplicated headers": Case(
        text(visits(), header=("visit", "device", "minutes", "minutes", "bought")).encode(),
        None,
        refused="columns 3 and 4 are both named 'minutes'",
    ),
    "wide unicode": Case(
        with_column(UNICODE, lambda row, _: WORDS[row % 4]).encode("utf-16"), features=4
    ),
}  # fmt: skip
