"""What a rehearsal found, for programs."""

import math
from typing import Self

from adserver.messages.base import Message
from adserver.messages.budget import EpsilonsMessage
from adserver.training.rehearsal_training import Score
from adserver.training.rehearsed import Rehearsal, Rehearsed
from maskedlark.frozen import pick_attributes

_SAME = (
    "name",
    "epsilon",
    "noise_multiplier",
    "learning_rate",
    "clipped",
    "refused",
    "is_warm",
    "rule_rate",
    "rule_rounds",
    "is_default",
)


class _ScoreMessage(Message):
    """How one training did."""

    value: float
    measured: float
    loss: float
    mean_over_rate: float | None

    @classmethod
    def of(cls, score: Score) -> Self:
        """Describe a score."""
        return cls(**pick_attributes(score, ("value", "measured", "loss", "mean_over_rate")))


class _RehearsedMessage(Message):
    """One setting; `mean` and `spread` are over its scores, null where there are too few.

    `low` and `high` are the 99 % interval of what one job will reach, by the examples that were scored and
    the spread; null where a score has none. `rule_rate` is the job's learning rate where none is named, and
    `rule_rounds` are its rounds, null where they are named. One setting of each name is advised: that of the
    submission which `remarks` name.
    """

    name: str
    epsilon: float | None
    noise_multiplier: float
    learning_rate: float
    clipped: float | None
    refused: str
    is_warm: bool
    is_default: bool
    rule_rate: float | None
    rule_rounds: int | None
    costs: EpsilonsMessage | None
    scores: list[_ScoreMessage]
    mean: float | None
    spread: float | None
    low: float | None
    high: float | None
    is_advised: bool

    @classmethod
    def of(cls, one: Rehearsed, *, is_advised: bool) -> Self:
        """Describe a setting."""
        low, high = one.interval or (None, None)
        return cls(
            **pick_attributes(one, _SAME),
            low=low,
            high=high,
            costs=one.costs,
            scores=[_ScoreMessage.of(score) for score in one.scores],
            mean=one.value if one.scores else None,
            spread=None if math.isnan(one.spread) else one.spread,
            is_advised=is_advised,
        )


class RehearsalMessage(Message):
    """All settings of a rehearsal: `metric` says what a score's value is, `remarks` what to do next."""

    metric: str
    settings: list[_RehearsedMessage]
    remarks: list[str]

    @classmethod
    def of(cls, found: Rehearsal) -> Self:
        """Describe a rehearsal."""
        advised = {name: found.advised(name) for name in found.names()}
        settings = [_RehearsedMessage.of(one, is_advised=one == advised[one.name]) for one in found.settings]
        return cls(metric=found.metric, settings=settings, remarks=found.remarks())
