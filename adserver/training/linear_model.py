"""A linear model with an L2 penalty, trained in the clear: what an analyst without privacy tries first.

    fitted = fit_linear(encoder, loss, reported, panel, outputs=1)
    alone = cross_fit_linear(encoder, loss, panel, outputs=1)

Each word has a weight, and each number a straight line, with or without a weight for each sixteenth of its
bytes. The problem is convex: there is a penalty to choose, but no learning rate and no moment to stop. The
model is written as the default network over the columns, whose tables then hold the weights.
"""

from collections.abc import Iterator
from dataclasses import field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adserver.training.eval_set import EvalSet
from adserver.training.inference import Evaluation, evaluate
from adserver.training.logit_scaling import chances_of
from maskedlark.encoding.encoder import Encoder, NumberColumn
from maskedlark.frozen import frozen
from maskedlark.model.dense import dense_network
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse, replace_parameters
from maskedlark.model.table_network import WIDTH, table_network

PENALTIES: Final = (100.0, 30.0, 10.0, 3.0, 1.0)
"""What half the squared length of the weights counts, next to the sum of the records' losses."""
_BYTE: Final = 256
_BYTES_OF_A_BIN: Final = 16
_MOST_STEPS: Final = 200

Floats = NDArray[np.float64]


@frozen
class LinearFit:
    """The linear model whose penalty and form did best on the panel.

    Attributes:
        evaluation: How it does on the panel.
        loss: What its outputs are for: logits, where the given loss is of a probability.
        penalty: One of `PENALTIES`.
        are_numbers_in_bins: Whether a number has weights for its bins too.
        model: Its ONNX file; empty after a cross-fit, which has a model for each fold.
        outputs: After a cross-fit, those by which the panel's rows were scored (rows, outputs), in their
            order; else empty.
    """

    evaluation: Evaluation
    loss: Loss
    penalty: float
    are_numbers_in_bins: bool
    model: bytes = field(default=b"", repr=False)
    outputs: Floats = field(default_factory=lambda: np.empty((0, 0)), repr=False, compare=False)


def can_fit(encoder: Encoder | None, outputs: int) -> bool:
    """Return whether the network's tables have room for so many outputs."""
    return encoder is None or outputs <= WIDTH


def fit_linear(
    encoder: Encoder | None, loss: Loss, reported: EvalSet, panel: EvalSet, *, outputs: int
) -> LinearFit:
    """Train at each penalty in each form, and return the model with the least loss on the panel.

    Args:
        encoder: Of the features; None: each byte is a number.
        loss: Its labels and outputs.
        reported: The records to train on.
        panel: The records to choose by.
        outputs: The model's outputs, for which `can_fit` holds.
    """
    loss, found = _of_logits(loss), list[LinearFit]()
    for in_bins in _forms(encoder):
        columns = _Columns(encoder, panel.features.shape[1], outputs, in_bins=in_bins)
        for penalty, weights in _fits(columns, loss, reported):
            model = columns.network(weights)
            tested = evaluate(model, panel.features, panel.labels, loss)
            found.append(
                LinearFit(
                    evaluation=tested, loss=loss, penalty=penalty, are_numbers_in_bins=in_bins, model=model
                )
            )
    return min(found, key=lambda one: one.evaluation.loss)


def cross_fit_linear(encoder: Encoder | None, loss: Loss, panel: EvalSet, *, outputs: int) -> LinearFit:
    """Train on four fifths of a panel to score the other fifth, five times; return the least loss.

    Arguments are those of `fit_linear`. The folds are those of `plain_twin.cross_fit_panel`.
    """
    loss, found = _of_logits(loss), list[LinearFit]()
    for in_bins in _forms(encoder):
        columns = _Columns(encoder, panel.features.shape[1], outputs, in_bins=in_bins)
        scores = np.empty((len(PENALTIES), len(panel), outputs))
        for held, others in panel.folds():
            for at, (_, weights) in enumerate(_fits(columns, loss, others)):
                scores[at, held] = columns.outputs(weights, panel.features[held])
        for penalty, score in zip(PENALTIES, scores, strict=True):
            tested = Evaluation.of(score, panel.labels, loss)
            found.append(
                LinearFit(
                    evaluation=tested,
                    loss=loss,
                    penalty=penalty,
                    are_numbers_in_bins=in_bins,
                    outputs=score,
                )
            )
    return min(found, key=lambda one: one.evaluation.loss)


def _forms(encoder: Encoder | None) -> tuple[bool, ...]:
    """Return whether to put numbers in bins: what to try."""
    has_numbers = encoder is not None and any(isinstance(one, NumberColumn) for one in encoder.columns)
    return (False, True) if has_numbers else (False,)


class _Columns:
    """The columns of a record as inputs of a linear model, and the network that it is written as."""

    def __init__(self, encoder: Encoder | None, width: int, outputs: int, *, in_bins: bool) -> None:
        self._template = (
            dense_network([width, outputs], "relu", seed=0, final="linear")
            if encoder is None
            else table_network(encoder, hidden=(), outputs=outputs, seed=0, are_numbers_in_tables=in_bins)
        )
        self._model: Model = parse(self._template, num_features=width)
        rows = {one.name: one.shape[0] for one in self._model.parameters}
        # For each table, its first byte, how many it reads, and the places of its rows' weights.
        self._tables: list[tuple[int, int, NDArray[np.int64]]] = []
        images, numbers = ([] if encoder else list(range(width))), list[int]()
        start = self.words = 0
        for place, column in enumerate(encoder.columns if encoder else ()):
            is_number, bytes_ = isinstance(column, NumberColumn), range(start, start + column.num_bytes)
            if (count := rows.get(f"table.{place}", 0)) > 0:
                # Byte 0, that of a gap where a column has gaps, is alone in its bin.
                shift, size = (_BYTES_OF_A_BIN - 1, _BYTES_OF_A_BIN) if is_number else (0, 1)
                places = self.words + (np.arange(count) + shift) // size
                self._tables.append((start, column.num_bytes, places))
                self.words = int(places[-1]) + 1
            elif not is_number:
                images += bytes_
            numbers += bytes_ if is_number else []
            start = bytes_.stop
        self._numbers = [*images, *numbers]
        # The network's inputs of numbers are bytes around 128, those of images are bytes as they are.
        self._centres = np.array([0.0] * len(images) + [_BYTE / 2] * len(numbers))
        self._units = np.array([float(_BYTE)] * len(images) + [_BYTE / 2] * len(numbers))
        self.size = self.words + len(self._numbers)
        self.num_outputs = outputs

    def matrix(self, features: NDArray[np.uint8]) -> Any:
        """Return the inputs of records as a sparse matrix (records, size)."""
        from scipy.sparse import csr_array, hstack

        straight = csr_array((features[:, self._numbers] - self._centres) / self._units)
        ones, count = np.ones(len(features)), len(features)
        parts = [
            csr_array(
                (ones, (np.arange(count), places[_codes(features, start, length)])), (count, self.words)
            )
            for start, length, places in self._tables
        ]
        words = sum(parts[1:], parts[0]) if parts else csr_array((count, 0))
        return csr_array(hstack([words, straight]))

    def outputs(self, weights: Floats, features: NDArray[np.uint8]) -> Floats:
        """Return outputs (records, outputs) for weights (size + 1, outputs), the last row the bias."""
        return np.asarray(self.matrix(features) @ weights[:-1] + weights[-1])

    def network(self, weights: Floats) -> bytes:
        """Return the ONNX file with the weights of `outputs`."""
        kept, values = WIDTH * len(self._tables), []
        of_table = iter(self._tables)
        for parameter in self._model.parameters:
            value = np.zeros(parameter.shape)
            if parameter.name == "0.weight":
                value[:, :kept] = np.tile(np.eye(self.num_outputs, WIDTH), len(self._tables))
                value[:, kept:] = weights[self.words : -1].T
            elif parameter.name == "0.bias":
                value[:] = weights[-1]
            else:
                value[:, : self.num_outputs] = weights[next(of_table)[2]]
            values.append(value.astype(np.float32))
        return replace_parameters(self._template, self._model, values)


def _codes(features: NDArray[np.uint8], start: int, length: int) -> NDArray[np.int64]:
    """Return the row of a table that a column's bytes pick, lowest first."""
    return np.asarray(features[:, start : start + length].astype(np.int64) @ _BYTE ** np.arange(length))


def _fits(columns: _Columns, loss: Loss, records: EvalSet) -> Iterator[tuple[float, Floats]]:
    """Yield each penalty and its weights (size + 1, outputs)."""
    from scipy.optimize import minimize

    inputs = columns.matrix(records.features)
    # Numbers of one deviation, so that one penalty suits them and words.
    scale = np.ones(columns.size)
    straight = inputs[:, columns.words :].toarray()
    scale[columns.words :] = 1 / np.maximum(straight.std(axis=0), 1 / _BYTE)
    shape = (columns.size + 1, columns.num_outputs)
    at = np.zeros(shape)

    def cost(flat: Floats, penalty: float) -> tuple[float, Floats]:
        now = flat.reshape(shape)
        losses, slopes = _losses(inputs @ (now[:-1] * scale[:, None]) + now[-1], records.labels, loss)
        gradient = np.concatenate([(inputs.T @ slopes) * scale[:, None], slopes.sum(axis=0)[None]])
        gradient[:-1] += penalty * now[:-1]
        return losses + penalty / 2 * float((now[:-1] ** 2).sum()), gradient.ravel()

    for penalty in PENALTIES:
        # From the weights of the stronger penalty, which are near.
        solved = minimize(
            cost, at.ravel(), (penalty,), jac=True, method="L-BFGS-B", options={"maxiter": _MOST_STEPS}
        )
        at = np.asarray(solved.x).reshape(shape)
        yield penalty, np.concatenate([at[:-1] * scale[:, None], at[-1:]])


def _of_logits(loss: Loss) -> Loss:
    """Return the loss of the same labels for outputs that are not bounded."""
    return Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS if loss is Loss.BINARY_CROSS_ENTROPY else loss


def _losses(outputs: Floats, labels: NDArray[Any], loss: Loss) -> tuple[float, Floats]:
    """Return the sum of the records' losses, and its gradient by the outputs."""
    truth = labels.astype(np.float64)[:, None]
    match loss:
        case Loss.CROSS_ENTROPY:
            truth = (labels[:, None] == np.arange(outputs.shape[1])).astype(np.float64)
            total = np.logaddexp.reduce(outputs, axis=1, keepdims=True)
            return float(total.sum() - (truth * outputs).sum()), np.exp(outputs - total) - truth
        case Loss.MSE:
            return float(((outputs - truth) ** 2).sum()), 2 * (outputs - truth)
        case Loss.POISSON:
            # A first step may be too long: an infinite loss makes it shorter.
            with np.errstate(over="ignore"):
                rates = np.exp(outputs)
            return float((rates - truth * outputs).sum()), rates - truth
        case Loss.BINARY_CROSS_ENTROPY | Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS:
            losses = np.logaddexp(0.0, outputs) - truth * outputs
            return float(losses.sum()), chances_of(outputs) - truth
