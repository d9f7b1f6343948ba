"""The derivative of each loss with respect to the model's outputs, in closed form.

The only part of a gradient that reads a label.
"""

import torch
from torch import Tensor

from maskedlark.model.heads import BoundHeads
from maskedlark.model.losses import Loss


def output_gradients(loss: Loss | BoundHeads, outputs: Tensor, labels: Tensor) -> Tensor:
    """Differentiate one record's loss by its outputs, for each of its candidate labels.

    Shapes: outputs float64 (c,); labels int64 (labels,); the result float64 (labels, c).

    Edge cases: binary cross entropy of a probability of exactly 0 or 1 is not finite where the label says
    otherwise. A label that is no code of the heads counts nothing.
    """
    if not isinstance(loss, BoundHeads):
        return _gradients(loss, outputs, labels.unsqueeze(1))
    is_code = (labels < loss.codes).to(torch.float64).unsqueeze(1)
    # A label beyond the codes is looked up as the last one, and its gradient times 0.
    codes = labels.clamp(max=loss.codes - 1)
    columns = [torch.zeros_like(is_code)] * len(outputs)
    for head in loss.heads:
        targets, weights = (
            torch.from_numpy(table)[codes].unsqueeze(1) for table in (head.targets, head.weights)
        )
        found = _gradients(head.loss, outputs[head.columns], targets) * weights * is_code
        columns[head.columns] = torch.split(found, 1, dim=1)
    return torch.cat(columns, 1)


def _gradients(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Differentiate a loss by its outputs (c,) for targets (labels, 1)."""
    truth = targets.to(torch.float64)
    match loss:
        case Loss.CROSS_ENTROPY:
            is_label = targets == torch.arange(len(outputs))
            return torch.softmax(outputs, 0) - is_label.to(torch.float64)
        case Loss.BINARY_CROSS_ENTROPY:
            # By `where`: the textbook's (p - y) / (p (1 - p)) is 0 / 0 where a certain output is right.
            return torch.where(truth > 0.5, -1.0 / outputs, 1.0 / (1.0 - outputs))
        case Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS:
            return torch.sigmoid(outputs) - truth
        case Loss.MSE:
            return 2.0 * (outputs - truth)
        case Loss.POISSON:
            return torch.exp(outputs) - truth
