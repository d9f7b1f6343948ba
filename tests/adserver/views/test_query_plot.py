"""A picture of a result shows what can be read, on a page of a size that can be looked at."""

import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from adserver.measuring.cells import Column, ResultRow
from adserver.measuring.estimate import NOT_KNOWN, Estimate
from adserver.measuring.result import AggregateResult
from adserver.records.defaults import ALL, REST
from adserver.views import query_plot
from adserver.views.query import Statistic, write_result
from adserver.views.query_plot import Panel, draw_result, panels_of
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.terminal.pictures import as_png, new_figure

MOST_PIXELS = 1_650


def estimate(value: float, error: float = 1.0) -> Estimate:
    return Estimate(value=value, standard_error=error, low=value - 3 * error, high=value + 3 * error)


def result(
    group_by: tuple[str, ...],
    groups: Sequence[tuple[str, ...]],
    columns: dict[str, Sequence[Estimate]],
    hidden: Sequence[tuple[str, ...]] = (),
) -> AggregateResult:
    """A result with an estimate of each column for each group."""
    return AggregateResult(
        query_id="00" * 16, task_id="11" * 32, dataset_id="22" * 32, group_by=group_by,
        columns=tuple(
            Column(name=name, value=name, bucket=None, noise_scale=1.0, report_range=(0, 9))
            for name in columns
        ),
        rows=tuple(
            ResultRow(group=group, estimates=estimates, may_be_hidden=group in hidden)
            for group, *estimates_ in zip(groups, *columns.values(), strict=True)
            for estimates in [tuple(estimates_)]
        ),
        mechanism=Mechanism.GAUSSIAN, records=9000, min_cell_count=20, delta=1e-5,
        cost=Epsilons(ad_server=0.5, colluding=0.7), dataset_spent=Epsilons(ad_server=1.5, colluding=2.7),
    )  # fmt: skip


def by_name(names: Sequence[str], values: Sequence[Estimate], **more: Sequence[Estimate]) -> AggregateResult:
    return result(("key",), [(name,) for name in names], {"count": values, **more})


CAMPAIGNS = [f"campaign {number}" for number in range(10)]
CELLS = [
    (ALL, ALL),
    *((campaign, ALL) for campaign in CAMPAIGNS),
    *product(CAMPAIGNS, ["desktop", "mobile", "tablet", "television"]),
]


def rolled_up(
    names: Sequence[str], error: float = 1.0, hidden: Sequence[tuple[str, ...]] = ()
) -> AggregateResult:
    """Ten campaigns on four devices each, the first the largest."""
    of = [4000.0, *(400.0 - 10 * place for place in range(10)), *(100.0 - place for place in range(40))]
    return result(
        ("campaign", "device"), CELLS, {name: [estimate(one, error) for one in of] for name in names}, hidden
    )


def size_of(path: Path) -> tuple[int, int]:
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    return width, height


def test_a_picture_has_the_largest_groups_first_and_nothing_below_0_of_what_cannot_be() -> None:
    one = by_name(["a", "b", "c"], [estimate(-1.0), estimate(9.0), estimate(9.0)])
    hidden = replace(one.rows[2], may_be_hidden=True)
    drawn = replace(one, rows=(*one.rows[:2], hidden))
    (counts,) = panels_of(drawn, ())
    assert counts.labels == ["b", "a"]
    assert counts.title == "count by key: 2 of 3 groups, the others may be hidden"
    assert not counts.can_be_negative
    axes = new_figure(4, 4).subplots()
    counts.draw(axes, 4)
    assert axes.get_xlim()[0] == 0
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "a"]
    below = replace(drawn, columns=(replace(drawn.columns[0], report_range=(-9, 9)),))
    assert panels_of(below, ())[0].can_be_negative


def test_of_many_groups_the_largest_are_drawn_and_the_title_says_so() -> None:
    many = by_name([f"c{place}" for place in range(200)], [estimate(float(place)) for place in range(200)])
    (panel,) = panels_of(many, ())
    assert panel.labels == [f"c{place}" for place in range(199, 187, -1)]
    assert panel.title == "count by key: the largest 12 of 200 groups"


def test_of_many_means_those_with_the_narrowest_intervals_are_drawn_since_noise_makes_others_large() -> None:
    many = by_name([f"c{place}" for place in range(50)], [estimate(9.0)] * 50)
    means = [estimate(1000.0, 50.0), *(estimate(float(place), 1 + place / 100) for place in range(1, 50))]
    _, panel = panels_of(many, [("mean of paid", means)])
    assert panel.labels == [f"c{place}" for place in range(12, 0, -1)]
    assert panel.title == "mean of paid by key: the surest 12 of 50 groups"


def test_a_mean_is_drawn_of_the_groups_of_which_it_is_known() -> None:
    one = by_name(["a", "b", "c"], [estimate(9.0)] * 3)
    _, mean = panels_of(one, [("mean of paid", [estimate(5.0), estimate(50.0), NOT_KNOWN])])
    assert (mean.labels, mean.can_be_negative) == (["b", "a"], False)
    assert mean.title == "mean of paid by key: 2 of 3 groups, the others are unknown"
    assert len(panels_of(one, [("mean of paid", [NOT_KNOWN] * 3)])) == 1
    # A rest of which it is known alone, and which is no more than noise
    rest = by_name(["a", REST], [estimate(9.0)] * 2)
    assert len(panels_of(rest, [("mean of paid", [NOT_KNOWN, estimate(-1.0)])])) == 1


def test_a_rest_is_drawn_last_and_only_where_it_is_more_than_noise() -> None:
    one = by_name([REST, "b", "c"], [estimate(90.0), estimate(9.0), estimate(19.0)])
    (panel,) = panels_of(one, ())
    assert (panel.labels, panel.title) == (["c", "b", REST], "count by key")
    empty = by_name([REST, "b"], [estimate(2.0), estimate(9.0)])
    assert panels_of(empty, ())[0].labels == ["b"]


def test_a_roll_up_shows_the_first_key_too_and_it_alone_where_the_finest_is_mostly_noise() -> None:
    coarse, fine = panels_of(rolled_up(["count"]), ())
    assert coarse.title == "count by campaign"
    assert coarse.labels == CAMPAIGNS
    assert fine.title == "count by campaign, device: the largest 12 of 40 groups"
    assert fine.labels[0] == "campaign 0 · desktop"
    (alone,) = panels_of(rolled_up(["count"], error=20.0), ())
    assert alone.title == "count by campaign"


def test_a_roll_up_of_many_columns_is_a_picture_to_look_at(tmp_path: Path) -> None:
    names = ["count", *(f"column {place}" for place in range(10))]
    many = rolled_up(names)
    panels = panels_of(many, ())
    # All of a level is more than a part of a finer one
    assert [panel.title for panel in panels] == [f"{name} by campaign" for name in names]
    write_result(many, tmp_path / "r.png")
    width, height = size_of(tmp_path / "r.png")
    assert width <= MOST_PIXELS
    assert height <= MOST_PIXELS
    # With as many means
    means = [(f"mean of {name}", [estimate(9.0)] * len(CELLS)) for name in names]
    write_result(many, tmp_path / "means.png", [Statistic.kept(*one) for one in means])
    assert size_of(tmp_path / "means.png")[1] <= MOST_PIXELS


def test_where_every_group_may_be_hidden_the_total_is_drawn_or_the_title_says_so() -> None:
    (total,) = panels_of(rolled_up(["count"], hidden=CELLS[1:]), ())
    assert (total.title, total.labels) == ("count of all: its groups may be hidden", ["all"])
    flat = by_name(["a", "b"], [estimate(9.0), estimate(19.0)])
    hidden = replace(flat, rows=tuple(replace(row, may_be_hidden=True) for row in flat.rows))
    (panel,) = panels_of(hidden, ())
    assert panel.title == "count by key: 2 of 2 groups, which may all be hidden"


def test_a_query_without_groups_is_one_bar() -> None:
    (panel,) = panels_of(result((), [()], {"count": [estimate(9.0)]}), ())
    assert (panel.title, panel.labels) == ("count", ["all"])


@pytest.mark.parametrize("count", [3, 1024])
def test_all_buckets_of_a_histogram_are_in_one_panel_of_the_coarsest_group(
    count: int, tmp_path: Path
) -> None:
    one = by_name(["a", "b"], [estimate(9.0), estimate(19.0)])
    buckets = tuple(
        Column(name=f"age[{place}]", value="age", bucket=(place, place), noise_scale=1.0)
        for place in range(count)
    )
    rows = tuple(
        replace(row, estimates=(*row.estimates, *(estimate(float(place)) for place in range(count))))
        for row in one.rows
    )
    _, panel = panels_of(replace(one, columns=(*one.columns, *buckets), rows=rows), ())
    assert panel.title == "reports by age in a"
    assert panel.labels == [str(place) for place in range(count)]
    axes = new_figure(4, 4).subplots()
    panel.draw(axes, 4)
    assert len(axes.patches) == count
    assert len(axes.get_xticks()) <= 8
    assert panel.height(4) < 2


def test_labels_of_buckets_do_not_touch_and_a_title_says_where_the_gaps_are() -> None:
    one = by_name(["a"], [estimate(9.0)])
    ends = [round(-65.53 * 1.25**-step, 2) for step in range(18)]
    buckets = tuple(
        Column(
            name=f"paid[{low}]", value="paid", bucket=(low, high), noise_scale=1.0, counted_by="paid_filled"
        )
        for low, high in [*pairwise(ends), (0.0, 0.0)]
    )
    [row] = one.rows
    many = replace(row, estimates=(*row.estimates, *(estimate(5.0) for _ in buckets)))
    _, panel = panels_of(replace(one, columns=(*one.columns, *buckets), rows=(many,)), ())
    assert panel.title == "reports by paid in a; those without one are in 0"
    figure = new_figure(6, 4)
    axes = figure.subplots()
    panel.draw(axes, 6)
    as_png(figure)
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert len(boxes) >= 3
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_long_names_are_cut_off_so_that_bars_have_room() -> None:
    names = ("a campaign with a very long name indeed", "tv", "Oslo")
    (panel,) = panels_of(result(("campaign", "device", "city"), [names], {"count": [estimate(9.0)]}), ())
    assert panel.labels == ["a campaign with a very … · tv · Oslo"]


def test_a_bar_may_lie_outside_its_interval() -> None:
    outside = estimate(-8.0).within(0.0, math.inf)
    axes = new_figure(4, 4).subplots()
    Panel(title="count", labels=["a"], estimates=[outside], can_be_negative=False).draw(axes, 4)
    assert axes.get_xlim() == pytest.approx((0, 3 * 1.03))


def test_the_conditions_are_on_top_of_a_picture(tmp_path: Path) -> None:
    one = by_name(["a", "b"], [estimate(9.0), estimate(19.0)])
    write_result(one, tmp_path / "all.png")
    write_result(replace(one, where=(("city", "Lima"),)), tmp_path / "lima.png")
    assert size_of(tmp_path / "lima.png")[1] > size_of(tmp_path / "all.png")[1]


def test_of_few_panels_all_groups_of_the_first_key_are_more_than_some_of_both() -> None:
    """A median is known of each campaign, and of fewer than half of the campaigns on a device."""
    names = ["count", *(f"column {place}" for place in range(10))]
    groups = [(ALL, ALL), *((name, ALL) for name in "abc"), *product("abc", "xyz")]
    many = result(("campaign", "device"), groups, {name: [estimate(90.0)] * len(groups) for name in names})
    known = [estimate(9.0)] * len(groups)
    some = [*known[:8], *[NOT_KNOWN] * (len(groups) - 8)]
    few = [known[0], NOT_KNOWN, *some[2:]]
    statistics = [("whole", known), ("median", some), ("share", few)]
    titles = [panel.title for panel in panels_of(many, statistics)]
    assert titles[-3:] == [
        "whole by campaign, device",
        "median by campaign",
        "share by campaign, device: 4 of 9 groups, the others are unknown",
    ]


@pytest.mark.parametrize("columns", [1, 4, 13])
def test_nothing_of_a_picture_is_cut_off_at_its_edges(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []

    def draw(figure: Figure) -> bytes:
        drawn.append(figure)
        return as_png(figure)

    monkeypatch.setattr(query_plot, "as_png", draw)
    titles = [
        f"quantile 0.9 of Bestellwert (EUR) over rows with Bestellwert (EUR) {n}" for n in range(columns)
    ]
    groups = [(f"Kampagne Sommerschlussverkauf {n}", "Tablet") for n in range(18)]
    many = result(("Kampagne", "Gerätekategorie"), groups, {})
    heading = "99 % intervals; epsilon 0.5 of a person (0.7 against the ad server with one helper); " * 4
    draw_result(many, [(title, [estimate(9e6)] * len(groups)) for title in titles], heading)
    [figure] = drawn
    figure.draw_without_rendering()
    for text in figure.findobj(Text):
        # Numbers beyond an axis are not drawn
        if any(map(str.isalpha, text.get_text())):
            box = text.get_window_extent()
            assert 0 <= box.x0 < box.x1 <= figure.bbox.x1, text.get_text()
    shown = " ".join(" ".join(axes.get_title(loc="left").split()) for axes in figure.axes)
    assert shown.count("of 18 groups") == columns


@pytest.mark.parametrize(
    "unknown", [NOT_KNOWN, Estimate(value=4.0, standard_error=1.0, low=-math.inf, high=math.inf)]
)
@pytest.mark.parametrize("least", [0, -9], ids=["of counts", "of any numbers"])
@pytest.mark.parametrize("is_histogram", [False, True])
def test_a_number_without_an_interval_leaves_the_others_drawn(
    unknown: Estimate, least: int, tmp_path: Path, *, is_histogram: bool
) -> None:
    of = by_name(["a", "b"], [unknown, estimate(5.0)], other=[unknown, unknown])
    columns = tuple(replace(one, report_range=(least, 9)) for one in of.columns)
    if is_histogram:
        columns = tuple(replace(one, value="x", bucket=(0.0, 9.0)) for one in columns)
    write_result(replace(of, columns=columns), tmp_path / "r.png")
    assert size_of(tmp_path / "r.png")[1] <= MOST_PIXELS
