"""Every path that a job takes leads its rounds along the arrows of docs/explanation/states.md."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helper.ledger.round_state import KEPT_ANSWERS, Progress, RoundState
from maskedlark.errors import JobReason
from tests.refusals import refused

ARROWS = {
    RoundState.LATER: {RoundState.NEXT, RoundState.CLOSED},
    RoundState.NEXT: {RoundState.CHARGED, RoundState.CLOSED},
    RoundState.CHARGED: {RoundState.CLOSED},
    RoundState.CLOSED: set(),
    RoundState.UNPLANNED: set(),
}
ROUNDS = 6


def states(progress: Progress) -> list[RoundState]:
    return [progress.state_of(index) for index in range(ROUNDS + 2)]


@given(charged=st.integers(0, ROUNDS))
def test_rounds_move_along_the_arrows_only(charged: int) -> None:
    progress = Progress(rounds=ROUNDS, rounds_answered=0, is_closed=False)
    path = [
        Progress(rounds=ROUNDS, rounds_answered=answered, is_closed=False) for answered in range(charged + 1)
    ]
    path.append(Progress(rounds=ROUNDS, rounds_answered=charged, is_closed=True))
    for following in path:
        for before, after in zip(states(progress), states(following), strict=True):
            assert before is after or after in ARROWS[before]
        progress = following
    assert set(states(progress)[:ROUNDS]) == {RoundState.CLOSED}


@given(charged=st.integers(0, ROUNDS))
def test_one_round_is_next_while_a_job_is_open_and_not_at_its_end(charged: int) -> None:
    found = states(Progress(rounds=ROUNDS, rounds_answered=charged, is_closed=False))
    assert found.count(RoundState.NEXT) == (charged < ROUNDS)
    assert found.count(RoundState.CHARGED) == min(charged, KEPT_ANSWERS)
    assert found.count(RoundState.UNPLANNED) == 2


@pytest.mark.parametrize(
    ("round_index", "answered", "is_closed", "reason"),
    [
        (ROUNDS, 3, False, JobReason.ROUND_BEYOND_PLAN),
        (4, 3, False, JobReason.ROUND_OUT_OF_ORDER),
        (3 - KEPT_ANSWERS - 1, 3, False, JobReason.ROUND_CLOSED),
        (3, 3, True, JobReason.JOB_CLOSED),
        (2, 3, True, JobReason.JOB_CLOSED),
        (ROUNDS, 3, True, JobReason.JOB_CLOSED),
    ],
)
def test_what_is_neither_next_nor_charged_is_refused(
    round_index: int, answered: int, is_closed: bool, reason: JobReason
) -> None:
    with refused(reason):
        Progress(rounds=ROUNDS, rounds_answered=answered, is_closed=is_closed).check_answerable(round_index)


@pytest.mark.parametrize("round_index", [1, 2, 3])
def test_what_is_next_or_charged_is_answered(round_index: int) -> None:
    Progress(rounds=ROUNDS, rounds_answered=3, is_closed=False).check_answerable(round_index)
