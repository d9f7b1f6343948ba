"""What follows from a result's numbers: intervals, means and quantiles, and its forms."""

import csv
import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from adserver.measuring.cells import Column, ResultRow
from adserver.measuring.estimate import NOT_KNOWN, Estimate, NoInterval, spell
from adserver.measuring.group_table import MOST_ROWS, align_estimates
from adserver.measuring.intervals import half_width
from adserver.measuring.result import AggregateResult, quantiles_of
from adserver.messages.query import ResultMessage
from adserver.records.defaults import REST
from adserver.views import query
from adserver.views.query import Statistic, print_groups, quantiles_in, summary_lines, write_result
from maskedlark.errors import InvalidTask, JobRefused
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism
from maskedlark.privacy.samplers import discrete_gaussian, discrete_laplace
from maskedlark.randomness import seeded
from maskedlark.reports.measurement import Value
from maskedlark.reports.task_kinds import PrivacyUnit

BUCKETS = ((0, 9), (10, 19), (20, 49), (50, 100))


def estimate(value: float, error: float = 1.0) -> Estimate:
    return Estimate(value=value, standard_error=error, low=value - 3 * error, high=value + 3 * error)


def result(
    numbers: dict[str, list[float]], *, error: float = 1.0, mechanism: Mechanism = Mechanism.GAUSSIAN
) -> AggregateResult:
    """Groups a and b with these numbers of each; names with a # are buckets."""
    columns = tuple(
        Column(
            name=name,
            value=name.split("#")[0],
            bucket=BUCKETS[int(name.split("#")[1])] if "#" in name else None,
            noise_scale=error,
        )
        for name in numbers
    )
    rows = tuple(
        ResultRow(group=(group,), estimates=tuple(estimate(values[at], error) for values in numbers.values()))
        for at, group in enumerate("ab")
    )
    return AggregateResult(
        query_id="00" * 16, task_id="11" * 32, dataset_id="22" * 32, group_by=("key",), columns=columns,
        rows=rows, mechanism=mechanism,
        records=1000, min_cell_count=20, delta=1e-5, cost=Epsilons(ad_server=0.5, colluding=0.7),
        dataset_spent=Epsilons(ad_server=1.5, colluding=2.7),
    )  # fmt: skip


@pytest.mark.parametrize("mechanism", [Mechanism.GAUSSIAN, Mechanism.LAPLACE])
def test_the_99_percent_interval_holds_99_percent_of_both_helpers_noise(mechanism: Mechanism) -> None:
    sampler = discrete_gaussian if mechanism is Mechanism.GAUSSIAN else discrete_laplace
    noise = sampler(1 << 20, 200_000, seeded(1)) + sampler(1 << 20, 200_000, seeded(2))
    deviation = (2**0.5 if mechanism is Mechanism.GAUSSIAN else 2.0) * (1 << 20)
    assert noise.std() == pytest.approx(deviation, rel=0.01)
    assert (np.abs(noise) <= half_width(mechanism) * deviation).mean() == pytest.approx(0.99, abs=0.001)
    assert half_width(Mechanism.NONE) == 0


def test_a_mean_is_the_sum_over_the_count_with_an_interval_that_covers() -> None:
    covered, trials = 0, 1_000
    draw = np.random.default_rng(3)
    for _ in range(trials):
        noisy = result(
            {"paid": [3000 + draw.normal(0, 20), 0], "count": [600 + draw.normal(0, 20), 0]}, error=20.0
        )
        (_, first), (_, second) = noisy.means("paid")
        covered += first.low <= 5.0 <= first.high
        assert second.no_interval is NoInterval.NOISE
        assert second.low == -math.inf
    assert 0.98 <= covered / trials <= 0.999


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(-8.0, 2.0, (0.0, 5.0)), (2.0, 8.0, (2.0, 5.0)), (-8.0, -2.0, (0.0, 3.0)), (7.0, 8.0, (4.5, 5.0))],
)
def test_an_interval_holds_possible_numbers_only_and_the_estimate_stays(
    low: float, high: float, expected: tuple[float, float]
) -> None:
    middle = (low + high) / 2
    found = Estimate(value=middle, standard_error=1.0, low=low, high=high).within(0.0, 5.0)
    assert (found.low, found.high, found.value) == (*expected, middle)
    assert NOT_KNOWN.within(0.0, 5.0) is NOT_KNOWN


def test_the_interval_of_a_mean_ends_where_values_do() -> None:
    draw = {"paid": [110.0, 40.0], "seen": [25.0, 40.0], "count": [25.0, 40.0]}
    plain = result(draw, error=5.0)
    ends = {"paid": (1, 5), "seen": (0, 1), "count": (0, 1)}
    known = replace(plain, columns=tuple(replace(one, report_range=ends[one.name]) for one in plain.columns))
    for over, is_zero_elsewhere, possible in (
        ("count", False, (1, 5)),
        ("seen", True, (1, 5)),
        ("seen", False, (0, math.inf)),  # as of views per click, which may be any number
    ):
        free = [one for _, one in plain.means("paid", over)]
        found = [one for _, one in known.means("paid", over, is_zero_elsewhere=is_zero_elsewhere)]
        assert free[0].high > 5
        assert 0 < free[1].low < 1
        assert [(one.low, one.high) for one in found] == [
            (max(one.low, possible[0]), min(one.high, possible[1])) for one in free
        ]
        assert [one.value for one in found] == [one.value for one in free]
    below = replace(plain, columns=tuple(replace(one, report_range=(-5, 5)) for one in plain.columns))
    assert below.means("paid", "seen") == plain.means("paid", "seen")


def test_a_mean_takes_both_its_sums() -> None:
    with pytest.raises(JobRefused, match="mean"):
        result({"paid": [1.0, 1.0]}).means("paid")


def test_a_quantile_lies_in_its_bucket_and_its_interval_covers() -> None:
    counts = [100.0, 300.0, 200.0, 50.0]
    exact = result(
        {f"paid#{bucket}": [count, 1.0] for bucket, count in enumerate(counts)},
        error=0.0,
        mechanism=Mechanism.NONE,
    )
    for share, bucket in ((0.0, 0), (0.1, 0), (0.5, 1), (0.7, 2), (0.95, 3), (1.0, 3)):
        (_, found), _ = exact.quantiles("paid", share)
        assert BUCKETS[bucket][0] <= found.low <= found.value <= found.high <= BUCKETS[bucket][1]
    draw = np.random.default_rng(4)
    hits = 0
    for _ in range(300):
        noisy = result(
            {f"paid#{bucket}": [count + draw.normal(0, 25), 0] for bucket, count in enumerate(counts)},
            error=25.0,
        )
        (_, found), _ = noisy.quantiles("paid", 0.5)
        hits += found.low <= 10 and found.high >= 19
    assert hits / 300 >= 0.99


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_quantile_of_a_histogram_of_one_bucket_is_in_it(share: float) -> None:
    [start] = Value(name="paid", low=0, high=5, bucket_starts=(0,)).bucket_starts
    cells = np.array([[[100.0], [1.0]], [[3.0], [3.0]]])
    clear, hidden = quantiles_of(cells, [(start, 5.0)], share, Mechanism.GAUSSIAN)
    assert (clear.low, clear.high) == (0, 5)
    assert 0 <= clear.value <= 5
    assert hidden.no_interval is NoInterval.NOISE


def test_a_quantile_over_the_reports_that_have_a_value_covers_theirs_alone() -> None:
    counts, without = [100.0, 300.0, 200.0, 50.0], 4_000.0
    draw = np.random.default_rng(5)

    def answer(error: float, mechanism: Mechanism) -> AggregateResult:
        numbers = {f"paid#{bucket}": count for bucket, count in enumerate(counts)}
        # Reports without the value hold 0, in the first bucket
        numbers["paid#0"] += without
        numbers |= {"paid_filled": sum(counts), "count": sum(counts) + without}
        noisy = {name: [number + draw.normal(0, error), 0] for name, number in numbers.items()}
        return result(noisy, error=error, mechanism=mechanism)

    exact = answer(0.0, Mechanism.NONE)
    (_, over_all), _ = exact.quantiles("paid", 0.5)
    (_, over_filled), _ = exact.quantiles("paid", 0.5, "paid_filled")
    assert over_all.high == 9
    assert (over_filled.low, over_filled.high) == (10, 19)
    covered = 0
    for _ in range(300):
        # Just above the first bucket: without the noise of both counts one in twenty would miss it
        (_, found), _ = answer(25.0, Mechanism.GAUSSIAN).quantiles("paid", 0.155, "paid_filled")
        covered += found.low <= 10 and found.high >= 19
    assert covered / 300 >= 0.98


def test_a_quantile_over_some_reports_takes_both_counts_and_a_bucket_of_0() -> None:
    with pytest.raises(JobRefused, match="query both"):
        result({"paid#0": [1.0, 1.0], "count": [1.0, 1.0]}).quantiles("paid", 0.5, "seen")
    counts = {"seen": [1.0, 1.0], "count": [1.0, 1.0]}
    with pytest.raises(JobRefused, match="no bucket has the 0"):
        result({"paid#1": [1.0, 1.0], **counts}).quantiles("paid", 0.5, "seen")
    many = result({"paid#0": [1.0, 1.0], **counts})
    clicks = [replace(one, report_range=(0, 9)) if one.value == "seen" else one for one in many.columns]
    with pytest.raises(JobRefused, match="expected a value of 0 or 1 that says which reports"):
        replace(many, columns=tuple(clicks)).quantiles("paid", 0.5, "seen")


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_a_quantile_is_a_share(share: float) -> None:
    with pytest.raises(JobRefused):
        result({"paid#0": [1.0, 1.0]}).quantiles("paid", share)


def test_a_number_is_found_by_its_column_and_group() -> None:
    one = result({"count": [5.0, 7.0]})
    assert one.estimate("count", "b").value == 7.0
    for wrong in (("count", "c"), ("paid", "a")):
        with pytest.raises(KeyError):
            one.estimate(*wrong)


def test_a_group_of_a_coarser_level_is_found_by_its_first_keys() -> None:
    one = result({"count": [5.0, 7.0]})
    rows = [replace(one.rows[0], group=group) for group in (("a", "(all)"), ("a", "x"))]
    by_two = replace(one, group_by=("key", "other"), rows=(rows[0], replace(rows[1], estimates=())))
    assert by_two.estimate("count", "a").value == 5.0
    with pytest.raises(KeyError, match="did you mean 'a · x'"):
        by_two.estimate("count", "A", "X")


def test_all_forms_hold_the_same_numbers(tmp_path: Path) -> None:
    from pyarrow import parquet

    one = result({"count": [5.25, 7.0], "paid#0": [1.0, 2.0], "paid#1": [3.0, 4.0]})
    for ending in ("json", "csv", "parquet", "png"):
        write_result(one, tmp_path / f"r.{ending}")
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["rows"][0]["group"] == {"key": "a"}
    assert document["rows"][0]["count"]["value"] == 5.25
    assert document["epsilon"] == {"ad_server": 0.5, "colluding": 0.7}
    assert document["columns"][1]["bucket"] == [0, 9]
    lines = list(csv.DictReader(StringIO((tmp_path / "r.csv").read_text())))
    assert float(lines[0]["count value"]) == 5.25
    assert float(lines[1]["paid#1 high"]) == 7.0
    table = parquet.read_table(tmp_path / "r.parquet")
    assert table.column("count value").to_pylist() == [5.25, 7.0]
    assert json.loads(table.schema.metadata[b"maskedlark"])["records"] == 1000
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InvalidTask, match="ends in"):
        write_result(one, tmp_path / "r.xlsx")


def test_files_and_people_read_the_bounds_that_sums_are_clipped_to(tmp_path: Path) -> None:
    whole = result({"paid": [5.0, 7.0], "count": [1.0, 2.0]})
    paid, count = whole.columns
    one = replace(whole, columns=(replace(paid, clipped_to=(-2.5, 1000.0)), count))
    for ending in ("json", "csv", "png"):
        write_result(one, tmp_path / f"r.{ending}")
        write_result(whole, tmp_path / f"whole.{ending}")
    lines = list(csv.DictReader(StringIO((tmp_path / "r.csv").read_text())))
    assert [(line["paid clipped_low"], line["paid clipped_high"]) for line in lines] == [
        ("-2.5", "1000.0")
    ] * 2
    assert "count clipped_low" not in lines[0]
    assert "clipped" not in (tmp_path / "whole.csv").read_text()
    read = ResultMessage.model_validate_json((tmp_path / "r.json").read_bytes()).value()
    assert read.columns[0].clipped_to == (-2.5, 1000.0)
    assert "sums are clipped: a report counts -2.5 to 1,000 of paid; " in " ".join(summary_lines(one))
    assert "a report counts" not in " ".join(summary_lines(whole))
    assert (tmp_path / "r.png").read_bytes() != (tmp_path / "whole.png").read_bytes()


def test_what_is_not_known_is_an_empty_cell_and_unknown_in_print(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyarrow import parquet

    one = result({"paid": [5.0, 7.0], "count": [1.0, 700.0]})
    shown = replace(one, rows=(replace(one.rows[0], may_be_hidden=True), one.rows[1]))
    mean = [Statistic.mean("paid")]
    for ending in ("csv", "parquet", "json"):
        write_result(shown, tmp_path / f"r.{ending}", mean)
    hidden, clear = csv.DictReader(StringIO((tmp_path / "r.csv").read_text()))
    assert {hidden[f"mean of paid {figure}"] for figure in ("value", "standard_error", "low", "high")} == {""}
    assert float(clear["mean of paid value"]) == 0.01
    assert parquet.read_table(tmp_path / "r.parquet").column("mean of paid low")[0].as_py() is None
    print_groups(shown, mean)
    assert capsys.readouterr().out.splitlines()[1].split()[-1] == "unknown"
    print_groups(shown, is_all_shown=False, where="r.csv has all")
    *_, group, left_out = capsys.readouterr().out.splitlines()
    assert group.startswith("b ")
    assert (
        left_out
        == "1 group not shown, which may be of too few reports or are hidden in the noise: r.csv has all"
    )


def test_a_group_with_a_sure_sum_is_shown_though_a_mean_of_it_is_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sure = result({"paid": [0.5, 900.0], "count": [1.0, 2.0]})
    print_groups(sure, [Statistic.mean("paid")], is_all_shown=False)
    _names, group, left_out = capsys.readouterr().out.splitlines()
    assert group.split() == ["b", "900.0", "±", "3.0", "2.0", "±", "3.0", "unknown"]
    assert left_out.startswith("1 group not shown")


def test_an_estimate_outside_its_interval_is_explained_once_and_only_where_there_is_one() -> None:
    said = "an estimate outside its interval is as noise left it"
    one = result({"paid": [90.0, 9.0], "count": [20.0, 9.0]})
    mean = [Statistic.mean("paid")]
    assert said not in " ".join(summary_lines(one, mean))
    beyond = replace(
        one.rows[0], estimates=(one.rows[0].estimates[0].within(100.0, math.inf), estimate(20.0))
    )
    outside = replace(one, rows=(beyond, one.rows[1]))
    assert " ".join(summary_lines(outside)).count(said) == 1
    hidden = replace(outside, rows=(replace(beyond, may_be_hidden=True), one.rows[1]))
    assert said not in " ".join(summary_lines(hidden))
    # Of a mean too: 4.5 of what is 4 at most
    rated = replace(one, columns=(replace(one.columns[0], report_range=(0, 4)), one.columns[1]))
    assert said not in " ".join(summary_lines(rated))
    assert said in " ".join(summary_lines(rated, mean))


def test_each_column_of_a_file_and_each_statistic_has_a_name_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyarrow import parquet

    many = result(
        {"paid": [5.0, 7.0], "mean of paid": [1.0, 1.0], "seen": [90.0, 90.0], "count": [99.0, 99.0]}
    )
    one = replace(many, group_by=("paid value",), where=(("city", "Lima"),))
    statistics = [Statistic.mean("paid"), Statistic.mean("paid", "seen")]
    assert [each.name for each in statistics] == ["mean of paid", "mean of paid over seen"]
    for ending in ("csv", "parquet", "json"):
        write_result(one, tmp_path / f"r.{ending}", statistics)
    [first, _] = csv.DictReader(StringIO((tmp_path / "r.csv").read_text()))
    assert len(first) == 1 + 4 * 6 + 2 + 7
    # A file says by itself which reports it is of, and which groups may be hidden
    assert (first["may_be_hidden"], first["where city"]) == ("False", "Lima")
    assert (first["paid value"], first["paid value_2"], first["mean of paid value"]) == ("a", "5.0", "1.0")
    assert float(first["mean of paid value_2"]) == pytest.approx(5 / 99)
    assert float(first["mean of paid over seen value"]) == pytest.approx(5 / 90)
    assert parquet.read_table(tmp_path / "r.parquet").column_names == list(first)
    as_json = json.loads((tmp_path / "r.json").read_text())
    assert as_json["statistics"].keys() == {"mean of paid", "mean of paid over seen"}
    assert as_json["where"] == {"city": "Lima"}
    assert ResultMessage.model_validate_json((tmp_path / "r.json").read_bytes()).value().where == one.where
    assert "; over those of the 1,000 reports of the dataset where city = Lima" in summary_lines(one)[0]
    assert not [line for line in summary_lines(one) if "code of a word" in line]
    coded = replace(one, rows=tuple(replace(row, group=("312074856",)) for row in one.rows))
    assert [
        line for line in summary_lines(coded) if line.startswith("a long number in paid value may be the")
    ]
    print_groups(replace(one, group_by=("paid",)))
    assert capsys.readouterr().out.split()[:2] == ["paid", "paid_2"]


def test_people_read_the_estimate_the_interval_and_the_cost(capsys: pytest.CaptureFixture[str]) -> None:
    one = result({"count": [5.25, 7.0]})
    print_groups(one)
    head, first, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["key", "count"]
    assert first.rstrip().split(maxsplit=1) == ["a", "5.2 ± 3.0"]
    assert str(Estimate(value=1234.0, standard_error=0.0, low=1234.0, high=1234.0)) == "1,234"
    assert str(Estimate(value=math.nan, standard_error=math.inf, low=-math.inf, high=math.inf)) == "unknown"
    assert str(Estimate(value=-0.02, standard_error=9, low=-44.02, high=43.98)) == "0 ± 44"
    assert str(estimate(1.0).within(0.0, 9.0)) == "1.0 (0.0 to 4.0)"
    assert str(estimate(-8.0).within(0.0, 9.0)) == "-8.0 (0.0 to 3.0)"
    caption, *_, noise, budget = summary_lines(one)
    assert (
        caption
        == one.caption
        == (
            "99 % intervals; epsilon 0.5 of a report (0.7 against the ad server with one helper) at delta "
            "1e-05; over the 1,000 reports of the dataset only"
        )
    )
    assert noise.startswith("gaussian noise of each helper: count 1; ± is half of an interval")
    assert budget == "spent and reserved of the dataset by then: 1.5 (2.7)"
    without = result({"count": [1.0, 1.0]}, mechanism=Mechanism.NONE)
    assert (
        without.caption == "99 % intervals; no noise: no privacy; over the 1,000 reports of the dataset only"
    )
    assert not any("noise of each helper" in line for line in summary_lines(without))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Estimate(value=5912.0, standard_error=3000.0, low=0.0, high=12158.0), "5,912 (0 to 12,158)"),
        (Estimate(value=-5912.0, standard_error=3000.0, low=-12158.0, high=0.0), "-5,912 (-12,158 to 0)"),
        (Estimate(value=0.952, standard_error=0.02, low=0.9, high=1.0), "0.952 (0.900 to 1.000)"),
        (Estimate(value=6079.0, standard_error=3000.0, low=0.0, high=12158.0), "6,079 ± 6,079"),
        (Estimate(value=5912.0, standard_error=3000.0, low=-167.0, high=12158.0), "5,912 ± 6,162"),
    ],
)
def test_an_interval_that_ends_at_what_is_possible_has_both_ends_and_none_reads_beyond(
    found: Estimate, said: str
) -> None:
    assert str(found) == said


def test_every_face_and_file_says_what_the_numbers_are_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyarrow import parquet

    whole = result({"paid": [5.0, 7.0], "count": [1.0, 2.0]})
    paid, count = whole.columns
    clipped = replace(paid, clipped_to=(0.0, 60.0))
    one = replace(whole, columns=(clipped, count), unit=PrivacyUnit.USER, reports_per_user=2, records=7189)
    monkeypatch.setattr(query, "draw_result", lambda _of, _statistics, heading: repr(heading).encode())
    for ending in ("json", "csv", "parquet", "png"):
        write_result(one, tmp_path / f"r.{ending}")
    assert one.caption == (
        "99 % intervals; epsilon 0.5 of a person with up to 2 reports (0.7 against the ad server with one "
        "helper) at delta 1e-05; over the 7,189 reports of the dataset only; sums are clipped: a report "
        "counts 0 to 60 of paid; intervals do not cover what is beyond"
    )
    document = json.loads((tmp_path / "r.json").read_text())
    assert (document["caption"], document["confidence"]) == (one.caption, 0.99)
    assert (tmp_path / "r.png").read_text() == repr(one.caption)
    assert summary_lines(one)[0] == one.caption
    assert one.caption in repr(one)
    assert f"<p>{one.caption}</p>" in one._repr_html_()
    expected = {
        "reports": 7189, "confidence": 0.99, "epsilon": 0.5, "collusion_epsilon": 0.7, "delta": 1e-5,
        "unit": "user", "reports_per_user": 2,
    }  # fmt: skip
    table = pd.read_csv(tmp_path / "r.csv")
    assert table[[*expected]].to_dict("records") == [expected] * 2
    assert parquet.read_table(tmp_path / "r.parquet").select([*expected]).to_pylist() == [expected] * 2
    free = replace(one, mechanism=Mechanism.NONE)
    write_result(free, tmp_path / "free.csv")
    assert pd.read_csv(tmp_path / "free.csv")[["epsilon", "collusion_epsilon", "delta"]].isna().all(axis=None)


def test_a_notebook_and_a_shell_show_the_rows_and_figures_of_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = result({"count": [3207.47, 7.0]}, error=662.83)
    rows = (whole.rows[0], replace(whole.rows[1], group=(REST,), may_be_hidden=True))
    one = replace(whole, rows=rows)
    print_groups(one, is_all_shown=False, where="to_pandas() has all")
    head, group, left_out = capsys.readouterr().out.splitlines()
    assert (head.split(), group.split()) == (["key", "count"], ["a", "3,207", "±", "1,988"])
    assert left_out.startswith("1 rest (of groups that are too small) not shown")
    assert repr(one).splitlines()[1:] == ["key  count", "a    3,207 ± 1,988", one.caption, left_out]
    assert one._repr_html_() == (
        "<table><thead><tr><th>key</th><th>count</th></tr></thead>"
        "<tbody><tr><td>a</td><td>3,207 ± 1,988</td></tr></tbody></table>"
        f"<p>{one.caption}</p><p>{left_out}</p>"
    )


def test_an_answer_that_no_table_can_show_is_refused_as_it_is_read() -> None:
    whole = result({"count": [5.0, 7.0], "paid": [9.0, 4.0]})
    exact = replace(whole, rows=(replace(whole.rows[0], estimates=(NOT_KNOWN, estimate(9.0))), whole.rows[1]))
    said = ResultMessage.of(exact).model_dump_json()
    assert ResultMessage.model_validate_json(said).model_dump_json() == said

    def spoil(*path: str | int, to: Any) -> str:
        spoilt = json.loads(said)
        *along, last = path
        at = spoilt
        for one in along:
            at = at[one]
        if to is None:
            del at[last]
        else:
            at[last] = to
        return json.dumps(spoilt)

    of_first = json.loads(said)["rows"][0]["paid"]
    for spoilt, why in (
        *(
            (spoil("rows", 0, "paid", one, to=1e31), "from -1e[+]30")
            for one in of_first
            if one != "no_interval"
        ),
        (spoil("rows", 0, "paid", "value", to=math.inf), "from -1e[+]30"),
        (spoil("rows", 0, "paid", "low", to=math.inf), "from -1e[+]30"),
        (spoil("columns", 0, "noise_scale", to=1e31), "from -1e[+]30"),
        (spoil("columns", 0, "bucket", to=[0, 1e31]), "from -1e[+]30"),
        (spoil("columns", 0, "parts_per_unit", to=0), "parts_per_unit"),
        (spoil("columns", to=[]), "at least 1 item"),
        (spoil("rows", to=[]), "at least 1 item"),
        (spoil("rows", 1, "paid", to=None), "row 1 does not have one value for each column"),
        (spoil("rows", 1, "more", to=of_first), "row 1 does not have one value for each column"),
        (spoil("columns", 1, to=json.loads(said)["columns"][0]), "column 1 has the name of another one"),
        (spoil("columns", 1, "name", to="group"), "column 1 has the name of .* a row's field"),
        (spoil("columns", 1, "name", to="may_be_hidden"), "column 1 has the name of .* a row's field"),
        (spoil("rows", 1, "group", to={"other": "a"}), "row 1 is of other keys"),
    ):
        with pytest.raises(ValidationError, match=why):
            ResultMessage.model_validate_json(spoilt)


def test_a_histogram_has_a_narrow_table_of_its_own_on_every_face(capsys: pytest.CaptureFixture[str]) -> None:
    one = result({"count": [800.0, 7.0], "age#0": [500.0, 4.0], "age#3": [300.0, 3.0]})
    print_groups(one)
    groups, histogram = capsys.readouterr().out.split("\n\n")
    assert [line.split() for line in groups.splitlines()] == [
        ["key", "count"],
        ["a", "800.0", "±", "3.0"],
        ["b", "7.0", "±", "3.0"],
    ]
    assert [line.split(maxsplit=2)[:2] for line in histogram.splitlines()] == [
        ["key", "age"],
        ["a", "0"],
        ["a", "50"],
        ["b", "0"],
        ["b", "50"],
    ]
    assert histogram.splitlines()[2].split() == ["a", "50", "to", "100", "300.0", "±", "3.0"]
    for line in [*groups.splitlines(), *histogram.splitlines()]:
        assert line.split() in [shown.split() for shown in repr(one).splitlines()]
    assert one._repr_html_().count("<table>") == 2
    assert "<th>key</th><th>age</th><th>reports</th>" in one._repr_html_()
    alone = replace(
        one,
        columns=one.columns[1:],
        rows=tuple(replace(row, estimates=row.estimates[1:]) for row in one.rows),
    )
    print_groups(alone)
    assert capsys.readouterr().out == histogram
    print_groups(one, without={"age"})
    assert capsys.readouterr().out.splitlines() == groups.splitlines()


def test_every_face_stops_at_as_many_rows_and_says_where_all_are(capsys: pytest.CaptureFixture[str]) -> None:
    one = result({"count": [800.0, 7.0], "age#0": [500.0, 4.0], "age#3": [300.0, 3.0]})
    rows = tuple(replace(one.rows[0], group=(f"g{place}",)) for place in range(MOST_ROWS + 30))
    many = replace(one, rows=rows)
    print_groups(many)
    printed = capsys.readouterr().out
    assert sum(line.startswith("g") for line in printed.splitlines()) == 2 * MOST_ROWS
    assert "30 more rows are not printed: add --all-rows to show all" in printed
    assert f"{30 + MOST_ROWS // 2} more groups are not printed: add --all-rows to show all" in printed
    for shown, starts in ((repr(many), "\ng"), (many._repr_html_(), "<td>g")):
        assert shown.count(starts) == 2 * MOST_ROWS
        assert "30 more rows are not printed: to_pandas() has all" in shown
    print_groups(many, most_rows=None)
    everything = capsys.readouterr().out
    assert "not printed" not in everything
    assert sum(line.startswith("g") for line in everything.splitlines()) == 3 * len(rows)


def test_the_estimates_of_a_column_are_aligned_at_the_sign(capsys: pytest.CaptureFixture[str]) -> None:
    print_groups(result({"count": [5.25, 70_000.0], "paid": [1_200.0, 3.0]}))
    first, second = capsys.readouterr().out.splitlines()[1:]
    at = [[place for place, letter in enumerate(line) if letter == "±"] for line in (first, second)]
    assert at[0] == at[1]
    assert len(at[0]) == 2
    assert align_estimates([("a", "5 ± 3"), ("b", "70.5 (2 to 90)"), ("c", "1,000 ± 3")]) == [
        ("a", "    5 ± 3"),
        ("b", "70.5 (2 to 90)"),
        ("c", "1,000 ± 3"),
    ]
    assert align_estimates([]) == []


def test_people_read_what_a_threshold_hides(capsys: pytest.CaptureFixture[str]) -> None:
    one = result({"count": [5.25, 70.0]})
    hidden = replace(one.rows[0], may_be_hidden=True, estimates=(replace(estimate(1.0), high=46.0),))
    noisy = replace(one, rows=(hidden, one.rows[1]), threshold_noise=12.0)
    print_groups(noisy)
    rows = [line.rstrip().split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [["a", "-2 to 46 (may be hidden)"], ["b", "70.0 ± 3.0"]]
    assert "fewer than 20 are" in summary_lines(one)[1]
    assert "fewer than about 20 (by counts with a noise of 12)" in summary_lines(noisy)[1]
    strict = replace(noisy, threshold_margin=63.0, discovery_margin=54.2)
    notes = (
        "cells are shown from about 83 reports (k = 20 plus 63 for the noise)",
        "groups are found from about 74 reports (k = 20 plus 54 for the noise)",
    )
    assert tuple(summary_lines(strict)[2:4]) == notes
    assert repr(strict).endswith("\n".join(notes))
    assert all(note in strict._repr_html_() for note in notes)
    assert ResultMessage.of(strict).value() == strict
    assert not any("for the noise" in told for told in (repr(noisy), *summary_lines(noisy)))
    assert ResultMessage.of(noisy).value() == noisy


def test_without_noise_there_is_no_epsilon() -> None:
    assert ResultMessage.of(result({"count": [1.0, 1.0]}, mechanism=Mechanism.NONE)).epsilon is None


def test_a_mean_of_a_value_that_some_reports_lack_says_over_which_reports() -> None:
    plain = result({"paid": [50.0, 70.0], "paid_filled": [20.0, 35.0], "count": [90.0, 99.0]})
    columns = [
        replace(column, counted_by="paid_filled" if column.name == "paid" else "") for column in plain.columns
    ]
    one = replace(plain, columns=tuple(columns))
    with pytest.raises(JobRefused, match=r"over='paid_filled' for those .* or over='count' for all"):
        one.means("paid")
    means = [[mean.value for _, mean in one.means("paid", over)] for over in ("paid_filled", "count")]
    assert means == [[2.5, 2.0], [50 / 90, 70 / 99]]
    assert [mean.value for _, mean in plain.means("paid")] == means[1]


@pytest.mark.parametrize(
    ("column", "group", "said"),
    [("piad", "a", "no column 'piad'; did you mean 'paid'"), ("paid", "A", "no group .*did you mean 'a'")],
)
def test_a_number_that_is_not_there_names_those_that_are(column: str, group: str, said: str) -> None:
    with pytest.raises(KeyError, match=said):
        result({"paid": [50.0, 70.0]}).estimate(column, group)


def test_a_mean_of_what_was_not_summed_names_what_was() -> None:
    with pytest.raises(JobRefused, match="query both as values; did you mean 'paid'"):
        result({"paid": [50.0, 70.0], "count": [2.0, 3.0]}).means("piad")


def test_large_numbers_have_their_thousands_apart_and_no_exponents() -> None:
    assert str(estimate(1_234_567.25)) == "1,234,567.2 ± 3.0"
    assert str(estimate(12_345.25, 400.0)) == "12,345 ± 1,200"


def test_of_groups_that_are_not_shown_those_of_other_words_and_rests_are_counted_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = result({"count": [5.0, 7.0]})
    groups = [("a", "b"), ("other", "b"), ("a", "other"), ("(rest)", "(all)"), ("b", "b")]
    rows = [replace(whole.rows[0], group=group, may_be_hidden=group != ("b", "b")) for group in groups]
    print_groups(
        replace(whole, group_by=("key", "more"), rows=tuple(rows)), is_all_shown=False, where="see r.csv"
    )
    assert capsys.readouterr().out.splitlines()[-1] == (
        "1 group, 2 groups 'other' (words without a group of their own), 1 rest (of groups that are "
        "too small) not shown, which may be of too few reports or are hidden in the noise: see r.csv"
    )


def test_values_with_a_histogram_have_a_median_over_the_reports_that_have_them() -> None:
    plain = result({"count": [60.0, 70.0], "paid": [50.0, 70.0], "paid_filled": [40.0, 50.0]})
    bucketed = tuple(
        Column(name=f"paid[{low}..{low + 9}]", value="paid", bucket=(low, low + 9), noise_scale=1.0)
        for low in (0, 10)
    )

    def with_histogram(counted_by: str) -> AggregateResult:
        columns = (*plain.columns, *(replace(one, counted_by=counted_by) for one in bucketed))
        rows = tuple(
            replace(row, estimates=(*row.estimates, estimate(45.0), estimate(15.0))) for row in plain.rows
        )
        return replace(plain, columns=columns, rows=rows)

    assert quantiles_in(plain) == ()
    of_all = quantiles_in(with_histogram(""))
    assert [one.name for one in of_all] == ["quantile 0.5 of paid", "quantile 0.9 of paid"]
    of_some = quantiles_in(with_histogram("paid_filled"))
    assert [one.name for one in of_some] == [f"{one.name} over paid_filled" for one in of_all]
    # 20 of the 60 reports hold 0 since they have no such value
    medians = [one[0].estimates(with_histogram("paid_filled"))[0].value for one in (of_all, of_some)]
    assert medians == pytest.approx([6.0, 7.2])
    # Not over a count that the query did not sum
    assert quantiles_in(with_histogram("another")) == ()
    # Who reads the buckets is told which one holds the reports without a value
    told = "reports without paid hold 0, so bucket 0 to 9 has them, too: paid_filled counts the others"
    assert told in repr(with_histogram("paid_filled"))
    assert told in with_histogram("paid_filled")._repr_html_()
    assert "hold 0" not in repr(with_histogram(""))


def test_a_cost_is_said_to_be_of_a_person_where_budgets_are() -> None:
    whole = result({"count": [5.0, 7.0]})
    assert summary_lines(whole)[-1] == "spent and reserved of the dataset by then: 1.5 (2.7)"
    caption, *_, budget = summary_lines(replace(whole, unit=PrivacyUnit.USER))
    assert "; epsilon 0.5 of a person (0.7 against the ad server with one helper)" in caption
    assert "reserved of each person, over all datasets of the task, by then: 1.5 (2.7)" in budget
    told = ResultMessage.of(replace(whole, unit=PrivacyUnit.USER, reports_per_user=2)).value()
    assert (told.unit, told.reports_per_user) == (PrivacyUnit.USER, 2)


def test_names_of_groups_are_no_formulas_in_pictures_and_no_orders_to_terminals(
    tmp_path: Path,
) -> None:
    priced = result({"paid": [50.0, 70.0]})
    rows = tuple(replace(row, group=(name,)) for row, name in zip(priced.rows, ("$", "a$_$"), strict=True))
    one = replace(priced, rows=rows, where=(("city", "$\\frac{$ \x1b[31m"),))
    write_result(one, tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    assert "\x1b" not in repr(one) + "".join(summary_lines(one))


def test_numbers_have_no_exponents_also_where_they_round_up_to_one() -> None:
    assert [spell(999_999.7), spell(9_999.96, 4), spell(1_234_567.0), spell(0.5)] == [
        "1,000,000", "10,000", "1,234,567", "0.5",
    ]  # fmt: skip
