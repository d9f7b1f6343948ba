"""The table of costs follows from the figures of the same page."""

import re
from pathlib import Path

import pytest

from adserver.store.batch_window import WORTH_BYTES
from docs.costs import DAYS_A_MONTH, MEASURED, OBJECT_FROM_BYTES, Assumed, rows, table

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "benchmarks.md"
BILLION = 1e9


def test_the_page_shows_the_table_that_the_command_prints() -> None:
    assert table([1e6, BILLION], Assumed()) in PAGE.read_text()


@pytest.mark.parametrize("name", MEASURED)
def test_every_figure_is_a_row_of_the_page(name: str) -> None:
    figure = MEASURED[name]
    assert f"\n| {figure.row} | {figure.cell} |" in PAGE.read_text()
    millions = {number / 10**power for number in _numbers(figure.cell) for power in range(8)}
    assert any(abs(figure.value - one) < 1e-9 for one in millions | {one * 10 for one in millions})


def _numbers(words: str) -> set[float]:
    return {float(one) for one in re.findall(r"\d+(?:\.\d+)?", words)}


def test_a_billion_reports_come_to_what_the_page_works_out_by_hand() -> None:
    told = rows(BILLION, Assumed())
    core_hours = (24.5 + 17.4 + 18 + 2.8) * BILLION / 3.6e9
    assert told["core-hours a day, ad server: intake, its PostgreSQL, sealing, expiry"] == pytest.approx(
        core_hours
    )
    adserver = core_hours * 0.04 + 643 * 30 * 0.10 / DAYS_A_MONTH + 304 * 0.09
    assert told["dollars a day, ad server"] == pytest.approx(adserver)
    beside = core_hours * 0.04 + (407 * 0.10 + 246 * 0.023) * 30 / DAYS_A_MONTH + 304 * 0.09
    puts = 246 * BILLION / 1e6
    assert told["dollars a day, ad server with `--report-objects`"] == pytest.approx(
        beside + puts * (5 + 2 * 0.4) / 1e6
    )
    helper = (61 + 3.7 + 0.23 + 73) / 3.6 * 0.04 + (70.5 * 0.023 + 61.4 * 0.10) * 30 / DAYS_A_MONTH
    assert told["dollars a day, each helper"] == pytest.approx(helper)


@pytest.mark.parametrize(
    "price", ["core_hour", "database_gb_month", "object_gb_month", "sent_gb", "put_million", "get_million"]
)
def test_twice_every_price_is_twice_the_money_and_each_price_counts(price: str) -> None:
    plain = rows(BILLION, Assumed())
    names = [name for name in plain if name.startswith("dollars")]
    dearer = rows(BILLION, Assumed(**{price: 10.0}))
    assert sum(dearer[name] for name in names) > sum(plain[name] for name in names)
    doubled = Assumed(
        core_hour=0.08,
        database_gb_month=0.20,
        object_gb_month=0.046,
        sent_gb=0.18,
        put_million=10,
        get_million=0.8,
    )
    for name in names:
        assert rows(BILLION, doubled)[name] == pytest.approx(2 * plain[name])


def test_what_is_too_little_for_objects_costs_the_same_with_the_option() -> None:
    assert OBJECT_FROM_BYTES == WORTH_BYTES
    few, many = rows(2.2e7, Assumed()), rows(2.4e7, Assumed())
    plain, beside = "dollars a day, ad server", "dollars a day, ad server with `--report-objects`"
    assert few[beside] == few[plain]
    assert many[beside] < many[plain]


def test_figures_grow_with_reports_rounds_and_days() -> None:
    one, ten = rows(1e6, Assumed()), rows(1e7, Assumed())
    assert all(ten[name] == pytest.approx(10 * value) for name, value in one.items())
    more = rows(1e6, Assumed(rounds=200, days=60))
    assert more["core-hours a day, each helper: 200 rounds"] == pytest.approx(
        2 * one["core-hours a day, each helper: 100 rounds"]
    )
    assert more["GB of segments at each helper, 60 days"] == pytest.approx(
        2 * one["GB of segments at each helper, 30 days"]
    )
