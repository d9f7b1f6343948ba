"""The exact path's function, one record at a time, in Python integers and floats: written from docs/explanation/numerics.md.

Nothing is imported from the engine. A Python float operation is one IEEE operation; everything else is an integer or a Fraction.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import frexp, ldexp, sqrt
from typing import cast

import mpmath
import numpy as np
from numpy.typing import NDArray

from maskedlark.clip import Clip, Norm
from maskedlark.model.graph import Loss, Model, Node
from maskedlark.model.weights import QuantisedTensor

Reals = list[float]
ONE = 2**40


def table_value(function: Callable[[mpmath.mpf], mpmath.mpf], k: int) -> int:
    with mpmath.workprec(200):
        return int(mpmath.nint(function(mpmath.mpf(k) / 256) * ONE))


def exponential(t: float) -> int:
    return look_up(lambda x: mpmath.exp(-x), t)


def softplus_tail(t: float) -> int:
    return look_up(lambda x: mpmath.log(1 + mpmath.exp(-x)), t)


def look_up(function: Callable[[mpmath.mpf], mpmath.mpf], t: float) -> int:
    position = round(min(t, 33.0) * 2**24)
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
    if top == 0.0:
        return Row([0] * len(values), 0)
    exponent = max(-48, min(78, 15 - frexp(top)[1]))
    return Row([max(-32767, min(32767, round(Fraction(value) * Fraction(2) ** exponent))) for value in values], exponent)


@dataclass
class Gradient:
    """The integers of one layer's gradient: entry j of the flat vector is the sum of trunc(factor q_d 2^(F - e_d - e_a)) q_a."""

    terms: list[tuple[int, int, int, int, int]]  # (flat index, q_d, e_d, q_a, e_a)
    norm: float


class Record:
    """One record going through the graph."""

    def __init__(self, model: Model, weights: Sequence[QuantisedTensor], norm: Norm) -> None:
        self.model, self.norm = model, norm
        self.weights = {parameter.name: weight for parameter, weight in zip(model.parameters, weights, strict=True)}
        self.offsets: dict[str, int] = {}
        offset = 0
        for parameter in model.parameters:
            self.offsets[parameter.name] = offset
            offset += parameter.size

    def evaluate(self, features: NDArray[np.uint8], loss: Loss, labels: Sequence[int]) -> list[tuple[float, list[Gradient]]]:
        """(coefficient, gradients of the seed) for each label."""
        nodes, output = list(self.model.nodes), self.model.output_name
        if (loss is Loss.BINARY_CROSS_ENTROPY and nodes[-1].operator == "Sigmoid") or (
            loss is Loss.CROSS_ENTROPY and nodes[-1].operator == "LogSoftmax"
        ):
            output = nodes.pop().inputs[0]
        values: dict[str, Reals | Row] = {self.model.input_name: Row([int(b) for b in features], 8)}
        tape: list[tuple[Node, str, Callable[[Reals], dict[str, Reals]], list[Gradient]]] = []
        for node in nodes:
            name, value, back, gradients = self.step(node, values)
            values[name] = value
            tape.append((node, name, back, gradients))
        z = values[output]
        assert isinstance(z, list)
        results = []
        for coefficient, delta in self.seeds(loss, z, labels):
            deltas = {output: delta}
            found: list[Gradient] = []
            for _, name, back, gradients in reversed(tape):
                if name not in deltas:
                    continue
                gradients.clear()
                for source, sent in back(deltas.pop(name)).items():
                    deltas[source] = [a + b for a, b in zip(deltas[source], sent, strict=True)] if source in deltas else sent
                found[:0] = gradients
            results.append((coefficient, list(found)))
        return results

    @staticmethod
    def seeds(loss: Loss, z: Reals, labels: Sequence[int]) -> list[tuple[float, Reals]]:
        if loss is Loss.CROSS_ENTROPY:
            top = max(z)
            masses = [exponential(top - value) for value in z]
            total = sum(masses)
            return [(1.0, [float(m - (total if c == y else 0)) / float(total) for c, m in enumerate(masses)]) for y in labels]
        if loss is Loss.MSE:
            return [(2.0 * (z[0] - y), [1.0]) for y in labels]
        e = exponential(min(abs(z[0]), 20.0) if loss is Loss.POISSON else abs(z[0]))
        if loss is Loss.POISSON:
            rate = ONE / e if z[0] > 0 else e / ONE
            return [(rate - y, [1.0]) for y in labels]
        return [(float((ONE if z[0] > 0 else e) - y * (ONE + e)) / float(ONE + e), [1.0]) for y in labels]

    def step(self, node: Node, values: dict[str, Reals | Row]) -> tuple[str, Reals, Callable[[Reals], dict[str, Reals]], list[Gradient]]:
        """A node's output name, value, way back, and the list that the way back leaves its gradients in."""
        source = values[node.inputs[0]]
        gradients: list[Gradient] = []
        if node.operator == "Gemm":
            value, back = self.gemm(node, source, gradients)
        elif node.operator == "Softmax":
            assert isinstance(source, list)
            value, back = softmax(node, source)
        elif node.operator == "Add":
            value, back = join(node, values)
        else:
            assert isinstance(source, list)
            value, back = activation(node, source)
        return node.outputs[0], value, back, gradients

    def gemm(self, node: Node, source: Reals | Row, gradients: list[Gradient]) -> tuple[Reals, Callable[[Reals], dict[str, Reals]]]:
        weight = self.weights[node.inputs[1]]
        transposed = bool(node.attributes["transB"])
        rows, columns = weight.values.shape[::-1] if transposed else weight.values.shape
        bias = self.weights[node.inputs[2]] if len(node.inputs) > 2 else None

        def entry(i: int, j: int) -> int:
            return int(weight.values[(j, i) if transposed else (i, j)])

        def place(i: int, j: int) -> int:
            return self.offsets[node.inputs[1]] + (j * rows + i if transposed else i * columns + j)

        a = source if isinstance(source, Row) else quantise(source)
        value = []
        for j in range(columns):
            exact = ldexp(float(sum(a.q[i] * entry(i, j) for i in range(rows))), -(a.exponent + weight.exponent))
            value.append(exact + (ldexp(float(bias.values.flat[j]), -bias.exponent) if bias else 0.0))

        def back(delta: Reals) -> dict[str, Reals]:
            d = quantise(delta)
            terms = [(place(i, j), d.q[j], d.exponent, a.q[i], a.exponent) for i in range(rows) for j in range(columns)] if any(a.q) else []
            operand = a.norm(self.norm)
            if bias:
                terms += [(self.offsets[node.inputs[2]] + j, d.q[j], d.exponent, 1, 0) for j in range(columns)]
                operand += 1.0
            gradients.append(Gradient(terms, d.norm(self.norm) * operand))
            if isinstance(source, Row):
                return {}
            exponent = d.exponent + weight.exponent
            return {node.inputs[0]: [ldexp(float(sum(d.q[j] * entry(i, j) for j in range(columns))), -exponent) for i in range(rows)]}

        return value, back


def softmax(node: Node, z: Reals) -> tuple[Reals, Callable[[Reals], dict[str, Reals]]]:
    masses = [exponential(max(z) - value) for value in z]
    p = [float(m) / float(sum(masses)) for m in masses]

    def back(delta: Reals) -> dict[str, Reals]:
        dot = 0.0
        for share, d in zip(p, delta, strict=True):
            dot = dot + share * d
        return {node.inputs[0]: [share * (d - dot) for share, d in zip(p, delta, strict=True)]}

    return p, back


def join(node: Node, values: dict[str, Reals | Row]) -> tuple[Reals, Callable[[Reals], dict[str, Reals]]]:
    left, right = (values[name] for name in node.inputs)
    assert isinstance(left, list)
    assert isinstance(right, list)

    def back(delta: Reals) -> dict[str, Reals]:
        if node.inputs[0] == node.inputs[1]:
            return {node.inputs[0]: [d + d for d in delta]}
        return {node.inputs[0]: delta, node.inputs[1]: delta}

    return [a + b for a, b in zip(left, right, strict=True)], back


def activation(node: Node, z: Reals) -> tuple[Reals, Callable[[Reals], dict[str, Reals]]]:
    pairs = [curve(node, value) for value in z]
    return [value for value, _ in pairs], lambda delta: {node.inputs[0]: [d * slope for d, (_, slope) in zip(delta, pairs, strict=True)]}


def curve(node: Node, z: float) -> tuple[float, float]:
    """(value, slope)."""
    operator = node.operator
    if operator in ("Relu", "LeakyRelu"):
        alpha = float(np.float32(cast("float", node.attributes["alpha"]))) if operator == "LeakyRelu" else 0.0
        return (z, 1.0) if z > 0 else (z * alpha, alpha)
    if operator == "Elu":
        alpha = float(np.float32(cast("float", node.attributes["alpha"])))
        e = exponential(abs(z)) / ONE
        return (z, 1.0) if z > 0 else (alpha * (e - 1.0), alpha * e)
    if operator == "Tanh":
        e = exponential(2.0 * abs(z))
        y = float(ONE - e) / float(ONE + e)
        return (y if z > 0 else -y), 4.0 * (float(e) * ONE) / (float(ONE + e) * float(ONE + e))
    e = exponential(abs(z))
    y = float(ONE if z > 0 else e) / float(ONE + e)
    if operator == "Sigmoid":
        return y, (float(e) * ONE) / (float(ONE + e) * float(ONE + e))
    assert operator == "Softplus"
    return max(z, 0.0) + softplus_tail(abs(z)) / ONE, y


def safe_bound(clip: Clip) -> float:
    exact = Fraction(clip.sensitivity * (2**40 - 1) // 2**40)
    rounded = float(exact)
    if Fraction(rounded) > exact:
        rounded = np.nextafter(rounded, 0.0)
    return ldexp(rounded, -clip.frac_bits)


def clipped_integers(
    model: Model, weights: Sequence[QuantisedTensor], *, clip: Clip, loss: Loss, features: NDArray[np.uint8], labels: Sequence[int]
) -> list[list[int]]:
    """One record: for each label the flat vector of clipped gradient integers."""
    result = []
    for coefficient, gradients in Record(model, weights, clip.norm).evaluate(features, loss, labels):
        total = 0.0
        for gradient in gradients:
            total = total + gradient.norm
        norm = sqrt(total) if clip.norm is Norm.L2 else total
        bound = safe_bound(clip)
        factor = coefficient if abs(coefficient) * norm <= bound else (bound / norm if coefficient > 0 else -bound / norm)
        vector = [0] * model.num_parameters
        for gradient in gradients:
            for index, q_d, e_d, q_a, e_a in gradient.terms:
                vector[index] += int(q_d * ldexp(factor, clip.frac_bits - e_d - e_a)) * q_a
        result.append(vector)
    return result


def norm_at_most(vector: Sequence[int], clip: Clip) -> bool:
    """Whether an integer vector respects the sensitivity, exactly."""
    if clip.norm is Norm.L1:
        return sum(map(abs, vector)) <= clip.sensitivity
    return sum(v * v for v in vector) <= clip.sensitivity**2
