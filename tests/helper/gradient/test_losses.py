"""Each member of `Loss` has the derivative of its own formula on both gradient paths."""

from collections.abc import Callable
from typing import Final

import numpy as np
import pytest
import torch
from torch import Tensor

from helper.gradient.exact.layers.losses import count_seeds, seeds
from maskedlark.autodiff.output_gradients import output_gradients
from maskedlark.model.losses import Loss

FORMULAS: Final[dict[Loss, Callable[[Tensor, int], Tensor]]] = {
    Loss.BINARY_CROSS_ENTROPY: lambda z, y: -(torch.log(z[0]) if y else torch.log(1 - z[0])),
    Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS: lambda z, y: torch.log(1 + torch.exp(z[0])) - y * z[0],
    Loss.CROSS_ENTROPY: lambda z, y: torch.logsumexp(z, 0) - z[y],
    Loss.MSE: lambda z, y: (z[0] - y) ** 2,
    Loss.POISSON: lambda z, y: torch.exp(z[0]) - y * z[0],
}
"""The formulas in the docstrings of `Loss`, written a second time."""
LABELS: Final = np.array([[0, 1], [1, 0], [1, 1]], np.uint32)


def outputs_of(loss: Loss) -> np.ndarray:
    """Three records' outputs; probabilities where the loss reads probabilities."""
    width = 3 if loss is Loss.CROSS_ENTROPY else 1
    drawn = np.random.default_rng(7).normal(0.0, 1.5, (3, width))
    return 1 / (1 + np.exp(-drawn)) if loss is Loss.BINARY_CROSS_ENTROPY else drawn


def derivatives(loss: Loss, outputs: np.ndarray) -> np.ndarray:
    """(records, labels, outputs) by automatic differentiation of the formula."""
    found = np.empty((*LABELS.shape, outputs.shape[1]))
    for record, labels in enumerate(LABELS):
        for k, label in enumerate(labels):
            z = torch.tensor(outputs[record], requires_grad=True)
            FORMULAS[loss](z, int(label)).backward()  # type: ignore[no-untyped-call] # torch ships no hints
            assert z.grad is not None
            found[record, k] = z.grad.numpy()
    return found


@pytest.mark.parametrize("loss", Loss)
def test_the_general_path_has_the_derivative_of_the_formula(loss: Loss) -> None:
    outputs = outputs_of(loss)
    found = [
        output_gradients(loss, torch.tensor(outputs[r]), torch.tensor(LABELS[r].astype(np.int64))).numpy()
        for r in range(3)
    ]
    np.testing.assert_allclose(np.stack(found), derivatives(loss, outputs), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", Loss)
def test_the_exact_path_has_the_derivative_of_the_formula(loss: Loss) -> None:
    outputs = outputs_of(loss)
    wanted = derivatives(loss, outputs)
    if loss is Loss.BINARY_CROSS_ENTROPY:  # the exact path reads the logit before the sigmoid
        wanted = wanted * (outputs * (1 - outputs))[:, None, :]
        outputs = np.log(outputs / (1 - outputs))
    made = seeds(loss, outputs, LABELS)
    assert len(made.deltas) == count_seeds(loss, LABELS.shape[1])
    deltas = np.broadcast_to(made.deltas, (LABELS.shape[1], *made.deltas.shape[1:]))
    found = made.coefficients[:, :, None] * deltas.transpose(1, 0, 2)
    # the exact path reads its exponential from a table, to some 5 decimal places
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
