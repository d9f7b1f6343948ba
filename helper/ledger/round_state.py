"""The states of a round, and how a request for it is answered in each.

    state      followed by      a request for the round
    later      next, closed     is refused: ROUND_OUT_OF_ORDER
    next       charged, closed  computes it, and charges it as the answer is stored
    charged    closed           returns the stored answer
    closed     .                is refused: ROUND_CLOSED, or JOB_CLOSED once the job is
    unplanned  .                is refused: ROUND_BEYOND_PLAN

A request with other weights than those that the round was charged for is refused: ROUND_CHANGED.

There is no state for a delivered answer, because only the receiver knows whether it arrived: a charged round
counts as released. It is closed once `KEPT_ANSWERS` later rounds are charged, or its job is closed. The
ledger stores the job's progress and the kept answers. States follow from the progress, which never decreases.

>>> progress = Progress(rounds=10, rounds_answered=3, is_closed=False)
>>> progress.state_of(3)
<RoundState.NEXT: 'next'>
>>> progress.state_of(0)
<RoundState.CLOSED: 'closed'>
"""

from enum import StrEnum, unique
from typing import Final

from maskedlark.errors import JobReason, JobRefused
from maskedlark.frozen import frozen

KEPT_ANSWERS: Final = 2
"""Answers that a helper keeps of a job: of the rounds charged last."""


@unique
class RoundState(StrEnum):
    """Where a round is in its life."""

    LATER = "later"
    NEXT = "next"
    CHARGED = "charged"
    """Its budget is spent, and its answer given as often as it is asked for."""
    CLOSED = "closed"
    """The answer is gone, or never was; nothing is spent on it any more."""
    UNPLANNED = "unplanned"


@frozen
class Progress:
    """How far a job is.

    Attributes:
        rounds: How many it plans.
        rounds_answered: How many are charged: the first ones.
        is_closed: Whether it is over.
    """

    rounds: int
    rounds_answered: int
    is_closed: bool

    def state_of(self, round_index: int) -> RoundState:
        """Return the state of a round, from 0."""
        if round_index >= self.rounds:
            return RoundState.UNPLANNED
        if self.is_closed or round_index < self.rounds_answered - KEPT_ANSWERS:
            return RoundState.CLOSED
        if round_index < self.rounds_answered:
            return RoundState.CHARGED
        return RoundState.NEXT if round_index == self.rounds_answered else RoundState.LATER

    def check_answerable(self, round_index: int) -> None:
        """Refuse a round that is not answerable: only the next round and charged ones are.

        Raises:
            JobRefused(JOB_CLOSED, ROUND_BEYOND_PLAN, ROUND_OUT_OF_ORDER, ROUND_CLOSED)
        """
        state = self.state_of(round_index)
        # First: every round of a closed job is closed too, and the job is what its caller must be told of.
        if self.is_closed:
            raise JobRefused(
                JobReason.JOB_CLOSED,
                "the job is closed, so its rounds are no longer answered: submit a new one",
            )
        if state is RoundState.UNPLANNED:
            raise JobRefused(
                JobReason.ROUND_BEYOND_PLAN,
                f"round {round_index} is beyond the job's {self.rounds} rounds",
            )
        if state is RoundState.LATER:
            raise JobRefused(
                JobReason.ROUND_OUT_OF_ORDER,
                f"round {round_index} is out of order: the next round is {self.rounds_answered}",
            )
        if state is RoundState.CLOSED:
            raise JobRefused(
                JobReason.ROUND_CLOSED,
                f"the answer to round {round_index} is no longer stored, because the job has moved "
                "on: continue with its next round",
            )
