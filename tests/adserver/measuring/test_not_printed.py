"""What the groups that a table leaves out add up to."""

import csv
import math
from dataclasses import replace
from itertools import compress
from pathlib import Path

import numpy as np
import pytest

from adserver.measuring.cells import Column, ResultRow
from adserver.measuring.consistency import consistent
from adserver.measuring.estimate import Estimate
from adserver.measuring.group_table import result_tables
from adserver.measuring.intervals import half_width
from adserver.measuring.not_printed import is_empty_rest, list_with_remainders, with_whole_groups
from adserver.measuring.result import AggregateResult
from adserver.records.defaults import ALL, NOT_PRINTED, REST
from adserver.views.query import json_of, print_groups, write_result
from maskedlark.privacy.accounting import Epsilons
from maskedlark.privacy.mechanism import Mechanism

SIZES = {"a": [900.0, 600.0, 30.0, 12.0, 0.0], "b": [500.0, 20.0, 0.0, 0.0, 3.0], REST: []}
"""Reports of each group's parts, the last one in no named part."""
PARTS = ["x", "y", "z", "w", REST]
ERROR = 8.0


def rolled_up(noise: np.random.Generator | None, *, is_fitted: bool = True) -> AggregateResult:
    """A roll-up of two keys with noise of a standard deviation of `ERROR` in each cell."""
    wholes = [sum(parts) for parts in SIZES.values()]
    levels = [np.array([[one] for one in of]) for of in ([sum(wholes)], wholes, [*SIZES["a"], *SIZES["b"]])]
    drawn = levels if noise is None else [one + noise.normal(0, ERROR, one.shape) for one in levels]
    groups = [
        [(ALL, ALL)],
        [(whole, ALL) for whole in SIZES],
        [(whole, part) for whole in ("a", "b") for part in PARTS],
    ]
    spread = 0.0 if noise is None else ERROR
    if is_fitted:
        found = [(one.values, one.variances) for one in consistent(drawn, [1, 3, 5])]
    else:
        found = [(one, np.ones(len(one))) for one in drawn]
    half = half_width(Mechanism.GAUSSIAN)
    rows = [
        ResultRow(
            group=group,
            estimates=(
                Estimate(
                    value=value,
                    standard_error=spread * math.sqrt(variance),
                    low=value - half * spread * math.sqrt(variance),
                    high=value + half * spread * math.sqrt(variance),
                ),
            ),
        )
        for of, (values, variances) in zip(groups, found, strict=True)
        for group, [value], variance in zip(of, values.tolist(), variances.tolist(), strict=True)
    ]
    return AggregateResult(
        query_id="00" * 16, task_id="11" * 32, dataset_id="22" * 32, group_by=("whole", "part"),
        columns=(Column(name="count", value="count", bucket=None, noise_scale=ERROR, report_range=(0, 1)),),
        rows=tuple(rows), mechanism=Mechanism.GAUSSIAN, records=2065, min_cell_count=20, delta=1e-5,
        cost=Epsilons(ad_server=0.5, colluding=0.7), dataset_spent=Epsilons(ad_server=0.5, colluding=0.7),
    )  # fmt: skip


def is_large(row: ResultRow) -> bool:
    return row.estimates[0].value > 4 * ERROR


def remainders(result: AggregateResult) -> dict[tuple[str, ...], Estimate]:
    printed = with_whole_groups(result, [is_large(row) for row in result.rows])
    return {row.group: row.estimates[0] for row, is_left in list_with_remainders(result, printed) if is_left}


@pytest.mark.parametrize("is_fitted", [True, False])
def test_the_remainder_of_a_group_covers_what_its_unprinted_parts_have(*, is_fitted: bool) -> None:
    """Also those that are too small, whose reports are in the rest."""
    noise = np.random.default_rng(1)
    covered = [
        remainder.low <= sum(SIZES[whole]) - sum(printed) <= remainder.high
        for _ in range(400)
        for result in [rolled_up(noise, is_fitted=is_fitted)]
        for (whole, part), remainder in remainders(result).items()
        if part == NOT_PRINTED
        for printed in [
            [SIZES[whole][PARTS.index(row.group[1])] for row in result.rows
             if row.group[0] == whole and row.group[1] in PARTS and is_large(row)]
        ]
    ]  # fmt: skip
    assert len(covered) == 800
    assert np.mean(covered) >= 0.99


def test_a_remainder_of_fitted_parts_is_what_they_add_up_to_and_no_wider_than_they_are_alone() -> None:
    result = rolled_up(np.random.default_rng(2))
    rows = {row.group: row.estimates[0] for row in result.rows}
    found = remainders(result)
    assert found.keys() == {("a", NOT_PRINTED), ("b", NOT_PRINTED), (NOT_PRINTED, ALL)}
    shown = [group for group in rows if group[0] == "a" and group[1] in PARTS and rows[group].value > 32]
    hidden = [group for group in rows if group[0] == "a" and group[1] in PARTS and rows[group].value <= 32]
    remainder = found["a", NOT_PRINTED]
    assert remainder.value == pytest.approx(rows["a", ALL].value - sum(rows[one].value for one in shown))
    assert remainder.value == pytest.approx(sum(rows[one].value for one in hidden))
    variances = sum(rows[one].standard_error ** 2 for one in hidden)
    assert remainder.standard_error <= math.sqrt(variances) * (1 + 1e-9)
    independent = remainders(rolled_up(np.random.default_rng(2), is_fitted=False))["b", NOT_PRINTED]
    assert independent.standard_error == pytest.approx(ERROR * math.sqrt(2))


def test_without_noise_a_remainder_is_exact() -> None:
    found = remainders(rolled_up(None))
    assert {group: (one.low, one.value, one.high) for group, one in found.items()} == {
        ("a", NOT_PRINTED): (42.0, 42.0, 42.0),
        ("b", NOT_PRINTED): (23.0, 23.0, 23.0),
    }


def test_nothing_is_lacking_where_all_parts_are_printed_and_the_rest_where_it_is_not() -> None:
    result = rolled_up(np.random.default_rng(3))
    everything = [True] * len(result.rows)
    assert not any(is_left for _, is_left in list_with_remainders(result, everything))
    but_rests = [REST not in row.group for row in result.rows]
    found = list_with_remainders(result, but_rests)
    lacking = {row.group: row.estimates[0] for row, is_left in found if is_left}
    rests = {row.group: row.estimates[0] for row in result.rows if REST in row.group}
    assert lacking.keys() == {(NOT_PRINTED, ALL), ("a", NOT_PRINTED), ("b", NOT_PRINTED)}
    for group, remainder in lacking.items():
        of = rests[REST if group[0] == NOT_PRINTED else group[0], ALL if group[1] == ALL else REST]
        assert remainder.value == pytest.approx(of.value)
        assert remainder.standard_error <= of.standard_error * (1 + 1e-9)
    exact = rolled_up(None)
    some_rests = [row.group not in ((REST, ALL), ("a", REST)) for row in exact.rows]
    assert not any(is_left for _, is_left in list_with_remainders(exact, some_rests))


def rest_of(**sums: tuple[float, float]) -> tuple[AggregateResult, ResultRow]:
    """A result and a rest with these sums, each with its standard error."""
    half = half_width(Mechanism.GAUSSIAN)
    estimates = [
        Estimate(value=value, standard_error=error, low=value - half * error, high=value + half * error)
        for value, error in sums.values()
    ]
    columns = [Column(name=name, value=name, bucket=None, noise_scale=1.0) for name in sums]
    row = ResultRow(group=("a", REST), estimates=tuple(estimates))
    return replace(rolled_up(None), columns=tuple(columns), rows=(row,)), row


def test_a_rest_is_of_reports_only_where_its_count_says_so() -> None:
    """Money that is clear of zero by chance makes no group."""
    assert is_empty_rest(*rest_of(paid=(16_365.0, 6_000.0), count=(6.0, 9.0)))
    assert not is_empty_rest(*rest_of(paid=(5.0, 6_000.0), count=(40.0, 9.0)))
    assert is_empty_rest(*rest_of(count=(-40.0, 9.0)))
    result, row = rest_of(count=(6.0, 9.0))
    assert not is_empty_rest(result, replace(row, group=("a", "x")))


def test_without_a_count_a_rest_is_clear_of_what_noise_makes_of_so_many_columns() -> None:
    """Of one column 2.58 standard errors are 99 %, of six 3.1."""
    assert not is_empty_rest(*rest_of(paid=(2.7, 1.0)))
    others = {f"other{place}": (0.0, 1.0) for place in range(5)}
    assert is_empty_rest(*rest_of(paid=(2.7, 1.0), **others))
    assert not is_empty_rest(*rest_of(paid=(-3.2, 1.0), **others))


def test_a_rest_that_may_be_empty_is_not_printed_and_what_is_printed_adds_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = rolled_up(np.random.default_rng(3))
    print_groups(result, is_all_shown=False)
    said = capsys.readouterr().out
    assert REST not in said
    assert said.count(f" {NOT_PRINTED} ") == 2
    assert "(of groups that are too small)" in said
    print_groups(result)
    assert NOT_PRINTED not in (everything := capsys.readouterr().out)
    assert everything.count(REST) == 3


def test_every_face_names_what_is_not_printed_as_a_group_and_files_have_the_groups_instead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = rolled_up(np.random.default_rng(3))
    [table] = result_tables(result, where="")
    assert [row[:2] for row in table.rows if NOT_PRINTED in row] == [
        (NOT_PRINTED, ALL), ("a", NOT_PRINTED), ("b", NOT_PRINTED),
    ]  # fmt: skip
    print_groups(result, is_all_shown=False)
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    shell = [" ".join(line.split()) for line in repr(result).splitlines()]
    for row in table.rows:
        assert " ".join(row) in printed
        assert " ".join(row) in shell
        assert "".join(f"<td>{cell}</td>" for cell in row) in result._repr_html_()
    groups = [row.group for row in result.rows]
    write_result(result, tmp_path / "r.csv")
    with (tmp_path / "r.csv").open() as file:
        assert [(line["whole"], line["part"]) for line in csv.DictReader(file)] == groups
    assert [tuple(row["group"].values()) for row in json_of(result, ())["rows"]] == groups
    assert [*zip(*(result.to_pandas()[key] for key in result.group_by), strict=True)] == groups


def test_a_part_is_printed_with_its_whole() -> None:
    result = rolled_up(None)
    printed = with_whole_groups(result, [row.group == ("b", "x") for row in result.rows])
    assert [row.group for row, is_printed in zip(result.rows, printed, strict=True) if is_printed] == [
        (ALL, ALL), ("b", ALL), ("b", "x"),
    ]  # fmt: skip


def test_a_rest_is_printed_only_with_its_group() -> None:
    result = rolled_up(None)
    rests = [REST in row.group for row in result.rows]
    assert not any(with_whole_groups(result, rests))
    printed = [row.group in ((ALL, ALL), ("a", ALL)) or REST in row.group for row in result.rows]
    kept = [row.group for row in compress(result.rows, with_whole_groups(result, printed))]
    assert kept == [(ALL, ALL), ("a", ALL), (REST, ALL), ("a", REST)]


def test_printed_parts_add_up_to_their_group(capsys: pytest.CaptureFixture[str]) -> None:
    result = rolled_up(None)
    rows = [replace(row, may_be_hidden=row.group[1] in ("z", "w", REST)) for row in result.rows]
    print_groups(replace(result, rows=tuple(rows)), is_all_shown=False)
    said = [line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    counts = {" ".join(name.split()): count for name, count in said[1:-1]}
    assert counts["a (all)"] == "1,542"
    assert [counts[f"a {part}"] for part in ("x", "y", NOT_PRINTED)] == ["900", "600", "42"]


def test_levels_of_too_many_rows_are_left_out_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    result = rolled_up(None)
    print_groups(result, most_rows=10, where="in the file")
    said = capsys.readouterr().out
    assert " x " not in said
    assert "groups by whole and part are too many to print: in the file" in said
    print_groups(result, most_rows=14)
    assert "too many" not in capsys.readouterr().out
