"""A trained model as it leaves the ad server."""

from dataclasses import field
from enum import StrEnum, unique

from maskedlark.frozen import frozen


@unique
class InputForm(StrEnum):
    """What an exported graph takes."""

    SCALED = "scaled"
    """float32: each feature's byte over 256."""
    BYTES = "bytes"
    """uint8: each feature's byte."""
    COLUMNS = "columns"
    """The raw columns of the task's encoder."""


@unique
class ModelWeights(StrEnum):
    """Which of a job's weights an exported model has."""

    LATEST = "latest"
    """Those after the last round that was done."""
    BEST = "best"
    """Those of the latest round whose loss on the job's evaluation set is within 1 % of the least.

    Of two classes that is the loss with the best scale and shift of the logit.
    """


@frozen
class ExportedModel:
    """A model and how far it was trained.

    Attributes:
        encoded: An ONNX file.
        rounds_done: Rounds whose steps are in it.
    """

    encoded: bytes = field(repr=False)
    rounds_done: int


@frozen
class CalibratedModel:
    """An exported model whose graph scales and shifts its logit.

    Attributes:
        exported: The model with both numbers in it.
        scale: Of the logit.
        shift: Of the scaled logit.
        warning: What leaves both numbers uncertain; empty if nothing does.
    """

    exported: ExportedModel
    scale: float
    shift: float
    warning: str = ""
