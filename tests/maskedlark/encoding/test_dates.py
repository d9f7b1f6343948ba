"""Dates in the forms that people write become a weekday, a day and an hour, and never the wrong month."""

from datetime import date

import pytest

from maskedlark.encoding.dates import (
    FORMS,
    DateOrder,
    UnknownOrder,
    WrongDate,
    are_dates,
    find_order,
    has_short_year,
    in_one_form,
    part_of,
    parts,
    seems_date,
    split_order,
    with_parts,
    wrong_dates,
)
from maskedlark.errors import InvalidTask

DAY = "20785"
"""Days from 1970-01-01 to 2026-11-28, a Saturday."""


@pytest.mark.parametrize(
    ("cell", "hour"),
    [
        ("2026-11-28", None),
        ("2026/11/28", None),
        ("28.11.2026", None),
        ("28/11/2026", None),
        ("11/28/2026", None),
        ("28-11-2026 4:50", "4"),
        ("28 Nov 2026", None),
        ("28-NOV-2026 04:50", "4"),
        ("28 november, 2026", None),
        ("Nov. 28, 2026", None),
        ("November 28 2026 04:50:59", "4"),
        ("2026-11-28T04:50:59.123Z", "4"),
        ("2026-11-28 04:50:59+01:00", "4"),
        ("1795841400", "4"),
        ("1795841400000", "4"),
    ],
)
def test_forms(cell: str, hour: str | None) -> None:
    assert are_dates([cell, None])
    made = parts({"seen": [cell, None]}, "seen")
    assert made["seen@weekday"] == ["Sat", None]
    assert made["seen@day"] == [DAY, None]
    assert made.get("seen@hour", [None])[0] == hour


def test_forms_mix_in_a_column() -> None:
    made = parts({"seen": ["2026-11-28", "28.11.2026 23:10", "11/28/2026", "28 Nov 2026"]}, "seen")
    assert made["seen@day"] == [DAY] * 4
    assert made["seen@hour"] == [None, "23", None, None]


def test_each_month_has_its_names() -> None:
    """The first of each month, by the short and the long name, day or month first."""
    for month in range(1, 13):
        first = date(2026, month, 1)
        for cell in (f"{first:%d %b %Y}", f"{first:%B %d, %Y}", f"{first:%d-%b-%Y}"):
            assert parts({"d": [cell]}, "d")["d@day"] == [str((first - date(1970, 1, 1)).days)]
    assert parts({"d": ["3 Sept 2026"]}, "d") == parts({"d": ["2026-09-03"]}, "d")


@pytest.mark.parametrize(
    "cells",
    [
        ["yes"],
        ["2026-11-28", "soon"],
        ["31.02.2026"],
        ["31 Feb 2026"],
        ["28 Novem 2026"],
        ["28 Nov 26"],
        ["32 Nov 2026"],
        ["12"],
        [None],
        ["7", "2026-11-28"],
        ["2026-11-28 24:00"],
        ["2026-11-28 23:60"],
    ],
)
def test_other_columns_are_no_dates(cells: list[str | None]) -> None:
    assert not are_dates(cells)


@pytest.mark.parametrize(
    ("cells", "kind", "why"),
    [
        (["03/04/2026"], UnknownOrder, "do not show whether the day or the month stands first"),
        (["13/04/2026", "04/13/2026"], InvalidTask, "the day first in some cells and the month in others"),
    ],
)
def test_a_day_that_could_be_a_month_is_refused(
    cells: list[str | None], kind: type[InvalidTask], why: str
) -> None:
    for read in (are_dates, find_order):
        with pytest.raises(kind, match=why):
            read(cells)
    with pytest.raises(kind, match=rf"^column 'seen': its dates.*{why}"):
        with_parts({"seen": cells}, ["seen@day"])


THIRD_OF_APRIL = "20546"


@pytest.mark.parametrize(("order", "cell"), [("dmy", "03/04/2026"), ("mdy", "4-3-2026 10:00")])
def test_an_order_that_is_known_reads_dates_that_do_not_show_it(order: str, cell: str) -> None:
    known = DateOrder(order)
    columns: dict[str, list[str | None]] = {"seen": [cell, None, "03.04.2026", "3 Apr 2026"]}
    days = [THIRD_OF_APRIL, None, THIRD_OF_APRIL, THIRD_OF_APRIL]
    assert parts(columns, "seen", known)["seen@day"] == days
    assert with_parts(columns, ["seen@day"], {"seen": known})["seen@day"] == days
    assert wrong_dates(columns["seen"], known) == {}
    assert in_one_form([cell], known)[0] == ("2026-04-03" if order == "dmy" else "2026-04-03 10:00")


def test_dates_that_contradict_a_known_order_are_counted_and_never_swapped() -> None:
    cells = ["13/04/2026", "04/13/2026", "04/13/2026", None, "13/13/2026"]
    why = (
        "it holds a date with the month first, but this column's dates with slashes have the day first (dmy)"
    )
    wrong = {"04/13/2026": why, "13/13/2026": "it holds no date"}
    assert wrong_dates(cells, DateOrder.DAY_FIRST) == wrong
    with pytest.raises(InvalidTask) as refused:
        parts({"seen": cells}, "seen", DateOrder.DAY_FIRST)
    told = f"column 'seen', row 2: {why} (2 more cells of the column cannot be read)"
    assert str(refused.value) == told
    assert in_one_form(cells, DateOrder.DAY_FIRST) == cells


@pytest.mark.parametrize("order", [*DateOrder])
def test_of_dates_in_the_other_order_none_is_read_though_some_could_be(order: DateOrder) -> None:
    clear = "04/13/2026" if order is DateOrder.DAY_FIRST else "13/04/2026"
    found = wrong_dates(["03/04/2026", clear, None, "2026-04-03", "soon"], order)
    assert found.keys() == {"03/04/2026", clear, "soon"}
    assert (
        f"and would be read with the {order.first} first ({order}): write 2026-11-28" in found["03/04/2026"]
    )
    assert found[clear] == found["03/04/2026"]


def test_the_order_is_found_and_named() -> None:
    assert find_order(["13/04/2026", "03/04/2026", None]) is DateOrder.DAY_FIRST
    assert find_order(["04/13/2026", "2026-11-28"]) is DateOrder.MONTH_FIRST
    assert find_order(["2026-11-28", "28.11.2026", None]) is None
    assert [split_order(one) for one in ("seen=dmy", "a=b=mdy", "a=b", "=dmy")] == [
        ("seen", DateOrder.DAY_FIRST),
        ("a=b", DateOrder.MONTH_FIRST),
        ("a=b", None),
        ("=dmy", None),
    ]


@pytest.mark.parametrize(
    ("cells", "wrong"),
    [
        (["2026-11-28", "28.11.2026", None, "1795841400", "soon"], {"1795841400": "Unix", "soon": "no date"}),
        (["1795841400", "1795841400", "2026-11-28"], {"2026-11-28": "Unix"}),
        (
            ["03/04/2026", "2026-11-28", "1795841400"],
            {"03/04/2026": "day or the month", "1795841400": "Unix"},
        ),
        (
            ["13/04/2026", "04/13/2026", "28.11.2026"],
            dict.fromkeys(["13/04/2026", "04/13/2026"], "the month"),
        ),
        (["13/04/2026", "03/04/2026", "13/13/2026", "31/02/2026"], {"13/13/2026": "no", "31/02/2026": "no"}),
    ],
)
def test_the_cells_without_which_a_column_can_be_read(cells: list[str | None], wrong: dict[str, str]) -> None:
    found = wrong_dates(cells)
    assert found.keys() == wrong.keys()
    assert all(wrong[cell] in why for cell, why in found.items())
    read = parts({"seen": [None if cell in found else cell for cell in cells]}, "seen")["seen@day"]
    assert [day is None for day in read] == [cell is None or cell in found for cell in cells]


@pytest.mark.parametrize(
    ("cells", "row", "why"),
    [
        (["2026-11-28", "soon"], 1, f"it holds no date: {FORMS}"),
        (["28.11.2026", None, "00.00.0000", "soon"], 2, f"{FORMS} (1 more cell of the column cannot"),
        (["13/04/2026", "soon", "04/05/2026"], 1, f"it holds no date: {FORMS}"),
        (["2026-11-28", "2026-11-29", "1795841400"], 2, "it holds Unix seconds, where"),
    ],
)
def test_the_first_cell_that_is_no_date_is_located_and_the_others_counted(
    cells: list[str | None], row: int, why: str
) -> None:
    with pytest.raises(WrongDate) as refused:
        parts({"seen": cells}, "seen")
    assert (refused.value.column, refused.value.row) == ("seen", row)
    assert why in refused.value.why
    assert str(refused.value) == f"column 'seen', row {row + 1}: {refused.value.why}"


@pytest.mark.parametrize(
    ("cell", "seems"),
    [
        ("29.01.2025 14:34 Uhr", True),
        ("17. April 2025", True),
        ("Do., 17. April 2025", True),
        ("17 avril 2025", True),
        ("17 de abril de 2025", True),
        ("April 17th, 2025", True),
        ("Thu 17.04.2025", True),
        ("2025-04-17 at 5", True),
        ("17.04.2025", False),
        ("00.00.0000", False),
        ("17 Monkeys", False),
        ("Model 2025", False),
        ("12.5", False),
        ("unbekannt", False),
    ],
)
def test_a_cell_that_was_meant_as_a_date_is_known(cell: str, seems: bool) -> None:
    assert seems_date(cell) is seems


def test_where_no_cell_is_a_date_the_reason_has_the_forms_that_are_read() -> None:
    why = f"it holds no date: {FORMS}"
    assert wrong_dates(["18042025", None, "19042025"]) == dict.fromkeys(["18042025", "19042025"], why)
    assert wrong_dates(["18042025", "2025-04-19"]) == {"18042025": "it holds no date"}
    assert wrong_dates([None]) == {}


@pytest.mark.parametrize(
    ("cell", "is_short"),
    [
        ("27.12.25 18:08", True),
        ("12/27/25", True),
        ("7-1-05", True),
        ("27.12.2025", False),
        ("32.12.25", False),
        ("27.12/25", False),
        ("0.1.25", False),
        ("27.12.25 25:00", False),
        ("10.5", False),
    ],
)
def test_a_year_of_two_digits_is_known_and_not_read(cell: str, is_short: bool) -> None:
    assert has_short_year(cell) is is_short
    if is_short:
        assert not are_dates([cell])
        assert wrong_dates([cell]) == {
            cell: "it holds a date with years of two digits: write four, as 2026-11-28"
        }
        with pytest.raises(InvalidTask, match="row 2: it holds a date with years of two digits: write four"):
            parts({"seen": [None, cell]}, "seen")


def test_only_the_parts_that_are_wanted_and_lacking_are_made() -> None:
    columns = {"seen": ["2026-11-28"], "a@day": ["x"]}
    assert with_parts(columns, ["seen@hour", "a@day", "b@day"]) == {"seen@hour": [None]}
    assert [part_of(name) for name in ("seen@day", "a@b@hour", "seen@year", "@day", "seen")] == [
        "seen", "a@b", None, None, None
    ]  # fmt: skip


def test_dates_in_one_form_have_the_same_parts_each_by_itself() -> None:
    cells = ["28/11/2026 04:50", "03/04/2026", None, "3 Apr 2026 23:59:59"]
    found = in_one_form(cells)
    assert found == ["2026-11-28 04:00", "2026-04-03", None, "2026-04-03 23:00"]
    assert parts({"seen": found}, "seen") == parts({"seen": cells}, "seen")
    assert are_dates(found[1:2])
    for left in (["03/04/2026", None], ["soon", "2026-04-03"], ["phone"]):
        assert in_one_form(left) == left
