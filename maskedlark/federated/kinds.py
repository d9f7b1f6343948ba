"""The choices of federated training by name, without what trains: command lines import them."""

from enum import StrEnum, unique
from typing import Final

STRATEGY_KINDS: Final = ("dp-fedavg", "dp-fedsgd", "client-level", "line", "fedprox")
"""The keys of `maskedlark.federated.strategies.STRATEGIES`, in its order."""


@unique
class ServerOptimizerKind(StrEnum):
    """How a mean update becomes a step."""

    AVERAGING = "averaging"
    MOMENTUM = "momentum"
    ADAM = "adam"
    YOGI = "yogi"


@unique
class NoiseUnit(StrEnum):
    """What the epsilon of one update protects."""

    FEATURE = "feature"
    MODEL = "model"
