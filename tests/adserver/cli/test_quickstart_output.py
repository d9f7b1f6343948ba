"""What quickstart prints of a run."""

import json
import math
from pathlib import Path

import pytest

from adserver.cli.quickstart_output import show_measured
from adserver.measuring.cells import Column, ResultRow
from adserver.measuring.estimate import Estimate
from adserver.measuring.result import AggregateResult
from adserver.messages.query import ResultMessage
from adserver.quickstart.runs import Rows
from adserver.views.query import Statistic, json_of
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism

RESULT = AggregateResult(
    query_id="00" * 16,
    task_id="11" * 32,
    dataset_id="22" * 32,
    group_by=(),
    columns=(Column(name="paid", value="paid", bucket=None, noise_scale=1.0),),
    rows=(ResultRow(group=(), estimates=(Estimate(value=64.0, standard_error=1.0, low=61.0, high=67.0),)),),
    mechanism=Mechanism.GAUSSIAN,
    records=1000,
    min_cell_count=20,
    delta=1e-5,
    cost=Epsilons(ad_server=0.5, colluding=0.7),
    dataset_spent=Epsilons(ad_server=1.5, colluding=2.7),
)
ALL = Rows(read=1000, reported=1000, panel=0, left_out={})


@pytest.mark.parametrize("has_own_table", [True, False], ids=["today's", "an older version's"])
def test_a_measurement_is_printed_with_the_file_of_ones_own_table_if_the_run_wrote_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], has_own_table: bool
) -> None:
    measured, own_table = tmp_path / "measured.json", tmp_path / "own.json"
    measured.write_text(ResultMessage.of(RESULT).model_dump_json())
    own_table.write_text(json.dumps({"notes": ["3 rows are cut"]}))
    files = {"json": str(measured), "csv": "measured.csv", "counted_by": {}}
    show_measured({**files, **({"own_table": str(own_table)} if has_own_table else {})}, ALL)
    shown = capsys.readouterr().out
    assert "64.0 ± 3.0" in shown
    assert (f"exact and no part of epsilon: {own_table}" in shown) == has_own_table
    assert "3 rows are cut" not in shown


def test_the_quantiles_of_a_measurement_are_printed_as_they_were_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, path = "quantile 0.9 of paid over rows with paid", tmp_path / "measured.json"
    read = Estimate(value=12.5, standard_error=math.nan, low=10.25, high=20.0)
    path.write_text(json.dumps(json_of(RESULT, [Statistic.kept(name, [read])])))
    show_measured({"json": str(path), "csv": "measured.csv", "counted_by": {}, "quantiles": [name]}, ALL)
    shown = capsys.readouterr().out
    assert name in shown
    assert "12.5 (10.2 to 20.0)" in shown


def test_a_measurement_of_some_of_the_tables_rows_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "measured.json"
    path.write_text(ResultMessage.of(RESULT).model_dump_json())
    some = Rows(read=8000, reported=5479, panel=0, left_out={"column 'who': beyond 3 rows of a person": 2521})
    for rows, is_said in ((some, True), (ALL, False)):
        show_measured({"json": str(path), "csv": "measured.csv"}, rows, 3)
        shown = capsys.readouterr().out
        assert "epsilon is of a person with up to 3 rows" in shown
        assert ("these groups are of the 5,479 reported rows, of 8,000 in the table" in shown) == is_said
        assert shown.count("in the table") == is_said
