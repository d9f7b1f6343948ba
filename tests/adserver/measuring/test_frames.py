"""Results as pandas frames: every number of the result, by name."""

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, TypeAlias
from unittest.mock import create_autospec

import numpy as np
import pandas
import pyarrow
import pytest

from adserver.client.ad_server import AdServer
from adserver.client.job import Job
from adserver.measuring.cells import Column, ResultRow
from adserver.measuring.estimate import NOT_KNOWN, Estimate
from adserver.measuring.evaluation_result import EvaluationResult, Metric, read
from adserver.measuring.result import AggregateResult
from adserver.records.html_table import html_table
from adserver.records.round_figures import RoundFigures
from adserver.views.query import csv_of
from maskedlark.errors import InvalidTask
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism

Read: TypeAlias = tuple[list[str], list[tuple[Any, ...]]]
NOTHING = Epsilons(ad_server=0.5, colluding=1.0)


def estimate(value: float) -> Estimate:
    return Estimate(value=value, standard_error=1.0, low=value - 3, high=value + 3)


def summed() -> AggregateResult:
    return AggregateResult(
        query_id="q",
        task_id="t",
        dataset_id="d",
        group_by=("month",),
        columns=(Column(name="count", value="count", bucket=None, noise_scale=1.0),),
        rows=(
            ResultRow(group=("3",), estimates=(estimate(40.0),)),
            ResultRow(group=("5",), estimates=(estimate(7.0),)),
        ),
        records=50,
        min_cell_count=2,
        mechanism=Mechanism.GAUSSIAN,
        delta=1e-5,
        cost=NOTHING,
        dataset_spent=NOTHING,
    )


def test_sums_become_a_row_for_each_cell() -> None:
    result = summed()
    table = result.to_pandas()
    assert list(table.columns) == [
        "month",
        "count value",
        "count standard_error",
        "count low",
        "count high",
        "may_be_hidden",
    ]
    assert table["count value"].tolist() == [40.0, 7.0]
    assert table.loc[1].tolist() == ["5", 7.0, 1.0, 4.0, 10.0, False]
    shown = result._repr_html_()
    assert "<th>month</th><th>count</th>" in shown
    assert "<td>5</td><td>7.0 ± 3.0</td>" in shown
    assert repr(result).splitlines() == [
        "AggregateResult q",
        "month  count",
        "3      40.0 ± 3.0",
        "5       7.0 ± 3.0",
        result.caption,
    ]


def test_frames_streams_and_files_have_columns_of_the_same_names_and_frames_the_caption() -> None:
    one = replace(summed(), where=(("city", "Lima"),))
    frame = one.to_pandas()
    names = [*frame.columns]
    head, *_ = csv_of(one, ()).decode().splitlines()
    assert head.split(",")[: len(names)] == names
    assert pyarrow.table(one).column_names == names
    assert frame.attrs == {"caption": one.caption}
    assert evaluated().to_pandas().attrs == {"caption": evaluated().caption}


def test_a_frame_says_which_reports_it_is_of() -> None:
    table = replace(summed(), where=(("city", "Lima"),)).to_pandas()
    assert table["where city"].tolist() == ["Lima", "Lima"]
    assert table["may_be_hidden"].tolist() == [False, False]


def test_columns_of_a_frame_have_names_of_their_own() -> None:
    one = summed()
    ends = Column(name="count low", value="count_low", bucket=None, noise_scale=1.0)
    rows = tuple(replace(row, estimates=(*row.estimates, estimate(9.0))) for row in one.rows)
    table = replace(one, group_by=("count value",), columns=(*one.columns, ends), rows=rows).to_pandas()
    assert list(table.columns) == [
        "count value", "count value_2", "count standard_error", "count low", "count high",
        "count low value", "count low standard_error", "count low low", "count low high", "may_be_hidden",
    ]  # fmt: skip
    assert table.loc[0].tolist() == ["3", 40.0, 1.0, 37.0, 43.0, 9.0, 1.0, 6.0, 12.0, False]


def test_a_frame_has_the_means_and_quantiles_that_it_is_given_and_nan_where_they_are_unknown() -> None:
    one = summed()
    paid = Column(name="paid", value="paid", bucket=None, noise_scale=1.0)
    rows = tuple(
        replace(row, estimates=(counted, estimate(80.0)))
        for row, counted in zip(one.rows, (estimate(40.0), estimate(0.5)), strict=True)
    )
    result = replace(one, columns=(*one.columns, paid), rows=rows)
    table = result.to_pandas(mean_paid=result.means("paid"))
    assert [name for name in table.columns if "mean" in name] == [
        "mean_paid value", "mean_paid standard_error", "mean_paid low", "mean_paid high",
    ]  # fmt: skip
    first, second = result.means("paid")
    assert table.loc[0, "mean_paid value"] == 2.0
    assert table.loc[0, "mean_paid low"] == first[1].low
    assert second[1].no_interval is not None
    assert table.loc[1, ["mean_paid value", "mean_paid low", "mean_paid high"]].isna().all()
    assert table["paid value"].tolist() == [80.0, 80.0]
    with pytest.raises(InvalidTask, match="mean_paid is of another result"):
        one.to_pandas(mean_paid=result.means("paid"))
    with pytest.raises(InvalidTask, match="mean_paid is of another result"):
        result.to_pandas(mean_paid=[])
    assert "mean_paid value" in replace(result, rows=()).to_pandas(mean_paid=[])


def test_names_are_text_in_a_notebook() -> None:
    assert html_table(("<i>",), [("a\x1b<b>", 0.25)]) == (
        "<table><thead><tr><th>&lt;i&gt;</th></tr></thead>"
        "<tbody><tr><td>a\\x1b&lt;b&gt;</td><td>0.25</td></tr></tbody></table>"
    )


def evaluated() -> EvaluationResult:
    return EvaluationResult(
        query_id="q",
        task_id="t",
        dataset_id="d",
        is_of_classes=False,
        metrics=(Metric(name="roc_auc", estimate=estimate(0.9)),),
        roc=(),
        pr=(),
        calibration=(),
        num_bins=64,
        mechanism=Mechanism.GAUSSIAN,
        noise_scale=1.0,
        records=50,
        delta=1e-5,
        cost=NOTHING,
        dataset_spent=NOTHING,
    )


def test_metrics_become_a_row_each() -> None:
    table = evaluated().to_pandas()
    assert table.to_dict("records") == [
        {
            "metric": "roc_auc",
            "value": 0.9,
            "standard_error": 1.0,
            "low": 0.9 - 3,
            "high": 0.9 + 3,
            "no_interval": None,
        }
    ]


def test_figures_show_their_intervals_or_that_there_is_none() -> None:
    of = replace(NOT_KNOWN, value=0.5)
    result = replace(evaluated(), metrics=(*evaluated().metrics, Metric(name="loss", estimate=of)))
    assert repr(result).splitlines()[1:] == [
        "metric   value",
        "roc_auc  0.9 ± 3.0",
        "loss     unknown (no interval at this noise)",
        result.caption,
    ]
    assert result.caption.startswith("99 % intervals; epsilon 0.5 of a report (1 against")
    assert f"<p>{result.caption}</p>" in result._repr_html_()
    assert "<td>loss</td><td>unknown (no interval at this noise)</td>" in result._repr_html_()
    [*_, row] = result.to_pandas().to_dict("records")
    assert (row["value"], row["no_interval"]) == (0.5, "noise")
    assert all(math.isnan(row[name]) for name in ("standard_error", "low", "high"))


def job_with(*figures: RoundFigures) -> Job:
    server = create_autospec(AdServer, instance=True)
    server.history.return_value = figures
    return Job(job_id=bytes(16), at=server)


STREAMS: Final[dict[str, Any]] = {
    "sums": summed(),
    "no cell": replace(summed(), rows=()),
    "metrics": evaluated(),
    "a metric without an interval": replace(evaluated(), metrics=(Metric(name="auc", estimate=NOT_KNOWN),)),
    "a job whose second round was not evaluated": job_with(
        RoundFigures(rounds_done=0, finished_at_s=1.0, loss=0.5),
        RoundFigures(rounds_done=1, finished_at_s=2.0),
    ),
    "a new job": job_with(),
}


def by_pyarrow(result: Any) -> Read:
    table = pyarrow.table(result)
    return table.column_names, [tuple(row.values()) for row in table.to_pylist()]


def by_polars(result: Any) -> Read:
    table = pytest.importorskip("polars").DataFrame(result)
    return table.columns, table.rows()


def by_duckdb(result: Any) -> Read:
    table = pytest.importorskip("duckdb").from_arrow(result)
    return table.columns, table.fetchall()


def known(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows with None where a library says that nothing is known."""
    return [tuple(None if pandas.isna(cell) else cell for cell in row) for row in rows]


@pytest.mark.parametrize("reader", [by_pyarrow, by_polars, by_duckdb])
@pytest.mark.parametrize("name", STREAMS)
def test_other_libraries_read_the_same_rows_as_an_arrow_stream(
    reader: Callable[[Any], Read], name: str
) -> None:
    table = STREAMS[name].to_pandas()
    columns, rows = reader(STREAMS[name])
    assert columns == list(table.columns)
    assert known(rows) == known(table.itertuples(index=False, name=None))
    assert "null" not in {str(kind) for kind in pyarrow.table(STREAMS[name]).schema.types}


def test_without_pandas_or_pyarrow_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidTask, match=r"pip install 'masked-lark\[notebook\]'"):
        evaluated().to_pandas()
    with pytest.raises(InvalidTask, match=r"pip install 'masked-lark\[parquet\]'"):
        summed().__arrow_c_stream__()


@pytest.mark.parametrize(
    ("value", "half", "warned"),
    [(0.5, 0.2, True), (1.3, 0.1, True), (0.5, 0.6, False), (0.95, 0.01, False), (0.5, math.inf, False)],
)
def test_predictions_that_surely_do_not_add_up_are_warned_of_with_the_command(
    value: float, half: float, warned: bool
) -> None:
    found = Estimate(value=value, standard_error=0.1, low=value - half, high=value + half)
    result = replace(evaluated(), metrics=(Metric(name="mean_over_rate", estimate=found),))
    assert [f"is {value:.2f} of the base rate" in one for one in result.warnings()] == [True] * warned
    assert all("model calibrate OUT.onnx --job ID --evaluation q`" in one for one in result.warnings())
    assert evaluated().warnings() == ()


@pytest.mark.parametrize(
    ("crowd", "is_of_classes", "warned"), [(0.9, False, True), (0.9, True, False), (0.2, False, False)]
)
def test_an_auc_that_bins_hide_is_warned_of_where_the_result_is_shown(
    crowd: float, *, is_of_classes: bool, warned: bool
) -> None:
    # So many records of either label are in the lowest bin, and the others alone in theirs.
    counts = 1000 * np.array([[crowd, 1 - crowd, 0, 0], [crowd, 0, 0, 1 - crowd]])
    made = read(counts, mechanism=Mechanism.NONE, noise_scale=0.0, is_of_classes=is_of_classes)
    result = replace(evaluated(), roc=made.roc, num_bins=4, is_of_classes=is_of_classes)
    assert ("81% of the pairs" in repr(result)) is warned
    assert ("nearer to 0.5" in " ".join(result.warnings())) is warned
