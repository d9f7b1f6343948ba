"""A model run forward over plain examples.

This is how the ad server sees what its training has learned, on its own data.

onnxruntime runs the file that the model came from, after the parser has accepted it, so that what is
evaluated is what was trained.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, assert_never

import numpy as np
from numpy.typing import NDArray

from adserver.records.round_figures import RoundFigures
from adserver.records.scored_loss import scored_loss
from adserver.training.defaults import CALIBRATE
from adserver.training.logit_scaling import chances_of, least_loss, logits_of
from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.frozen import frozen, pick_attributes
from maskedlark.model.graph import Model
from maskedlark.model.heads import UNITS, BoundHeads, Heads, TrainedLoss, bind
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_BATCH: Final = 1_024
_NOTHING_BUT_CRASHES: Final = 4
_SMALLEST_PROBABILITY: Final = 1e-12
# An area under the curve up to this is worth no more than a coin.
_CHANCE: Final = 0.52
_COIN: Final = 0.5
OFF: Final = 0.1
"""Predictions whose mean is further from the base rate than this share of it are worth a warning."""
ERRORS_OF_99: Final = 2.576
"""Standard errors on either side of a 99 % interval."""
OF_TWO_CLASSES: Final = (Loss.BINARY_CROSS_ENTROPY, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS)


@frozen
class Evaluation:
    """How a model does on examples.

    Attributes:
        loss: The mean loss of an example.
        accuracy: The share of examples whose class is right; None for the losses of numbers.
        auc: The chance that an example of class 1 has a higher score than one of class 0, ties counted half;
            None for other losses than those of two classes, and where one class is absent. Cross-entropy of
            two outputs is one of those, whose logit is their difference.
        auc_interval: The 99 % interval of the AUC for people like the examples, by Hanley and McNeil; None
            without an AUC. It knows nothing of which weights were chosen by the same examples.
        base_rate: The share of class 1 of two classes; of more, the share of the most frequent; None for the
            losses of numbers.
        mean_over_rate: The mean prediction of class 1 over its share; None for other losses than those of two
            classes, and where class 1 is absent.
        calibrated_loss: The mean loss with the scale and shift of the logit that make it least, as `model
            calibrate` finds them; None for other losses than those of two classes, and where one class is
            absent.
    """

    loss: float
    accuracy: float | None
    auc: float | None = None
    auc_interval: tuple[float, float] | None = None
    base_rate: float | None = None
    mean_over_rate: float | None = None
    calibrated_loss: float | None = None

    @classmethod
    def of(cls, outputs: NDArray[np.float64], labels: NDArray[Any], loss: Loss) -> "Evaluation":
        """Evaluate a model's outputs (examples, outputs); labels as of `evaluate`."""
        # Two outputs of cross-entropy are scored as the one logit that they are, so that both forms compare.
        same = loss
        if loss is Loss.CROSS_ENTROPY and outputs.shape[1] == 2:
            outputs, same = outputs[:, 1:] - outputs[:, :1], Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
        auc = _auc(outputs[:, 0], labels == 1) if same in OF_TWO_CLASSES else None
        return cls(
            loss=float(_losses(outputs, labels, same).mean()),
            accuracy=_accuracy(outputs, labels, same),
            auc=auc,
            auc_interval=None if auc is None else _area_interval(auc, labels == 1),
            base_rate=_base_rate(labels, same),
            mean_over_rate=_mean_over_rate(outputs[:, 0], labels == 1, same),
            calibrated_loss=(
                least_loss(logits_of(outputs[:, 0], same), labels == 1) if same in OF_TWO_CLASSES else None
            ),
        )

    def describe(self) -> str:
        """Return the figures in a line for a reader."""
        figures = {
            "accuracy": self.accuracy,
            "AUC": self.auc,
            "base rate": self.base_rate,
            "mean prediction over it": self.mean_over_rate,
        }
        shown = {name: f"{value:.4f}" for name, value in figures.items() if value is not None}
        if self.auc_interval is not None:
            shown["AUC"] += " (99 %: {:.3f} to {:.3f})".format(*self.auc_interval)
        return f"loss {self.loss:.4f}" + "".join(f", {name} {value}" for name, value in shown.items())

    def added_to(self, figures: RoundFigures) -> RoundFigures:
        """Return a round's figures with what is kept of its evaluation."""
        names = ("loss", "accuracy", "auc", "calibrated_loss")
        low, high = self.auc_interval or (None, None)
        return replace(figures, **pick_attributes(self, names), auc_low=low, auc_high=high)

    def warnings(self) -> tuple[str, ...]:
        """Return what is wrong with the model, if anything is, each with what to do about it."""
        found = []
        low = self.auc if self.auc_interval is None else self.auc_interval[0]
        if self.auc is not None and low is not None and (self.auc <= _CHANCE or low <= _COIN):
            shown = f"AUC {self.auc:.3f}" + (
                "" if self.auc_interval is None else ", 99 %: {:.3f} to {:.3f}".format(*self.auc_interval)
            )
            found.append(
                f"the scores order examples no better than chance, as far as these tell ({shown}): use more "
                "reports or a larger epsilon, and check that the features say something about the label"
            )
        is_of_many = self.auc is None and self.mean_over_rate is None and self.base_rate is not None
        if is_of_many and self.accuracy is not None and self.accuracy <= (self.base_rate or 0.0):
            found.append(
                f"always guessing the most frequent label is right as often (accuracy {self.accuracy:.3f}, "
                f"its share {self.base_rate:.3f}): use more reports or a larger epsilon, and check that the "
                "features say something about the label"
            )
        if self.mean_over_rate is not None and abs(self.mean_over_rate - 1) > OFF:
            found.append(
                f"the mean prediction is {self.mean_over_rate:.2f} of the base rate: run {CALIBRATE}, or use "
                "a larger --clip-norm"
            )
        return tuple(found)


def predict(encoded_model: bytes, features: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the model's outputs for each example. Called by the ad server.

    Shapes: features (examples, width), each byte b read as b / 256; the result (examples, outputs).

    Raises:
        InvalidModel: the parser refuses the model, or onnxruntime cannot run it.
    """
    model = parse(encoded_model, num_features=features.shape[1])

    def scale(rows: slice) -> dict[str, NDArray[Any]]:
        return {model.input_name: features[rows].astype(np.float32) / np.float32(256.0)}

    return run_graph(encoded_model, scale, len(features), width=model.output_width)


def run_graph(
    encoded_model: bytes, feed: Callable[[slice], Mapping[str, NDArray[Any]]], examples: int, *, width: int
) -> NDArray[np.float32]:
    """Run a graph on so many examples, some at a time, and return its outputs (examples, outputs) joined.

    Args:
        encoded_model: An ONNX file that onnxruntime runs.
        feed: Returns the graph's inputs for a slice of the examples.
        examples: How many there are.
        width: How many outputs the graph has, for no example.

    Raises:
        InvalidModel: onnxruntime cannot run the model.
    """
    outputs = []
    try:
        session = open_session(encoded_model)
        # Some exporters fix the number of records of a run to that of their example.
        batch = 1 if session.get_inputs()[0].shape[0] == 1 else _BATCH
        for start in range(0, examples, batch):
            found = session.run(None, dict(feed(slice(start, start + batch))))
            count = min(batch, examples - start)
            outputs.append(np.concatenate([part.reshape(count, -1) for part in found], axis=1))
    except ModuleNotFoundError:
        raise  # the command line says what to install
    except Exception as error:  # onnxruntime's exceptions have no common base but this
        raise InvalidModel(ModelReason.NOT_ONNX, f"onnxruntime cannot run the model: {error}") from error
    # No example gives no row, and not an error of what joins them.
    return np.concatenate(outputs or [np.empty((0, width), np.float32)])


def evaluate(
    encoded_model: bytes, features: NDArray[np.uint8], labels: NDArray[np.integer], loss: TrainedLoss
) -> Evaluation:
    """Return loss and accuracy on labelled examples. Called by the ad server after `check_trained`.

    Of several heads the loss is the sum over them that a job minimises, and there is no accuracy. Weights of
    two classes are left out, as of `scored_loss`.

    Shapes: features (examples, width), at least one example; labels (examples,): classes, or the numbers to
        be predicted.

    Edge cases: a binary probability is kept 1e-12 away from 0 and 1, so that the loss stays finite.

    Raises:
        InvalidModel: as `predict`.
        ValueError: there is no example, or not one label an example.
    """
    if not len(features) or labels.shape != (len(features),):
        raise ValueError(
            f"labels have the shape {labels.shape}: expected one for each of {len(features)} examples, "
            "and at least one example"
        )
    outputs = predict(encoded_model, features).astype(np.float64)
    loss = scored_loss(loss, outputs.shape[1])
    if isinstance(loss, Heads):
        model = parse(encoded_model, num_features=features.shape[1])
        return Evaluation(loss=float(_losses_of_heads(outputs, labels, loss, model).mean()), accuracy=None)
    return Evaluation.of(outputs, labels, loss)


def evaluate_heads(
    encoded_model: bytes, features: NDArray[np.uint8], labels: NDArray[np.integer], heads: Heads
) -> dict[str, Evaluation]:
    """Return how each head does on the examples whose label code says something about it, unweighted.

    Heads without such an example are left out. Shapes and errors as of `evaluate`; labels are codes.
    """
    outputs = predict(encoded_model, features).astype(np.float64)
    model = parse(encoded_model, num_features=features.shape[1])
    found = {}
    for head in heads.heads:
        rows = head.known_codes()[labels.astype(np.int64)]
        targets = np.array([target or 0 for target in head.targets]) / UNITS
        if rows.any():
            told = targets[labels[rows].astype(np.int64)]
            found[head.name] = Evaluation.of(outputs[rows][:, head.columns(model)], told, head.loss)
    return found


def check_loads(encoded: bytes) -> None:
    """Raise InvalidModel unless onnxruntime loads a graph of ours."""
    try:
        open_session(encoded)
    except ModuleNotFoundError:
        raise  # the command line says what to install
    except Exception as error:  # onnxruntime's exceptions have no common base but this
        raise InvalidModel(ModelReason.NOT_ONNX, f"onnxruntime cannot load the graph: {error}") from error


def open_session(encoded_model: bytes) -> "InferenceSession":
    """Load a graph into onnxruntime, on the processor; its exceptions have no common base."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Exporters declare output shapes that a larger batch exceeds: a warning a run. Errors are raised, too.
    options.log_severity_level = _NOTHING_BUT_CRASHES
    return onnxruntime.InferenceSession(encoded_model, options, providers=["CPUExecutionProvider"])


def _losses_of_heads(
    outputs: NDArray[np.float64], labels: NDArray[np.integer], heads: Heads, model: Model
) -> NDArray[np.float64]:
    """Return the sum of each example's weighted losses."""
    total = np.zeros(len(labels))
    bound = bind(heads, model)
    for head in bound.heads if isinstance(bound, BoundHeads) else ():
        targets, weights = (table[labels.astype(np.int64)] for table in (head.targets, head.weights))
        total += weights * _losses(outputs[:, head.columns], targets, head.loss)
    return total


def _losses(outputs: NDArray[np.float64], labels: NDArray[Any], loss: Loss) -> NDArray[np.float64]:
    """Return the loss of each example."""
    first, truth = outputs[:, 0], labels.astype(np.float64)
    match loss:
        case Loss.CROSS_ENTROPY:
            # The loss is the same for shifted outputs, and their exponentials cannot overflow.
            shifted = outputs - outputs.max(1, keepdims=True)
            chosen = np.take_along_axis(shifted, labels.astype(np.int64)[:, None], 1)[:, 0]
            return np.asarray(np.log(np.exp(shifted).sum(1)) - chosen)
        case Loss.BINARY_CROSS_ENTROPY:
            probability = first.clip(_SMALLEST_PROBABILITY, 1.0 - _SMALLEST_PROBABILITY)
            return -np.log(np.where(truth > 0.5, probability, 1.0 - probability))
        case Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS:
            # log(1 + e^x) of a large logit would overflow in the exponential.
            return np.asarray(np.logaddexp(0.0, first) - truth * first)
        case Loss.MSE:
            return np.asarray((first - truth) ** 2)
        case Loss.POISSON:
            return np.asarray(np.exp(first) - truth * first)


def _accuracy(outputs: NDArray[np.float64], labels: NDArray[Any], loss: Loss) -> float | None:
    match loss:
        case Loss.MSE | Loss.POISSON:
            return None
        case Loss.CROSS_ENTROPY:
            predicted = outputs.argmax(1)
        case Loss.BINARY_CROSS_ENTROPY:
            predicted = (outputs[:, 0] > 0.5).astype(np.int64)
        case Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS:
            predicted = (outputs[:, 0] > 0.0).astype(np.int64)
        case _:
            assert_never(loss)
    return float((predicted == labels).mean())


def _base_rate(labels: NDArray[Any], loss: Loss) -> float | None:
    match loss:
        case Loss.MSE | Loss.POISSON:
            return None
        case Loss.CROSS_ENTROPY:
            return float(np.unique(labels, return_counts=True)[1].max() / len(labels))
        case Loss.BINARY_CROSS_ENTROPY | Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS:
            return float((labels == 1).mean())
        case _:
            assert_never(loss)


def _mean_over_rate(scores: NDArray[np.float64], is_positive: NDArray[np.bool_], loss: Loss) -> float | None:
    """Return the mean prediction over the share of positives."""
    if loss not in OF_TWO_CLASSES or not is_positive.any():
        return None
    chance = scores if loss is Loss.BINARY_CROSS_ENTROPY else chances_of(scores)
    return float(chance.mean() / is_positive.mean())


def _auc(scores: NDArray[np.float64], is_positive: NDArray[np.bool_]) -> float | None:
    """Return the share of pairs of both classes that the scores put in order, ties counted half."""
    ascending = np.sort(scores)
    positives = scores[is_positive]
    # The mean rank of a score: half of those below it, and half of those not above it.
    below = np.searchsorted(ascending, positives, "left") + np.searchsorted(ascending, positives, "right")
    count, others = len(positives), len(scores) - len(positives)
    if not count or not others:
        return None
    # Positives were ranked among themselves too, half of each pair: that is taken off.
    return float((below.sum() / 2 - count * count / 2) / (count * others))


def area_error(area: float, positives: float, negatives: float) -> float:
    """Return the standard error of an area under the ROC curve over so many records of either label.

    Source: J. Hanley and B. McNeil, "The meaning and use of the area under a receiver operating
        characteristic (ROC) curve", Radiology 143, 1982.
    """
    of_positives, of_negatives = area / (2 - area), 2 * area**2 / (1 + area)
    variance = area * (1 - area)
    variance += (positives - 1) * (of_positives - area**2) + (negatives - 1) * (of_negatives - area**2)
    return math.sqrt(max(0.0, variance) / (positives * negatives))


def _area_interval(area: float, is_positive: NDArray[np.bool_]) -> tuple[float, float]:
    positives = float(is_positive.sum())
    negatives = len(is_positive) - positives
    pairs = positives * negatives
    # Half a pair away from 0 and 1: all pairs in order say little if they are few.
    error = ERRORS_OF_99 * area_error((area * pairs + 0.5) / (pairs + 1), positives, negatives)
    return max(0.0, area - error), min(1.0, area + error)
