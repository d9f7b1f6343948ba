"""The losses, and which one goes with which model and label space.

Asked by the ad server before it plans a job and by both helpers before they run it. Command lines import it,
so it imports nothing that takes long.
"""

from enum import StrEnum, unique
from typing import TYPE_CHECKING, assert_never

from maskedlark.errors import InvalidModel, ModelReason

if TYPE_CHECKING:
    from maskedlark.model.graph import Model


@unique
class Loss(StrEnum):
    """The loss of one record, as a function of the model's output z and the label y.

    Gradients are of its sum over records.
    """

    BINARY_CROSS_ENTROPY = "binary_cross_entropy"
    """-y log z - (1 - y) log(1 - z); z is a probability, one output."""
    BINARY_CROSS_ENTROPY_WITH_LOGITS = "binary_cross_entropy_with_logits"
    """log(1 + e^z) - y z; one output."""
    CROSS_ENTROPY = "cross_entropy"
    """log sum_c e^(z_c) - z_y; one output a class (a trailing LogSoftmax is harmless)."""
    MSE = "mse"
    """(z - y)^2; one output."""
    POISSON = "poisson"
    """e^z - y z, the log-rate parameterisation; one output."""

    @classmethod
    def named(cls, name: str) -> "Loss":
        """Return the loss of a name.

        Raises:
            InvalidModel(UNKNOWN_LOSS)
        """
        try:
            return cls(name)
        except ValueError:
            raise InvalidModel(
                ModelReason.UNKNOWN_LOSS, f"unknown loss {name[:80]!r}: use one of {', '.join(cls)}"
            ) from None


def check_loss(model: "Model", loss: Loss, num_classes: int | None) -> None:
    """Refuse a loss that does not fit the model's outputs and the task's classes.

    Args:
        model: The model.
        loss: The loss.
        num_classes: The classes of the task, or None where labels are numbers.

    Raises:
        InvalidModel(WRONG_LOSS)
    """
    match loss:
        case Loss.CROSS_ENTROPY:
            if num_classes is None or model.output_width != num_classes:
                raise InvalidModel(
                    ModelReason.WRONG_LOSS,
                    f"{loss} needs an output for each class: the model has {model.output_width}, the task "
                    f"{num_classes}",
                )
        case Loss.BINARY_CROSS_ENTROPY | Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS:
            _check_one_output(model, loss)
            if num_classes != 2:
                raise InvalidModel(
                    ModelReason.WRONG_LOSS, f"{loss} needs a task of two classes, this one has {num_classes}"
                )
        case Loss.MSE | Loss.POISSON:
            _check_one_output(model, loss)
        case _:
            assert_never(loss)


def _check_one_output(model: "Model", loss: Loss) -> None:
    if model.output_width != 1:
        raise InvalidModel(
            ModelReason.WRONG_LOSS, f"{loss} needs a model of one output, this one has {model.output_width}"
        )
