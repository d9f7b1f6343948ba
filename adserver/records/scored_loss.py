"""By which loss predictions are scored, where a job minimises one that weighs two classes.

>>> weighted = Heads.of([{"output": "logit", "targets": [0, 1], "weights": [1, 5]}])
>>> scored_loss(weighted, 1).value, class_weights(weighted, 1)
('binary_cross_entropy_with_logits', (1.0, 5.0))
"""

from maskedlark.model.heads import UNITS, Heads, TrainedLoss
from maskedlark.model.losses import Loss


def scored_loss(loss: TrainedLoss, outputs: int) -> TrainedLoss:
    """Return the loss by which predictions are scored: without the weights, where heads are only those.

    One head weighs two classes if its targets are the label codes 0 and 1, both weights are above 0, and it
    reads all of the model's outputs. These are then of label 1 as without weights, but for a shift of the
    logit. Other heads, such as one whose targets are inverted or between 0 and 1, stay as they are.

    Args:
        loss: What a job minimises.
        outputs: How many columns the model's outputs have together.
    """
    if not isinstance(loss, Heads) or len(loss.heads) != 1:
        return loss
    (head,) = loss.heads
    columns = {Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS: 1, Loss.CROSS_ENTROPY: 2}.get(head.loss)
    return head.loss if columns == outputs and head.targets == (0, UNITS) and all(head.weights) else loss


def class_weights(loss: TrainedLoss, outputs: int) -> tuple[float, float]:
    """Return what either label's loss is multiplied with, where `scored_loss` leaves that out; else 1."""
    if isinstance(loss, Heads) and scored_loss(loss, outputs) is not loss:
        of_0, of_1 = loss.heads[0].weights
        return of_0 / UNITS, of_1 / UNITS
    return 1.0, 1.0
