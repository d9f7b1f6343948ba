"""The exact path's function, one record at a time, in Python integers and floats.

Written from docs/spec/numerics.md.

Nothing is imported from the engine. A Python float operation is one IEEE operation; everything else is an
integer or a Fraction.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from math import frexp, isfinite, ldexp, sqrt

import mpmath
import numpy as np
from numpy.typing import NDArray

from maskedlark.model.graph import Model
from maskedlark.model.heads import Heads, TrainedLoss
from maskedlark.model.losses import Loss
from maskedlark.model.weights import QuantisedTensor
from maskedlark.privacy.clip import Clip, Norm

Reals = list[float]
Back = Callable[[Reals], dict[str, Reals]]
ONE = 2**40


def table_value(function: Callable[[mpmath.mpf], mpmath.mpf], k: int) -> int:
    with mpmath.workprec(200):
        return int(mpmath.nint(function(mpmath.mpf(k) / 256) * ONE))


def exponential(t: float) -> int:
    return look_up(lambda x: mpmath.exp(-x), t)


def softplus_tail(t: float) -> int:
    return look_up(lambda x: mpmath.log(1 + mpmath.exp(-x)), t)


def look_up(function: Callable[[mpmath.mpf], mpmath.mpf], t: float) -> int:
    if not 0 <= t < 32:
        return 0
    position = round(t * 2**24)
    if position >= 32 * 2**24:
        return 0
    cell, rest = divmod(position, 2**16)
    low, high = table_value(function, cell), table_value(function, cell + 1)
    return low + (high - low) * rest // 2**16


@dataclass
class Row:
    q: list[int]
    exponent: int

    def norm(self, norm: Norm) -> float:
        if norm is Norm.L2:
            return ldexp(float(sum(q * q for q in self.q)), -2 * self.exponent)
        return ldexp(float(sum(abs(q) for q in self.q)), -self.exponent)


def quantise(values: Sequence[float]) -> Row:
    top = max(abs(value) for value in values)
    if top == 0.0 or not all(map(isfinite, values)):
        return Row([0] * len(values), 0)
    exponent = max(-48, min(78, 15 - frexp(top)[1]))
    return Row(
        [max(-32767, min(32767, round(Fraction(value) * Fraction(2) ** exponent))) for value in values],
        exponent,
    )


@dataclass
class Gradient:
    """The integers of one layer's gradient.

    Entry j of the flat vector is the sum of trunc(factor q_d 2^(F - e_d - e_a)) q_a.
    """

    terms: list[tuple[int, int, int, int, int]]  # (flat index, q_d, e_d, q_a, e_a)
    norm: float
    hashed: list[
        tuple[int, int, int, int]
    ]  # (part, position in a row of keys, q_d, e_d + e_a): the values that the digest binds
    widths: tuple[int, int]  # of the rows of keys of parts 0 and 1
    operand: list[int]  # what part 2 binds


class Record:
    """One record going through the graph."""

    def __init__(self, model: Model, weights: Sequence[QuantisedTensor], norm: Norm) -> None:
        self.model, self.norm = model, norm
        self.weights = {
            parameter.name: weight for parameter, weight in zip(model.parameters, weights, strict=True)
        }
        self.offsets: dict[str, int] = {}
        self.shapes: dict[str, tuple[int, ...]] = {model.input_name: (model.input_width,)}
        self.is_outside = False
        self.lookups: dict[str, dict[str, tuple[list[int], Reals]]] = {}  # by table and Gather: rows, deltas
        offset = 0
        for parameter in model.parameters:
            self.offsets[parameter.name] = offset
            offset += parameter.size

    def evaluate(
        self, features: NDArray[np.uint8], loss: TrainedLoss, labels: Sequence[int]
    ) -> list[tuple[float, list[Gradient]]]:
        """(coefficient, gradients of the seed) for each label."""
        nodes, output = list(self.model.nodes), self.model.output_name
        if (loss is Loss.BINARY_CROSS_ENTROPY and nodes[-1].operator == "Sigmoid") or (
            loss is Loss.CROSS_ENTROPY and nodes[-1].operator == "LogSoftmax"
        ):
            output = nodes.pop().inputs[0]
        values: dict[str, Reals | Row] = {self.model.input_name: Row([int(b) for b in features], 8)}
        tape: list[tuple[str, Back, list[Gradient]]] = []
        for node in nodes:
            gradients: list[Gradient] = []
            value, shape, back = STEPS[node.operator](self, node, values, gradients)
            values[node.outputs[0]], self.shapes[node.outputs[0]] = value, shape
            tape.append((node.outputs[0], back, gradients))
        z = values[output]
        assert isinstance(z, list)
        results = []
        for coefficient, delta in self.seeds(loss, z, labels):
            deltas = {output: delta}
            found: list[Gradient] = []
            for name, back, gradients in reversed(tape):
                if name not in deltas:
                    continue
                gradients.clear()
                for source, sent in back(deltas.pop(name)).items():
                    deltas[source] = (
                        [a + b for a, b in zip(deltas[source], sent, strict=True)]
                        if source in deltas
                        else sent
                    )
                found[:0] = gradients
            results.append((coefficient, list(found)))
        return results

    @staticmethod
    def seeds(loss: TrainedLoss, z: Reals, labels: Sequence[int]) -> list[tuple[float, Reals]]:
        if isinstance(loss, Heads):
            return [(1.0, Record.of_heads(loss, z, y)) for y in labels]
        if loss is Loss.CROSS_ENTROPY:
            top = max(z)
            masses = [exponential(top - value) for value in z]
            total = sum(masses)
            return [
                (1.0, [float(m - (total if c == y else 0)) / float(total) for c, m in enumerate(masses)])
                for y in labels
            ]
        if loss is Loss.MSE:
            return [(2.0 * (z[0] - y), [1.0]) for y in labels]
        e = exponential(min(abs(z[0]), 20.0) if loss is Loss.POISSON else abs(z[0]))
        if loss is Loss.POISSON:
            rate = ONE / e if z[0] > 0 else e / ONE
            return [(rate - y, [1.0]) for y in labels]
        return [(float((ONE if z[0] > 0 else e) - y * (ONE + e)) / float(ONE + e), [1.0]) for y in labels]

    @staticmethod
    def of_heads(heads: Heads, z: Reals, label: int) -> Reals:
        """The sum over heads of weight times derivative; each head reads "out[i]" or all of "out"."""
        deltas = [0.0] * len(z)
        for head in heads.heads:
            target, weight = head.targets[label], head.weights[label] / 2**16
            first = int(head.output.partition("[")[2][:-1]) if "[" in head.output else 0
            count = len(z) - first if head.loss is Loss.CROSS_ENTROPY else 1
            said = 0.0 if target is None else target / 2**16
            ((coefficient, seed),) = Record.seeds(head.loss, z[first : first + count], [said])  # type: ignore[list-item]
            for place, delta in enumerate(seed):
                deltas[first + place] = (coefficient * delta) * (0.0 if target is None else weight)
        return deltas

    def whole(
        self,
        entries: dict[int, float],
        gradients: list[Gradient],
        *,
        places: Sequence[int],
        width: int,
        operand: list[int],
    ) -> None:
        """A gradient that is formed entry by entry.

        One row, of which the digest's keys see entry i at places[i] of `width`.
        """
        row = quantise(list(entries.values()))
        terms = [(index, q, row.exponent, 1, 0) for index, q in zip(entries, row.q, strict=True)]
        hashed = [(0, place, q, row.exponent) for place, q in zip(places, row.q, strict=True)]
        gradients.append(Gradient(terms, row.norm(self.norm), hashed, (width, 0), operand))


def safe_bound(clip: Clip) -> float:
    exact = Fraction(clip.sensitivity * (2**40 - 1) // 2**40)
    rounded = float(exact)
    if Fraction(rounded) > exact:
        rounded = np.nextafter(rounded, 0.0)
    return ldexp(rounded, -clip.frac_bits)


@dataclass
class Clipped:
    """One record: for each label the flat vector of clipped gradient integers; and the hash of its values."""

    vectors: list[list[int]]
    hash: int


def clipped_integers(
    model: Model,
    weights: Sequence[QuantisedTensor],
    *,
    clip: Clip,
    loss: TrainedLoss,
    features: NDArray[np.uint8],
    labels: Sequence[int],
) -> Clipped:
    record = Record(model, weights, clip.norm)
    vectors, digest = [], 0
    for label, (coefficient, gradients) in enumerate(record.evaluate(features, loss, labels)):
        factor = (
            0.0
            if record.is_outside
            else clip_factor(coefficient, [gradient.norm for gradient in gradients], clip)
        )
        vector = [0] * model.num_parameters
        for layer, gradient in enumerate(gradients):
            for index, q_d, e_d, q_a, e_a in gradient.terms:
                vector[index] += int(q_d * ldexp(factor, clip.frac_bits - e_d - e_a)) * q_a
            for part, place, q_d, exponent in gradient.hashed:
                value = int(q_d * ldexp(factor, clip.frac_bits - exponent))
                digest += key(layer, part, label * gradient.widths[part] + place) * value
            if label == 0:
                digest += sum(key(layer, 2, place) * value for place, value in enumerate(gradient.operand))
        vectors.append(vector)
    return Clipped(vectors, digest % 2**64)


def clip_factor(coefficient: float, norms: Sequence[float], clip: Clip) -> float:
    total = 0.0
    for norm in norms:
        total = total + norm
    norm = sqrt(total) if clip.norm is Norm.L2 else total
    bound = safe_bound(clip)
    if abs(coefficient) * norm <= bound:
        return coefficient
    return 0.0 if not isfinite(norm) else bound / norm if coefficient > 0 else -bound / norm


def mix(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


def key(layer: int, part: int, position: int) -> int:
    counter = ((3 * layer + part) << 40) + position + 1
    return mix(counter * 0x9E3779B97F4A7C15 % 2**64) | 1


def values_digest(hashes: Sequence[int]) -> bytes:
    total = sum(map(mix, hashes)) % 2**64
    return sha256(
        b"maskedlark/v1 values\0" + len(hashes).to_bytes(8, "little") + total.to_bytes(8, "little")
    ).digest()


def norm_at_most(vector: Sequence[int], clip: Clip) -> bool:
    """Whether an integer vector respects the sensitivity, exactly."""
    if clip.norm is Norm.L1:
        return sum(map(abs, vector)) <= clip.sensitivity
    return sum(v * v for v in vector) <= clip.sensitivity**2


from tests.helper.gradient.exact.oracle_layers import STEPS  # noqa: E402 - the layers need the definitions above
