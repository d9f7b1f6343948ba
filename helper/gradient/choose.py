"""Which gradient engine runs a job.

The exact one where the model has an exact form, else the general one, if it is installed.
"""

from helper.gradient.engine import GradientEngine
from helper.gradient.exact.engine import ExactEngine
from helper.gradient.exact.layers.layer import NotExact
from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.model.graph import Model
from maskedlark.model.heads import TrainedLoss, check_trained
from maskedlark.privacy.clip import Clip


def choose_engine(
    model: Model, loss: TrainedLoss, clip: Clip, num_classes: int | None, *, threads: int = 1
) -> GradientEngine:
    """Return the engine of a job. Called by a helper when a job opens.

    Both helpers choose alike: the choice depends on the arguments alone, and a helper without torch refuses
    what it cannot run.

    Raises:
        InvalidModel: WRONG_LOSS (the loss does not fit the model and the task's classes), or UNKNOWN_OPERATOR
            (the model needs the general path, which this helper has not installed).
        JobRefused(OVERFLOW): the clip bound is too large for the engine.
    """
    check_trained(model, loss, num_classes)
    try:
        return ExactEngine(model, loss, clip, threads=threads)
    except NotExact as not_exact:
        why = str(not_exact)
    try:
        from helper.gradient.general.engine import GeneralEngine
    except ImportError:
        message = f"{why}, and the general path needs torch at this helper: pip install 'masked-lark[torch]'"
        raise InvalidModel(ModelReason.UNKNOWN_OPERATOR, message) from None
    return GeneralEngine(model, loss, clip, num_classes, why=why)
