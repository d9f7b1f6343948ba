"""The claim that every exact graph must meet.

Helpers recombine to the oracle's integers, near autograd, one digest.
"""

from dataclasses import dataclass

import numpy as np

from helper.gradient.exact.engine import ExactEngine
from helper.gradient.exact.products.float64 import Float64Backend
from helper.gradient.exact.products.int8 import Int8Backend
from maskedlark.model.graph import Model
from maskedlark.model.heads import TrainedLoss
from maskedlark.model.losses import Loss
from maskedlark.numbers.field import MODULUS, reconstruct, to_signed
from maskedlark.privacy.clip import Clip
from tests.helper.gradient.exact.graphs import Example, autograd_sum, example, quantised
from tests.helper.gradient.exact.oracle import clipped_integers, norm_at_most, values_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the oracle says of a batch.

    The sum over real labels of clipped integers, modulo p, and the digest.
    """

    total: list[int]
    digest: bytes


def expected(model: Model, clip: Clip, loss: TrainedLoss, made: Example) -> Expected:
    """Also checks each record's norm on the way."""
    weights = quantised(model)
    total, hashes = [0] * model.num_parameters, []
    for features, labels, real in zip(made.features, made.labels, made.real, strict=True):
        found = clipped_integers(
            model, weights, clip=clip, loss=loss, features=features, labels=[int(label) for label in labels]
        )
        assert all(norm_at_most(vector, clip) for vector in found.vectors)
        hashes.append(found.hash)
        if real >= 0:
            total = [a + b for a, b in zip(total, found.vectors[real], strict=True)]
    return Expected(total=[value % MODULUS for value in total], digest=values_digest(hashes))


def check_example(model: Model, loss: Loss, clip: Clip, made: Example) -> None:
    weights = quantised(model)
    first = ExactEngine(model, loss, clip, backend=Int8Backend(base_bits=7)).masked_sum(
        weights, made.batch(0)
    )
    second = ExactEngine(model, loss, clip, threads=2, backend=Float64Backend()).masked_sum(
        weights, made.shuffled(1, seed=1)
    )
    right = expected(model, clip, loss, made)
    assert first.values_digest == second.values_digest == right.digest
    got = reconstruct(first.vector, second.vector)
    assert got.tolist() == right.total
    want = autograd_sum(model, weights, clip, loss, made)
    difference = np.linalg.norm(np.ldexp(to_signed(got).astype(np.float64), -clip.frac_bits) - want)
    assert difference <= 0.01 * np.linalg.norm(want)


def check_graph(
    model: Model,
    loss: Loss,
    clip: Clip,
    *,
    labels: int,
    records: int = 11,
    seed: int = 0,
    density: float = 0.7,
) -> None:
    check_example(model, loss, clip, example(records, model, loss, labels, seed=seed, density=density))
