"""Public tables from their own home, checked by SHA-256, as CSV files with a header; or a made-up sample.

adult             UCI Adult (Becker, Kohavi 1996; CC BY 4.0): adult.csv and adult_test.csv
online_shoppers   UCI Online Shoppers Purchasing Intention (Sakar, Kastro 2018; CC BY 4.0)
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

import httpx

from browser_sim.download import fetch_file, session
from browser_sim.samples import ADULT_COLUMNS, write_sample
from browser_sim.source import InvalidSource
from maskedlark.frozen import frozen

MAX_TABLE_BYTES: Final = 16 << 20
_HOME: Final = "https://archive.ics.uci.edu/ml/machine-learning-databases"


@frozen
class PublicTable:
    """One file of a public table.

    Attributes:
        remote: Its name at its home.
        digest: SHA-256, in hex, of the file with Unix line ends: copies differ in those.
        local: The name of the CSV that is written.
        to_csv: Makes it of the file's text.
    """

    remote: str
    digest: str
    local: str
    to_csv: Callable[[str], str]


@frozen
class PublicData:
    """A data set of one or more tables.

    Attributes:
        mirrors: URLs of folders that hold its files.
        tables: Its files.
    """

    mirrors: tuple[str, ...]
    tables: tuple[PublicTable, ...]


def _adult_csv(text: str) -> str:
    """Add a header, and drop empty lines, spaces after commas and dots after labels."""
    rows = [line.removesuffix(".").replace(", ", ",") for line in text.splitlines()]
    # adult.test begins with a line that is no row; both files end with an empty one.
    kept = [row for row in rows if row.count(",") == len(ADULT_COLUMNS) - 1]
    return "\n".join([",".join(ADULT_COLUMNS), *kept]) + "\n"


def _at_home(folder: str, *tables: PublicTable) -> PublicData:
    """Return the tables of the UCI repository."""
    return PublicData(mirrors=(f"{_HOME}/{folder}",), tables=tables)


TABLES: Final = {
    "adult": _at_home(
        "adult",
        PublicTable(
            remote="adult.data",
            digest="5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            local="adult.csv",
            to_csv=_adult_csv,
        ),
        PublicTable(
            remote="adult.test",
            digest="a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
            local="adult_test.csv",
            to_csv=_adult_csv,
        ),
    ),
    "online_shoppers": _at_home(
        "00468",
        PublicTable(
            remote="online_shoppers_intention.csv",
            digest="d8e130ba51532985f93281a73ce299e6ce150cb915769a7962a11e595eadd6a1",
            local="online_shoppers.csv",
            to_csv=str,
        ),
    ),
}
"""By the name that `browser-sim download` takes."""


def _download_tables(
    data: PublicData, folder: Path, *, mirrors: Sequence[str] = (), on_file: Callable[[str], None]
) -> None:
    """Put the tables into a folder as CSV.

    Guarantees: nothing is written before all files have come with the right SHA-256.

    Args:
        data: What to fetch.
        folder: Where to.
        mirrors: Instead of the data set's own.
        on_file: Called with each file that is right.

    Raises:
        InvalidSource: no mirror has a file, or what they have differs from what it should be.
    """
    with session() as client:
        # All before any is written: half of a data set would look like the whole one.
        texts = [_fetch(client, table, mirrors or data.mirrors) for table in data.tables]
    folder.mkdir(parents=True, exist_ok=True)
    for table, text in zip(data.tables, texts, strict=True):
        (folder / table.local).write_text(table.to_csv(text), encoding="utf-8")
        on_file(table.local)


def download_or_sample(
    name: str, folder: Path, *, mirrors: Sequence[str], is_sample_allowed: bool, tell: Callable[[str], None]
) -> None:
    """Download the tables of a data set, or use its made-up sample where that is allowed.

    Raises:
        InvalidSource: they cannot be had, and no sample is allowed.
    """
    try:
        _download_tables(
            TABLES[name], folder, mirrors=mirrors, on_file=lambda one: tell(f"{one}: checksum correct")
        )
    except InvalidSource as error:
        if not is_sample_allowed:
            raise InvalidSource(
                f"{error}; with --or-sample this command writes a made-up table with the same columns"
            ) from None
        path = write_sample(name, folder)
        tell(
            f"WARNING: {error}: {path.name} is MADE UP: it has the columns of the real data and none of "
            "its rows"
        )


def _fetch(client: httpx.Client, table: PublicTable, mirrors: Sequence[str]) -> str:
    def right(content: bytes) -> bytes | None:
        # Some copies have Windows line ends; the digest is of the other form.
        text = content.replace(b"\r\n", b"\n")
        return text if sha256(text).hexdigest() == table.digest else None

    return fetch_file(
        client, mirrors, table.remote, most=MAX_TABLE_BYTES, digest=table.digest, right=right
    ).decode("utf-8")
