"""`[measure]` becomes what a task declares and browsers report; sums come back in the columns' own units."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from adserver.measuring.cells import Column, ResultRow
from adserver.measuring.estimate import Estimate
from adserver.measuring.result import AggregateResult
from adserver.quickstart.column_check import warn_of_measured
from adserver.quickstart.measurement import (
    MIN_CELL_COUNT,
    describe_gaps,
    describe_rest,
    numbers_by_level,
    parse_value,
    plan_measurement,
)
from adserver.quickstart.settings import DataSettings, Measured, MeasureSettings
from adserver.records.plain_names import filled_name
from maskedlark.encoding.table import Table, parse_table
from maskedlark.errors import InvalidTask
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.reports.measurement import MAX_WORD

CENTS = [f"{row}.{row % 100:02}" for row in range(60)]


def table(**columns: Sequence[object]) -> Table:
    lines = zip(*columns.values(), strict=True)
    content = "\n".join([",".join(columns), *(",".join(map(str, line)) for line in lines)])
    return parse_table(content.encode(), "shop.csv")


SHOP = table(
    revenue=CENTS,
    bought=["yes", "no", "no"] * 20,
    campaign=["Frühling"] * 25 + ["other"] * 5 + ["rare"] * 4 + [""] * 6 + ["7.0"] * 20,
    change=[-3, 2] * 30,
)


def test_a_plan_says_the_same_to_the_task_to_browsers_and_to_the_query() -> None:
    measure = MeasureSettings(
        values=(Measured(column="revenue", most=40.5), Measured(column="bought", word="yes")),
        keys=("campaign",),
    )
    plan = plan_measurement(SHOP, DataSettings(), measure)
    assert plan is not None
    assert json.loads(plan.file) == {
        "min_cell_count": MIN_CELL_COUNT,
        "values": [
            {
                "name": "revenue",
                "low": 0,
                "high": 4050,
                "is_clamped": True,
                "bucket_starts": [],
                "parts_per_unit": 100,
            },
            {
                "name": "yes",
                "low": 0,
                "high": 1,
                "is_clamped": False,
                "bucket_starts": [],
                "title": "bought==yes",
            },
        ],
        "keys": [{"name": "campaign", "size": 3, "categories": ["7", "Frühling", "other"]}],
    }
    secret = ("--value", "revenue=revenue*100", "--value", "yes=bought==yes")
    assert plan.table_options == secret
    assert plan.browser_options == (*secret, "--key", "campaign=campaign")
    summed = ("--value", "revenue", "--value", "yes", "--value", "count")
    assert plan.query_options == (*summed, "--group-by", "campaign", "--roll-up")


def test_a_task_declares_the_units_and_the_names_of_the_columns() -> None:
    values = (Measured(column="revenue", most=60), Measured(column="Retoure", word="ja"))
    shop = table(
        **{name: ["" if cell is None else cell for cell in cells] for name, cells in SHOP.columns.items()},
        Retoure=["ja", "nein"] * 30,
        Länder=["de", "at"] * 30,
    )
    plan = plan_measurement(shop, DataSettings(), MeasureSettings(values=values, keys=("Länder",)))
    assert plan is not None
    revenue, returned = plan.declared.values
    assert (revenue.name, revenue.title) == ("revenue", None)
    assert (revenue.high, revenue.parts_per_unit) == (6_000, 100)
    assert (returned.name, returned.title, returned.parts_per_unit) == ("ja", "Retoure==ja", 1)
    assert [(key.name, key.title) for key in plan.declared.keys] == [("lander", "Länder")]
    assert plan.keys == {"lander": "Länder"}


def test_no_title_is_the_name_of_another_value() -> None:
    """Either would be meant by it."""
    named = table(yes=[1, 2] * 30, bought=["yes", "no"] * 30)
    values = (Measured(column="bought", word="yes"), Measured(column="yes", most=2))
    plan = plan_measurement(named, DataSettings(), MeasureSettings(values=values))
    assert plan is not None
    assert plan.names == {"yes_2": "bought==yes", "yes": "yes"}


def test_a_column_of_a_long_name_or_with_line_ends_has_a_title_that_a_task_takes() -> None:
    names = ["x" * 99 + "y", "x" * 99 + "z", "a\tb"]
    long = Table(
        name="shop.csv",
        columns={name: tuple(["1", "2"] * 30) for name in names},
        lines=tuple(range(2, 62)),
    )
    values = tuple(Measured(column=name, most=2) for name in names)
    plan = plan_measurement(long, DataSettings(), MeasureSettings(values=values))
    assert plan is not None
    assert [*plan.names.values()] == ["x" * 96, "x" * 96 + "_2", "a b"]


@pytest.mark.parametrize(
    ("numbers", "most"), [(CENTS, 40.5), (SHOP.columns["change"], 3.0), ([0, 1] * 30, 1.0)]
)
def test_buckets_follow_from_the_bounds_alone_and_hold_what_reports_may(
    numbers: Sequence[object], most: float
) -> None:
    plans = [
        plan_measurement(
            table(amount=cells),
            DataSettings(),
            MeasureSettings(values=(Measured(column="amount", most=most, quantiles=(0.5, 0.9)),)),
        )
        for cells in (numbers, [*numbers][::-1][:30])
    ]
    assert plans[0] is not None
    assert plans[1] is not None
    assert plans[0].declared == plans[1].declared
    [value] = plans[0].declared.values
    # 0 has its own bucket, from which rows with gaps are subtracted, and the most has what is cut off
    assert {0, 1, value.high, value.low} <= {*value.bucket_starts}
    assert value.bucket_starts == tuple(sorted({*value.bucket_starts}))
    if value.low:
        ends = [start - 1 for start in value.bucket_starts[1:]] + [value.high]
        assert {(-high, -low) for low, high in zip(value.bucket_starts, ends, strict=True)} == {
            *zip(value.bucket_starts, ends, strict=True)
        }
    [name] = plans[0].quantiles
    assert plans[0].query_options == ("--value", name, "--value", "count", "--histogram", name)


def test_quantiles_come_back_in_the_units_of_their_columns_over_the_rows_with_a_number() -> None:
    shop = table(paid=["1.50", "", "2.25"] * 20, visit=range(60))
    measure = MeasureSettings(values=(Measured(column="paid", most=4, quantiles=(0.4,)),))
    plan = plan_measurement(shop, DataSettings(), measure)
    assert plan is not None
    [value, _] = plan.declared.values
    ends = [start - 1 for start in value.bucket_starts[1:]] + [value.high]
    buckets = [(low / 100, high / 100) for low, high in zip(value.bucket_starts, ends, strict=True)]
    columns: list[tuple[str, tuple[float, float] | None]]
    columns = [("paid", None), ("paid_filled", None), ("count", None)]
    columns += [("paid", bucket) for bucket in buckets]
    # 20 rows hold nothing, 20 hold 1.50 and 20 hold 2.25
    held = [0] * 20 + [1.5] * 20 + [2.25] * 20
    numbers = [
        75.0,
        40.0,
        60.0,
        *(float(sum(low <= one <= high for one in held)) for low, high in buckets),
    ]
    answer = AggregateResult(
        query_id="", task_id="", dataset_id="", mechanism=Mechanism.NONE, records=60, delta=1e-5,
        cost=Epsilons(ad_server=0.5, colluding=1.0), dataset_spent=Epsilons(ad_server=0.5, colluding=1.0),
        group_by=(), min_cell_count=20,
        columns=tuple(Column(name=name, value=name, bucket=one, noise_scale=1.0) for name, one in columns),
        rows=(
            ResultRow(
                group=(),
                estimates=tuple(Estimate(value=one, standard_error=0, low=one, high=one) for one in numbers),
            ),
        ),
    )  # fmt: skip
    [[found]] = plan.read_quantiles(answer).values()
    assert list(plan.read_quantiles(answer)) == ["quantile 0.4 of paid over rows with paid"]
    assert found.low <= 1.5 <= found.high < 2.25
    # Sums and counts alone are left, of which no histogram has a column
    told = plan.without_histograms(answer)
    assert [column.name for column in told.columns] == ["paid", "paid_filled", "count"]
    assert [one.value for one in told.rows[0].estimates] == [75.0, 40.0, 60.0]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Measured(column="bought", word="yes", quantiles=(0.5,)), "quantiles, which are of numbers"),
        (Measured(column="revenue", most=5, quantiles=(0.5, 0.5)), "a quantile twice"),
    ],
)
def test_quantiles_are_of_numbers_and_named_once(value: Measured, why: str) -> None:
    with pytest.raises(InvalidTask, match=why):
        plan_measurement(SHOP, DataSettings(), MeasureSettings(values=(value,)))


def test_the_numbers_of_a_value_are_grouped_as_its_sums_are() -> None:
    values = (Measured(column="revenue"), Measured(column="bought", word="yes"))
    measure = MeasureSettings(values=values, keys=("campaign",))
    plan = plan_measurement(SHOP, DataSettings(), measure)
    assert plan is not None
    # Too few rows have `other` and no campaign, 15 in all: their group is hidden.
    assert numbers_by_level(SHOP, plan, values[0])[-1] == {
        ("Frühling",): [float(cell) for cell in CENTS[:25]],
        ("7",): [float(cell) for cell in CENTS[40:]],
    }
    assert [*numbers_by_level(SHOP, plan, None)[-1].values()] == [[1.0] * 25, [1.0] * 20]
    assert [sum(group) for group in numbers_by_level(SHOP, plan, values[1])[-1].values()] == [9, 6]


def test_amounts_are_summed_as_numbers_and_grouped_and_counted_as_words() -> None:
    rated = table(
        paid=[f"{row}.50 €" for row in range(60)],
        discount=["10 %", "20 %", "20 %"] * 20,
        tax=["7 %", "0 %"] * 30,
    )
    values = (Measured(column="paid", most=60), Measured(column="tax", word="7 %"))
    plan = plan_measurement(rated, DataSettings(), MeasureSettings(values=values, keys=("discount",)))
    assert plan is not None
    assert json.loads(plan.file)["keys"] == [{"name": "discount", "size": 2, "categories": ["10 %", "20 %"]}]
    assert [value.parts_per_unit for value in plan.declared.values] == [10, 1]
    found = numbers_by_level(rated, plan, values[0])[-1]
    assert found["10 %",] == [row + 0.5 for row in range(0, 60, 3)]
    assert sum(numbers_by_level(rated, plan, values[1])[-1]["10 %",]) == 10


RATED = table(note=["", "", *[2] * 58], other=range(60))


def test_a_row_with_a_gap_is_counted_and_adds_0_and_its_value_has_a_count_of_its_own() -> None:
    measure = MeasureSettings(values=(Measured(column="note", most=2), Measured(column="other", most=59)))
    plan = plan_measurement(RATED, DataSettings(), measure)
    assert plan is not None
    assert numbers_by_level(RATED, plan, measure.values[0]) == [{(): [0.0, 0.0, *[2.0] * 58]}]
    assert numbers_by_level(RATED, plan, None) == [{(): [1.0] * 60}]
    assert plan.filled == {"note": "rows with note"}
    assert filled_name("note", plan.declared.values) == "note_filled"
    assert list(plan.names) == ["note", "other", "note_filled"]
    assert plan.browser_options[-3:] == ("--value", "note_filled=note!=", "--gaps-as-zero")
    [told] = describe_gaps(RATED, DataSettings(), measure)
    assert told.startswith(
        "of 60 rows, 2 have no 'note': such a row is reported, counts in groups, and adds 0"
    )


RETURNED = table(
    **{"Retoure!": ["ja", "", "nein", "Ja!"] * 15}, stars=[*[3] * 59, ""], full=["ja", "nein"] * 30
)


def test_words_of_a_column_with_gaps_share_one_count_of_the_rows_that_have_a_cell() -> None:
    words = [("Retoure!", "ja"), ("stars", "3"), ("full", "ja"), ("Retoure!", "Ja!"), ("Retoure!", "nein")]
    measure = MeasureSettings(
        values=(
            *(Measured(column=column, word=word) for column, word in words),
            Measured(column="stars", most=3),
        )
    )
    plan = plan_measurement(RETURNED, DataSettings(), measure)
    assert plan is not None
    assert plan.names == {
        "retoure__ja": "Retoure!==ja",
        "stars__3": "stars==3",
        "ja": "full==ja",
        "retoure__ja_2": "Retoure!==Ja!",
        "retoure__nein": "Retoure!==nein",
        "stars": "stars",
        "retoure_filled": "rows with Retoure!",
        "stars_filled": "rows with stars",
    }
    assert {name: filled_name(name, plan.declared.values) for name in plan.names} == {
        "retoure__ja": "retoure_filled",
        "stars__3": "stars_filled",
        "ja": None,
        "retoure__ja_2": "retoure_filled",
        "retoure__nein": "retoure_filled",
        "stars": "stars_filled",
        "retoure_filled": None,
        "stars_filled": None,
    }
    assert plan.filled == {
        "Retoure!==ja": "rows with Retoure!",
        "stars==3": "rows with stars",
        "Retoure!==Ja!": "rows with Retoure!",
        "Retoure!==nein": "rows with Retoure!",
        "stars": "rows with stars",
    }
    counted = ("--value", "retoure_filled=Retoure!!=", "--value", "stars_filled=stars!=")
    assert plan.browser_options[-5:] == (*counted, "--gaps-as-zero")
    told = describe_gaps(RETURNED, DataSettings(), measure)
    assert [one.split(":")[0] for one in told] == [
        "of 60 rows, 15 have no 'Retoure!'", "of 60 rows, 1 has no 'stars'",
    ]  # fmt: skip


def test_rows_without_a_label_are_not_reported_and_so_no_gap() -> None:
    measure = MeasureSettings(values=(Measured(column="Retoure!", word="ja"),))
    plan = plan_measurement(RETURNED, DataSettings(label="Retoure!"), measure)
    assert plan is not None
    assert (plan.names, plan.filled) == ({"ja": "Retoure!==ja"}, {})
    assert describe_gaps(RETURNED, DataSettings(label="Retoure!"), measure) == ()


@pytest.mark.parametrize(("classes", "gaps"), [(("0", "1"), 0), ((), 3)])
def test_gaps_of_rows_that_are_not_reported_take_no_part_of_epsilon(
    classes: tuple[str, ...], gaps: int
) -> None:
    """A row without a label is never reported; one of class 2 is unless it is not declared."""
    bought = [*["0", "1"] * 20, *["2"] * 3, *[""] * 17]
    visits = table(m=[*[5] * 40, *[""] * 20], bought=bought)
    data = DataSettings(csv="visits.csv", label="bought", classes=classes)
    measure = MeasureSettings(values=(Measured(column="m", most=5),))
    plan = plan_measurement(visits, data, measure)
    assert plan is not None
    assert list(plan.names) == (["m", "m_filled"] if gaps else ["m"])
    assert ("--gaps-as-zero" in plan.browser_options) is bool(gaps)
    told = [one.partition(" 'm'")[0] for one in describe_gaps(visits, data, measure)]
    assert told == (["of 43 rows, 3 have no"] if gaps else [])


def test_of_two_columns_of_one_plain_name_the_one_with_gaps_alone_has_a_count() -> None:
    cells: dict[str, Sequence[object]] = {"spend": [1.5, 2.5] * 30, "spend!": ["", *[1.25] * 59]}
    spends = table(**cells)
    values = (Measured(column="spend", most=3), Measured(column="spend!", most=3))
    plan = plan_measurement(spends, DataSettings(), MeasureSettings(values=values))
    assert plan is not None
    units = {value.name: value.parts_per_unit for value in plan.declared.values}
    assert units == {"spend": 10, "spend_2": 100, "spend_2_filled": 1}
    assert filled_name("spend", plan.declared.values) is None
    assert filled_name("spend_2", plan.declared.values) == "spend_2_filled"
    assert plan.filled == {"spend!": "rows with spend!"}


@pytest.mark.parametrize("columns", [("note", "note_filled"), ("note_filled", "note")])
def test_a_column_that_is_called_like_a_count_is_not_read_as_one(columns: tuple[str, str]) -> None:
    named = table(**{name: [1, 2] * 30 for name in columns})
    values = tuple(Measured(column=name, most=2) for name in columns)
    plan = plan_measurement(named, DataSettings(), MeasureSettings(values=values))
    assert plan is not None
    assert list(plan.names.values()) == list(columns)
    assert [filled_name(name, plan.declared.values) for name in plan.names] == [None, None]


def test_long_names_of_columns_with_decimals_and_gaps_are_names_that_a_task_takes() -> None:
    long = "a" * 60
    rows = table(**{long: ["", *[0.000001] * 59], f"{long}b": ["", *[0.000001] * 59]})
    values = [Measured(column=name, most=1) for name in rows.columns]
    rows = replace(rows, columns={**rows.columns, "w" * 60: (None, *["x" * 60, "x" * 61] * 29, "x")})
    values += [Measured(column="w" * 60, word=word) for word in ("x" * 60, "x" * 61)]
    plan = plan_measurement(rows, DataSettings(), MeasureSettings(values=tuple(values)))
    assert plan is not None
    assert max(map(len, plan.names)) <= 64
    assert len({*plan.filled.values()}) == 3
    assert all(
        filled_name(name, plan.declared.values) for name, title in plan.names.items() if title in plan.filled
    )


def test_the_words_in_the_rest_of_a_key_are_named_and_gaps_apart_from_them() -> None:
    plan = plan_measurement(SHOP, DataSettings(), MeasureSettings(keys=("campaign", "bought")))
    assert plan is not None
    assert plan.declared.keys[1].categories == ("no", "yes")
    assert describe_rest(SHOP, plan) == (
        "'campaign': 'other' has, of 60 rows, 9 with 2 words without a group of their own ('other', 'rare') "
        "and 6 with a gap",
    )


def test_a_word_that_is_too_long_for_a_group_is_named_with_its_rows_the_limit_and_the_remedy() -> None:
    long, fits = "Ä" * (MAX_WORD + 1), "W" * MAX_WORD
    measure = MeasureSettings(keys=("campaign",))
    both = table(campaign=[long] * 25 + [fits] * 20 + ["B" * 300] * 19)
    plan = plan_measurement(both, DataSettings(), measure)
    assert plan is not None
    assert plan.declared.keys[0].categories == (fits, "other")
    [told] = warn_of_measured(both, measure)
    assert told == (
        f"[measure] keys: column 'campaign' has '{'Ä' * 40}...' of 101 characters in 25 rows: a group's word "
        "has at most 100 characters, and longer ones are in 'other'; shorten it in the table"
    )
    assert [*warn_of_measured(table(campaign=[fits] * 30), measure)] == []
    with pytest.raises(InvalidTask, match="of 101 characters in 30 rows: a group's word has at most 100"):
        plan_measurement(table(campaign=[long] * 30), DataSettings(), measure)


def test_a_word_of_a_column_is_a_value_unless_a_column_has_that_name() -> None:
    assert parse_value(SHOP, "bought==no") == Measured(column="bought", word="no")
    named = parse_table(b"a==b,a\n1,b\n2,c\n", "shop.csv")
    assert parse_value(named, "a==b") == Measured(column="a==b")
    with pytest.raises(InvalidTask, match=r"'bought==', in which no word follows ==: to count the rows with"):
        parse_value(SHOP, "bought==")


def test_a_key_of_dates_is_refused_with_the_column_to_add() -> None:
    dated = table(seen=[f"2026-{1 + row % 12:02}-{1 + row % 28:02} 10:{row % 60:02}" for row in range(400)])
    with pytest.raises(InvalidTask, match=r"'seen' has dates .* add a column with the month, the week or"):
        plan_measurement(dated, DataSettings(), MeasureSettings(keys=("seen",)))


def test_a_column_with_negative_numbers_has_a_bound_on_both_sides() -> None:
    plan = plan_measurement(
        SHOP, DataSettings(), MeasureSettings(values=(Measured(column="change", most=3),))
    )
    assert plan is not None
    assert (plan.declared.values[0].low, plan.declared.values[0].high) == (-3, 3)
    assert "--group-by" not in plan.query_options


def test_no_two_results_have_the_same_name_and_none_has_one_that_rows_of_results_use() -> None:
    names = ["count", "group", "rows with a", "a"]
    named = table(**{name: [*[1] * 59, "" if name == "a" else 2] for name in names}, region=["x"] * 60)
    measure = MeasureSettings(
        values=(*(Measured(column=name, most=2) for name in names), Measured(column="a", word="1")),
        keys=("region",),
    )
    plan = plan_measurement(named, DataSettings(), measure)
    assert plan is not None
    assert plan.names == {
        "count_2": "count_2",
        "group_2": "group_2",
        "rows_with_a": "rows with a",
        "a": "a",
        "a__1": "a==1",
        "a_filled": "rows with a_2",
    }
    assert plan.filled == {"a": "rows with a_2", "a==1": "rows with a_2"}


def test_nothing_is_measured_unless_values_or_keys_are_named() -> None:
    assert plan_measurement(SHOP, DataSettings(), MeasureSettings()) is None


def test_with_keys_alone_the_rows_of_each_group_are_counted() -> None:
    plan = plan_measurement(SHOP, DataSettings(), MeasureSettings(keys=("campaign",)))
    assert plan is not None
    assert (plan.declared.values, plan.table_options) == ((), ())
    assert plan.query_options == ("--value", "count", "--group-by", "campaign", "--roll-up")


@pytest.mark.parametrize(
    ("values", "keys", "why"),
    [
        ([{"column": "count"}], [], "the counts of rows are always there: leave it out"),
        ([{"column": "sold"}], [], "values names 'sold', but shop.csv has no such column"),
        ([{"column": "campaign"}], [], "'campaign' holds words, 'Frühling' in 25 rows, 'other' in 5 rows, "),
        ([{"column": "campaign"}], [], r'--value campaign==rare, .* {column = "campaign", word = "rare"}'),
        (
            [{"column": "campaign=rare"}],
            [],
            r'--value campaign==rare, .* {column = "campaign", word = "rare"}',
        ),
        ([{"column": "campaign==rare"}], [], "'campaign==rare', which is no column: to count a word's rows"),
        ([{"column": "sold=rare"}], [], "values names 'sold=rare', but shop.csv has no such column"),
        ([{"column": "stray"}], [], "'stray' holds numbers, and 1 word, the first in line 61: empty those"),
        ([{"column": "weight"}], [], "'weight' holds amounts with a unit, 'kg': write the numbers alone, as"),
        ([{"column": "gaps"}], [], "column 'gaps' is empty: measure another one"),
        ([{"column": "bought", "word": "maybe"}], [], "no row of column 'bought' has 'maybe'"),
        ([{"column": "bought", "word": "-"}], [], "no row of column 'bought' has '-': it is an empty cell"),
        ([{"column": "revenue", "most": 1e9}], [], "more than 2.14748e.07"),
        ([{"column": "fine"}], [], "has 7 decimals"),
        ([{"column": "bought"}], ["revenue"], "no word of column 'revenue' is in 20 rows"),
        ([{"column": "bought"}], ["mail"], "column 'mail' looks like identifiers"),
        ([{"column": "bought"}], ["level"], r"'level' has the word '\(rest\)', which results write in place"),
        (
            [{"column": "revenue", "most": 9}, {"column": "revenue", "most": 8}],
            [],
            "'revenue' twice: keep one",
        ),
        ([{"column": "bought", "word": "yes"}] * 2, [], "values names 'bought==yes' twice: keep one of them"),
        ([], ["campaign", "campaign"], "keys names 'campaign' twice: keep one of them"),
        ([{"column": "bought"}], ["change"], "keys names 'change', which is the label or a measured column"),
        (
            [{"column": "bought", "word": "yes"}],
            ["campaign", "bought"],
            "keys names 'bought', which is the label",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    values: list[dict[str, Any]], keys: list[str], why: str
) -> None:
    wide = table(
        **SHOP.columns,
        mail=["ann@mail.example"] * 60, fine=["0.1234567"] * 60, stray=[*["1"] * 59, "N.N."],
        gaps=[None] * 60, weight=["1.5 kg", "2 kg"] * 30, level=["(rest)", "high"] * 30,
    )  # fmt: skip
    cells = {name: ["" if cell is None else cell for cell in column] for name, column in wide.columns.items()}
    asked = MeasureSettings(values=tuple(Measured(**value) for value in values), keys=tuple(keys))
    with pytest.raises(InvalidTask, match=why):
        plan_measurement(table(**cells), DataSettings(label="change"), asked)
