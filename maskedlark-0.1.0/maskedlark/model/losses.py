"""Which loss goes with which model and label space.

Asked by the ad server before it plans a job and by both helpers before they run it.
"""

from typing import Final

from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.model.graph import Loss, Model

_BINARY: Final = (Loss.BINARY_CROSS_ENTROPY, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS)


def loss_named(name: str) -> Loss:
    """The loss of a name.

    Raises:
        InvalidModel(UNKNOWN_LOSS)
    """
    try:
        return Loss(name)
    except ValueError:
        raise InvalidModel(
            ModelReason.UNKNOWN_LOSS, f"unknown loss {name[:80]!r}: use one of {', '.join(Loss)}"
        ) from None


def check_loss(model: Model, loss: Loss, num_classes: int | None) -> None:
    """Refuse a loss that does not fit the model's outputs and the task's classes.

    Args:
        model: The model.
        loss: The loss.
        num_classes: The classes of the task, or None where labels are numbers.

    Raises:
        InvalidModel(WRONG_LOSS)
    """
    if loss is Loss.CROSS_ENTROPY:
        if num_classes is None or model.output_width != num_classes:
            raise InvalidModel(
                ModelReason.WRONG_LOSS,
                f"{loss} needs an output for each class: the model has {model.output_width}, the task "
                f"{num_classes}",
            )
        return
    if model.output_width != 1:
        raise InvalidModel(
            ModelReason.WRONG_LOSS, f"{loss} needs a model of one output, this one has {model.output_width}"
        )
    if loss in _BINARY and num_classes != 2:
        raise InvalidModel(
            ModelReason.WRONG_LOSS, f"{loss} needs a task of two classes, this one has {num_classes}"
        )
