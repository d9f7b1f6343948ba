"""A job's network trained plainly on labelled records: what privacy costs, and what it is worth.

    twin = train_plain_twin(model, loss, reported, panel)
    alone = cross_fit_panel(model, loss, panel)
    twin.evaluation.auc, alone.evaluation.auc       # next to that of the job's model, on the same panel

Only an owner of the records in the clear can train the twin, as for a table of one's own in quickstart. It
has the job's network, first weights and records, and nothing is clipped or noised. The panel alone is what an
owner has without asking anyone. Both are trained as one would train without privacy: by Adam with weight
decay, in small batches, at several learning rates. Of all that is tried the panel chooses, by the least loss.
`adserver.training.linear_model` has the model that few records suffice for.
"""

import math
from collections.abc import Callable
from dataclasses import field
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adserver.training.eval_set import FOLDS, EvalSet
from adserver.training.inference import Evaluation, evaluate, predict
from adserver.training.merged_parameters import separate_parameters
from adserver.training.plain_training import RATES, train_plainly
from maskedlark.frozen import frozen
from maskedlark.model.heads import TrainedLoss
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse, replace_parameters

DECAYS: Final = (3.0, 0.0)
"""Weight decays that are worth a trial, the one for few records first."""
TWIN_TRAININGS: Final = len(DECAYS) * len(RATES)
PANEL_TRAININGS: Final = len(RATES)
# A training whose loss has risen at so many tests in succession learns its records by heart.
_MOST_RISES: Final = 1
# Of the few records of a panel, whose trainings are many.
_BATCH_OF_PANEL: Final = 128


class _Rises:
    """Counts the tests in succession at which a training's loss did not fall."""

    def __init__(self) -> None:
        self._before, self._rises = math.inf, 0

    def are_too_many(self, loss: float) -> bool:
        """Take the next loss; return whether to stop."""
        self._rises = 0 if loss < self._before else self._rises + 1
        self._before = loss
        return self._rises > _MOST_RISES


@frozen
class PlainTwin:
    """The twin that did best on the panel.

    Attributes:
        model: Its ONNX file.
        evaluation: How it does on the panel.
        learning_rate: Adam's.
        weight_decay: One of `DECAYS`.
        epochs: How often it saw each record, on average.
    """

    model: bytes = field(repr=False)
    evaluation: Evaluation
    learning_rate: float
    weight_decay: float
    epochs: float


def train_plain_twin(
    encoded_model: bytes,
    loss: TrainedLoss,
    reported: EvalSet,
    panel: EvalSet,
    *,
    on_trained: Callable[[], None] = lambda: None,
) -> PlainTwin:
    """Train at several learning rates, and return the weights with the least loss on the panel.

    `on_trained` is called `TWIN_TRAININGS` times, after each training.

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
        for decay, rate in product(DECAYS, RATES):
            rising = _Rises()
            training = train_plainly(model, loss, rate, reported, np.random.default_rng(0), decay=decay)
            for epochs, weights in training:
                at = replace_parameters(encoded, model, weights)
                found = evaluate(at, panel.features, panel.labels, loss)
                if best is None or found.loss < least:
                    best = PlainTwin(
                        model=at, evaluation=found, learning_rate=rate, weight_decay=decay, epochs=epochs
                    )
                    # Nothing is less than NaN, which would win for good if it came first.
                    least = math.inf if math.isnan(found.loss) else found.loss
                if rising.are_too_many(found.loss):
                    break
            on_trained()
    if best is None:
        raise AssertionError("each training is tested before its first step")
    return best


@frozen
class PanelAlone:
    """The training on a panel alone that did best.

    Attributes:
        evaluation: How it does on the panel, each of whose rows was scored by a model that had not seen it.
        outputs: The outputs by which the rows were scored (rows, outputs), in the panel's order.
        learning_rate: Adam's.
        weight_decay: One of `DECAYS`.
        epochs: How often it saw each record, on average.
    """

    evaluation: Evaluation
    outputs: NDArray[np.float64] = field(repr=False, compare=False)
    learning_rate: float
    weight_decay: float
    epochs: float


def cross_fit_panel(
    encoded_model: bytes, loss: Loss, panel: EvalSet, *, on_trained: Callable[[], None] = lambda: None
) -> PanelAlone:
    """Train on four fifths of a panel to score the other fifth, five times, and return the least loss.

    The figures are of the same rows as those of the job's model, and no row was trained on by what scores it.
    Rate and moment are chosen by these rows, as the job's round and the twin's moment are. `on_trained` is
    called `PANEL_TRAININGS` times, after the five trainings at each rate.

    Guarantees: equal arguments give equal results on one kind of machine.

    Raises:
        InvalidModel: no model that a job could train.
        JobRefused(MALFORMED): records do not fit the model.
        ValueError: the panel has rows of fewer than `FOLDS` people.
    """
    from maskedlark.autodiff.one_thread import one_thread

    if panel.num_people < FOLDS:
        raise ValueError(f"the panel has rows of {panel.num_people} people: expected at least {FOLDS}")
    encoded = separate_parameters(encoded_model)
    model = parse(encoded, num_features=panel.features.shape[1])
    panel.check_fits(model, loss)
    folds = panel.folds()
    # So few records are learned by heart without it.
    decay = DECAYS[0]
    best, least = None, math.inf
    with one_thread():
        for rate in RATES:
            rising = _Rises()
            trainings = [
                train_plainly(
                    model, loss, rate, others, np.random.default_rng(0), decay=decay, batch=_BATCH_OF_PANEL
                )
                for _, others in folds
            ]
            # Folds differ by some rows, so one may be tested once more than another.
            for moments in zip(*trainings, strict=False):
                outputs = np.empty((len(panel), model.output_width))
                for (rows, _), (_, weights) in zip(folds, moments, strict=True):
                    outputs[rows] = predict(replace_parameters(encoded, model, weights), panel.features[rows])
                found = Evaluation.of(outputs, panel.labels, loss)
                if best is None or found.loss < least:
                    best = PanelAlone(
                        evaluation=found,
                        outputs=outputs,
                        learning_rate=rate,
                        weight_decay=decay,
                        epochs=moments[0][0],
                    )
                    # Nothing is less than NaN, which would win for good if it came first.
                    least = math.inf if math.isnan(found.loss) else found.loss
                if rising.are_too_many(found.loss):
                    break
            on_trained()
    if best is None:
        raise AssertionError("each training is tested before its first step")
    return best
