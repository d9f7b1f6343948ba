"""A network trained plainly on labelled records, to show what a job's privacy costs.

    twin = train_plain_twin(model, loss, reported, panel)
    twin.evaluation.auc       # next to that of the job's model, on the same panel

Only an owner of the records in the clear can do this, as for a table of one's own in quickstart. The
twin has the job's network, first weights and records, and nothing is clipped or noised. It is trained as one
would train it without privacy: by Adam, in small batches, at several learning rates. Of all that it tries the
panel chooses, by the least loss.
"""

import math
from dataclasses import field

import numpy as np

from adserver.training.eval_set import EvalSet
from adserver.training.inference import Evaluation, evaluate
from adserver.training.merged_parameters import separate_parameters
from adserver.training.plain_training import RATES, train_plainly
from maskedlark.frozen import frozen
from maskedlark.model.heads import TrainedLoss
from maskedlark.model.onnx_file import parse, replace_parameters


@frozen
class _PlainTwin:
    """The twin that did best on the panel.

    Attributes:
        model: Its ONNX file.
        evaluation: How it does on the panel.
        learning_rate: Adam's.
        epochs: How often it saw each record, on average.
    """

    model: bytes = field(repr=False)
    evaluation: Evaluation
    learning_rate: float
    epochs: float


def train_plain_twin(
    encoded_model: bytes, loss: TrainedLoss, reported: EvalSet, panel: EvalSet
) -> _PlainTwin:
    """Train at several learning rates, and return the weights with the least loss on the panel.

    Guarantees: equal arguments give equal results on one kind of machine.

    Raises:
        InvalidModel: no model that a job could train.
        JobRefused(MALFORMED): records do not fit the model.
    """
    from maskedlark.autodiff.one_thread import one_thread

    encoded = separate_parameters(encoded_model)
    model = parse(encoded, num_features=reported.features.shape[1])
    for records in (reported, panel):
        records.check_fits(model, loss)
    best, least = None, math.inf
    with one_thread():
        for rate in RATES:
            for epochs, weights in train_plainly(model, loss, rate, reported, np.random.default_rng(0)):
                at = replace_parameters(encoded, model, weights)
                found = evaluate(at, panel.features, panel.labels, loss)
                if best is None or found.loss < least:
                    best = _PlainTwin(model=at, evaluation=found, learning_rate=rate, epochs=epochs)
                    # Nothing is less than NaN, which would win for good if it came first.
                    least = math.inf if math.isnan(found.loss) else found.loss
    if best is None:
        raise AssertionError("each training is tested before its first step")
    return best
