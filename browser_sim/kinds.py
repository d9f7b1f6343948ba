"""Where records and examples come from and what trains, by name: command lines import them."""

from enum import StrEnum, unique


@unique
class HoldingKind(StrEnum):
    """Where devices' examples come from."""

    MNIST = "mnist"
    CSV = "csv"
    TEXT = "text"


@unique
class TrainerKind(StrEnum):
    """What computes gradients on a device."""

    NUMPY = "numpy"
    TORCH = "torch"


@unique
class SourceKind(StrEnum):
    """Where records come from."""

    WBCD = "wbcd"
    CSV = "csv"
    MNIST = "mnist"
    SYNTHETIC = "synthetic"
