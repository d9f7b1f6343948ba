"""A project's helpers have known floors, and what they would refuse is found by its setting's name."""

from dataclasses import asdict
from typing import Any

import pytest

from adserver.quickstart.budget_check import unsigned_task
from adserver.quickstart.helper_floors import FLOORS
from adserver.quickstart.measurement import MIN_CELL_COUNT, plan_measurement
from adserver.quickstart.settings import DataSettings, Measured, MeasureSettings, TaskSettings
from helper.trust.floors import Floors
from maskedlark.errors import JobRefused
from maskedlark.model.dense import dense_network
from maskedlark.model.onnx_file import parse
from tests.adserver.quickstart.test_measurement import table


def test_the_floors_are_a_helpers_own_defaults() -> None:
    usual = asdict(Floors())
    assert asdict(FLOORS) == {name: usual[name] for name in asdict(FLOORS)}


def test_the_helpers_are_started_with_every_floor() -> None:
    assert FLOORS.options[::2] == (
        *("--min-batch-size-floor", "--max-epsilon", "--max-collusion-epsilon"),
        *("--max-dataset-bytes", "--max-round-seconds", "--max-parameters"),
    )
    assert FLOORS.options[1::2] == tuple(map(str, asdict(FLOORS).values()))


@pytest.mark.parametrize(
    ("changed", "problems"),
    [
        ({}, []),
        ({"epsilon": 8.0, "collusion_epsilon": 16.0, "min_batch_size": 20}, []),
        (
            {"epsilon": 8.1},
            ["[task] epsilon is 8.1, but this project's helpers allow at most 8: lower it"],
        ),
        (
            {"collusion_epsilon": 60.0},
            ["[task] collusion_epsilon is 60, but this project's helpers allow at most 16: lower it"],
        ),
        (
            {"min_batch_size": 19},
            ["[task] min_batch_size is 19, but this project's helpers require at least 20: raise it"],
        ),
    ],
)
def test_a_setting_is_a_problem_where_a_helper_refuses_the_task(
    changed: dict[str, Any], problems: list[str]
) -> None:
    settings = TaskSettings(**{"collusion_epsilon": 16.0, **changed})
    assert [*FLOORS.find_task_problems(settings)] == problems
    try:
        Floors().check(unsigned_task(settings))
    except JobRefused:
        assert problems
    else:
        assert not problems


@pytest.mark.parametrize(("features", "is_refused"), [(4_000, False), (4_100, True)])
def test_a_table_of_so_many_features_is_a_problem_where_a_helper_refuses_the_task(
    features: int, is_refused: bool
) -> None:
    task = unsigned_task(TaskSettings(), features=features)
    problems = [*FLOORS.find_size_problems(task)]
    assert bool(problems) is is_refused
    if is_refused:
        assert problems[0].startswith("[data] csv: up to 1,048,576 reports of 4,")
        assert "leave out columns ([data] ignore)" in problems[0]
        with pytest.raises(JobRefused, match="max_dataset_size times"):
            Floors().check(task)
    else:
        Floors().check(task)


def test_updates_of_too_large_a_model_are_a_problem_of_the_model() -> None:
    task = unsigned_task(TaskSettings(), devices=10_000, parameters=100_000)
    [problem] = FLOORS.find_size_problems(task)
    assert problem.startswith("[model]: up to 10,000 reports of ")
    with pytest.raises(JobRefused, match="max_dataset_size times"):
        Floors().check(task)


def test_a_measurement_hides_no_smaller_groups_than_helpers_allow() -> None:
    visits = table(paid=[row % 7 for row in range(400)])
    measure = MeasureSettings(values=(Measured(column="paid", most=6),))
    plan = plan_measurement(visits, DataSettings(), measure)
    assert plan is not None
    assert plan.declared.min_cell_count == MIN_CELL_COUNT
    Floors().check(unsigned_task(TaskSettings(), measurement=plan.declared))


@pytest.mark.parametrize(
    ("records", "widths", "why"),
    [
        (1_000, [3, 1], None),
        (10_000_000, [300, 3_000, 300, 2], "a round would take about "),
        (
            10,
            [3_000, 3_000, 1],
            "has 9,006,001 parameters, but this project's helpers allow at most 8,388,608",
        ),
    ],
)
def test_a_model_that_helpers_refuse_is_a_problem_of_its_setting(
    records: int, widths: list[int], why: str | None
) -> None:
    model = parse(dense_network(widths, "relu", seed=1, final="linear"), num_features=widths[0])
    found = [
        *FLOORS.find_model_problems(
            model, where="[model] hidden", is_exact=True, records=records, candidates=2
        )
    ]
    if why is None:
        assert not found
        return
    [problem] = found
    assert problem.startswith("[model] hidden")
    assert why in problem
