"""A table is divided by people: nobody is on both sides, and every row is on one or counted."""

from collections import Counter
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from adserver.quickstart.people import (
    Division,
    choose_rows_per_person,
    count_reported,
    count_rows,
    count_use,
    divide,
    divide_by_settings,
    settle,
    take_reported,
    write_table,
)
from adserver.quickstart.sample_table import PEOPLE, sample_table
from adserver.quickstart.settings import DataSettings, Settings, TaskSettings
from browser_sim.devices.device_data import table_by_user
from browser_sim.draws import Draws
from browser_sim.sources.table import TableSettings, load_table
from maskedlark.encoding.column_kinds import ColumnKind
from maskedlark.encoding.dates import are_dates
from maskedlark.encoding.fit import FitSettings, fit
from maskedlark.encoding.table import Table, parse_table
from maskedlark.reports.task_kinds import LabelKind
from tests.adserver.quickstart.test_project import SERVERS

DATA = DataSettings(label="bought", classes=("no", "1"), panel=0.25)
LABELS = ("no", "1.0", "", "later")
"""One that is learned, a class as a number, none, and one that is no class."""


# Else they seem to be row numbers
KINDS = {"pages": ColumnKind.NUMBER}


def visits(rows: int = 400) -> str:
    """People of many rows and of few, and rows of nobody."""
    made = [
        f"{'' if row % 9 == 0 else f'p{row % 37}'},{row},{LABELS[row % 4 if row % 5 == 0 else row % 2]}"
        for row in range(rows)
    ]
    return "\n".join(["who,pages,bought", *made]) + "\n"


@pytest.fixture(scope="module")
def table() -> Table:
    return parse_table(visits().encode(), "visits.csv")


@pytest.fixture(scope="module")
def division(table: Table) -> Division:
    return divide(table, DATA, "who")


def test_each_row_is_on_one_side_or_left_out_by_its_reason(table: Table, division: Division) -> None:
    sides = [set(side.lines) for side in (division.reported, division.panel)]
    assert not sides[0] & sides[1]
    assert len(sides[0]) + len(sides[1]) + sum(division.left_out.values()) == len(table)
    assert division.left_out.keys() == {
        "column 'bought': no label",
        "column 'bought': not a declared class",
        "column 'who': no person",
    }


def test_a_person_is_on_one_side_only_and_the_same_one_each_time(table: Table, division: Division) -> None:
    on_devices, panel = (set(side.columns["who"]) for side in (division.reported, division.panel))
    assert not on_devices & panel
    assert (len(on_devices), len(panel)) == (division.people, round(0.25 * 37))
    assert divide(table, DATA, "who") == division


@pytest.mark.parametrize("most", [1, 3, 1_000])
def test_rows_of_a_person_beyond_the_most_are_left_out_and_counted_and_the_panel_stays(
    most: int, table: Table, division: Division
) -> None:
    capped = divide(table, DATA, "who", most)
    before, after = (Counter(one.reported.columns["who"]) for one in (division, capped))
    assert after == {name: min(rows, most) for name, rows in before.items()}
    assert set(capped.reported.lines) <= set(division.reported.lines)
    assert capped.panel == division.panel
    beyond = before.total() - after.total()
    reason = f"column 'who': beyond {most} row{'s' if most > 1 else ''} of a person"
    assert capped.left_out == {**division.left_out, **({reason: beyond} if beyond else {})}
    assert divide(table, DATA, "who", most) == capped


def test_the_rows_of_a_person_that_stay_do_not_follow_the_label() -> None:
    lines = "".join(f"p{row % 40},{'no' if row < 400 else 'yes'}\n" for row in range(800))
    table = parse_table(f"who,bought\n{lines}".encode(), "sorted.csv")
    data = DataSettings(csv="sorted.csv", label="bought", panel=0.2)
    kept = divide(table, data, "who", 5).reported
    assert len(kept) == 32 * 5
    assert 0.35 < kept.columns["bought"].count("yes") / len(kept) < 0.65
    swapped = parse_table(
        f"who,bought\n{lines.replace('no', 'x').replace('yes', 'no').replace('x', 'yes')}".encode(), "s.csv"
    )
    assert divide(swapped, data, "who", 5).reported.lines == kept.lines


@pytest.mark.parametrize(("named", "shown"), [("seen", ["p41,28/11/2026,1"]), ("seen=dmy", [])])
def test_dates_that_only_the_whole_table_or_a_setting_shows_are_read_on_both_sides(
    named: str, shown: list[str]
) -> None:
    """Slashed dates of which at most one person's row has a day above 12."""
    rows = [f"p{row % 40:02},{1 + row % 9:02}/{1 + row % 12:02}/2026,{row % 2}" for row in range(200)]
    whole = parse_table("\n".join(["user_id,seen,bought", *rows, *shown]).encode(), "visits.csv")
    settings = Settings(
        data=DataSettings(csv="visits.csv", label="bought", dates=(named,)),
        task=TaskSettings(person="user_id", rows_per_person=3),
        servers=SERVERS,
    )
    found = divide_by_settings(whole, settings)
    for side in (found.reported, found.panel):
        assert len(side) > 20
        assert are_dates(side.columns["seen"][:1])
        assert {cell[:5] for cell in side.columns["seen"] if cell} == {"2026-"}


def test_without_a_label_people_have_no_panel(table: Table) -> None:
    division = divide(table, DataSettings(csv="visits.csv"), "who", 2)
    assert (len(division.panel), len(division.reported), division.people) == (0, 37 * 2, 37)


@pytest.mark.parametrize(
    ("sizes", "most"),
    [([1] * 100, 1), ([1] * 90 + [10], 1), ([1] * 50 + [5] * 10, 4), ([7] * 20, 7), ([2_000] * 3, 1_024)],
)
def test_a_person_reports_the_fewest_rows_with_which_nine_of_ten_stay(sizes: list[int], most: int) -> None:
    lines = "".join(f"p{person}\n" * rows for person, rows in enumerate(sizes))
    table = parse_table(f"who\n{lines}".encode(), "shop.csv")
    assert choose_rows_per_person(table, DataSettings(csv="shop.csv"), "who") == most


def test_the_column_of_the_person_is_nothing_else_once_settings_are_settled(table: Table) -> None:
    data = DataSettings(
        csv="visits.csv", label="bought", codes=("who", "pages"), words=("who=planned", "pages=9"),
        publish=("who",), dates=("who=dmy",),
    )  # fmt: skip
    settings = Settings(servers=SERVERS, data=data, task=TaskSettings(person="who"))
    settled = settle(table, settings)
    assert (settled.data.codes, settled.data.words) == (("pages",), ("pages=9",))
    assert (settled.data.publish, settled.data.dates) == ((), ())
    assert settled.task.rows_per_person == choose_rows_per_person(table, data, "who")
    assert settled.epsilon_of_row == 3 / (settled.task.rows_per_person or 0)
    said = replace(settings, task=TaskSettings(person="who", rows_per_person=2))
    assert settle(table, said).task.rows_per_person == 2
    unknown = replace(settings, task=TaskSettings(person="whom", rows_per_person=2))
    assert settle(table, unknown).task == TaskSettings()
    numbered = parse_table(b",pages\n0,3\n1,4\n", "frame.csv")
    assert settle(numbered, Settings(servers=SERVERS)).task == TaskSettings()


def test_rows_are_left_out_as_devices_leave_them_out(
    table: Table, division: Division, tmp_path: Path
) -> None:
    (tmp_path / "visits.csv").write_text(visits())
    settings = TableSettings(
        path=tmp_path / "visits.csv", label="bought", classes=DATA.classes, ignore=("who",), kinds=KINDS
    )
    held = table_by_user(settings, "who", least=1)
    assert held.rows is not None
    assert held.rows.left_out == division.left_out
    (tmp_path / "devices.csv").write_bytes(write_table(division.reported))
    devices = table_by_user(
        TableSettings(path=tmp_path / "devices.csv", label="bought", ignore=("who",), kinds=KINDS),
        "who",
        least=1,
    )
    assert devices.rows is not None
    assert devices.rows.left_out == {}
    assert (len(devices.population), len(devices.labels)) == (division.people, len(division.reported))


def test_rows_that_are_reported_are_those_that_browsers_report(table: Table, tmp_path: Path) -> None:
    (tmp_path / "visits.csv").write_text(visits())
    settings = TableSettings(
        path=tmp_path / "visits.csv", label="bought", classes=DATA.classes, ignore=("who",), kinds=KINDS
    )
    split = load_table(settings).split_panel(DATA.panel, Draws(seed=1))
    assert split.panel is not None
    split.panel.save(tmp_path / "panel.npz", LabelKind.CLASSES)
    panel = frozenset(np.load(tmp_path / "panel.npz")["lines"].tolist())
    assert split.reported.lines is not None
    assert [*take_reported(table, DATA, panel).lines] == split.reported.lines.tolist()
    assert len(panel) == 90 < len(split.reported)
    whole = take_reported(table, DataSettings(), frozenset())
    assert whole.lines == table.lines


def test_a_table_that_is_written_is_read_as_the_same_cells() -> None:
    content = 'who;"sep=;";text\n1;"a;b";"two\nlines"\n;1,5;"a ""word"", with commas"\nNA;2,5;ü\n'
    table = parse_table(content.encode("cp1252"), "export.csv")
    assert parse_table(write_table(table), "export.csv").columns == table.columns


def test_a_few_rows_are_written_with_the_amounts_that_the_whole_table_shows() -> None:
    table = parse_table("who;paid;off\na;1.234 €;5 %\nb;2,50 €;10 %\n".encode(), "shop.csv")
    encoder = fit(
        table.columns, FitSettings(kinds={"off": ColumnKind.CATEGORY}), {"paid": table.numbers("paid")}
    )
    again = parse_table(write_table(table.take([0]).read_by(encoder)), "one.csv").read_by(encoder)
    assert again.columns == {"who": ["a"], "paid": ["1234"], "off": ["5 %"]}


def test_the_sample_is_one_table_of_people_whose_names_are_no_features() -> None:
    table = parse_table(sample_table().encode(), "sample.csv")
    assert list(table.columns) == ["person", "device", "minutes", "pages", "bought"]
    assert len(set(table.columns["person"])) == PEOPLE
    assert all(person and person.endswith("@mail.example") for person in table.columns["person"])
    assert 0.2 < table.columns["bought"].count("yes") / len(table) < 0.5
    assert None not in {cell for cells in table.columns.values() for cell in cells}
    digest = "fc448684b7e5cbe715708672bc911578a054351e916e51037ce8044b92cbbb0a"  # everybody has this file
    assert sha256(sample_table().encode()).hexdigest() == digest


def test_rows_of_reports_add_up_to_those_used_and_those_left_out_by_reason() -> None:
    shop = parse_table(b"paid,kind\n" + b"1,no\n,yes\n" * 8 + b"2,\n3,c\n", "shop.csv")
    assert count_rows(shop, DataSettings(label="kind", classes=("no", "yes"))) == (
        16,
        {"column 'kind': no label": 1, "column 'kind': not a declared class": 1},
    )
    data = DataSettings(csv="shop.csv", label="kind", classes=("no", "yes"))
    assert count_reported(shop, data) == count_use(shop, Settings(servers=SERVERS, data=data)).reported == 13
    # Without a label nothing is tested, so that all rows are reported
    assert count_reported(shop, DataSettings(csv="shop.csv")) == 18
