"""The life of a report at the ad server, decided in one place.

Which events are possible in which state, and where they lead.

    state     take    drop     release   expire
    received  sealed  .        .         expired
    sealed    .       dropped  received  .
    dropped   .       .        received  .
    expired   .       .        .         .

A report is in one dataset at most, and in one for good once both helpers have committed it: nothing is
released from a dataset that is committed (`adserver.records.dataset_state`). `adserver.store.reports` moves
many reports in one statement, which it makes of this table: a report in another state is passed over.

>>> [(before.value, after.value) for before, after in ReportEvent.TAKE.arrows.items()]
[('received', 'sealed')]
"""

from collections.abc import Mapping
from enum import StrEnum, unique
from typing import Final


@unique
class ReportState(StrEnum):
    """What became of a report."""

    RECEIVED = "received"
    """It waits for a dataset."""
    SEALED = "sealed"
    """A dataset took it."""
    DROPPED = "dropped"
    """A dataset took it, and not both helpers admit it, or they read it differently."""
    EXPIRED = "expired"
    """Its task was over before a dataset took it.

    It is deleted, and counted. Intakes refuse reports of its task, so it is not received again.
    """


@unique
class ReportEvent(StrEnum):
    """What happens to a report."""

    TAKE = "take"
    """A dataset is begun."""
    DROP = "drop"
    """It is fixed which reports the dataset holds, and this one is none of them."""
    RELEASE = "release"
    """The dataset was not committed, and is forgotten."""
    EXPIRE = "expire"
    """The task has been over for a while."""

    @property
    def arrows(self) -> Mapping[ReportState, ReportState]:
        """Each state in which the event is possible, with the state that it leads to."""
        return _ARROWS[self]


_ARROWS: Final[Mapping[ReportEvent, Mapping[ReportState, ReportState]]] = {
    ReportEvent.TAKE: {ReportState.RECEIVED: ReportState.SEALED},
    ReportEvent.DROP: {ReportState.SEALED: ReportState.DROPPED},
    # Dropped ones too: only of this dataset did a helper not admit them, and the next one asks again.
    ReportEvent.RELEASE: {
        ReportState.SEALED: ReportState.RECEIVED,
        ReportState.DROPPED: ReportState.RECEIVED,
    },
    ReportEvent.EXPIRE: {ReportState.RECEIVED: ReportState.EXPIRED},
}
