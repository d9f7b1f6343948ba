"""What a query costs and how wide its intervals will be is known before it is charged."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adserver.measuring.aggregate_forecast import AggregateForecast, forecast_aggregate
from adserver.measuring.domains import distinct_codes
from adserver.measuring.measurer import read_query
from adserver.measuring.request import Request, plan_before_discovery, plan_query
from adserver.measuring.result import AggregateResult
from adserver.messages.query import AggregateForecastMessage
from adserver.records.asked_query import StoredAnswer
from adserver.records.defaults import ALL, REST
from maskedlark.encoding.encoder import CategoryColumn, Encoder
from maskedlark.errors import InvalidTask, JobRefused
from maskedlark.privacy.accounting import Epsilons, spent
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.releases.counting import measurement_of
from tests.builders import World
from tests.measured import SHOP, dataset_of, measuring_world

RECORDS = 10_000
ID = bytes(16)
NO_COST = Epsilons(ad_server=0.0, colluding=0.0)
MECHANISMS = [{"mechanism": Mechanism.GAUSSIAN}, {"mechanism": Mechanism.LAPLACE, "norm": "l1"}]
ASKED = {
    "the total": Request(values=("count", "purchase"), epsilon=0.5),
    "a histogram": Request(values=("purchase",), histograms=("purchase",), group_by=("place",)),
    "a roll-up": Request(values=("count", "purchase"), group_by=("place", "language"), is_rolled_up=True),
}


def noisy_world(**changes: Any) -> World:
    declared = {**SHOP, "min_cell_count": 20, "small_cell_delta": changes.pop("small_cell_delta", None)}
    return measuring_world(declared, epsilon=4.0, collusion_epsilon=8.0, **changes)


def foretell(of: World, request: Request, encoder: Encoder | None = None) -> AggregateForecast:
    return forecast_aggregate(request, task=of.task, dataset=dataset_of(of, RECORDS), encoder=encoder)


def answer(of: World, request: Request, **found: Any) -> AggregateResult:
    """The result of a query of which both helpers' noise is 0 by luck, over reports that no key has."""
    dataset = dataset_of(of, RECORDS)
    planned = plan_query(request, task=of.task, dataset=dataset, query_id=ID, **found)
    nothing = np.zeros(planned.spec.num_numbers(of.task), np.int64)
    stored = StoredAnswer(total=nothing, dataset_spent=NO_COST)
    return read_query(of.task, dataset, planned, stored, **found)


def half_widths(result: AggregateResult, level: int) -> list[float]:
    """Half of the intervals of a level, without their ends at what is possible."""
    rows = [
        row
        for row in result.rows
        if REST not in row.group and [name == ALL for name in row.group].count(False) == level
    ]
    return [error_to_width(result, one.standard_error) for one in rows[0].estimates]


def error_to_width(result: AggregateResult, error: float) -> float:
    # Of the normal distribution; or of the sum of two Laplace noises of scale b, whose deviation is 2 b and
    # which is beyond t b with a probability of (1 + t / 2) e^-t
    return error * (2.5758 if result.mechanism is Mechanism.GAUSSIAN else 5.9904 / 2)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("noise", MECHANISMS, ids=["gaussian", "laplace"])
def test_the_widths_and_the_cost_are_those_of_the_answer(noise: dict[str, Any], asked: str) -> None:
    of, request = noisy_world(**noise), ASKED[asked]
    forecast, result = foretell(of, request), answer(of, request)
    assert forecast.cost == result.cost
    assert forecast.columns == result.columns
    assert (forecast.threshold_noise, forecast.records) == (result.threshold_noise, RECORDS)
    assert not forecast.are_at_most
    assert len(forecast.levels) == (len(request.group_by) + 1 if request.is_rolled_up else 1)
    for level in forecast.levels:
        assert level.half_widths == pytest.approx(half_widths(result, len(level.keys)), rel=1e-3)


@pytest.mark.parametrize("is_rolled_up", [False, True])
def test_before_a_discovery_the_cost_is_exact_and_widths_are_those_of_no_group_or_at_most(
    is_rolled_up: bool,
) -> None:
    of = noisy_world(mechanism=Mechanism.GAUSSIAN)
    dataset = dataset_of(of, RECORDS)
    request = Request(
        values=("count",), group_by=("campaign",), is_discovered=True, is_rolled_up=is_rolled_up, epsilon=1.0
    )
    forecast = foretell(of, request)
    discovery, _ = plan_before_discovery(request, task=of.task, dataset=dataset, query_id=ID, discovery_id=ID)
    assert discovery is not None
    assert forecast.discovery_cost == spent(discovery.spec.charges(of.task), of.task.delta)
    assert 0.24 < forecast.discovery_cost.ad_server <= 0.25
    for codes in (1, 30):
        given = Request(
            values=("count",),
            group_by=("campaign",),
            domains={"campaign": distinct_codes(range(codes))},
            is_rolled_up=is_rolled_up,
            epsilon=1.0,
        )
        result = answer(of, given, found=discovery.spec)
        assert forecast.cost == result.cost
        assert forecast.found_from == 20 + result.discovery_margin > 21
        for level in forecast.levels:
            (width,), (most,) = half_widths(result, len(level.keys)), level.half_widths
            # Of many parts little is known by their sum
            assert (
                width < 0.9 * most if is_rolled_up and codes == 1 else width == pytest.approx(most, rel=0.05)
            )
    assert forecast.are_at_most == is_rolled_up
    told = repr(forecast)
    assert ("interval is at most:" in told) == is_rolled_up
    assert (
        f"a discovery of campaign comes first, for epsilon {forecast.discovery_cost.ad_server:.4g} of" in told
    )


def test_people_read_each_level_and_what_is_not_foretold() -> None:
    of = noisy_world(mechanism=Mechanism.GAUSSIAN)
    told = foretell(of, ASKED["a roll-up"]).lines()
    assert told[0].startswith(
        "for epsilon 0.3998 of a report (0.5469 against the ad server with one helper) at delta 1e-05"
    )
    assert "over 10,000 reports, half of a 99 % interval is:" in told[0]
    assert foretell(of, ASKED["a roll-up"])._repr_html_() == "".join(f"<p>{line}</p>" for line in told)
    assert [line.partition(": count ± ")[0] for line in told[1:4]] == [
        "  in the total",
        "  in a group by place",
        "  in a group by place, language",
    ]
    assert told[4].startswith("groups of about 20 reports or more are shown (by counts with a noise of ")
    assert told[5] == "how wide intervals of means are depends on the data, and is not foretold"
    of_buckets = foretell(of, ASKED["a histogram"])
    assert len(of_buckets.levels[0].half_widths) == 6
    assert repr(of_buckets).count("each bucket of purchase ± ") == 1
    assert "intervals of quantiles are" in repr(of_buckets)
    assert "not foretold" not in repr(foretell(of, Request(values=("count",))))


def test_in_a_task_that_hides_strictly_a_group_is_shown_from_more_reports() -> None:
    of = noisy_world(mechanism=Mechanism.GAUSSIAN, small_cell_delta=1e-6)
    forecast = foretell(of, ASKED["a histogram"])
    assert forecast.shown_from == 20 + answer(of, ASKED["a histogram"]).threshold_margin > 25
    assert f"groups of about {forecast.shown_from:,.0f} reports or more are shown" in repr(forecast)


def test_without_noise_nothing_is_wide() -> None:
    forecast = foretell(measuring_world(), Request(values=("count",), group_by=("place",)))
    assert forecast.levels[0].half_widths == (0.0,)
    assert forecast.lines()[0].startswith("without noise, over 10,000 reports")
    assert "groups of 1 report or more are shown" in repr(forecast)


@pytest.mark.parametrize("request_", ASKED.values(), ids=ASKED.keys())
def test_noise_above_all_that_reports_can_add_up_to_is_warned_of(request_: Request) -> None:
    of = noisy_world(mechanism=Mechanism.GAUSSIAN)
    drowned = foretell(of, replace(request_, epsilon=1e-6))
    column, width = drowned.columns[0], drowned.levels[0].half_widths[0]
    assert width > RECORDS * max(map(abs, column.report_range or ()))
    assert (
        f"half of the 99 % interval of {column.name} is {width:,.0f}, and 10,000 re" in drowned.noise_warning
    )
    assert not foretell(of, replace(request_, epsilon=0.1)).noise_warning


@pytest.mark.parametrize("is_strict", [False, True])
def test_groups_that_are_too_small_on_average_to_be_shown_are_warned_of(is_strict: bool) -> None:
    """By public figures: the reports in all, the groups, the noise and the k of a group."""
    of = noisy_world(mechanism=Mechanism.GAUSSIAN, small_cell_delta=1e-6 if is_strict else None)
    asked = Request(values=("count", "purchase"), group_by=("place",), epsilon=0.02)
    of_place = foretell(of, asked)
    [width, _] = of_place.levels[-1].half_widths
    groups = len(measurement_of(of.task).keys[1].categories)
    least = max(width, of_place.shown_from)
    assert of_place.levels[-1].groups == groups

    def warn(records: float, **changes: Any) -> str:
        request, dataset = replace(asked, **changes), dataset_of(of, round(records))
        return forecast_aggregate(request, task=of.task, dataset=dataset, encoder=None).noise_warning

    assert warn(1.01 * least * groups) == ""
    said = warn(0.99 * least * groups)
    assert said.startswith(f"a group of average size by place is not shown: that takes about {least:,.0f}")
    assert f"reports in {groups} groups are" in said
    assert said.endswith("Ask with a larger epsilon, group by fewer keys, or collect more reports")
    small = dataset_of(of, round(0.99 * least * groups))
    told = forecast_aggregate(asked, task=of.task, dataset=small, encoder=None)
    assert told.lines()[-1] == f"warning: {said}"
    assert AggregateForecastMessage.of(told).noise_warning == said
    assert warn(0.99 * least * groups, group_by=()) == ""
    # Of a roll-up only the finest groups may be too many
    rolled = warn(3 * least * groups, group_by=("place", "language"), is_rolled_up=True)
    assert rolled.startswith("a group of average size by place, language is not shown")


def test_a_cost_is_of_a_person_where_budgets_are() -> None:
    of = noisy_world(mechanism=Mechanism.GAUSSIAN, unit="user", reports_per_user=2)
    told = foretell(of, ASKED["the total"])
    assert " of a person (" in told.lines()[0]
    assert AggregateForecastMessage.of(told).unit == "user"
    assert "person" not in foretell(noisy_world(mechanism=Mechanism.GAUSSIAN), ASKED["the total"]).lines()[0]


def test_a_larger_epsilon_is_no_remedy_where_k_alone_hides_groups() -> None:
    asked = Request(values=("count",), group_by=("place",), epsilon=4.0)
    for noise in ({"mechanism": Mechanism.GAUSSIAN}, {"mechanism": Mechanism.NONE}):
        of = noisy_world(**noise)
        request = asked if of.task.mechanism is Mechanism.GAUSSIAN else replace(asked, epsilon=None)
        said = forecast_aggregate(
            request, task=of.task, dataset=dataset_of(of, 30), encoder=None
        ).noise_warning
        assert "about 20 reports, and 30 reports in 3 groups are 10 each on average. Group by" in said


def test_groups_of_a_sum_without_a_count_are_as_large_as_the_sum_needs() -> None:
    of = noisy_world(mechanism=Mechanism.GAUSSIAN)
    asked = Request(values=("purchase",), group_by=("place",), epsilon=0.02)
    [width] = foretell(of, asked).levels[-1].half_widths
    [column] = foretell(of, asked).columns
    assert column.report_range is not None
    groups = foretell(of, asked).levels[-1].groups
    least = width / max(map(abs, column.report_range))
    told = [
        forecast_aggregate(
            asked, task=of.task, dataset=dataset_of(of, round(share * least * groups)), encoder=None
        ).noise_warning
        for share in (0.98, 1.02)
    ]
    assert [bool(one) for one in told] == [True, False]


def test_what_no_query_can_be_is_refused() -> None:
    of = noisy_world(mechanism=Mechanism.GAUSSIAN)
    encoder = Encoder(columns=(CategoryColumn(name="campaign", first=0, categories=("spring",), missing=0),))
    with pytest.raises(InvalidTask, match="the whole budget"):
        foretell(of, Request(values=("count",), epsilon=9.0))
    with pytest.raises(JobRefused, match="declares no value 'clicks'"):
        foretell(of, Request(values=("clicks",)))
    with pytest.raises(JobRefused, match="give its domain, or discover it"):
        foretell(of, Request(values=("count",), group_by=("campaign",)))
    with pytest.raises(JobRefused, match="lists no 'sprin'"):
        foretell(of, Request(values=("count",), where={"campaign": "sprin"}), encoder)
