"""Small jobs without helpers for tests."""

from typing import Any

from maskedlark.federated.bounding import UpdateBound
from maskedlark.federated.draw_and_discard import DrawAndDiscard
from maskedlark.federated.local_description import LocalJob
from maskedlark.federated.local_job import local_job
from maskedlark.federated.local_training import LocalTraining
from maskedlark.federated.strategies.line import Line

WIDTHS = (4, 2)
PARAMETERS = 10
LINE_ID = b"l" * 16
DRAWS_ID = b"d" * 16


def line(**changes: Any) -> Line:
    """Three devices a round, two rounds, two logs an update."""
    settings: dict[str, Any] = {
        "devices": 3,
        "sampling_rate": 1.0,
        "rounds": 2,
        "noise_multiplier": 0.0,
        "bound": UpdateBound(clip_norm=1.0, frac_bits=24),
        "local": LocalTraining(epochs=1, batch_size=2, learning_rate=0.5),
    }
    return Line(**settings | changes)


def draws(**changes: Any) -> DrawAndDiscard:
    """Four instances."""
    return DrawAndDiscard(**{"instances": 4, "learning_rate": 0.01, "epsilon": 0.5} | changes)


def line_job(**changes: Any) -> LocalJob:
    return local_job(LINE_ID, line(**changes), WIDTHS)


def draws_job(**changes: Any) -> LocalJob:
    return local_job(DRAWS_ID, draws(**changes), WIDTHS)
