"""How wide intervals will be is said before anything is spent, and bounds are those that lose least."""

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from adserver.quickstart.clipping import Clipping
from adserver.quickstart.measurement import plan_measurement
from adserver.quickstart.measurement_forecast import (
    GroupForecast,
    advise_bounds,
    cut_off_by_group,
    describe_forecasts,
    describe_measurement,
    forecast_groups,
    suggest_bounds,
    suggest_values,
    tabulate_forecasts,
    warn_of_forecasts,
)
from adserver.quickstart.settings import DataSettings, Measured, MeasureSettings, TaskSettings
from adserver.records.defaults import ALL
from maskedlark.encoding.table import Table
from maskedlark.errors import InvalidTask, JobRefused
from tests.adserver.quickstart.test_measurement import table

TASK, DATA = TaskSettings(), DataSettings()
PAID = Measured(column="paid")
TOTAL, BY_REGION = MeasureSettings(), MeasureSettings(keys=("region",))


def shop(rows: int = 4_000) -> Table:
    """Purchases with a heavy tail in regions of very different sizes."""
    chance = Random(7)
    regions = chance.choices(["north", "south", "sea", "alps"], [8, 4, 2, 1], k=rows)
    paid = [round(chance.lognormvariate(3, 1), 2) if chance.random() < 0.4 else 0 for _ in range(rows)]
    return table(region=regions, paid=paid)


def errors_of(groups: Sequence[Sequence[float]], keys: tuple[str, ...], most: float) -> float:
    """The squared error of sums at a bound, over the rows that browsers report: the mean of each level."""
    [paid, _] = forecast_groups(
        shop(), DATA, MeasureSettings(values=(Measured(column="paid", most=most),), keys=keys), TASK,
        reported=3_200,
    )  # fmt: skip
    noise = paid.half_width / 2.5758
    lost = [0.8 * sum(max(0.0, one - most) for one in group) for group in groups]
    in_groups = sum(noise**2 + one**2 for one in lost) / len(groups)
    # Of four regions and their rest the total has the noise of each of them
    return in_groups + noise**2 + sum(lost) ** 2 if keys else in_groups


def test_the_bound_is_for_the_rows_that_are_reported_and_not_for_those_without_a_label() -> None:
    visits = shop()
    rare = replace(visits, columns={**visits.columns, "bought": [*["0", "1"] * 200, *[None] * 3_600]})
    data, measure = DataSettings(csv="shop.csv", label="bought"), MeasureSettings(values=(PAID,))
    assert suggest_values(rare, data, ["paid"], TOTAL) == suggest_bounds(
        rare, data, measure, TASK, reported=320
    )
    assert suggest_values(rare, data, ["paid"], TOTAL) != suggest_values(visits, DATA, ["paid"], TOTAL)


def with_quantiles(*shares: float, most: float = 200.0) -> MeasureSettings:
    return replace(BY_REGION, values=(Measured(column="paid", most=most, quantiles=shares),), epsilon=2.0)


def test_quantiles_are_forecast_with_their_intervals_and_widen_the_others() -> None:
    asked = with_quantiles(0.5, 0.9)
    [plain, _], [paid, count] = (
        forecast_groups(shop(), DATA, one, TASK, reported=3_200)
        for one in (replace(asked, values=(Measured(column="paid", most=200.0),)), asked)
    )
    # They are one more measure of the same epsilon
    assert paid.half_width > 1.1 * plain.half_width
    assert count.quantiles == {}
    assert [*paid.quantiles] == ["quantile 0.5 of paid", "quantile 0.9 of paid"]
    # Six in ten rows have 0
    median, last = paid.quantiles.values()
    assert (median.value, median.low, median.high) == (0, 0, 0)
    rows = zip(shop().columns["paid"], shop().columns["region"], strict=True)
    numbers = sorted(float(cell or 0) for cell, region in rows if region == "south")
    assert last.low <= numbers[round(0.9 * len(numbers))] <= last.high < 3 * last.low
    assert tabulate_forecasts([paid, count])[3] == (
        *("  quantile 0.9", "", "", ""),
        *(f"{last.low:.3g} to {last.high:.3g}", f"{last.value:.3g}", ""),
    )
    assert warn_of_forecasts([paid, count], asked) == ()


def test_quantiles_that_nothing_will_be_known_of_or_that_a_row_may_not_reach_are_warned_of() -> None:
    for asked, why in (
        (replace(with_quantiles(0.9), epsilon=0.02), "at this noise nothing will be known of quantile 0.9"),
        (with_quantiles(0.9, most=5.0), "most = 5 is at most quantile 0.9 of paid of a typical group"),
    ):
        forecasts = forecast_groups(shop(), DATA, asked, TASK, reported=3_200)
        assert any(why in one for one in warn_of_forecasts(forecasts, asked))


@pytest.mark.parametrize("most", [200.0, 20.0])
def test_a_bound_that_sums_and_quantiles_want_otherwise_is_the_owners_choice(most: float) -> None:
    asked = with_quantiles(0.5, 0.9, most=most)
    paid, count = forecast_groups(shop(), DATA, asked, TASK, reported=3_200)
    assert paid.clipping is not None
    levels = tuple(replace(one, best_most=15.0) for one in paid.clipping.levels)
    cut = replace(paid.clipping, best_most=15.0, times_best=5.0, levels=levels)
    told = warn_of_forecasts([replace(paid, clipping=cut, half_width=1e9), count], asked)
    [least] = [one for one in told if "leave the quantile out" in one]
    assert least.startswith(
        "[measure] most = 15, the best for sums of 'paid', is at most quantile 0.9 of paid of a typical group"
    )
    assert not [one for one in told if "raise most" in one or "lower most" in one]


def test_where_nothing_will_be_known_of_a_quantile_no_bound_is_advised_for_it() -> None:
    asked = replace(with_quantiles(0.9, most=5.0), epsilon=0.02)
    told = warn_of_forecasts(forecast_groups(shop(), DATA, asked, TASK, reported=3_200), asked)
    assert [one for one in told if "quantile" in one] == [
        "[measure] at this noise nothing will be known of quantile 0.9 of paid in a typical group: raise "
        "[measure] epsilon or use fewer keys"
    ]


@pytest.mark.parametrize("keys", [(), ("region",)])
def test_the_bound_has_the_least_squared_error_of_the_sums_asked_for(keys: tuple[str, ...]) -> None:
    visits = shop()
    regions, paid = (visits.columns[name] for name in ("region", "paid"))
    names = sorted({str(one) for one in regions}) if keys else [""]
    groups = [
        [float(cell or 0) for cell, region in zip(paid, regions, strict=True) if not name or region == name]
        for name in names
    ]
    [found] = suggest_values(visits, DATA, ["paid"], MeasureSettings(keys=keys))
    best = min(errors_of(groups, keys, most) for most in range(20, 400, 5))
    assert errors_of(groups, keys, found.bound) <= 1.05 * best


def test_a_bound_for_groups_is_lower_than_one_for_the_total() -> None:
    [by_region], [in_all] = (suggest_values(shop(), DATA, ["paid"], asked) for asked in (BY_REGION, TOTAL))
    assert by_region.bound < in_all.bound


def test_a_bound_for_a_larger_epsilon_is_higher() -> None:
    [small], [large] = (
        suggest_values(shop(), DATA, ["paid"], replace(BY_REGION, epsilon=epsilon)) for epsilon in (0.5, 2.0)
    )
    assert large.bound > 1.2 * small.bound


@pytest.mark.parametrize(("rare", "most"), [("yes", 1.0), ("30", 30.0), ("no", 1.0)])
def test_a_column_that_is_nearly_always_0_is_bounded_by_what_is_not(rare: str, most: float) -> None:
    bought = table(bought=[*["no"] * 97, *[rare] * 3], other=range(100))
    assert suggest_values(bought, DATA, ["bought"], TOTAL) == (Measured(column="bought", most=most),)


def test_nothing_of_a_short_scale_is_cut_off() -> None:
    rated = table(rating=[1, 2, 3, 4, 5, ""] * 20, region=list("abcdef") * 20, other=range(120))
    for asked in (TOTAL, BY_REGION):
        assert suggest_values(rated, DATA, ["rating"], asked) == (Measured(column="rating", most=5.0),)


def test_a_bound_of_little_data_is_the_median_of_what_is_not_0() -> None:
    paid = table(paid=[0] * 10 + [*range(1, 11), 50], other=range(21))
    assert suggest_values(paid, DATA, ["paid"], TOTAL) == (Measured(column="paid", most=6.0),)


def test_a_word_needs_no_bound_and_an_empty_column_has_none() -> None:
    found = table(bought=["yes", "no"] * 30, empty=[""] * 60)
    assert suggest_values(found, DATA, ["bought==no"], TOTAL) == (Measured(column="bought", word="no"),)
    with pytest.raises(InvalidTask, match="column 'empty' is empty: measure another one"):
        suggest_values(found, DATA, ["empty"], TOTAL)


def test_a_forecast_follows_the_bound_and_epsilon_and_is_in_the_columns_unit() -> None:
    visits = shop()

    def width(most: float, epsilon: float = 0.5) -> float:
        measure = MeasureSettings(
            values=(Measured(column="paid", most=most),), keys=("region",), epsilon=epsilon
        )
        [paid, count] = forecast_groups(visits, DATA, measure, TASK, reported=3_200)
        assert paid.half_width == pytest.approx(most * count.half_width, rel=1e-4)
        return paid.half_width

    assert width(60.5) == pytest.approx(60.5 * width(1), rel=1e-4)
    assert width(60, epsilon=1) < 0.6 * width(60)


def test_a_forecast_has_the_median_groups_sum_of_what_is_reported() -> None:
    measure = MeasureSettings(values=(Measured(column="paid", most=2),), keys=("region",))
    uneven = table(region=["a"] * 30 + ["b"] * 50 + ["c"] * 90 + ["rare"] * 9, paid=[3, 1] * 89 + [3])
    [paid, count] = forecast_groups(uneven, DATA, measure, TASK, reported=143)
    share = 143 / 179
    assert count.typical == pytest.approx(50 * share)
    assert paid.typical == pytest.approx((25 * 2 + 25 * 1) * share)
    assert paid.is_too_wide


def test_a_row_with_a_gap_is_forecast_to_add_nothing_and_to_count() -> None:
    gaps = table(paid=[*[2] * 50, *[""] * 50], other=range(100))
    [paid, count] = forecast_groups(
        gaps, DATA, MeasureSettings(values=(Measured(column="paid", most=2),)), TASK, reported=40
    )
    assert (paid.typical, count.typical) == (40, 40)


def measured_at(epsilon: float, most: float) -> tuple[GroupForecast, MeasureSettings]:
    measure = MeasureSettings(values=(Measured(column="paid", most=most),), keys=("region",), epsilon=epsilon)
    [paid, _] = forecast_groups(shop(), DATA, measure, TASK, reported=3_200)
    return paid, measure


def test_what_a_bound_cuts_off_stands_next_to_the_noise_and_a_bound_for_a_small_epsilon_is_replaced() -> None:
    [chosen] = suggest_values(shop(), DATA, ["paid"], BY_REGION)
    paid, measure = measured_at(2, chosen.bound)
    cut = paid.clipping
    assert cut is not None
    cells = zip(*(shop().columns[name] for name in ("region", "paid")), strict=True)
    beyond = [(region, max(0.0, float(cell or 0) - cut.most)) for region, cell in cells]
    assert cut.lost == pytest.approx(0.8 * sum(lost for _, lost in beyond))
    assert cut.worst_group == ("north",)
    assert cut.worst_lost == pytest.approx(0.8 * sum(lost for region, lost in beyond if region == "north"))
    assert cut.worst_lost > paid.half_width
    [better] = suggest_bounds(shop(), DATA, measure, TASK, reported=3_200)
    assert cut.best_most == better.most
    [told] = advise_bounds([paid])
    assert told == (
        f"'paid': most = {chosen.bound:g} cuts more than the noise off sums (all), by region: "
        f"set most = {better.bound:g}, the best over all levels of the result"
    )
    in_all, by_region = cut.levels
    width = f"± {paid.half_width:,.0f}"
    assert tabulate_forecasts([paid]) == [
        ("paid", f"{chosen.bound:g}", "(all)", f"{cut.rows:,}", width, "", f"{in_all.best_most:g}"),
        ("", "", "by region", "", width, f"{paid.typical:,.0f}", f"{by_region.best_most:g}"),
    ]


def campaigns() -> tuple[Table, MeasureSettings]:
    """Purchases with a heavy tail in ten campaigns on three devices, and what is measured of them."""
    chance = Random(3)
    found = table(
        campaign=chance.choices("abcdefghij", k=3_000),
        device=chance.choices(["phone", "desktop", "tablet"], [5, 3, 2], k=3_000),
        paid=[round(chance.lognormvariate(2.5, 1), 2) for _ in range(3_000)],
    )
    return found, MeasureSettings(values=(PAID,), keys=("campaign", "device"), epsilon=1)


def campaigns_at(most: float) -> tuple[GroupForecast, Clipping, tuple[str, ...]]:
    """The forecast at a bound, what that cuts off of each level, and what is said of it."""
    visits, measure = campaigns()
    asked = replace(measure, values=(replace(PAID, most=most),))
    [paid, _] = forecast_groups(visits, DATA, asked, TASK, reported=3_000)
    assert paid.clipping is not None
    return paid, paid.clipping, advise_bounds([paid])


def test_a_bound_that_is_best_for_small_groups_is_said_to_cut_too_much_off_the_total() -> None:
    finest = campaigns_at(20)[1].levels[-1].best_most
    paid, cut, [told] = campaigns_at(finest)
    in_all, by_campaign, by_both = cut.levels
    assert [one.keys for one in cut.levels] == [(), ("campaign",), ("campaign", "device")]
    assert [one.is_too_much for one in cut.levels] == [True, True, False]
    assert in_all.worst_lost == cut.lost
    assert by_both.worst_lost == cut.worst_lost < by_campaign.worst_lost < in_all.worst_lost
    assert in_all.best_most > by_campaign.best_most > by_both.best_most == finest
    assert told == (
        f"'paid': most = {finest:g} cuts more than the noise off sums (all), by campaign; it is the best for "
        f"sums by campaign, device, and most = {cut.best_most:g} is the best over all levels of the result"
    )
    table_of_levels = tabulate_forecasts([paid])
    assert [line[2] for line in table_of_levels] == ["(all)", "by campaign", "+ device"]
    assert [line[6] for line in table_of_levels] == [f"{one.best_most:g}" for one in cut.levels]


def test_a_suggested_bound_cuts_less_off_each_level_than_its_noise() -> None:
    visits, measure = campaigns()
    [suggested] = suggest_bounds(visits, DATA, measure, TASK, reported=3_000)
    _, cut, told = campaigns_at(suggested.bound)
    assert cut.best_most == suggested.bound
    assert not any(one.is_too_much for one in cut.levels)
    assert cut.rows
    assert told == ()
    assert cut.levels[-1].best_most < suggested.bound < cut.levels[0].best_most


def orders(*cells: str) -> Table:
    """Orders of ordinary amounts, and of these."""
    chance = Random(1)
    rows = [(chance.choice("abcdef"), f"{chance.uniform(8, 290):.2f}") for _ in range(2_000)]
    for row, cell in enumerate(cells, 1_000):
        rows[row] = (rows[row][0], cell)
    return table(shop=[shop for shop, _ in rows], paid=[paid for _, paid in rows])


def advice_on(found: Table, paid: Measured) -> tuple[GroupForecast, Clipping, tuple[str, ...]]:
    """What is forecast and said of a column at a bound."""
    asked = MeasureSettings(values=(paid,), keys=("shop",), epsilon=2)
    forecasts = forecast_groups(found, DATA, asked, TASK, reported=1_600)
    assert forecasts[0].clipping is not None
    return forecasts[0], forecasts[0].clipping, advise_bounds(forecasts)


@pytest.mark.parametrize(
    "cells", [(), ("99999.00",), ("123456789.12", "12.505"), ("123456789.12", "-12.5"), ("123456789",) * 5]
)
@pytest.mark.parametrize("quantiles", [(), (0.5,)])
def test_a_bound_that_was_advised_is_not_advised_against(
    cells: tuple[str, ...], quantiles: tuple[float, ...]
) -> None:
    found = orders(*cells)
    [suggested] = suggest_values(found, DATA, ["paid"], MeasureSettings(keys=("shop",), epsilon=2))
    _, cut, _ = advice_on(found, replace(suggested, quantiles=quantiles))
    advised = {suggested.bound, cut.best_most, *(one.best_most for one in cut.levels)}
    advised |= {cut.few.best_most} if cut.few else set()
    for most in advised:
        _, again, told = advice_on(found, replace(suggested, most=most, quantiles=quantiles))
        assert not any("set most" in one for one in told)
        assert (again.best_most, again.few) == (cut.best_most, cut.few)
        assert [one.best_most for one in again.levels] == [one.best_most for one in cut.levels]


def test_a_row_of_totals_is_named_and_decides_no_bound() -> None:
    total = sum(float(cell or 0) for row, cell in enumerate(orders().columns["paid"]) if row != 1_000)
    measure = MeasureSettings(keys=("shop",), epsilon=2)
    [ordinary] = suggest_values(orders(), DATA, ["paid"], measure)
    [suggested] = suggest_values(orders(f"{total:.2f}"), DATA, ["paid"], measure)
    assert suggested.bound == pytest.approx(ordinary.bound, rel=0.05)
    _, _, told = advice_on(orders(f"{total:.2f}"), suggested)
    assert told == (
        f"'paid': line 1002 seems to be a row of totals, as all others add up to its {total:.2f}: remove it "
        f"from the table. Without it most = {ordinary.bound:g} is the best",
    )


def test_the_few_rows_that_decide_the_best_bound_are_named_with_their_lines() -> None:
    _, ordinary, told = advice_on(orders(), replace(PAID, most=290))
    assert (ordinary.few, told) == (None, ())
    found = orders("99999.00")
    [suggested] = suggest_values(found, DATA, ["paid"], MeasureSettings(keys=("shop",), epsilon=2))
    forecast, _, [_, few] = advice_on(found, suggested)
    assert forecast.few == ((1_002, "99999.00"),)
    assert few == (
        f"'paid': 1 row decides that most = {suggested.bound:g} is the best, and 1 row is above it: 99999.00 "
        "in line 1002. Without it most = 290 is the best: correct the cell if it is wrong, or set that bound"
    )
    # Of more than one row, as many as it takes
    for cells, decide in ((("99999", "88888"), 2), (("99999",) * 3, 3), (("99999",) * 6, None)):
        _, cut, _ = advice_on(orders(*cells), replace(PAID, most=290))
        assert (cut.few.rows if cut.few else None) == decide
    _, _, [at_290, few] = advice_on(orders("99999", "88888"), replace(PAID, most=290))
    assert "; it is the best without 2 rows, and most = " in at_290
    assert "99999 in line 1002, 88888 in line 1003. Without them most = 290 is the best" in few


def test_a_bound_beyond_what_a_task_takes_is_not_advised_and_the_cell_with_its_decimals_is_named() -> None:
    found = orders("123456789.12", "12.505")
    [suggested] = suggest_values(found, DATA, ["paid"], MeasureSettings(keys=("shop",), epsilon=4))
    assert suggested.bound == 2_100_000
    with pytest.raises(InvalidTask, match=r"alone has so many \(12\.505 in line 1003\)$"):
        advice_on(found, replace(suggested, most=2_500_000))


def test_a_bound_that_cuts_off_less_than_the_noise_is_left_alone() -> None:
    paid, _ = measured_at(0.5, 180)
    assert paid.clipping is not None
    assert paid.clipping.rows
    assert advise_bounds([paid]) == ()


def clipping_at(epsilon: float, most: float) -> Clipping:
    found = measured_at(epsilon, most)[0].clipping
    assert found is not None
    return found


def test_the_error_of_a_bound_is_compared_with_that_of_the_best_one() -> None:
    best = clipping_at(0.5, 300).best_most
    assert clipping_at(0.5, best).times_best == 1
    rows = [*zip(shop().columns["region"], shop().columns["paid"], strict=True)]
    regions = ("north", "south", "sea", "alps")
    groups = [[float(cell or 0) for of, cell in rows if of == region] for region in regions]
    for most in (60, 300, 1e4):
        expected = errors_of(groups, ("region",), most) / errors_of(groups, ("region",), best)
        assert clipping_at(0.5, most).times_best == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("most", "cuts"),
    [
        (300, "= 300 cuts less than the noise, which follows it"),
        (1e4, "= 10000 cuts nothing, and noise follows it"),
    ],
)
def test_a_bound_that_is_too_high_is_replaced_by_the_best(most: float, cuts: str) -> None:
    paid, _ = measured_at(0.5, most)
    best = clipping_at(0.5, most)
    in_all, by_region = best.levels
    assert by_region.best_most < best.best_most < in_all.best_most < most
    [told] = advise_bounds([paid])
    assert cuts in told
    assert told.endswith(f": set most = {best.best_most:g}, the best over all levels of the result")


def test_a_bound_that_cuts_nothing_and_is_as_good_as_the_best_is_left_alone() -> None:
    rated = table(rating=[1, 2, 3, 4, 5] * 20, other=range(100))
    for most, lines in ((5, 0), (5.4, 0), (6, 1)):
        asked = MeasureSettings(values=(Measured(column="rating", most=most),))
        forecasts = forecast_groups(rated, DATA, asked, TASK, reported=100)
        assert len(advise_bounds(forecasts)) == lines
        # Where nothing is cut, there is no line of whence that is known
        assert describe_measurement(rated, DATA, asked, forecasts) == ()


def test_nothing_is_said_of_the_bound_of_a_column_of_zeros() -> None:
    for zeros, lines in (([0] * 100, 0), ([0.01, *[0] * 99], 1)):
        rated = table(rating=zeros, other=range(100))
        asked = MeasureSettings(values=(Measured(column="rating", most=50),))
        forecasts = forecast_groups(rated, DATA, asked, TASK, reported=100)
        assert len(advise_bounds(forecasts)) == lines
        assert any("lower most" in one for one in warn_of_forecasts(forecasts, asked)) is bool(lines)


def test_a_bound_of_an_epsilon_of_one_row_is_replaced_where_epsilon_is_of_a_person() -> None:
    [chosen] = suggest_values(shop(), DATA, ["paid"], BY_REGION)
    asked = replace(BY_REGION, values=(chosen,))
    of_person = replace(TASK, person="customer", rows_per_person=4)
    told = {}
    for task in (TASK, of_person):
        forecasts = forecast_groups(shop(), DATA, asked, task, reported=4_000)
        told[task.person] = advise_bounds(forecasts)
        [best] = suggest_bounds(shop(), DATA, asked, task, reported=4_000)
    assert told[""] == ()
    assert best.bound < chosen.bound
    assert f": set most = {best.bound:g}, the best" in told["customer"][0]


def test_what_is_said_of_a_result_is_of_its_own_groups_and_rows() -> None:
    whole = table(region=["north"] * 60 + ["south"] * 30, paid=[1] * 60 + [9] * 30)
    measure = MeasureSettings(values=(Measured(column="paid", most=5),), keys=("region",))
    plan = plan_measurement(whole, DATA, measure)
    assert plan is not None
    some = whole.take([*range(50), *range(60, 72)])  # 12 of the south, which `plan_measurement` would hide
    assert cut_off_by_group(some, plan, measure) == {
        ("north",): {"paid": 0}, ("south",): {"paid": 48}, (ALL,): {"paid": 48},
    }  # fmt: skip
    cents = table(region=["north"] * 30, paid=[5.1] * 30)
    assert cut_off_by_group(cents, plan, measure)[(ALL,)] == {"paid": 3.0}
    [paid, _] = forecast_groups(some, DATA, measure, TASK, reported=len(some), plan=plan)
    assert paid.clipping is not None
    assert (paid.clipping.rows, paid.clipping.lost) == (12, 48)
    assert describe_measurement(some, DATA, measure, (), plan) == ()
    assert describe_measurement(some, DATA, measure, ()) == (
        "'region': 'other' has, of 62 rows, 12 with 1 word without a group of its own ('south')",
    )


def test_what_is_cut_off_in_hidden_groups_alone_is_no_share_of_a_group_that_is_shown() -> None:
    few = table(shop=["a"] * 200 + ["b"] * 5, paid=[0] * 200 + [1000] * 5)
    measure = MeasureSettings(values=(Measured(column="paid", most=1),), keys=("shop",))
    [paid, _] = forecast_groups(few, DATA, measure, TASK, reported=len(few))
    cut = paid.clipping
    assert cut is not None
    assert (cut.lost, cut.worst_lost, cut.worst_share) == (5 * 999, 0, 0)
    assert cut.lost_share == pytest.approx(0.999)


@pytest.mark.parametrize(
    ("label", "whence"), [("bought", "only the panel tells it"), ("", "it is not known")]
)
def test_where_rows_are_not_ones_own_only_a_panel_tells_what_is_cut_off(label: str, whence: str) -> None:
    measure = MeasureSettings(values=(Measured(column="paid", most=5),), keys=("region",))
    data = DataSettings(label=label)
    forecasts = forecast_groups(shop(), data, measure, TASK, reported=3_200)
    [told, *_] = describe_measurement(shop(), data, measure, forecasts)
    assert told.endswith(f"people's pages report, {whence}")


def test_what_is_cut_off_of_both_signs_is_no_share_of_a_sum_that_may_be_near_0() -> None:
    refunds = table(region=["a"] * 60 + ["b"] * 40, paid=[9, -9] * 45 + [9, -8] * 5)
    measure = MeasureSettings(values=(Measured(column="paid", most=1),), keys=("region",))
    [paid, _] = forecast_groups(refunds, DATA, measure, TASK, reported=100)
    cut = paid.clipping
    assert cut is not None
    assert (cut.lost, cut.worst_group, cut.worst_lost) == (5, ("b",), 5)
    assert (cut.lost_share, cut.worst_share) == (None, None)


def test_each_line_has_the_number_of_rows_that_it_is_of() -> None:
    rows = table(region=["a"] * 98 + ["z", ""], paid=[*[9] * 50, *[1] * 49, ""])
    measure = MeasureSettings(values=(Measured(column="paid", most=5),), keys=("region",))
    forecasts = forecast_groups(rows, DATA, measure, TASK, reported=80)
    assert "over 80 reported rows" in describe_forecasts(forecasts, measure)
    assert tabulate_forecasts(forecasts)[0][:4] == ("paid", "5", "(all)", "40")
    _, gaps, words = describe_measurement(rows, DATA, measure, forecasts)
    assert gaps.startswith(
        "of 100 rows, 1 has no 'paid': such a row is reported, counts in groups, and adds 0"
    )
    assert words == (
        "'region': 'other' has, of 100 rows, 1 with 1 word without a group of its own ('z') and 1 with a gap"
    )


def test_the_count_of_the_rows_that_have_a_value_widens_all_intervals() -> None:
    measure = MeasureSettings(values=(Measured(column="paid", most=2),))
    full, gaps = (table(paid=[2] * 99 + [last], other=range(100)) for last in (2, ""))
    widths = [
        [one.half_width for one in forecast_groups(rows, DATA, measure, TASK, reported=100)]
        for rows in (full, gaps)
    ]
    assert all(wide > 1.2 * narrow for narrow, wide in zip(*widths, strict=True))
    assert "and so widens intervals" in describe_measurement(gaps, DATA, measure, ())[0]


def test_two_words_of_a_column_with_gaps_take_the_noise_of_one_count() -> None:
    words = tuple(Measured(column="back", word=word) for word in ("yes", "no"))
    full, gaps = (table(back=["yes", "no"] * 49 + ["yes", last], other=range(100)) for last in ("no", ""))

    def width(rows: Table, *values: Measured) -> float:
        [*words, count] = forecast_groups(rows, DATA, MeasureSettings(values=values), TASK, reported=100)
        assert [one.name for one in words] == [f"back=={one.word}" for one in values]
        assert all(one.half_width == count.half_width for one in words)
        return count.half_width

    assert width(gaps, words[0]) == width(full, *words)
    assert width(full, *words) < width(gaps, *words) < 1.2 * width(full, *words)


def test_a_bound_follows_the_rows_of_hidden_groups_if_those_that_are_shown_are_0() -> None:
    few = table(shop=["a"] * 200 + ["b"] * 5, paid=[0] * 200 + [1000] * 5)
    assert suggest_values(few, DATA, ["paid"], MeasureSettings(keys=("shop",))) == (
        Measured(column="paid", most=1000.0),
    )


def test_a_value_has_one_name_in_forecasts_in_what_is_cut_off_and_in_results() -> None:
    counted = table(count=[9] * 60, region=["a"] * 60)
    measure = MeasureSettings(values=(Measured(column="count", most=5),), keys=("region",))
    plan = plan_measurement(counted, DATA, measure)
    assert plan is not None
    assert list(plan.names.values()) == ["count_2"]
    forecasts = forecast_groups(counted, DATA, measure, TASK, reported=60)
    assert [one.name for one in forecasts] == ["count_2", "count"]
    assert cut_off_by_group(counted, plan, measure)[("a",)] == {"count_2": 240}
    [cut, told] = warn_of_forecasts([replace(forecasts[0], half_width=1e9)], measure)
    assert cut.startswith("[measure] 'count_2': most = 5 cuts more than the noise off sums (all), by region")
    assert told.endswith("for count_2: raise [measure] epsilon or use fewer keys")


def test_nothing_is_forecast_where_nothing_is_measured() -> None:
    assert forecast_groups(shop(100), DATA, MeasureSettings(), TASK, reported=80) == ()


def test_an_epsilon_that_no_noise_fits_is_refused() -> None:
    with pytest.raises((InvalidTask, JobRefused), match="epsilon"):
        forecast_groups(shop(), DATA, MeasureSettings(keys=("region",), epsilon=5), TASK, reported=3_200)


@pytest.mark.parametrize(
    ("value", "keys", "remedy"),
    [
        (
            Measured(column="paid", most=9),
            ("region",),
            "raise [measure] epsilon or use fewer keys",
        ),
        (Measured(column="paid", most=9), (), "raise [measure] epsilon"),
        (Measured(column="paid", word="9"), ("region",), "raise [measure] epsilon or use fewer keys"),
    ],
)
def test_an_interval_wider_than_the_typical_sum_is_warned_of_with_what_helps(
    value: Measured, keys: tuple[str, ...], remedy: str
) -> None:
    measure = MeasureSettings(values=(value,), keys=keys)
    wide = GroupForecast(name="paid", reported=80, half_width=1234.5, typical=-999.0)
    assert not warn_of_forecasts([GroupForecast(name="paid", reported=80, half_width=5, typical=-6)], measure)
    [warning] = warn_of_forecasts([wide], measure)
    assert warning.endswith(f"for paid: {remedy}")
    assert math.isclose(wide.half_width, 1234.5)


def test_a_warning_of_wide_intervals_names_the_bound_that_is_best_for_the_finest_groups() -> None:
    visits, measure = campaigns()
    [most] = suggest_bounds(visits, DATA, replace(measure, epsilon=0.1), TASK, reported=3_000)
    asked = replace(measure, values=(most,), epsilon=0.1)
    [paid, _] = forecast_groups(visits, DATA, asked, TASK, reported=3_000)
    assert paid.is_too_wide
    assert paid.clipping is not None
    finest = paid.clipping.levels[-1]
    assert finest.best_most < most.bound
    # What it says comes true
    lower = replace(asked, values=(replace(most, most=finest.best_most),))
    [narrow, _] = forecast_groups(visits, DATA, lower, TASK, reported=3_000)
    assert narrow.clipping is not None
    assert finest.best_half_width == pytest.approx(narrow.half_width, rel=0.01)
    assert finest.best_lost_share == narrow.clipping.lost_share
    [warning] = warn_of_forecasts([paid], asked)
    assert warning.endswith(
        f" or use fewer keys or lower most (of paid, most = {finest.best_most:g}, the best there, makes it "
        f"± {finest.best_half_width:,.0f} and cuts {finest.best_lost_share:.1%} of the sum)"
    )
    # No lower bound has less error there
    wide = replace(narrow, half_width=1e9)
    assert "lower most" not in warn_of_forecasts([wide], lower)[0]


def test_the_bound_that_narrows_intervals_is_told_with_what_it_cuts_of_both_signs_too() -> None:
    refunds = table(paid=[*[1] * 900, *[50] * 50, *[-50] * 50], other=range(1_000))
    asked = MeasureSettings(values=(Measured(column="paid", most=50),), epsilon=0.1)
    [paid, _] = forecast_groups(refunds, DATA, asked, TASK, reported=1_000)
    [*_, told] = warn_of_forecasts([replace(paid, half_width=1e9)], asked)
    assert paid.clipping is not None
    best = paid.clipping.best_most
    assert best < 50
    lost = 100 * (50 - best) / (900 + 100 * 50)
    assert told.endswith(f" and cuts {lost:.1%} of all amounts, refunds too)")


def test_where_no_finest_group_is_shown_the_width_is_of_the_level_of_the_typical_sum() -> None:
    rows = table(
        shop=[f"shop {row % 10}" for row in range(250)], kind=["abcde"[row // 10 % 5] for row in range(250)]
    )
    measure = MeasureSettings(keys=("shop", "kind"))
    [count] = forecast_groups(rows, DATA, measure, TASK, reported=250)
    by_shop = MeasureSettings(keys=("shop",))
    assert count.typical == 25
    [alone] = forecast_groups(rows, DATA, by_shop, TASK, reported=250)
    assert count.half_width >= alone.half_width
