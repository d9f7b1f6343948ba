"""A network trained plainly on labelled records, to show what a job's privacy costs.

    twin = train_plain_twin(model, loss, reported, panel)
    twin.evaluation.auc       # next to that of the job's model, on the same panel

Only an owner of the records in the clear can do this, as for a table of one's own in quickstart. The
twin has the job's network, first weights and records, and nothing is clipped or noised. It is trained as one
would train it without privacy: by Adam, in small batches, at several learning rates. Of all that it tries the
panel chooses, by the least loss.
"""

import math
from collections.abc import Iterator
from dataclasses import field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adserver.records.optimizer_kinds import OptimizerKind, ScheduleKind
from adserver.records.training_plan import Optimizer, Schedule
from adserver.training.eval_set import EvalSet
from adserver.training.inference import Evaluation, evaluate
from adserver.training.merged_parameters import separate_parameters
from adserver.training.optimizers import fresh_moments, step
from adserver.training.trainer import split
from maskedlark.frozen import frozen
from maskedlark.model.graph import Model
from maskedlark.model.heads import TrainedLoss
from maskedlark.model.onnx_file import parse, replace_parameters
from maskedlark.privacy.clip import Clip, Norm

_RATES: Final = (0.001, 0.003, 0.01, 0.03, 0.1)
_BATCH: Final = 512
_EPOCHS: Final = 10
_LEAST_STEPS: Final = 200
"""Of few records, which are not many steps in so many epochs."""
_CHECKS: Final = 20
"""How often each training is tested."""
_UNCLIPPED: Final = Clip(norm=Norm.L2, bound=math.inf, frac_bits=0)

_Weights = tuple[NDArray[np.float32], ...]


@frozen
class PlainTwin:
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


def train_plain_twin(encoded_model: bytes, loss: TrainedLoss, reported: EvalSet, panel: EvalSet) -> PlainTwin:
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
        for rate in _RATES:
            for epochs, weights in _train(model, loss, rate, reported):
                at = replace_parameters(encoded, model, weights)
                found = evaluate(at, panel.features, panel.labels, loss)
                if best is None or found.loss < least:
                    best = PlainTwin(model=at, evaluation=found, learning_rate=rate, epochs=epochs)
                    least = math.inf if math.isnan(found.loss) else found.loss
    if best is None:
        raise AssertionError("each training is tested before its first step")
    return best


def _train(
    model: Model, loss: TrainedLoss, rate: float, records: EvalSet
) -> Iterator[tuple[float, _Weights]]:
    """Yield epochs and weights: at the start, now and then, and at the end.

    The weights are changed when the next ones are asked for.
    """
    from maskedlark.autodiff.clipped_sums import ClippedSums

    sums, adam, schedule = ClippedSums(model, loss), OptimizerKind.ADAM, Schedule(kind=ScheduleKind.COSINE)
    masters = tuple(values.astype(np.float32) for values in model.initial_values)
    moments, draw = fresh_moments(adam, masters), np.random.default_rng(0)
    batch = min(_BATCH, len(records))
    steps = max(_LEAST_STEPS, _EPOCHS * len(records) // batch)
    yield 0.0, masters
    for done in range(steps):
        chosen = draw.choice(len(records), batch, replace=False)
        total = sums.of(masters, records.features[chosen], records.labels[chosen], _UNCLIPPED).vector
        with np.errstate(over="ignore", invalid="ignore"):
            step(
                Optimizer(kind=adam, learning_rate=rate),
                rate=rate * schedule.factor(done, steps),
                steps_taken=done,
                masters=masters,
                moments=moments,
                gradients=split(total / batch, model.parameters),
            )
        if (done + 1) % max(1, steps // _CHECKS) == 0 or done + 1 == steps:
            yield (done + 1) * batch / len(records), masters
