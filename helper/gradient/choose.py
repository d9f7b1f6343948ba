"""Which gradient engine runs a job."""

from helper.gradient.engine import GradientEngine
from maskedlark.clip import Clip
from maskedlark.model.graph import Loss, Model


def engine_for(model: Model, loss: Loss, clip: Clip, num_classes: int | None) -> GradientEngine:
    """The engine of a job. Called by a helper when a job opens.

    Raises:
        InvalidModel(WRONG_LOSS): the loss does not fit the model and the task's classes.
        JobRefused(OVERFLOW): the clip bound is too large for the engine.
    """
    from helper.gradient.general import GeneralEngine  # torch is only installed where this path is wanted

    return GeneralEngine(model, loss, clip, num_classes)
