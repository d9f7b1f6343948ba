"""Browsers that report what a task measures: columns of a table become keys and shared values."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser_sim.draws import Draws
from browser_sim.people import Habits, live_through
from browser_sim.sealing import seal_all
from browser_sim.source import InvalidCell, InvalidSource, RowCounts, Source
from browser_sim.sources.table import TableSettings, fit_counting, load_table
from maskedlark.encoding.table import parse_table
from maskedlark.errors import InvalidTask
from maskedlark.numbers.field import reconstruct
from maskedlark.reports.task_kinds import LabelKind
from tests.browser_sim.sinks import reports_of
from tests.builders import World, world

TABLE = "f,month,who,paid,y\n1,3,new,10,0\n2,3.0,back,20.0,1\n3,5,back,,0\n4,5,new,99,1\n"
MEASUREMENT: dict[str, Any] = {
    "min_cell_count": 1,
    "values": [{"name": "spend", "low": 0, "high": 50, "is_clamped": True}],
    "keys": [{"name": "month", "size": 13}, {"name": "visitor", "size": 2, "categories": ["back", "new"]}],
}


def source(folder: Path, text: str = TABLE, **columns: Any) -> Source:
    path = folder / "table.csv"
    path.write_text(text)
    said: dict[str, Any] = {
        "values": {"spend": "paid"},
        "keys": {"month": "month", "visitor": "who"},
        **columns,
    }
    return load_table(TableSettings(path=path, label="y", **said))


def measuring(**changes: Any) -> World:
    return world(num_features=3, measurement={**MEASUREMENT, **changes})


def test_columns_become_keys_and_values_and_values_are_no_features(tmp_path: Path) -> None:
    loaded = source(tmp_path).with_measurement(measuring().task)
    assert loaded.feature_names == ("f", "month", "who")
    assert loaded.rows == RowCounts(read=4, left_out={"column 'paid': no measured value": 1})
    measured = loaded.records.measured
    assert measured is not None
    assert measured.keys.tolist() == [[3, 1], [3, 0], [5, 1]]
    assert measured.values.tolist() == [[10], [20], [99]]


def test_without_a_label_every_row_is_measured_and_nothing_else_is_in_a_report(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(TABLE.replace("2,3.0,back,20.0,1", "2,3.0,back,20.0,"))
    columns: dict[str, Any] = {"values": {"spend": "paid"}, "keys": {"month": "month", "visitor": "who"}}
    loaded = load_table(TableSettings(path=path, are_gaps_zero=True, **columns))
    of = world(num_features=1, measurement=MEASUREMENT).task
    found = loaded.with_measurement(of)
    found.check_fits(of)
    assert found.rows == RowCounts(read=4)
    assert not found.records.features.any()
    assert not found.records.labels.any()
    assert found.records.measured is not None
    assert found.records.measured.values.tolist() == [[10], [20], [0], [99]]
    with pytest.raises(InvalidTask, match="without a label has 1 features, but the task takes 3"):
        loaded.check_fits(measuring().task)


def test_with_an_encoder_without_a_label_every_row_is_measured_and_holds_its_features(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    encoder = fit_counting(TableSettings(path=path, ignore=("who", "paid", "y"))).encoder
    columns: dict[str, Any] = {"values": {"spend": "paid"}, "keys": {"month": "month", "visitor": "who"}}
    settings = TableSettings(path=path, encoder=encoder, are_gaps_zero=True, **columns)
    of = world(num_features=2, encoder=encoder.digest, measurement=MEASUREMENT).task
    found = load_table(settings).with_measurement(of)
    found.check_fits(of)
    assert found.rows == RowCounts(read=4)
    assert (found.records.encoder, found.feature_names) == (encoder.digest, ("f", "month"))
    assert (
        found.records.features.tolist() == encoder.features(parse_table(TABLE.encode(), "t").columns).tolist()
    )
    assert not found.records.labels.any()
    assert found.records.measured is not None
    assert found.records.measured.values.tolist() == [[10], [20], [0], [99]]
    for wrong, why in (
        ({"values": {"spend": "f"}}, "measured value, which helpers may not see, and a feature"),
        ({"person": "f"}, "a feature of the encoder"),
        ({"label": "y"}, "fitted without a label"),
        ({"values": {}, "keys": {}}, "fitted without a label"),
    ):
        with pytest.raises(InvalidSource, match=why):
            load_table(replace(settings, **wrong))
    path.write_text(TABLE.replace("4,5,new", "x,5,new"))
    with pytest.raises(InvalidCell, match=r"table\.csv, line 5, column 'f'"):
        load_table(settings)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({}, "needs --label COLUMN or an encoder, or to report no label, --value or --key"),
        ({"values": {"spend": "paid"}, "classes": ("0", "1")}, "needs --label COLUMN"),
        ({"values": {"spend": "paid"}, "keys": {"month": "paid"}}, "'paid' is the label or a measured value"),
        ({"keys": {"month": "moon"}}, "has no column 'moon'"),
        ({"keys": {"month": "month"}, "ignore": ("moon",)}, "has no column 'moon'"),
        ({"keys": {"month": "month"}, "dates": ("moon",)}, "has no column 'moon'"),
    ],
)
def test_a_table_without_a_label_needs_columns_to_measure(
    columns: dict[str, Any], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    with pytest.raises(InvalidSource, match=why):
        load_table(TableSettings(path=path, **columns))


def test_an_empty_key_is_other_where_the_task_declares_it_and_else_left_out_and_counted(
    tmp_path: Path,
) -> None:
    text = TABLE.replace("3,new", "3,").replace(",0\n4", "7,0\n4")
    with_other = {"name": "visitor", "size": 3, "categories": ["back", "new", "other"]}
    loaded = source(tmp_path, text).with_measurement(
        measuring(keys=[MEASUREMENT["keys"][0], with_other]).task
    )
    assert loaded.records.measured is not None
    assert loaded.records.measured.keys.tolist() == [[3, 2], [3, 0], [5, 0], [5, 1]]
    assert loaded.rows == RowCounts(read=4)
    counted = source(tmp_path, text).with_measurement(measuring().task)
    assert counted.rows is not None
    [(reason, count)] = counted.rows.left_out.items()
    assert reason == "column 'who': no measured key, and the task declares no category 'other' of 'visitor'"
    assert (count, len(counted.records)) == (1, 3)


def test_a_number_that_is_no_category_of_its_key_is_other_and_no_place_among_them(tmp_path: Path) -> None:
    found = source(tmp_path, TABLE.replace("4,5,new", "4,1,new"))
    month = {"name": "month", "size": 3, "categories": ["3", "5", "other"]}
    loaded = found.with_measurement(measuring(keys=[month, MEASUREMENT["keys"][1]]).task)
    assert loaded.records.measured is not None
    assert [month for month, _ in loaded.records.measured.keys.tolist()] == [0, 0, 2]
    month = {"name": "month", "size": 2, "categories": ["3", "5"]}
    with pytest.raises(InvalidCell, match="expected one of 3, 5"):
        found.with_measurement(measuring(keys=[month, MEASUREMENT["keys"][1]]).task)


def test_a_value_is_scaled_exactly(tmp_path: Path) -> None:
    text = TABLE.replace("20.0", "0.29").replace("3,5,back,,0\n", "")
    loaded = source(tmp_path, text, values={"spend": "paid*100"}).with_measurement(measuring().task)
    assert loaded.records.measured is not None
    assert loaded.records.measured.values.tolist() == [[1000], [29], [9900]]


def test_a_gap_is_reported_as_0_where_that_is_asked_and_filled_cells_can_be_counted(tmp_path: Path) -> None:
    rated = {**MEASUREMENT["values"][0], "name": "rated"}
    of = measuring(values=[MEASUREMENT["values"][0], rated])
    loaded = source(
        tmp_path, values={"spend": "paid*1", "rated": "paid!="}, are_gaps_zero=True
    ).with_measurement(of.task)
    assert loaded.rows == RowCounts(read=4)
    assert loaded.records.measured is not None
    assert loaded.records.measured.values.tolist() == [[10, 1], [20, 1], [0, 0], [99, 1]]
    others = source(tmp_path, values={"spend": "paid!=20.0", "rated": "paid==20.0"}).with_measurement(of.task)
    assert others.records.measured is not None
    assert others.records.measured.values.tolist() == [[1, 0], [0, 1], [1, 0], [1, 0]]


def test_amounts_are_summed_as_numbers_and_grouped_and_counted_as_words(tmp_path: Path) -> None:
    table = "f;discount;paid;y\n1;10 %;1,50 €;0\n2;20 %;2 €;1\n"
    columns: dict[str, Any] = {
        "values": {"spend": "paid*100", "twos": "paid==2 €"},
        "keys": {"rate": "discount"},
    }
    declared = {
        "values": [{"name": "spend", "low": 0, "high": 500}, {"name": "twos", "low": 0, "high": 1}],
        "keys": [{"name": "rate", "size": 2, "categories": ["10 %", "20 %"]}],
    }
    of = world(num_features=2, measurement={"min_cell_count": 1, **declared}).task
    measured = source(tmp_path, table, **columns).with_measurement(of).records.measured
    assert measured is not None
    assert measured.values.tolist() == [[150, 0], [200, 1]]
    assert measured.keys.tolist() == [[0], [1]]


def test_a_task_without_measurement_takes_the_source_as_it_is(tmp_path: Path) -> None:
    assert source(tmp_path).with_measurement(world(num_features=3).task).records.measured is None


@pytest.mark.parametrize(
    ("text", "columns", "why"),
    [
        (TABLE, {"values": {}}, "measures 'spend'"),
        (TABLE, {"keys": {"month": "month"}}, "measures 'visitor'"),
        (TABLE, {"values": {"spend": "cost"}}, "no column 'cost'"),
        (TABLE.replace("20.0", "much"), {}, "line 3, column 'paid': the cell is not a number"),
        (TABLE.replace("20.0", "20.4"), {}, r"line 3, column 'paid': the cell has a fraction.*COLUMN\*100"),
        (TABLE.replace("3,new", ",").replace("3.0,back", ",").replace("5,", ","), {}, "no row with all"),
        (TABLE.replace(",new,", ",old,"), {}, "line 2, column 'who': the cell is not a category"),
        (TABLE.replace("5,new", "13,new"), {}, "line 5, column 'month'.*a number below 13"),
    ],
)
def test_a_table_that_does_not_hold_what_is_measured_is_refused(
    tmp_path: Path, text: str, columns: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidSource, match=why):
        source(tmp_path, text, **columns).with_measurement(measuring().task)


def sums(of: World, loaded: Source, fake_rate: float = 0.0) -> tuple[list[int], int]:
    """Both helpers' shares of count and spend added over all reports, and how many reports there are."""
    given, draws = loaded.records, Draws(seed=1)
    lived = live_through(
        given.labels != 0,
        Habits(fake_rate=fake_rate),
        starts_at_s=of.task.starts_at,
        expires_at_s=of.task.expires_at,
        draws=draws,
    )
    reports = reports_of(seal_all(of.bundle, lived.uploads, given, draws, workers=1))
    first, second = (dataset.shares.measured for dataset in of.datasets(reports))
    assert first is not None
    assert second is not None
    assert set(map(tuple, first.keys.tolist())) <= {(3, 1), (3, 0), (5, 1), (5, 0)}
    values = reconstruct(first.value_shares.reshape(-1), second.value_shares.reshape(-1)).reshape(
        first.value_shares.shape
    )
    return [int(total) for total in values.sum(axis=0)], len(reports)


def test_sealed_reports_share_clamped_values(tmp_path: Path) -> None:
    of = measuring()
    assert sums(of, source(tmp_path).with_measurement(of.task)) == ([3, 10 + 20 + 50], 3)


def test_fake_reports_have_keys_of_the_population_and_add_nothing(tmp_path: Path) -> None:
    of = measuring()
    totals, reports = sums(of, source(tmp_path).with_measurement(of.task), fake_rate=0.9)
    assert totals == [3, 80]
    assert reports > 3


def test_a_value_outside_strict_bounds_stops_the_run(tmp_path: Path) -> None:
    of = measuring(values=[{"name": "spend", "low": 0, "high": 50}])
    with pytest.raises(InvalidTask, match="outside its bounds"):
        sums(of, source(tmp_path).with_measurement(of.task))


def test_records_in_clear_hold_keys_values_and_lines(tmp_path: Path) -> None:
    records = source(tmp_path).with_measurement(measuring().task).records
    records.take(np.array([2, 0])).save(tmp_path / "clear.npz", LabelKind.CLASSES)
    stored = np.load(tmp_path / "clear.npz")
    assert stored["keys"].tolist() == [[5, 1], [3, 1]]
    assert stored["values"].tolist() == [[99], [10]]
    assert stored["lines"].tolist() == [5, 2]
