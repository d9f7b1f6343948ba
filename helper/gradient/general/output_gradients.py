"""The derivative of each loss with respect to the model's outputs, in closed form.

The only part of a gradient that reads a label.
"""

import torch
from torch import Tensor

from maskedlark.model.losses import Loss


def output_gradients(loss: Loss, outputs: Tensor, labels: Tensor) -> Tensor:
    """Differentiate one record's loss by its outputs, for each of its candidate labels.

    Shapes: outputs float64 (c,); labels int64 (labels,); the result float64 (labels, c).

    Edge cases: binary cross entropy of a probability of exactly 0 or 1 is not finite where the label says
    otherwise.
    """
    truth = labels.to(torch.float64).unsqueeze(1)
    match loss:
        case Loss.CROSS_ENTROPY:
            is_label = labels.unsqueeze(1) == torch.arange(len(outputs))
            return torch.softmax(outputs, 0) - is_label.to(torch.float64)
        case Loss.BINARY_CROSS_ENTROPY:
            return torch.where(truth > 0.5, -1.0 / outputs, 1.0 / (1.0 - outputs))
        case Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS:
            return torch.sigmoid(outputs) - truth
        case Loss.MSE:
            return 2.0 * (outputs - truth)
        case Loss.POISSON:
            return torch.exp(outputs) - truth
