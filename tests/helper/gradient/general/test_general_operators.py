"""Each operator of the allow-list, parsed and interpreted, against onnxruntime on the same file.

And its gradient's existence.
"""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from maskedlark.autodiff.interpreter import _OPERATORS, Interpreter
from maskedlark.model.onnx_file import parse
from maskedlark.model.operators.table import OPERATORS
from tests.onnx_builders import encoded, features, node, tensor, weights

WIDTH = 24
IMAGE = [node("Reshape", ["x", "image"], ["i"])]
SEQUENCE = [node("Reshape", ["x", "sequence"], ["s"]), node("Transpose", ["s"], ["i"], perm=[1, 0, 2])]
SHAPES = [
    tensor("image", [-1, 1, 4, 6], np.int64),
    tensor("sequence", [-1, 6, 4], np.int64),
    tensor("line", [-1, 2, 12], np.int64),
]
LINE = [node("Reshape", ["x", "line"], ["i"])]
FLAT = [node("Flatten", ["o"], ["y"])]
POSITIVE = [node("Add", ["x", "one"], ["i"])]
Case = tuple[list[onnx.NodeProto], list[onnx.TensorProto]]


def unary(operator: str, before: list[onnx.NodeProto] | None = None, **attributes: Any) -> Case:
    first = before or [node("Gemm", ["x", "w"], ["i"])]
    return [*first, node(operator, ["i"], ["o"], **attributes), *FLAT], [weights("w", WIDTH, 5)]


def recurrent(
    operator: str, gates: int, direction: str, output: int = 0, *, bias: bool = True, **attributes: Any
) -> Case:
    count = 2 if direction == "bidirectional" else 1
    initializers = [
        weights("w", count, gates * 3, 4),
        weights("r", count, gates * 3, 3),
        weights("b", count, 2 * gates * 3),
    ]
    outputs = [*[""] * output, "h"]
    inputs = ["i", "w", "r"] + (["b"] if bias else [])
    nodes = [*SEQUENCE, node(operator, inputs, outputs, hidden_size=3, direction=direction, **attributes)]
    batch_first = [1, 0, 2, 3] if output else [2, 0, 1, 3]
    order = batch_first[:3] if output else batch_first
    return [*nodes, node("Transpose", ["h"], ["o"], perm=order), *FLAT], initializers


CASES: dict[str, Case] = {
    "Relu": unary("Relu"),
    "Sigmoid": unary("Sigmoid"),
    "Tanh": unary("Tanh"),
    "Softplus": unary("Softplus"),
    "Erf": unary("Erf"),
    "Exp": unary("Exp"),
    "LeakyRelu": unary("LeakyRelu", alpha=0.3),
    "Elu": unary("Elu", alpha=0.7),
    "Gelu exact": unary("Gelu"),
    "Gelu tanh": unary("Gelu", approximate="tanh"),
    "Softmax": unary("Softmax"),
    "LogSoftmax": unary("LogSoftmax", axis=1),
    "Softmax of a middle axis": unary("Softmax", IMAGE, axis=2),
    "Sqrt": unary("Sqrt", POSITIVE),
    "Log": unary("Log", POSITIVE),
    "Pow": ([*POSITIVE, node("Pow", ["i", "two"], ["y"])], []),
    "Clip": (
        [node("Gemm", ["x", "w"], ["i"]), node("Clip", ["i", "", "one"], ["y"])],
        [weights("w", WIDTH, 5)],
    ),
    "Clip both": (
        [node("Gemm", ["x", "w"], ["i"]), node("Clip", ["i", "minus", "one"], ["y"])],
        [weights("w", WIDTH, 5)],
    ),
    "PRelu": (
        [node("Gemm", ["x", "w"], ["i"]), node("PRelu", ["i", "v"], ["y"])],
        [weights("w", WIDTH, 5), weights("v", 5)],
    ),
    "Add Sub Mul Div": (
        [
            node("Add", ["x", "a"], ["1"]),
            node("Sub", ["1", "b"], ["2"]),
            node("Mul", ["2", "c"], ["3"]),
            node("Div", ["3", "d"], ["y"]),
        ],
        [
            weights("a", WIDTH),
            weights("b", 1, WIDTH),
            weights("c", WIDTH),
            tensor("d", np.arange(1, WIDTH + 1)),
        ],
    ),
    "Greater Where": (
        [
            node("Gemm", ["x", "w"], ["i"]),
            node("Greater", ["i", "one"], ["m"]),
            node("Where", ["m", "i", "v"], ["y"]),
        ],
        [weights("w", WIDTH, 5), weights("v", 5)],
    ),
    "Gemm": (
        [
            node("Transpose", ["w"], ["t"]),
            node("Gemm", ["x", "t", "b"], ["y"], alpha=0.5, beta=2.0, transB=1),
        ],
        [weights("w", WIDTH, 5), weights("b", 5)],
    ),
    "MatMul of a stack": ([*IMAGE, node("MatMul", ["i", "w"], ["o"]), *FLAT], [weights("w", 6, 3)]),
    "MatMul by a vector": ([*IMAGE, node("MatMul", ["i", "w"], ["o"]), *FLAT], [weights("w", 6)]),
    "Conv 2d": (
        [
            *IMAGE,
            node("Conv", ["i", "w", "b"], ["o"], pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2]),
            *FLAT,
        ],
        [weights("w", 3, 1, 2, 3), weights("b", 3)],
    ),
    "Conv 1d": ([*LINE, node("Conv", ["i", "w"], ["o"], strides=[2]), *FLAT], [weights("w", 3, 2, 3)]),
    "Conv same upper": (
        [*IMAGE, node("Conv", ["i", "w"], ["o"], auto_pad="SAME_UPPER", strides=[2, 2]), *FLAT],
        [weights("w", 2, 1, 2, 3)],
    ),
    "Conv same lower": (
        [*IMAGE, node("Conv", ["i", "w"], ["o"], auto_pad="SAME_LOWER", strides=[1, 2]), *FLAT],
        [weights("w", 2, 1, 2, 2)],
    ),
    "Conv valid": (
        [*IMAGE, node("Conv", ["i", "w"], ["o"], auto_pad="VALID"), *FLAT],
        [weights("w", 2, 1, 2, 3)],
    ),
    "MaxPool": unary("MaxPool", IMAGE, kernel_shape=[2, 3], strides=[1, 2], pads=[1, 1, 0, 2]),
    "MaxPool 1d": unary("MaxPool", LINE, kernel_shape=[3], dilations=[2]),
    "AveragePool": unary("AveragePool", IMAGE, kernel_shape=[2, 3], strides=[1, 2], pads=[1, 0, 0, 2]),
    "AveragePool with padding": unary(
        "AveragePool", IMAGE, kernel_shape=[2, 3], pads=[1, 0, 0, 2], count_include_pad=1
    ),
    "AveragePool 1d": unary("AveragePool", LINE, kernel_shape=[3], strides=[2]),
    "GlobalAveragePool": unary("GlobalAveragePool", LINE),
    "BatchNormalization": (
        [*LINE, node("BatchNormalization", ["i", "a", "b", "m", "v"], ["o"], epsilon=0.01), *FLAT],
        [weights("a", 2), weights("b", 2), tensor("m", [0.1, 0.2]), tensor("v", [0.5, 2.0])],
    ),
    "LayerNormalization": (
        [*IMAGE, node("LayerNormalization", ["i", "a", "b"], ["o"], axis=2), *FLAT],
        [weights("a", 4, 6), weights("b", 4, 6)],
    ),
    "LayerNormalization without bias": (
        [*IMAGE, node("LayerNormalization", ["i", "a"], ["o"]), *FLAT],
        [weights("a", 6)],
    ),
    "ReduceMean": (
        [*IMAGE, node("ReduceMean", ["i", "axes"], ["o"], keepdims=0), *FLAT],
        [tensor("axes", [1, -1], np.int64)],
    ),
    "ReduceSum": ([*IMAGE, node("ReduceSum", ["i", "axes"], ["o"]), *FLAT], [tensor("axes", [2], np.int64)]),
    "LSTM": recurrent("LSTM", 4, "forward"),
    "LSTM reverse": recurrent("LSTM", 4, "reverse"),
    "LSTM both ways": recurrent("LSTM", 4, "bidirectional"),
    "LSTM last state": recurrent("LSTM", 4, "bidirectional", 1),
    "LSTM last cell": recurrent("LSTM", 4, "reverse", 2),
    "LSTM without bias": recurrent("LSTM", 4, "forward", bias=False),
    "GRU": recurrent("GRU", 3, "forward"),
    "GRU both ways": recurrent("GRU", 3, "bidirectional", linear_before_reset=1),
    "GRU last state": recurrent("GRU", 3, "reverse", 1),
    "Concat Split": (
        [
            node("Split", ["x", "parts"], ["1", "2", "3"], axis=1),
            node("Concat", ["3", "1", "2", "1"], ["y"], axis=-1),
        ],
        [tensor("parts", [4, 12, 8], np.int64)],
    ),
    "Split evenly": (
        [node("Split", ["x"], ["1", "2"], axis=1, num_outputs=2), node("Sub", ["1", "2"], ["y"])],
        [],
    ),
    "Split unevenly": (
        [node("Split", ["x"], ["1", "2", "3", "4", "5"], axis=1, num_outputs=5), node("Relu", ["5"], ["y"])],
        [],
    ),
    "Slice": (
        [*IMAGE, node("Slice", ["i", "from", "to", "axes", "steps"], ["o"]), *FLAT],
        [
            tensor(n, v, np.int64)
            for n, v in (("from", [1, -5]), ("to", [2**62, -1]), ("axes", [2, 3]), ("steps", [1, 2]))
        ],
    ),
    "Squeeze Unsqueeze Expand": (
        [
            *IMAGE,
            node("Squeeze", ["i", "first"], ["1"]),
            node("Unsqueeze", ["1", "last"], ["2"]),
            node("Expand", ["2", "to"], ["o"]),
            *FLAT,
        ],
        [
            tensor("first", [1], np.int64),
            tensor("last", [-1], np.int64),
            tensor("to", [1, 1, 1, 3], np.int64),
        ],
    ),
    "Gather by a constant": (
        [node("Gather", ["x", "at"], ["o"], axis=1), *FLAT],
        [tensor("at", [[3, -1], [0, 0]], np.int64)],
    ),
    "Gather by the record": (
        [
            node("Mul", ["x", "bytes"], ["1"]),
            node("Cast", ["1"], ["2"], to=7),
            node("Gather", ["table", "2"], ["o"]),
            *FLAT,
        ],
        [weights("table", 256, 2), tensor("bytes", 256.0)],
    ),
    "Mod Div of shapes": (
        [
            node("Div", ["a", "two i"], ["1"]),
            node("Mod", ["1", "b"], ["2"]),
            node("Concat", ["minus i", "2"], ["3"], axis=0),
            node("Reshape", ["x", "3"], ["y"]),
        ],
        [
            tensor(name, [value], np.int64)
            for name, value in (("a", -49), ("two i", 2), ("b", 48), ("minus i", -1))
        ],
    ),
}
CONSTANTS = [tensor("one", 1.0), tensor("two", 2.0), tensor("minus", -1.0)]


def with_parameters(case: Case) -> bytes:
    """The case with a trainable scale of its input.

    So the operator's gradient is not only that of its own weights. An index has no gradient: where the record
    chooses from a table, the input stays as it is.
    """
    nodes, initializers = case
    if any(initializer.name == "table" for initializer in initializers):
        return encoded(nodes, [*initializers, *SHAPES, *CONSTANTS], width=WIDTH)
    scaled = [node("Mul", ["x", "scale"], ["scaled"])]
    for original in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(original)
        for position, name in enumerate(copy.input):
            if name == "x":
                copy.input[position] = "scaled"
        scaled.append(copy)
    return encoded(scaled, [*initializers, tensor("scale", np.ones(WIDTH)), *SHAPES, *CONSTANTS], width=WIDTH)


@pytest.mark.parametrize("name", CASES)
def test_an_operator_gives_what_onnxruntime_gives(name: str) -> None:
    file = with_parameters(CASES[name])
    model = parse(file, num_features=WIDTH)
    interpreter = Interpreter(model)
    parameters = [torch.from_numpy(value).double() for value in model.initial_values]
    x = features(3, WIDTH)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": x.astype(np.float32) / 256})[0]
    found = torch.stack([interpreter.evaluate(parameters, torch.from_numpy(record / 256.0)) for record in x])
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_an_operators_gradient_vectorises_and_is_that_of_finite_differences(name: str) -> None:
    model = parse(with_parameters(CASES[name]), num_features=WIDTH)
    interpreter = Interpreter(model)
    parameters = tuple(torch.from_numpy(value).double() for value in model.initial_values)
    x = torch.from_numpy(features(2, WIDTH) / 256.0)
    direction = [
        torch.from_numpy(np.random.default_rng(i).normal(size=p.shape)) for i, p in enumerate(parameters)
    ]

    def total(given: tuple[torch.Tensor, ...], record: torch.Tensor) -> torch.Tensor:
        return interpreter.evaluate(given, record).square().sum()

    gradients = torch.func.vmap(torch.func.grad(total), in_dims=(None, 0))(parameters, x)
    step = 1e-6
    for index, record in enumerate(x):
        ahead = total(tuple(p + step * d for p, d in zip(parameters, direction, strict=True)), record)
        behind = total(tuple(p - step * d for p, d in zip(parameters, direction, strict=True)), record)
        along = sum(float((g[index] * d).sum()) for g, d in zip(gradients, direction, strict=True))
        assert along == pytest.approx(float((ahead - behind) / (2 * step)), rel=1e-4, abs=1e-4)


class Computed(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch
    """The most entries of a value that was computed, and not only its shape."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch
        self.entries = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, given: Any = (), named: dict[str, Any] | None = None
    ) -> Any:
        result = operation(*given, **(named or {}))
        for one in tree_leaves(result):
            if isinstance(one, torch.Tensor) and one.device.type != "meta":
                self.entries = max(self.entries, one.numel())
        return result


@pytest.mark.parametrize("name", CASES)
def test_a_models_memory_is_estimated_before_it_is_taken(name: str) -> None:
    model = parse(with_parameters(CASES[name]), num_features=WIDTH)
    interpreter = Interpreter(model)
    values = interpreter._values(
        interpreter._constants,
        [torch.from_numpy(value).to(torch.float64) for value in model.initial_values],
        torch.zeros(WIDTH, dtype=torch.float64),
    )
    with Computed() as computed:
        count = interpreter.count_elements()
    assert computed.entries <= 1
    of_values = sum(value.numel() for value in values.values())
    assert (count > of_values) if name.startswith(("LSTM", "GRU")) else (count == of_values)


def test_every_operator_that_reaches_an_engine_is_interpreted() -> None:
    renamed = {"Flatten", "Squeeze", "Unsqueeze", "GlobalAveragePool", "Mod"}
    assert {name for name, row in OPERATORS.items() if row.rule is not None} - renamed == set(_OPERATORS)


def test_an_index_outside_a_table_gives_nan() -> None:
    nodes = [
        node("Mul", ["x", "bytes"], ["1"]),
        node("Cast", ["1"], ["2"], to=7),
        node("Gather", ["table", "2"], ["o"]),
        *FLAT,
    ]
    model = parse(encoded(nodes, [weights("table", 10, 2), tensor("bytes", 256.0)], width=2), num_features=2)
    table = torch.from_numpy(model.initial_values[0]).double()
    result = Interpreter(model).evaluate([table], torch.tensor([9, 10], dtype=torch.float64) / 256)
    np.testing.assert_array_equal(result[:2], table[9])
    assert result[2:].isnan().all()
