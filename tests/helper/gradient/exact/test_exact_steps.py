"""The exact path executes the same steps whatever records hold: constant, random, zero and worst ones.

Instructions are counted where a process may step its child (`stepping`), and lines of loops that are not
compiled everywhere. The counts are exact: they know no clock.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helper.gradient.exact.step_cases import CASES, PROOFS, Counts, clipped
from tests.helper.gradient.exact.stepping import can_step

ROOT = Path(__file__).resolve().parents[4]
SOON = {"gates", "gathers", "wide_ids"}
"""What a record's values chose the steps of, once; the others are counted by the longest tests."""


def count(*arguments: str, **environment: str) -> dict[str, Counts]:
    """The counts of a process of its own, by case and kind of records."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.helper.gradient.exact.step_cases", *arguments],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    found: dict[str, Counts] = json.loads(done.stdout)
    return found


def unequal(counted: dict[str, Counts]) -> set[tuple[str, str]]:
    """The loops, by case, that do not take the same steps for all kinds of records."""
    return {
        (case, loop)
        for case, kinds in counted.items()
        for loop in {loop for counts in kinds.values() for loop in counts}
        if len({counts.get(loop, 0) for counts in kinds.values()}) > 1
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lines_are_the_same_for_all_records_and_old_loops_are_caught() -> None:
    counted = count("--lines", "gathers", "wide_ids", NUMBA_DISABLE_JIT="1")
    assert min(counts["_gather_equal"] for kinds in counted.values() for counts in kinds.values()) > 0
    assert unequal(counted) == set()
    old = count("--lines", "--old", "gathers", "wide_ids", "gates", NUMBA_DISABLE_JIT="1")
    caught = {("gathers", "gather_walking"), ("wide_ids", "gather_walking"), ("gates", "quantise_leaving")}
    assert caught <= unequal(old)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lines_of_every_kind_of_model_are_the_same_for_all_records() -> None:
    assert unequal(count("--lines", NUMBA_DISABLE_JIT="1")) == set()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not can_step(), reason="this machine lets no process step its child")
@pytest.mark.parametrize(
    ("cases", "loops"),
    [
        pytest.param((*SOON, PROOFS), 15, id="some"),
        pytest.param(tuple(CASES.keys() - SOON), 20, id="others", marks=pytest.mark.long),
    ],
)
def test_instructions_of_every_kind_of_model_are_the_same_for_all_records(
    cases: tuple[str, ...], loops: int
) -> None:
    counted = count(*sorted(cases))
    assert set(counted) == set(cases)
    assert unequal(counted) == set()
    steps = {loop for kinds in counted.values() for counts in kinds.values() for loop in counts}
    assert len(steps) > loops


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not can_step(), reason="this machine lets no process step its child")
def test_instructions_of_old_loops_differ() -> None:
    old = unequal(count("--old", "gathers", "wide_ids"))
    assert old == {("gathers", "_gather_equal"), ("wide_ids", "_gather_equal")}


def test_records_are_tried_that_are_clipped_and_that_are_not() -> None:
    assert clipped("gates") == [False, True]
    assert clipped("gathers") == [False, True]
