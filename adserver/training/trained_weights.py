"""Whether the weights of a network know something of a panel's labels: whether they were trained.

    know_labels(encoded, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, panel)

A pretraining may have seen another base rate, or left logits of another scale, so a loss above the base
rate's proves nothing. An area under the ROC curve away from a half proves nothing either: one feature lets
many untrained networks rank records. So the loss that calibrated outputs leave is compared with that of the
same network with the entries of each parameter in another order. Untrained entries of a parameter are drawn
independently from one distribution, so each order is as likely as the given one.
"""

from collections.abc import Sequence
from typing import Any, Final, assert_never

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from adserver.training.any_records import take_any_records
from adserver.training.eval_set import EvalSet
from adserver.training.inference import Evaluation, evaluate, run_graph
from maskedlark.model.graph import Model
from maskedlark.model.heads import Heads, TrainedLoss
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse

# A loss below this share of the base rate's is one of weights that were trained.
_KNOWS: Final = 0.99
# The same of calibrated outputs. Above this share, untrained networks are among them.
_KNOWS_CALIBRATED: Final = 0.8
# Trained weights are better than all of so many: untrained ones are once in 1,000 times. Fewer of a network
# of many weights.
_MOST_ORDERS: Final = 999
_FEWEST_ORDERS: Final = 49
# Of a larger panel so many records are drawn; fewer for a network of many weights.
_MOST_RECORDS: Final = 2_000
_FEWEST_RECORDS: Final = 500
# Records, orders and weights multiplied.
_MOST_PRODUCTS: Final = 1e11
# Of a loss: processors round otherwise, and a tie is no lead.
_TIE: Final = 1 + 1e-6
_BYTE: Final = 256.0
# From this version of the format on, an initializer that is an input too may be fed.
_FEEDS_INITIALIZERS: Final = 4


def know_labels(encoded: bytes, loss: TrainedLoss, panel: EvalSet) -> bool:
    """Return whether weights were trained on labels like the panel's.

    They were if their loss is below the base rate's, or far below it once the outputs are calibrated. Of two
    classes they also were if calibrated outputs leave less loss than those of 999 orders of the same entries.

    Guarantees: equal arguments give equal results. Untrained weights, whose entries are drawn independently
        from one distribution for each parameter, pass the comparison with probability 1/1,000 at most; of
        more than 200,000 weights there are fewer orders, 49 at least, and untrained ones pass more often.

    Edge cases: of several heads, counts (Poisson) and a panel of one label, nobody can tell: False.

    Raises:
        InvalidModel: the parser refuses the file, or onnxruntime cannot run it.
    """
    if (least := _least_without_features(panel, loss)) is None:
        return False
    # Outputs past float32 say nothing of the labels, which no comparison below takes for knowing them.
    with np.errstate(over="ignore", invalid="ignore"):
        found = evaluate(encoded, panel.features, panel.labels, loss)
    if found.loss < _KNOWS * least:
        return True
    if found.calibrated_loss is None or isinstance(loss, Heads):
        return False
    return found.calibrated_loss < _KNOWS_CALIBRATED * least or _beats_other_orders(encoded, loss, panel)


def _least_without_features(panel: EvalSet, loss: TrainedLoss) -> float | None:
    """Return the least loss of a constant output; None if weights cannot be told by it."""
    match loss:
        case Loss.BINARY_CROSS_ENTROPY | Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS | Loss.CROSS_ENTROPY:
            shares = np.unique(panel.labels, return_counts=True)[1] / len(panel)
            least = float(-(shares * np.log(shares)).sum())
        case Loss.MSE:
            least = float(np.var(panel.labels))
        case Loss.POISSON | Heads():
            return None
        case _:
            assert_never(loss)
    return least if least > 0 else None


def _beats_other_orders(encoded: bytes, loss: Loss, panel: EvalSet) -> bool:
    """Return whether calibrated outputs leave less loss than those of all other orders of entries."""
    random = np.random.default_rng(0)
    model = parse(encoded, num_features=panel.features.shape[1])
    at_once = _MOST_PRODUCTS / max(1, model.num_parameters)
    panel = _draw(panel, min(_MOST_RECORDS, max(_FEWEST_RECORDS, int(at_once / _MOST_ORDERS))), random)
    orders = min(_MOST_ORDERS, max(_FEWEST_ORDERS, int(at_once / len(panel))))
    compared = _FedWeights(encoded, model, loss, panel)
    given = compared.calibrated_loss(model.initial_values)
    for _ in range(orders):
        shuffled = [random.permutation(one.ravel()).reshape(one.shape) for one in model.initial_values]
        other = compared.calibrated_loss(shuffled)
        # Outputs that are no numbers say nothing of either.
        if given is None or other is None or other <= given * _TIE:
            return False
    return True


def _draw(panel: EvalSet, most: int, random: np.random.Generator) -> EvalSet:
    """Return at most so many records of a panel, up to half of them of the rarer label.

    Drawn without regard to labels, a panel of rare ones would have too few. Orders are compared on the same
    records, so what the draw depends on favours none.
    """
    if len(panel) <= most:
        return panel
    labels, counts = np.unique(panel.labels, return_counts=True)
    is_rarer = panel.labels == labels[counts.argmin()]
    rarer = random.permutation(np.flatnonzero(is_rarer))[: most // 2]
    others = random.permutation(np.flatnonzero(~is_rarer))[: most - len(rarer)]
    return panel.take(np.sort(np.concatenate([rarer, others])))


class _FedWeights:
    """A network that is run on a panel with weights that are fed to it."""

    def __init__(self, encoded: bytes, model: Model, loss: Loss, panel: EvalSet) -> None:
        # Else each record would be a run of its own.
        proto = onnx.ModelProto.FromString(take_any_records(encoded))
        declared = {one.name for one in proto.graph.input}
        proto.graph.input.extend(
            helper.make_tensor_value_info(one.name, TensorProto.FLOAT, one.shape)
            for one in model.parameters
            if one.name not in declared
        )
        proto.ir_version = max(proto.ir_version, _FEEDS_INITIALIZERS)
        self._encoded, self._model = bytes(proto.SerializeToString()), model
        self._loss, self._panel = loss, panel

    def calibrated_loss(self, values: Sequence[NDArray[np.float32]]) -> float | None:
        """Return `Evaluation.calibrated_loss` with such parameters."""
        weights = {one.name: value for one, value in zip(self._model.parameters, values, strict=True)}
        features, entry = self._panel.features, self._model.input_name

        def feed(rows: slice) -> dict[str, NDArray[Any]]:
            return {entry: features[rows].astype(np.float32) / np.float32(_BYTE), **weights}

        outputs = run_graph(self._encoded, feed, len(features), width=self._model.output_width)
        return Evaluation.of(outputs.astype(np.float64), self._panel.labels, self._loss).calibrated_loss
