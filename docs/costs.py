"""What so many reports a day cost: `python -m docs.costs [--reports N ...] [--core-hour 0.04] ...`.

Prints the table of `docs/explanation/benchmarks.md` from figures of that page, and from prices that are
assumed: give your own.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Final

DAYS_A_MONTH: Final = 30
GB: Final = 1e9
MB: Final = 1e6
HOUR_US: Final = 3_600e6
DAY_HOURS: Final = 24
DAY_S: Final = 86_400
OBJECT_FROM_BYTES: Final = 64 << 10
"""So much has to come in a second before an intake makes objects of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measured figure: its value for each report, and the row of the page that shows it, cell by cell."""

    value: float
    row: str
    cell: str


MEASURED: Final = {
    # Microseconds of a processor.
    "intake": Figure(value=24.5, row="intake's processor time a report: one, two", cell="23.1 and 24.5 us"),
    "intake_database": Figure(
        value=17.4, row="PostgreSQL's processor time a report: one, two", cell="16.2 and 17.4 us"
    ),
    "sealing": Figure(value=18.0, row="taken for a dataset, sent to both helpers", cell="18 us; 304 bytes"),
    "opening": Figure(value=61.0, row="a helper opens its share", cell="61 us"),
    "preparing": Figure(value=3.7, row="segments written; of it the order", cell="37 s; 4.5 s"),
    "committing": Figure(value=0.23, row="committed", cell="2.3 s"),
    "round": Figure(value=0.73, row="a round over all records, from disk", cell="7.3 s"),
    "forgetting": Figure(value=2.8, row="expired, PostgreSQL's processor time", cell="2.8 us"),
    # Bytes.
    "stored": Figure(value=643.0, row="the database with all indexes", cell="643 bytes"),
    "stored_beside": Figure(value=407.0, row="the same where ciphertexts lie in objects", cell="407 bytes"),
    "object": Figure(value=246.0, row="the objects", cell="246 bytes"),
    "sent": Figure(value=304.0, row="taken for a dataset, sent to both helpers", cell="18 us; 304 bytes"),
    "segment": Figure(value=70.5, row="peak of the process; the file", cell="1,327 MB; 705 MB"),
    "ledger": Figure(value=61.4, row="its id in a helper's ledger", cell="61.4 bytes"),
}
"""Of reports of 30 features, without proofs. What is measured of ten million records is divided by them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """What the reader may change; prices in dollars.

    Attributes:
        rounds: Rounds a day, each over all records of that day, read from the disk.
        days: How long reports are kept.
        core_hour: An hour of a processor core.
        database_gb_month: A disk of a database.
        object_gb_month: Object storage, or the disk of segments.
        sent_gb: What leaves the ad server for the helpers.
        object_mb: How large objects of reports are on average, in 10^6 bytes.
        put_million: A million requests that write an object.
        get_million: A million that read one; each object is read for both helpers.
    """

    rounds: float = 100
    days: float = 30
    core_hour: float = 0.04
    database_gb_month: float = 0.10
    object_gb_month: float = 0.023
    sent_gb: float = 0.09
    object_mb: float = 1.0
    put_million: float = 5.0
    get_million: float = 0.4


def rows(reports: float, of: Assumed) -> dict[str, float]:
    """The table's figures for so many reports a day, by what they are called there."""
    of_report = {name: figure.value for name, figure in MEASURED.items()}

    def hours(*names: str, times: float = 1.0) -> float:
        return reports * times * sum(of_report[name] for name in names) / HOUR_US

    def gigabytes(name: str, days: float) -> float:
        return reports * days * of_report[name] / GB

    def money(core_hours: float, database: float, objects: float, sent: float) -> float:
        disks = database * of.database_gb_month + objects * of.object_gb_month
        return core_hours * of.core_hour + disks / DAYS_A_MONTH + sent * of.sent_gb

    adserver = hours("intake", "intake_database", "sealing", "forgetting")
    opening, rounds = hours("opening", "preparing", "committing"), hours("round", times=of.rounds)
    stored, segments = gigabytes("stored", of.days), gigabytes("segment", of.days)
    ledger, sent = gigabytes("ledger", of.days), gigabytes("sent", 1)
    beside, objects, requests = stored, 0.0, 0.0
    if reports * of_report["object"] / DAY_S >= OBJECT_FROM_BYTES:  # where they come evenly, at one intake
        beside, objects = gigabytes("stored_beside", of.days), gigabytes("object", of.days)
        puts = gigabytes("object", 1) * GB / (of.object_mb * MB)
        requests = puts * (of.put_million + 2 * of.get_million) / 1e6
    return {
        "core-hours a day, ad server: intake, its PostgreSQL, sealing, expiry": adserver,
        "core-hours a day, each helper: opening and storing": opening,
        f"core-hours a day, each helper: {of.rounds:g} rounds": rounds,
        "cores busy on average, ad server": adserver / DAY_HOURS,
        "cores busy on average, each helper": (opening + rounds) / DAY_HOURS,
        f"GB in the ad server's PostgreSQL, {of.days:g} days": stored,
        f"GB there with `--report-objects`, {of.days:g} days": beside,
        f"GB of objects then, {of.days:g} days": objects,
        f"GB of segments at each helper, {of.days:g} days": segments,
        f"GB of each helper's ledger, {of.days:g} days": ledger,
        "GB a day from the ad server to both helpers": sent,
        "dollars a day, ad server": money(adserver, stored, 0, sent),
        "dollars a day, ad server with `--report-objects`": money(adserver, beside, objects, sent) + requests,
        "dollars a day, each helper": money(opening + rounds, ledger, segments, 0),
    }


def shown(value: float) -> str:
    """Two digits that count, and no more commas than needed."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def table(reports: Sequence[float], of: Assumed) -> str:
    """The table as it stands on the page."""
    columns = [rows(count, of) for count in reports]
    lines = [f"| | {' | '.join(f'{count:,.0f} reports a day' for count in reports)} |"]
    lines.append(f"|---{'|---' * len(reports)}|")
    for name in columns[0]:
        lines.append(f"| {name} | {' | '.join(shown(column[name]) for column in columns)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table for what the options say."""
    parser = argparse.ArgumentParser(description="What so many reports a day cost.")
    parser.add_argument("--reports", type=float, nargs="+", default=[1e6, 1e9])
    number: Callable[[str], float] = float
    for field in fields(Assumed):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=number, default=field.default)
    given = vars(parser.parse_args())
    print(table(given.pop("reports"), Assumed(**given)))


if __name__ == "__main__":
    main()
