"""The life of a job, decided in one place: which events are possible in which state, and where they lead.

    state      start    wait         go_on        release  finish  refuse   fail    cancel     resume
    queued     running  .            .            .        .       .        .       cancelled  .
    running    .        waiting      .            queued   done    refused  failed  cancelled  .
    waiting    .        waiting      running      queued   .       refused  failed  cancelled  .
    refused    .        .            .            .        .       .        .       cancelled  queued
    failed     .        .            .            .        .       .        .       cancelled  queued
    done       .        .            .            .        .       .        .       .          .
    cancelled  .        .            .            .        .       .        .       .          .
    open       .        .            .            .        done    .        .       closed     .
    closed     .        .            .            .        .       .        .       .          open

A running or waiting job belongs to one worker for as long as its lease lasts; once it has run out, whichever
worker sees it first releases the job. Refused and failed jobs stay open at the helpers, so that they can be
resumed where they were (one whose cause still stands stops again, and spends nothing); cancelling one gives
its unused budget back. Done and cancelled jobs are closed at the helpers, for good. A job without helpers is
open to devices, and no worker runs it; one that was closed keeps its model, and can be opened again.

>>> JobState.QUEUED.after(JobEvent.START).value
'running'
"""

from collections.abc import Mapping
from enum import StrEnum, unique
from typing import Final

from maskedlark.errors import JobReason, JobRefused


@unique
class JobState(StrEnum):
    """Where a job is in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    """A helper is down, and the round in flight is asked for again; or too few devices have answered one."""
    DONE = "done"
    REFUSED = "refused"
    """A helper, or the comparison of both helpers' answers, refused a round.

    Nothing of it was used. Where the comparison did, both helpers have charged it
    (`maskedlark.error_contract.Charged`).
    """
    FAILED = "failed"
    """The ad server could not go on: training diverged, a helper stayed away too long, or a bug."""
    CANCELLED = "cancelled"
    OPEN = "open"
    """Without helpers: it takes updates from devices."""
    CLOSED = "closed"
    """Without helpers: it takes none for now."""

    def after(self, event: "JobEvent") -> "JobState":
        """Return the state that an event leads to.

        Raises:
            JobRefused(WRONG_STATE): the event is not possible in this state.
        """
        following = _AFTER[self].get(event)
        if following is None:
            what = _PASSIVE.get(event, event.value.replace("_", " "))
            states = ", ".join(state for state in JobState if state.allows(event))
            raise JobRefused(
                JobReason.WRONG_STATE, f"a job in state {self} cannot {what}: expected one of {states}"
            )
        return following

    def allows(self, event: "JobEvent") -> bool:
        """Return whether an event can happen in this state."""
        return event in _AFTER[self]


@unique
class JobEvent(StrEnum):
    """What happens to a job."""

    START = "start"
    WAIT = "wait"
    GO_ON = "go_on"
    RELEASE = "release"
    """The worker stops, or its lease has run out: the job is left to the next one."""
    FINISH = "finish"
    REFUSE = "refuse"
    FAIL = "fail"
    CANCEL = "cancel"
    RESUME = "resume"


_PASSIVE: Final = {
    JobEvent.START: "be started",
    JobEvent.RELEASE: "be released",
    JobEvent.REFUSE: "be refused",
    JobEvent.CANCEL: "be cancelled",
    JobEvent.RESUME: "be resumed",
}
"""What is done to a job, in the words of errors; what it does itself has the name of its event."""

LEASED: Final = frozenset({JobState.RUNNING, JobState.WAITING})
"""States in which a job belongs to a worker."""

FINAL: Final = frozenset({JobState.DONE, JobState.CANCELLED})
"""States that nothing leaves; the job is closed at both helpers."""

STOPPED: Final = FINAL | {JobState.REFUSED, JobState.FAILED, JobState.CLOSED}
"""States in which nothing happens until somebody asks."""

_AT_A_WORKER: Final = {
    JobEvent.WAIT: JobState.WAITING,
    JobEvent.RELEASE: JobState.QUEUED,
    JobEvent.REFUSE: JobState.REFUSED,
    JobEvent.FAIL: JobState.FAILED,
    JobEvent.CANCEL: JobState.CANCELLED,
}
_STOPPED_EARLY: Final = {JobEvent.CANCEL: JobState.CANCELLED, JobEvent.RESUME: JobState.QUEUED}

_AFTER: Final[Mapping[JobState, Mapping[JobEvent, JobState]]] = {
    JobState.QUEUED: {JobEvent.START: JobState.RUNNING, JobEvent.CANCEL: JobState.CANCELLED},
    JobState.RUNNING: {**_AT_A_WORKER, JobEvent.FINISH: JobState.DONE},
    JobState.WAITING: {**_AT_A_WORKER, JobEvent.GO_ON: JobState.RUNNING},
    JobState.REFUSED: _STOPPED_EARLY,
    JobState.FAILED: _STOPPED_EARLY,
    JobState.DONE: {},
    JobState.CANCELLED: {},
    JobState.OPEN: {JobEvent.FINISH: JobState.DONE, JobEvent.CANCEL: JobState.CLOSED},
    JobState.CLOSED: {JobEvent.RESUME: JobState.OPEN},
}
