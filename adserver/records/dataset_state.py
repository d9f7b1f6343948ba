"""The life of a dataset at the ad server, decided in one place.

Which events are possible in which state, and where they lead.

    state       choose      finish     release
    preparing   committing  .          aborted
    committing  .           committed  aborted
    committed   .           committed  .
    aborted     .           .          .

An aborted dataset is forgotten: its row goes in the same transaction, and its reports wait again.

>>> DatasetState.PREPARING.after(DatasetEvent.CHOOSE).value
'committing'
"""

from collections.abc import Mapping
from enum import StrEnum, unique
from typing import Final

from maskedlark.errors import JobReason, JobRefused


@unique
class DatasetState(StrEnum):
    """How far the sealing of a dataset has come."""

    PREPARING = "preparing"
    """The helpers open its shares."""
    COMMITTING = "committing"
    """Its reports are fixed; not known yet that both helpers have committed them."""
    COMMITTED = "committed"
    """Both helpers have it."""
    ABORTED = "aborted"
    """It was given up. Never stored: see above."""

    def after(self, event: "DatasetEvent") -> "DatasetState":
        """Return the state that an event leads to.

        Raises:
            JobRefused(DATASET_CHANGED): the event is not possible in this state: another run, or a person,
                was faster.
        """
        following = _AFTER[self].get(event)
        if following is None:
            raise JobRefused(
                JobReason.DATASET_CHANGED,
                f"a dataset in state {self} cannot {event}: see `adserver dataset list`",
            )
        return following


@unique
class DatasetEvent(StrEnum):
    """What happens to a dataset."""

    CHOOSE = "choose"
    """Both helpers have prepared it, and it is fixed which reports it holds."""
    FINISH = "finish"
    """Both helpers have committed it."""
    RELEASE = "release"
    """A run failed, another one took over, or a person gave it up."""


_AFTER: Final[Mapping[DatasetState, Mapping[DatasetEvent, DatasetState]]] = {
    DatasetState.PREPARING: {
        DatasetEvent.CHOOSE: DatasetState.COMMITTING,
        DatasetEvent.RELEASE: DatasetState.ABORTED,
    },
    DatasetState.COMMITTING: {
        DatasetEvent.FINISH: DatasetState.COMMITTED,
        DatasetEvent.RELEASE: DatasetState.ABORTED,
    },
    DatasetState.COMMITTED: {DatasetEvent.FINISH: DatasetState.COMMITTED},  # a run that was told late
    DatasetState.ABORTED: {},
}
