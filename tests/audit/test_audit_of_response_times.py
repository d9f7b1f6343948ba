"""The audit's attack by the time of an answer: how it judges, and what its records are."""

import numpy as np
import pytest

from maskedlark.model.onnx_file import parse
from tests.audit import response_times
from tests.audit.response_times import GATHERS, NUM_FEATURES, RECORDS, TRIES, TURNS, judge, stacked_gathers


def times(
    excess: float, noise: float = 0.1, busy: float = 0.3
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Times of a machine that now and then does something else, the second dataset's longer by an excess."""
    rng = np.random.default_rng(1)
    drawn = (
        1
        + noise * rng.random((2, TURNS * TRIES))
        + rng.exponential(2, (2, TURNS * TRIES)) * (rng.random((2, TURNS * TRIES)) < busy)
    )
    drawn[1] += excess
    return drawn


def test_equal_times_are_silent_on_a_busy_machine() -> None:
    found = judge(times(0.0))
    assert found.is_silent
    assert found.bound < 0.25


def test_a_time_that_is_longer_by_a_tenth_is_seen_on_a_busy_machine() -> None:
    found = judge(times(0.1))
    assert found.auc > 0.5 + found.bound


def test_the_model_stacks_gathers_and_one_record_is_worst() -> None:
    model = parse(stacked_gathers(), num_features=NUM_FEATURES)
    assert len(model.parameters) == GATHERS + 2
    plain, other = response_times._batches()
    assert len(plain) == len(other) == RECORDS
    assert [bool((a.features != b.features).any()) for a, b in zip(plain, other, strict=True)] == [False] * (
        RECORDS - 1
    ) + [True]


@pytest.mark.slow
@pytest.mark.long
def test_answers_take_as_long_for_any_record_and_walking_loops_are_caught() -> None:
    assert response_times.constant(5).claims == {"response_time_silent": True}
    assert response_times.walking(5).claims == {"walking_loops_caught": True}
