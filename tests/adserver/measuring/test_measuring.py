"""A measurement from request to result.

Sums on real shopping sessions against the truth, with and without noise.
"""

import csv
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adserver.measuring.domains import codes_by_key, distinct_codes
from adserver.measuring.measurer import Measurer, check_words
from adserver.measuring.request import Request, read_request
from adserver.measuring.result import AggregateResult
from adserver.messages.query import ResultMessage
from adserver.peers.retrying import Backoff
from adserver.records.asked_query import PlannedQuery, S, StoredAnswer
from adserver.records.defaults import ALL, REST
from adserver.store.database import create_tables
from adserver.store.queries import QueryStore
from adserver.store.tasks import TaskStore
from adserver.views.query import means_in
from maskedlark.encoding.encoder import CategoryColumn, Encoder, IdColumn, NumberColumn
from maskedlark.error_contract import Charged, contract
from maskedlark.errors import HelperUnavailable, InvalidTask, JobReason, JobRefused
from maskedlark.randomness import seeded
from maskedlark.releases.counting import COUNT_UNITS, measurement_of
from maskedlark.releases.discovery import DiscoverySpec
from maskedlark.releases.kinds import AnyQuery
from maskedlark.releases.query import QuerySpec
from maskedlark.reports.input_shares import InputShares
from maskedlark.runtime.database import open_database
from tests.builders import NOW, World
from tests.measured import MemoryQueryHelper, columns_of, dataset_of, measuring_world, opened
from tests.patience import HANGS_S

SESSIONS = (
    Path(os.environ.get("MASKEDLARK_DATA", Path(__file__).resolve().parents[4] / "shared" / "data"))
    / "online_shoppers_intention.csv"
)
MONTHS, VISITORS, REGIONS = 13, 2, 10
SHOP = {
    "values": [
        {"name": "purchase", "low": 0, "high": 1},
        {"name": "pages", "low": 0, "high": 200, "is_clamped": True},
    ],
    "keys": [
        {"name": "month", "size": MONTHS},
        {"name": "visitor", "size": VISITORS, "categories": ["new", "returning"]},
        {"name": "region"},
    ],
}


_PATIENT = Backoff(first_s=0.001, longest_s=0.002, give_up_after_s=HANGS_S)
_IMPATIENT = Backoff(first_s=0.001, longest_s=0.002, give_up_after_s=0.05)


def sessions() -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Month, visitor and region of every session; purchases and pages."""
    if not SESSIONS.exists():
        pytest.skip(f"{SESSIONS} is not there")
    with SESSIONS.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["ProductRelated"]]
    keys = [[int(row["Month"]), int(row["returning_ visitor"]), int(row["Region"])] for row in rows]
    return np.array(keys, np.uint32), np.array(
        [[int(row["Revenue"]), int(row["ProductRelated"])] for row in rows], np.int64
    )


class Store:
    """What is left of the ad server's store in these tests: what was asked."""

    def __init__(self) -> None:
        self.asked: list[AnyQuery] = []

    def add(self, planned: PlannedQuery[S], *, asked_at: float, request: bytes | None = None) -> bool:
        assert (asked_at, request) == (NOW, None)
        self.asked.append(planned.spec)
        return True

    def remove(self, query_id: bytes) -> None:
        self.asked = [spec for spec in self.asked if spec.query_id != query_id]

    def some(self, query_ids: Sequence[bytes]) -> list[AnyQuery]:
        return [spec for spec in self.asked if spec.query_id in query_ids]

    def discovery_before(self, query_id: bytes) -> None:
        return None

    def keep_answer(self, query_id: bytes, _answer: StoredAnswer) -> None:
        assert query_id in [spec.query_id for spec in self.asked]


class Laboratory:
    """Both helpers with the same reports, and the truth."""

    def __init__(self, of: World, keys: NDArray[np.uint32], values: NDArray[np.int64], seed: int = 0) -> None:
        self.of = of
        self.keys = keys
        self.columns = columns_of(measurement_of(of.task), values)
        self.shares: tuple[InputShares, InputShares] = opened(of, keys, self.columns, seeded(seed))
        self.store = Store()

    def measurer(self, seed: int = 0, backoff: Backoff = _PATIENT, **helpers: Any) -> Measurer:
        asked = tuple(
            helpers.get(f"helper_{role}") or MemoryQueryHelper(self.of, role, self.shares[role], seed)
            for role in (0, 1)
        )
        return Measurer(
            helpers=(asked[0], asked[1]),
            task=self.of.task,
            dataset=dataset_of(self.of, len(self.keys)),
            store=self.store,  # type: ignore[arg-type]  # the real one is tested below
            clock=lambda: float(NOW),
            randomness=seeded(seed, "query ids"),
            backoff=backoff,
        )

    def truth(self, result: AggregateResult) -> list[list[float]]:
        """The sums of each row's group in the clear; the rest of a group is what its shown cells leave."""
        declared = measurement_of(self.of.task)
        places = [[key.name for key in declared.keys].index(name) for name in result.group_by]
        labels = [[declared.keys[place].label(int(code)) for code in self.keys[:, place]] for place in places]
        sums: Counter[tuple[tuple[str, ...], int]] = Counter()
        columns = [declared.columns(column.value) for column in result.columns]
        for row in range(len(self.keys)):
            group = tuple(one[row] for one in labels)
            for level in range(len(group) + 1):
                coarse = (*group[:level], *[ALL] * (len(group) - level))
                for at, column in enumerate(columns):
                    assert column is not None
                    sums[coarse, at] += int(self.columns[row, column.value])
        shown = {row.group for row in result.rows}
        for group in [group for group in shown if REST in group]:
            level = group.index(REST)
            parent = (*group[:level], *[ALL] * (len(group) - level))
            for at in range(len(columns)):
                parts = [
                    sums[other, at]
                    for other in shown
                    if other[:level] == group[:level]
                    and other != group
                    and ALL not in other[: level + 1]
                    and other[level + 1 :] == group[level + 1 :]
                ]
                sums[group, at] = sums[parent, at] - sum(parts)
        return [[float(sums[row.group, at]) for at in range(len(columns))] for row in result.rows]


def shop(k: int = 1, delta: float | None = None, **changes: Any) -> Laboratory:
    keys, values = sessions()
    declared = {**SHOP, "min_cell_count": k, "small_cell_delta": delta}
    return Laboratory(measuring_world(declared, **changes), keys, values)


REQUESTS = [
    Request(values=("count", "purchase"), group_by=("month",)),
    Request(values=("count", "purchase", "pages"), group_by=("visitor",)),
    Request(values=("purchase",), group_by=("region",), domains={"region": distinct_codes(range(1, 10))}),
    Request(values=("count", "purchase"), group_by=("month", "visitor"), is_rolled_up=True),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=["month", "visitor", "region", "month and visitor"])
def test_without_noise_every_cell_is_the_truth_exactly(request_: Request) -> None:
    laboratory = shop()
    result = laboratory.measurer().measure(request_)
    assert [[estimate.value for estimate in row.estimates] for row in result.rows] == laboratory.truth(result)
    assert all(
        estimate.low == estimate.value == estimate.high for row in result.rows for estimate in row.estimates
    )


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_at_least_98_percent_of_2000_cells_lie_within_their_99_percent_intervals(mechanism: str) -> None:
    norm = {"gaussian": "l2", "laplace": "l1"}[mechanism]
    laboratory = shop(k=20, mechanism=mechanism, norm=norm, epsilon=8.0, collusion_epsilon=80.0)
    within: list[bool] = []
    seed = 0
    while len(within) < 2_000:
        for asked in REQUESTS:
            seed += 1
            result = laboratory.measurer(seed).measure(replace(asked, epsilon=2.0))
            truth = laboratory.truth(result)
            within += [
                estimate.low <= true <= estimate.high
                for row, trues in zip(result.rows, truth, strict=True)
                for estimate, true in zip(row.estimates, trues, strict=True)
            ]
    assert np.mean(within) >= 0.98


def test_no_interval_goes_beyond_what_reports_can_add_up_to() -> None:
    values = [("refund", -5, 0), ("change", -5, 5)]
    declared = {
        "min_cell_count": 1,
        "values": [{"name": name, "low": low, "high": high} for name, low, high in values],
        "keys": [{"name": "place", "size": 12}],
    }
    of = measuring_world(declared, mechanism="gaussian", norm="l2", epsilon=8.0, collusion_epsilon=80.0)
    keys, nothing = np.zeros((40, 1), np.uint32), np.zeros((40, 2), np.int64)
    asked = Request(values=("count", "refund", "change"), group_by=("place",), epsilon=0.3)
    result = Laboratory(of, keys, nothing).measurer(3).measure(asked)
    count, refund, change = zip(*(row.estimates for row in result.rows), strict=True)
    # Most cells are empty: of those noise is below 0 about as often as above
    assert sum(one.value < 0 for one in count) > 2 < sum(one.value > 0 for one in refund)
    assert {one.low for one in count} == {0.0} == {one.high for one in refund}
    assert all(one.low < 0 < one.high for one in change)
    assert all(one.low <= one.high for row in result.rows for one in row.estimates)


def test_rolled_up_parts_add_to_the_whole_under_noise() -> None:
    laboratory = shop(k=20, mechanism="gaussian", norm="l2")
    result = laboratory.measurer(3).measure(replace(REQUESTS[3], epsilon=2.0))
    months = [row for row in result.rows if row.group[0] != ALL and row.group[1] == ALL]
    assert sum(row.estimates[1].value for row in months) == pytest.approx(result.estimate("purchase").value)
    for month in ("3", "11"):
        parts = [row for row in result.rows if row.group[0] == month and row.group[1] != ALL]
        assert len(parts) == VISITORS + 1
        assert sum(row.estimates[1].value for row in parts) == pytest.approx(
            result.estimate("purchase", month, ALL).value
        )


def test_a_strict_task_says_its_margin_and_does_not_fit_its_levels() -> None:
    asked = replace(REQUESTS[3], epsilon=2.0)
    strict = shop(k=20, mechanism="gaussian", norm="l2", delta=1e-6).measurer(3).measure(asked)
    usual = shop(k=20, mechanism="gaussian", norm="l2").measurer(3).measure(asked)
    assert usual.threshold_margin == 0 < usual.threshold_noise < strict.threshold_noise
    assert 5 * strict.threshold_noise < strict.threshold_margin < 5.6 * strict.threshold_noise
    assert [row.group for row in usual.rows if row.may_be_hidden]
    assert all(row.estimates[0].high >= 20 for row in usual.rows if row.may_be_hidden)
    months = [row for row in strict.rows if row.group[0] != ALL and row.group[1] == ALL]
    assert sum(row.estimates[1].value for row in months) != pytest.approx(strict.estimate("purchase").value)


@pytest.mark.parametrize("values", [("count",), ("paid",)])
def test_among_many_empty_groups_none_is_taken_for_one_that_is_shown(values: tuple[str, ...]) -> None:
    """Of 2,000 groups noise alone puts twenty further from zero than a 99 % interval reaches."""
    declared = {
        "min_cell_count": 20,
        "values": [{"name": "paid", "low": 0, "high": 1}],
        "keys": [{"name": "place", "size": 2_000}],
    }
    of = measuring_world(declared, mechanism="gaussian", norm="l2", epsilon=8.0, collusion_epsilon=80.0)
    crowded = np.repeat(np.arange(5, dtype=np.uint32), 200)[:, None]
    laboratory = Laboratory(of, crowded, np.ones((len(crowded), 1), np.int64))
    for seed in range(4):
        found = laboratory.measurer(seed).measure(Request(values=values, group_by=("place",), epsilon=0.4))
        clear = [
            row for row in found.rows if abs(row.estimates[0].value) > 2.576 * row.estimates[0].standard_error
        ]
        assert len(clear) > 10
        assert [row.group[0] for row in found.rows if not row.may_be_hidden][:5] == ["0", "1", "2", "3", "4"]
        assert sum(not row.may_be_hidden for row in found.rows) <= 6


def test_noise_is_in_proportion_to_each_values_own_bound() -> None:
    result = shop(k=20, mechanism="gaussian", norm="l2").measurer().measure(replace(REQUESTS[1], epsilon=2.0))
    scales = {column.name: column.noise_scale for column in result.columns}
    assert scales["count"] == pytest.approx(scales["purchase"])
    assert scales["pages"] == pytest.approx(200 * scales["count"], rel=1e-6)


def test_a_result_says_what_it_cost_and_what_the_dataset_has_spent() -> None:
    laboratory = shop(k=20, mechanism="gaussian", norm="l2")
    measurer = laboratory.measurer()
    first = measurer.measure(replace(REQUESTS[0], epsilon=0.5))
    second = measurer.measure(replace(REQUESTS[0], epsilon=0.5))
    assert 0.48 < first.cost.ad_server <= 0.5
    assert first.dataset_spent == first.cost
    assert 0.6 < second.dataset_spent.ad_server < 1.0
    assert first.records == len(laboratory.keys)


def test_without_saying_a_query_costs_a_tenth_of_the_budget() -> None:
    result = shop(k=20, mechanism="gaussian", norm="l2", epsilon=8.0).measurer().measure(REQUESTS[0])
    assert 0.78 < result.cost.ad_server <= 0.8


def test_unknown_groups_are_discovered_and_paid_for() -> None:
    laboratory = shop(k=20, mechanism="laplace", norm="l1")
    asked = Request(values=("count",), group_by=("region",), is_discovered=True, epsilon=4.0)
    result = laboratory.measurer().measure(asked)
    assert {row.group[0] for row in result.rows} <= {str(region) for region in range(1, 10)} | {REST}
    assert len(result.rows) >= 8
    # A group is found by a count that noise alone lifts from 1 to k with a probability of delta at most
    [found] = [spec for spec in laboratory.store.asked if isinstance(spec, DiscoverySpec)]
    scale = found.count_noise_units(laboratory.of.task) / COUNT_UNITS
    assert 0.5 * math.exp(-result.discovery_margin / scale) <= found.delta
    assert "groups are found from about" in repr(result)
    assert shop(k=20).measurer().measure(REQUESTS[0]).discovery_margin == 0
    assert 3.8 < result.cost.ad_server <= 4.0
    gaussian = shop(k=20, mechanism="gaussian", norm="l2").measurer().measure(replace(asked, epsilon=0.5))
    assert 0.48 < gaussian.cost.ad_server <= 0.5
    assert len(laboratory.store.asked) == 2
    with pytest.raises(JobRefused, match="domain"):
        laboratory.measurer().measure(replace(asked, is_discovered=False))


class RefusesQueries(MemoryQueryHelper):
    """Answers discoveries alone."""

    def run_query(
        self, query: AnyQuery, beside: bytes, length: int, *, cancelled: Event | None = None
    ) -> Any:
        if not isinstance(query, DiscoverySpec):
            raise JobRefused(JobReason.BUDGET_EXHAUSTED, "no room")
        return super().run_query(query, beside, length)


def test_a_query_that_is_refused_after_its_discovery_says_what_was_charged() -> None:
    laboratory = shop(k=20, mechanism="laplace", norm="l1")
    first, second = (RefusesQueries(laboratory.of, role, laboratory.shares[role], 0) for role in (0, 1))
    asked = Request(values=("count",), group_by=("region",), is_discovered=True, epsilon=4.0)
    with pytest.raises(
        JobRefused, match=r"found \d+ values of region, but .*exhausted\): no room"
    ) as refused:
        laboratory.measurer(helper_0=first, helper_1=second).measure(asked)
    # A program that reads the contract knows that the budget is smaller now
    assert contract(refused.value.reason).charged is Charged.YES


def test_discovered_codes_are_shown_as_the_words_of_the_tasks_encoder() -> None:
    of = measuring_world({"values": [], "keys": [{"name": "page"}], "min_cell_count": 5})
    (key,) = measurement_of(of.task).keys
    typed = ["Zürich"] * 40 + ["news"] * 40 + ["unknown"] * 40 + ["17"] * 40
    codes = np.array([[key.code(word)] for word in typed], np.uint32)
    encoder = Encoder(
        columns=(
            CategoryColumn(name="city", first=0, categories=("Zürich",), missing=0),
            IdColumn(name="page", words=("news", "rare word", "17")),
            NumberColumn(name="age", first=0, missing=0, edges=()),
        )
    )
    laboratory = Laboratory(of, codes, np.zeros((len(codes), 0), np.int64))
    asked = Request(values=("count",), group_by=("page",), is_discovered=True)
    found = replace(laboratory.measurer(), encoder=encoder).measure(asked)
    # Numbers first, then words as people look for them, and the rest last; codes are in another order
    assert [row.group[0] for row in found.rows] == ["17", str(key.code("unknown")), "news", "Zürich", REST]
    assert {row.group[0]: row.estimates[0].value for row in found.rows} == {
        "17": 40, str(key.code("unknown")): 40, "news": 40, "Zürich": 40, REST: 0,
    }  # fmt: skip
    bare = laboratory.measurer(seed=1).measure(asked)
    assert {row.group[0] for row in bare.rows} == {*(str(key.code(one)) for one in set(typed)), REST}


def test_words_of_two_keys_are_in_order_at_each_level_and_keep_their_numbers() -> None:
    of = measuring_world({"values": [], "keys": [{"name": "page"}, {"name": "city"}], "min_cell_count": 5})
    page, city = measurement_of(of.task).keys
    pages, cities = ["10", "9", "Sport", "arts"], ["Oslo", "Århus", "Lima"]
    counts = {one: 10 + place for place, one in enumerate((a, b) for a in pages for b in cities)}
    codes = [[page.code(a), city.code(b)] for (a, b), count in counts.items() for _ in range(count)]
    laboratory = Laboratory(of, np.array(codes, np.uint32), np.zeros((len(codes), 0), np.int64))
    asked = Request(
        values=("count",),
        group_by=("page", "city"),
        domains=codes_by_key({"page": pages, "city": cities}, measurement_of(of.task)),
        domain_words={"page": tuple(pages), "city": tuple(cities)},
        is_rolled_up=True,
    )
    result = laboratory.measurer().measure(asked)
    in_order = [(a, b) for a in ("9", "10", "arts", "Sport") for b in ("Århus", "Lima", "Oslo")]
    found = {row.group: row.estimates[0].value for row in result.rows}
    assert [group for group in found if not {ALL, REST} & {*group}] == in_order
    assert [group[0] for group in found if group[1] == ALL] == [ALL, "9", "10", "arts", "Sport", REST]
    assert [group[1] for group in found if group[0] == "arts"] == [ALL, "Århus", "Lima", "Oslo", REST]
    assert {group: found[group] for group in in_order} == counts
    assert found["arts", ALL] == sum(count for (one, _), count in counts.items() if one == "arts")


def open_key_laboratory() -> tuple[Laboratory, Encoder]:
    """Return records of an open key, of whose words the encoder lists one."""
    of = measuring_world({"values": [], "keys": [{"name": "city"}, {"name": "day"}], "min_cell_count": 5})
    city, day = measurement_of(of.task).keys
    codes = np.array(
        [[city.code(word), day.code(date)] for word in ("Lima", "Oslo") for date in ("2026-10-01",) * 30],
        np.uint32,
    )
    encoder = Encoder(columns=(CategoryColumn(name="City", first=0, categories=("Lima",), missing=0),))
    return Laboratory(of, codes, np.zeros((len(codes), 0), np.int64)), encoder


def test_a_result_says_its_conditions_and_has_the_words_that_it_was_asked_in() -> None:
    laboratory, encoder = open_key_laboratory()
    request = Request(
        values=("count",),
        group_by=("day",),
        where={"city": "Lima"},
        domains=codes_by_key({"day": ["2026-10-01"]}, measurement_of(laboratory.of.task)),
        domain_words={"day": ("2026-10-01",)},
    )
    result = replace(laboratory.measurer(), encoder=encoder).measure(request)
    assert result.where == (("city", "Lima"),)
    assert result.estimate("count", "2026-10-01").value == 30
    assert "where city = Lima" in repr(result)


def test_a_condition_on_a_word_that_the_encoder_does_not_list_is_refused_unless_a_domain_has_it() -> None:
    laboratory, encoder = open_key_laboratory()
    task = laboratory.of.task
    listed = Request(values=("count",), where={"city": "Lima", "day": "2026-10-09"})
    check_words(listed, task=task, encoder=encoder)
    unlisted = Request(values=("count",), where={"city": "lina"})
    with pytest.raises(JobRefused, match="lists no 'lina' in city; did you mean 'Lima'") as refused:
        check_words(unlisted, task=task, encoder=encoder)
    assert refused.value.reason is JobReason.UNDECLARED
    check_words(replace(unlisted, domain_words={"city": ("lina",)}), task=task, encoder=encoder)
    both = Request(values=("count",), where={"city": "Lima,Oslo"})
    with pytest.raises(InvalidTask, match="has 'Lima,Oslo' of the key 'city', and a condition has one value"):
        check_words(both, task=task, encoder=encoder)
    check_words(unlisted, task=task, encoder=None)
    # The key need not be called like its column, but then only what is close to a word is no other one
    renamed = replace(encoder, columns=(replace(encoder.columns[0], name="Town"),))
    with pytest.raises(JobRefused, match="did you mean 'Lima'"):
        check_words(unlisted, task=task, encoder=renamed)
    others = Request(values=("count",), where={"city": "Oslo", "day": "2026-10-09"})
    check_words(others, task=task, encoder=renamed)


def test_a_discovery_that_shows_nothing_says_that_it_was_charged_and_stays_remembered() -> None:
    laboratory = shop(k=1_000_000)
    with pytest.raises(JobRefused, match="give the key's domain") as refused:
        laboratory.measurer().measure(Request(values=("purchase",), group_by=("region",), is_discovered=True))
    assert refused.value.reason is JobReason.NOTHING_FOUND
    assert contract(refused.value.reason).charged is Charged.YES
    assert [type(spec) for spec in laboratory.store.asked] == [DiscoverySpec]


def test_where_sums_only_reports_that_match() -> None:
    laboratory = shop()
    result = laboratory.measurer().measure(
        Request(values=("purchase",), group_by=("month",), where={"visitor": "new"})
    )
    chosen = laboratory.keys[:, 1] == 0
    for month in (2, 11):
        bought = laboratory.columns[chosen & (laboratory.keys[:, 0] == month), 1].sum()
        assert result.estimate("purchase", str(month)).value == bought


class Flaky(MemoryQueryHelper):
    """Down at first, as often as it says."""

    failures = 2

    def run_query(
        self, query: AnyQuery, beside: bytes, length: int, *, cancelled: Event | None = None
    ) -> Any:
        if self.failures:
            self.failures -= 1
            raise HelperUnavailable("down")
        return super().run_query(query, beside, length)


def test_a_helper_that_is_down_for_a_moment_is_asked_again() -> None:
    laboratory = shop()
    result = laboratory.measurer(helper_1=Flaky(laboratory.of, 1, laboratory.shares[1])).measure(REQUESTS[0])
    assert result.estimate("count", "5").value == (laboratory.keys[:, 0] == 5).sum()
    gone = Flaky(laboratory.of, 1, laboratory.shares[1])
    gone.failures = 10**9
    with pytest.raises(HelperUnavailable):
        laboratory.measurer(helper_1=gone, backoff=_IMPATIENT).measure(REQUESTS[0])
    assert (
        len(laboratory.store.asked) == 2
    )  # kept before the helpers were asked, so that it can be asked again


class Refusing(MemoryQueryHelper):
    """Refuses everything."""

    def run_query(
        self, query: AnyQuery, beside: bytes, length: int, *, cancelled: Event | None = None
    ) -> Any:
        raise JobRefused(JobReason.BUDGET_EXHAUSTED, "nothing is left")


def test_a_query_is_forgotten_only_if_both_helpers_refuse_it() -> None:
    laboratory = shop()
    refusing = [Refusing(laboratory.of, role, laboratory.shares[role]) for role in (0, 1)]
    cases: list[tuple[dict[str, Any], int]] = [
        ({"helper_0": refusing[0], "helper_1": refusing[1]}, 0),
        ({"helper_1": refusing[1]}, 1),
    ]
    for helpers, remembered in cases:
        with pytest.raises(JobRefused, match="nothing is left"):
            laboratory.measurer(**helpers).measure(REQUESTS[0])
        assert len(laboratory.store.asked) == remembered  # the helper that did not refuse has charged it


def test_helpers_that_hold_different_reports_give_no_result() -> None:
    laboratory = shop()
    less = laboratory.shares[1].rows(np.arange(len(laboratory.keys) - 1))
    with pytest.raises(JobRefused) as refused:
        laboratory.measurer(helper_1=MemoryQueryHelper(laboratory.of, 1, less)).measure(REQUESTS[0])
    assert refused.value.reason is JobReason.HELPERS_DISAGREE


def test_a_stored_query_is_found_again_with_its_codes(database_url: str) -> None:
    laboratory = shop()
    engine = open_database(database_url)
    create_tables(engine)
    TaskStore(engine).add(laboratory.of.bundle, created_at=NOW)
    store = QueryStore(engine)
    measurer = replace(laboratory.measurer(), store=store)
    result = measurer.measure(REQUESTS[2])
    stored = store.find(result.query_id[:8], QuerySpec)
    # The answer was kept, so that no helper is needed
    away = Flaky(laboratory.of, 1, laboratory.shares[1])
    away.failures = 10**9
    offline = replace(laboratory.measurer(helper_1=away, backoff=_IMPATIENT), store=store)
    assert offline.again(stored) == result
    with pytest.raises(JobRefused) as refused:
        store.find("00" * 16 if not result.query_id.startswith("00") else "11" * 16, QuerySpec)
    assert refused.value.reason is JobReason.UNKNOWN_QUERY
    engine.dispose()


PRICED: dict[str, Any] = {
    "min_cell_count": 1,
    "values": [
        {
            "name": "spend",
            "low": -500,
            "high": 20_000,
            "is_clamped": True,
            "bucket_starts": [-500, 0, 1, 1_000],
        },
        {"name": "spend_filled", "low": 0, "high": 1},
    ],
    "keys": [{"name": "land", "size": 2, "categories": ["at", "de"]}],
}
TITLES = ("Ad spend €", "rows with Ad spend €", "Länder")


def priced(*, is_titled: bool, **noise: Any) -> Laboratory:
    """Eight reports from two countries with amounts in cents, of which two have none."""
    spend, filled = PRICED["values"]
    [land] = PRICED["keys"]
    if is_titled:
        spend = {**spend, "title": TITLES[0], "parts_per_unit": 100}
        filled, land = {**filled, "title": TITLES[1]}, {**land, "title": TITLES[2]}
    of = measuring_world({**PRICED, "values": [spend, filled], "keys": [land]}, **noise)
    held = [[1_250, 1], [1_999, 1], [0, 0], [1, 1]]
    keys = np.array([[0]] * 4 + [[1]] * 4, np.uint32)
    return Laboratory(of, keys, np.array(held * 2, np.int64))


ASKED_OF_PRICED: dict[str, Any] = {
    "values": ["spend", "spend_filled", "count"],
    "histograms": ["spend"],
    "group_by": ["land"],
    "where": {"land": "at"},
}


@pytest.mark.parametrize("names", [("spend", "spend_filled", "land"), TITLES, ("ad spend", *TITLES[1:])])
def test_results_have_the_titles_and_units_that_the_task_declares_and_queries_take_both_names(
    names: tuple[str, ...],
) -> None:
    spend, filled, land = names
    laboratory = priced(is_titled=True)
    request = read_request(
        measurement_of(laboratory.of.task),
        values=[spend, filled, "count"],
        histograms=[spend],
        group_by=[land],
        where={land: "at"},
    )
    assert request == read_request(measurement_of(laboratory.of.task), **ASKED_OF_PRICED)
    result = laboratory.measurer().measure(request)
    assert (result.group_by, result.where) == ((TITLES[2],), ((TITLES[2], "at"),))
    assert result.conditions == "Länder = at"
    for name in (spend, TITLES[0]):
        assert result.estimate(name, "at").value == 32.5
    assert result.estimate(TITLES[1], "at").value == 3
    column = result.columns[0]
    assert (column.name, column.value, column.counted_by) == (TITLES[0], "spend", "spend_filled")
    assert column.clipped_to == column.report_range == (-5.0, 200.0)
    # What helpers released is known exactly
    assert (column.parts_per_unit, result.estimate(spend, "at").value * column.parts_per_unit) == (100, 3_250)
    assert [one.name for one in result.columns[3:]] == [
        f"Ad spend €[{ends}]" for ends in ("-5..-0.01", "0..0", "0.01..9.99", "10..200")
    ]
    [at, _, _] = (one for _, one in result.means(spend, filled))
    assert at.value == pytest.approx(32.5 / 3)
    [median, _, _] = (one for _, one in result.quantiles(spend, 0.5, filled))
    assert median.low <= 12.5 <= median.high
    assert [*result.to_pandas().columns[:2]] == ["Länder", "Ad spend € value"]
    assert ResultMessage.model_validate_json(ResultMessage.of(result).model_dump_json()).value() == result
    [mean] = means_in(result)
    assert mean.name == "mean of Ad spend € over rows with Ad spend €"


def test_a_title_that_a_row_or_a_bucket_has_too_costs_no_answer() -> None:
    of = measuring_world(
        {
            "min_cell_count": 1,
            "values": [
                {"name": "x", "low": 0, "high": 9, "title": "group"},
                {"name": "y", "low": 0, "high": 9, "title": "may_be_hidden"},
                {"name": "z", "low": 0, "high": 9, "title": "a[0..1]"},
                {"name": "a", "low": 0, "high": 3, "bucket_starts": [0, 2]},
            ],
        }
    )
    held = np.array([[1, 2, 3, 0]] * 8, np.int64)
    laboratory = Laboratory(of, np.zeros((8, 0), np.uint32), held)
    request = read_request(measurement_of(of.task), values=["x", "y", "z"], histograms=["a"])
    result = laboratory.measurer().measure(request)
    names = [column.name for column in result.columns]
    assert len({*names, "group", "may_be_hidden"}) == len(names) + 2
    assert [result.estimate(name).value for name in names] == [8.0, 16.0, 24.0, 8.0, 0.0]
    assert ResultMessage.model_validate_json(ResultMessage.of(result).model_dump_json()).value() == result


def test_the_mean_of_a_word_is_a_share_of_the_reports_that_have_any_of_its_columns() -> None:
    names = ("back__yes", "back__no", "back_filled", "back__net")
    values = [{"name": name, "low": 0, "high": 1 if name != "back__net" else 9} for name in names]
    of = measuring_world({"min_cell_count": 1, "values": values})
    held = [[1, 0, 1, 5]] * 2 + [[0, 1, 1, 5]] * 3 + [[0, 0, 0, 5]] * 3
    laboratory = Laboratory(of, np.zeros((8, 0), np.uint32), np.array(held, np.int64))
    result = laboratory.measurer().measure(read_request(measurement_of(of.task), values=[*names, "count"]))
    assert [column.counted_by for column in result.columns] == ["back_filled", "back_filled", "", "", ""]
    means = {mean.name: [one.value for one in mean.estimates(result)] for mean in means_in(result)}
    assert means == {
        "mean of back__yes over back_filled": [pytest.approx(2 / 5)],
        "mean of back__no over back_filled": [pytest.approx(3 / 5)],
        # An amount is no word, whatever its name
        "mean of back__net": [pytest.approx(5)],
    }
    with pytest.raises(JobRefused, match="give over='back_filled'"):
        result.means("back__yes")


def test_noise_intervals_and_bounds_are_in_the_unit_too() -> None:
    noise: dict[str, Any] = {"mechanism": "gaussian", "norm": "l2", "epsilon": 8.0, "collusion_epsilon": 80.0}
    titled, plain = (
        laboratory.measurer(3).measure(
            replace(read_request(measurement_of(laboratory.of.task), **ASKED_OF_PRICED), epsilon=1.0)
        )
        for laboratory in (priced(is_titled=is_titled, **noise) for is_titled in (True, False))
    )
    assert titled.columns[0].noise_scale == plain.columns[0].noise_scale / 100
    for one, other in zip(titled.rows, plain.rows, strict=True):
        errors = [row.estimates[0].standard_error for row in (one, other)]
        assert errors[0] == pytest.approx(errors[1] / 100)
        assert one.estimates[1].standard_error == other.estimates[1].standard_error
        if one.may_be_hidden:
            # What a hidden cell may have: so many reports with the least and with the most
            assert one.estimates[0].high >= 200 * titled.min_cell_count
            assert one.estimates[0].high < 200 * 100


def test_a_name_that_is_misspelled_in_a_request_lists_titles() -> None:
    laboratory = priced(is_titled=True)
    declared = measurement_of(laboratory.of.task)
    with pytest.raises(JobRefused, match="did you mean 'Ad spend €'"):
        laboratory.measurer().measure(read_request(declared, values=["Ad spent €"]))
    with pytest.raises(JobRefused, match="has Länder"):
        read_request(declared, values=["count"], group_by=["Lander!"])
