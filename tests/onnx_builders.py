"""ONNX files for tests: honest ones in a line, and pieces to spoil them with."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

WIDTH = 4


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, list(inputs), list(outputs), **attributes)


def tensor(name: str, values: Any, dtype: Any = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(values, dtype), name)


def weights(name: str, *shape: int) -> onnx.TensorProto:
    """Reproducible values of a name."""
    generator = np.random.default_rng(sum(name.encode()))
    return tensor(name, generator.normal(size=shape))


def model_proto(
    nodes: Sequence[onnx.NodeProto],
    initializers: Sequence[onnx.TensorProto],
    *,
    width: int = WIDTH,
    records: int | str | None = "records",
    output: str = "y",
    opset: int = 20,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [records, width])],
        [helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)],
        initializer=list(initializers),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def encoded(
    nodes: Sequence[onnx.NodeProto], initializers: Sequence[onnx.TensorProto], **settings: Any
) -> bytes:
    return bytes(model_proto(nodes, initializers, **settings).SerializeToString())


def linear_proto() -> onnx.ModelProto:
    """y = x W' + b: the smallest honest model."""
    return model_proto(
        [node("Gemm", ["x", "w", "b"], ["y"], transB=1)], [weights("w", 2, WIDTH), weights("b", 2)]
    )


def features(count: int, width: int = WIDTH, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, width), dtype=np.uint8)
