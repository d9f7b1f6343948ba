"""Every pair of a state and an event, against a table written by hand from the module's picture of it."""

import pytest

from adserver.records import job_state
from adserver.records.job_state import FINAL, LEASED, STOPPED, JobEvent, JobState
from maskedlark.errors import JobReason
from tests.refusals import refused


def drawn_table() -> dict[tuple[JobState, JobEvent], JobState | None]:
    """The table in the module's docstring, read back."""
    assert job_state.__doc__
    lines = [line.split() for line in job_state.__doc__.splitlines()]
    head = next(line for line in lines if line[:1] == ["state"])
    events = [JobEvent(name) for name in head[1:]]
    rows = {
        JobState(line[0]): line[1:] for line in lines if len(line) == len(head) and line[0] in set(JobState)
    }
    assert set(events) == set(JobEvent)
    assert set(rows) == set(JobState)
    return {
        (state, event): None if cell == "." else JobState(cell)
        for state, cells in rows.items()
        for event, cell in zip(events, cells, strict=True)
    }


@pytest.mark.parametrize(("state", "event"), [(state, event) for state in JobState for event in JobEvent])
def test_every_event_leads_where_the_drawn_table_says(state: JobState, event: JobEvent) -> None:
    expected = drawn_table()[state, event]
    if expected is not None:
        assert state.after(event) is expected
        return
    with refused(JobReason.WRONG_STATE):
        state.after(event)


def test_what_nothing_leaves_is_final() -> None:
    left = {state for (state, _), following in drawn_table().items() if following is not None}
    assert set(JobState) - left == FINAL


def test_every_job_can_still_end() -> None:
    """From each state some sequence of events leads to done."""
    ending = {JobState.DONE, JobState.CANCELLED}
    leading = {state for state in JobState if state in ending}
    for _ in JobState:
        leading |= {state for (state, _), following in drawn_table().items() if following in leading}
    assert leading == set(JobState)


def test_a_stopped_job_belongs_to_no_worker() -> None:
    assert not STOPPED & LEASED
