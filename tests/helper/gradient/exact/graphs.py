"""Small models for the exact path's tests, batches for them, and the float64 autograd that they are held
against."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch.func import grad
from torch.nn import functional

from helper.gradient.engine import Batch
from maskedlark.autodiff.interpreter import Interpreter
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.model.weights import QuantisedTensor, quantise
from maskedlark.numbers.field import FieldVector, random_vector, subtract
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.randomness import seeded


class GraphBuilder:
    """Writes an ONNX file operator by operator; each method returns the name of its output."""

    def __init__(self, inputs: int, seed: int) -> None:
        self.inputs, self.rng = inputs, np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def tensor(self, values: NDArray[np.generic]) -> str:
        name = f"t{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(values, name))
        return name

    def weight(self, *shape: int, scale: float | None = None) -> str:
        deviation = scale if scale is not None else float(np.prod(shape[1:])) ** -0.5
        return self.tensor(self.rng.normal(0, deviation, shape).astype(np.float32))

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, values: NDArray[np.float64]) -> str:
        """Not trained, unlike an initializer."""
        return self.node("Constant", value=numpy_helper.from_array(values.astype(np.float32)))

    def gemm(
        self, source: str, width: int, outputs: int, *, bias: bool = True, scale: float | None = None
    ) -> str:
        extra = [self.weight(outputs, scale=0.3)] if bias else []
        return self.node("Gemm", source, self.weight(outputs, width, scale=scale), *extra, transB=1)

    def encode(self, output: str, outputs: int) -> bytes:
        value = helper.make_tensor_value_info
        given = [value("x", TensorProto.FLOAT, ["n", self.inputs])]
        graph = helper.make_graph(
            self.nodes, "g", given, [value(output, TensorProto.FLOAT, ["n", outputs])], self.initializers
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        proto.ir_version = 9
        return proto.SerializeToString()

    def model(self, output: str, outputs: int) -> Model:
        return parse(self.encode(output, outputs), num_features=self.inputs)


def mlp(
    widths: Sequence[int],
    activation: str,
    seed: int,
    *,
    bias: bool = True,
    head: str | None = None,
    scale: float | None = None,
) -> Model:
    """A dense network with one activation between layers, and perhaps an operator at its end."""
    graph = GraphBuilder(widths[0], seed)
    value = "x"
    for index, (width, outputs) in enumerate(pairwise(widths)):
        if index:
            value = graph.node(activation, value)
        value = graph.gemm(value, width, outputs, bias=bias, scale=scale)
    return graph.model(graph.node(head, value) if head else value, widths[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A batch as a test sees it: both helpers' shares, and which label is real."""

    features: NDArray[np.uint8]
    labels: NDArray[np.uint32]
    real: NDArray[np.int64]
    shares: tuple[FieldVector, FieldVector]

    def batch(self, helper_index: int) -> Batch:
        return Batch(features=self.features, labels=self.labels, mask_shares=self.shares[helper_index])

    def shuffled(self, helper_index: int, seed: int) -> Batch:
        order = np.random.default_rng(seed).permutation(len(self.features))
        return Batch(
            features=self.features[order],
            labels=self.labels[order],
            mask_shares=self.shares[helper_index][order],
        )


def example(
    records: int, model: Model, loss: Loss, labels: int, *, seed: int, density: float = 0.7
) -> Example:
    """Random features and labels; every fifth record is all decoys."""
    rng = np.random.default_rng(seed)
    features = (
        rng.integers(0, 256, (records, model.input_width))
        * (rng.random((records, model.input_width)) < density)
    ).astype(np.uint8)
    space = model.output_width if loss is Loss.CROSS_ENTROPY else 2 if "binary" in loss else 12
    chosen = (
        np.stack([rng.permutation(space)[:labels] for _ in range(records)])
        if records
        else np.zeros((0, labels))
    )
    real = rng.integers(0, labels, records)
    truth = np.zeros((records, labels), np.uint64)
    is_true = np.arange(records) % 5 != 4
    truth[np.arange(records)[is_true], real[is_true]] = 1
    first = random_vector(truth.size, seeded(seed)).reshape(truth.shape)
    return Example(
        features=features,
        labels=chosen.astype(np.uint32),
        real=np.where(is_true, real, -1),
        shares=(first, subtract(truth, first)),
    )


def quantised(model: Model) -> tuple[QuantisedTensor, ...]:
    return tuple(quantise(value) for value in model.initial_values)


def autograd_sum(
    model: Model, weights: Sequence[QuantisedTensor], clip: Clip, loss: Loss, given: Example
) -> NDArray[np.float64]:
    """The clipped sum over real labels by float64 automatic differentiation of each record alone."""
    interpreter = Interpreter(model)
    parameters = [torch.from_numpy(weight.to_float()) for weight in weights]
    total = np.zeros(model.num_parameters)
    for features, labels, real in zip(given.features, given.labels, given.real, strict=True):
        if real < 0:
            continue
        x, y = torch.from_numpy(features / 256.0), int(labels[real])
        gradients = grad(
            lambda *p, x=x, y=y: loss_of(loss, interpreter.evaluate(p, x), y),
            argnums=tuple(range(len(parameters))),
        )(*parameters)
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]).numpy()
        norm = np.linalg.norm(flat, 2 if clip.norm is Norm.L2 else 1)
        if np.isfinite(norm):  # else an index is outside its table
            total += flat * min(1.0, clip.bound / norm if norm else 1.0)
    return total


def loss_of(loss: Loss, z: torch.Tensor, y: int) -> torch.Tensor:
    if loss is Loss.CROSS_ENTROPY:
        return functional.cross_entropy(z[None], torch.tensor([y]))
    target = torch.tensor([float(y)], dtype=torch.float64)
    if loss is Loss.BINARY_CROSS_ENTROPY:
        return functional.binary_cross_entropy(z, target)
    if loss is Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS:
        return functional.binary_cross_entropy_with_logits(z, target)
    return ((z - target) ** 2).sum() if loss is Loss.MSE else (torch.exp(z) - target * z).sum()
