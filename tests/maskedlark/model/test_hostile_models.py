"""Files that a hostile ad server might send.

Each is refused with its reason, at once, and without opening anything.
"""

import contextlib
import math
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from io import BytesIO
from textwrap import dedent

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.model.limits import Limits
from maskedlark.model.onnx_file import parse
from tests.onnx_builders import WIDTH, encoded, linear_proto, model_proto, node, tensor, weights

Spoil = Callable[[onnx.ModelProto], object]
NOT_ONNX, TOO_LARGE, WRONG_SHAPE = ModelReason.NOT_ONNX, ModelReason.TOO_LARGE, ModelReason.WRONG_SHAPE


@cache
def second() -> float:
    """A second of processor time, or four times what counting to three million takes, if that is more."""
    started = time.process_time()
    sum(number * number % 7 for number in range(3_000_000))
    return max(1.0, 4 * (time.process_time() - started))


def reason_of(file: bytes, limits: Limits | None = None) -> ModelReason:
    started = time.process_time()
    with pytest.raises(InvalidModel) as refusal:
        parse(file, num_features=WIDTH, limits=limits or Limits())
    assert time.process_time() - started < second()
    return refusal.value.reason


def varint(value: int) -> bytes:
    encoded_value = b""
    while value > 127:
        encoded_value += bytes([value & 127 | 128])
        value >>= 7
    return encoded_value + bytes([value])


def chunk(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return varint(number << 3 | 2) + varint(len(content)) + content


SPOILED: dict[str, tuple[ModelReason, Spoil]] = {
    "external data": (
        ModelReason.EXTERNAL_DATA,
        lambda m: m.graph.initializer[0].external_data.add(key="location", value="/etc/passwd"),
    ),
    "external data without a path": (
        ModelReason.EXTERNAL_DATA,
        lambda m: setattr(m.graph.initializer[0], "data_location", onnx.TensorProto.EXTERNAL),
    ),
    "sparse initializer": (ModelReason.UNSUPPORTED_ATTRIBUTE, lambda m: m.graph.sparse_initializer.add()),
    "quantisation annotation": (
        ModelReason.UNSUPPORTED_ATTRIBUTE,
        lambda m: m.graph.quantization_annotation.add(),
    ),
    "local function": (ModelReason.UNKNOWN_OPERATOR, lambda m: m.functions.add(name="Gemm", domain="")),
    "training graph": (ModelReason.SUBGRAPH, lambda m: m.training_info.add()),
    "subgraph in an attribute": (
        ModelReason.SUBGRAPH,
        lambda m: m.graph.node[0].attribute.append(
            helper.make_attribute("body", helper.make_graph([], "g", [], []))
        ),
    ),
    "custom domain": (
        ModelReason.UNKNOWN_OPERATOR,
        lambda m: setattr(m.graph.node[0], "domain", "com.microsoft"),
    ),
    "overloaded operator": (
        ModelReason.UNKNOWN_OPERATOR,
        lambda m: setattr(m.graph.node[0], "overload", "mine"),
    ),
    "unknown operator": (ModelReason.UNKNOWN_OPERATOR, lambda m: setattr(m.graph.node[0], "op_type", "Loop")),
    "old operator set": (ModelReason.UNKNOWN_OPERATOR, lambda m: setattr(m.opset_import[0], "version", 10)),
    "future operator set": (
        ModelReason.UNKNOWN_OPERATOR,
        lambda m: setattr(m.opset_import[0], "version", 24),
    ),
    "no operator set": (NOT_ONNX, lambda m: m.ClearField("opset_import")),
    "two default operator sets": (
        NOT_ONNX,
        lambda m: m.opset_import.add(domain="ai.onnx", version=20),
    ),
    "unknown attribute": (
        ModelReason.UNSUPPORTED_ATTRIBUTE,
        lambda m: m.graph.node[0].attribute.append(helper.make_attribute("secret", 1)),
    ),
    "attribute given twice": (
        ModelReason.UNSUPPORTED_ATTRIBUTE,
        lambda m: m.graph.node[0].attribute.append(helper.make_attribute("transB", 0)),
    ),
    "attribute of the wrong type": (
        ModelReason.UNSUPPORTED_ATTRIBUTE,
        lambda m: m.graph.node[0].attribute.append(helper.make_attribute("alpha", "text")),
    ),
    "attribute that is not finite": (
        ModelReason.NOT_FINITE,
        lambda m: m.graph.node[0].attribute.append(helper.make_attribute("alpha", float("nan"))),
    ),
    "infinite weight": (
        ModelReason.NOT_FINITE,
        lambda m: m.graph.initializer[0].CopyFrom(tensor("w", np.full((2, WIDTH), np.inf))),
    ),
    "double-precision weight that is not finite": (
        ModelReason.NOT_FINITE,
        lambda m: m.graph.initializer[1].CopyFrom(tensor("b", [np.nan, 1.0], np.float64)),
    ),
    "double-precision weight": (
        WRONG_SHAPE,
        lambda m: m.graph.initializer[0].CopyFrom(tensor("w", np.ones((2, WIDTH)), np.float64)),
    ),
    "double-precision bias": (
        WRONG_SHAPE,
        lambda m: m.graph.initializer[1].CopyFrom(tensor("b", [1.0, 1.0], np.float64)),
    ),
    "raw data cut short": (
        WRONG_SHAPE,
        lambda m: setattr(m.graph.initializer[0], "raw_data", b"\0" * 31),
    ),
    "raw data too long": (
        WRONG_SHAPE,
        lambda m: setattr(m.graph.initializer[0], "raw_data", b"\0" * 36),
    ),
    "values in two fields": (
        WRONG_SHAPE,
        lambda m: m.graph.initializer[0].float_data.extend([0.0] * 8),
    ),
    "no values": (WRONG_SHAPE, lambda m: m.graph.initializer[0].ClearField("raw_data")),
    "half-precision weight": (
        WRONG_SHAPE,
        lambda m: m.graph.initializer[0].CopyFrom(tensor("w", np.zeros((2, WIDTH)), np.float16)),
    ),
    "text tensor": (
        WRONG_SHAPE,
        lambda m: setattr(m.graph.initializer[0], "data_type", onnx.TensorProto.STRING),
    ),
    "negative dimension": (WRONG_SHAPE, lambda m: m.graph.initializer[0].dims.__setitem__(0, -2)),
    "overflowing dimensions": (
        TOO_LARGE,
        lambda m: m.graph.initializer[0].dims.extend([2**62, 2**62]),
    ),
    "dimensions that hide behind a zero": (
        TOO_LARGE,
        lambda m: m.graph.initializer[0].dims.extend([0, 2**62]),
    ),
    "rank of nine": (TOO_LARGE, lambda m: m.graph.initializer[0].dims.extend([1] * 7)),
    "segmented tensor": (
        WRONG_SHAPE,
        lambda m: setattr(m.graph.initializer[0].segment, "begin", 0),
    ),
    "initializer twice": (NOT_ONNX, lambda m: m.graph.initializer.append(m.graph.initializer[0])),
    "nameless initializer": (NOT_ONNX, lambda m: setattr(m.graph.initializer[0], "name", "")),
    "undefined value": (NOT_ONNX, lambda m: m.graph.node[0].input.__setitem__(1, "ghost")),
    "a node that reads itself": (NOT_ONNX, lambda m: m.graph.node[0].input.__setitem__(0, "y")),
    "a value defined twice": (NOT_ONNX, lambda m: m.graph.node.append(m.graph.node[0])),
    "a node that overwrites the input": (
        NOT_ONNX,
        lambda m: m.graph.node[0].output.__setitem__(0, "x"),
    ),
    "a node that overwrites a weight": (
        NOT_ONNX,
        lambda m: m.graph.node[0].output.__setitem__(0, "w"),
    ),
    "a node without output": (NOT_ONNX, lambda m: m.graph.node[0].ClearField("output")),
    "too few inputs": (NOT_ONNX, lambda m: m.graph.node[0].input.__delitem__(slice(1, None))),
    "too many inputs": (NOT_ONNX, lambda m: m.graph.node[0].input.append("b")),
    "an absent required input": (NOT_ONNX, lambda m: m.graph.node[0].input.__setitem__(0, "")),
    "undefined output": (NOT_ONNX, lambda m: setattr(m.graph.output[0], "name", "ghost")),
    "nameless output": (NOT_ONNX, lambda m: setattr(m.graph.output[0], "name", "")),
    "two outputs": (WRONG_SHAPE, lambda m: m.graph.output.append(m.graph.output[0])),
    "no output": (WRONG_SHAPE, lambda m: m.graph.ClearField("output")),
    "two inputs": (
        WRONG_SHAPE,
        lambda m: m.graph.input.append(helper.make_tensor_value_info("z", 1, ["n", WIDTH])),
    ),
    "no input": (WRONG_SHAPE, lambda m: m.graph.ClearField("input")),
    "an input of integers": (
        WRONG_SHAPE,
        lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 7),
    ),
    "a sequence as input": (
        WRONG_SHAPE,
        lambda m: m.graph.input[0].type.sequence_type.SetInParent(),
    ),
    "an input of another width": (
        WRONG_SHAPE,
        lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", WIDTH + 1),
    ),
    "an input of open width": (
        WRONG_SHAPE,
        lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[1], "dim_param", "d"),
    ),
    "a fixed batch": (
        WRONG_SHAPE,
        lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 2),
    ),
    "a weight that does not fit": (
        WRONG_SHAPE,
        lambda m: m.graph.initializer[0].CopyFrom(weights("w", 2, WIDTH + 1)),
    ),
    "nothing to train": (
        ModelReason.NOTHING_TO_TRAIN,
        lambda m: m.graph.node[0].CopyFrom(node("Relu", ["x"], ["y"])),
    ),
}


@pytest.mark.parametrize("trick", SPOILED)
def test_a_spoiled_model_is_refused_with_its_reason(trick: str) -> None:
    reason, spoil = SPOILED[trick]
    proto = linear_proto()
    parse(proto.SerializeToString(), num_features=WIDTH)
    spoil(proto)
    assert reason_of(proto.SerializeToString()) is reason


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_but_invalid_model(file: bytes) -> None:
    with pytest.raises(InvalidModel):
        parse(file, num_features=WIDTH)


@settings(max_examples=300)
@given(st.data())
def test_no_damage_to_an_honest_file_raises_anything_but_invalid_model(data: st.DataObject) -> None:
    file = bytearray(linear_proto().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    kept = bytes(file[: data.draw(st.integers(0, len(file)))]) if data.draw(st.booleans()) else bytes(file)
    with contextlib.suppress(InvalidModel):
        parse(kept, num_features=WIDTH)


def deeply_nested() -> bytes:
    nested = b""
    for _ in range(60):
        nested = chunk(4, chunk(1, nested))  # TypeProto.sequence_type.elem_type
    return chunk(7, chunk(11, chunk(2, nested)))


def named(name: str) -> bytes:
    proto = linear_proto()
    proto.graph.name = name
    return bytes(proto.SerializeToString())


FILES: dict[str, tuple[ModelReason, Callable[[], bytes]]] = {
    "nothing": (NOT_ONNX, lambda: b""),
    "a zero": (NOT_ONNX, lambda: b"\0"),
    "text": (NOT_ONNX, lambda: b"not a model"),
    "a length past the end": (NOT_ONNX, lambda: b"\x3a\xff\xff\xff\xff\x0f"),
    "groups": (NOT_ONNX, lambda: b"\x3b\x3c"),
    "a number without an end": (NOT_ONNX, lambda: b"\x08" + b"\xff" * 11),
    "cut short": (NOT_ONNX, lambda: b"\x3a\x05ab"),
    "text that is not UTF-8": (NOT_ONNX, lambda: named("test").replace(b"test", b"\xff\xfe\xfd\xfc")),
    "a long text": (TOO_LARGE, lambda: named("n" * 100_000)),
    "deep nesting": (TOO_LARGE, deeply_nested),
    # These two before they are decoded:
    "a bomb of empty nodes": (TOO_LARGE, lambda: chunk(7, b"\x0a\x00" * (8 << 20))),
    "a bomb of packed integers": (TOO_LARGE, lambda: chunk(7, chunk(5, chunk(1, b"\x01" * (16 << 20))))),
}


@pytest.mark.parametrize("trick", FILES)
def test_a_hostile_file_is_refused_with_its_reason(trick: str) -> None:
    reason, file = FILES[trick]
    assert reason_of(file()) is reason


def test_a_file_past_the_limit_is_too_large() -> None:
    file = linear_proto().SerializeToString()
    assert reason_of(file, Limits(max_bytes=len(file) - 1)) is TOO_LARGE
    parse(file, num_features=WIDTH, limits=Limits(max_bytes=len(file)))


def test_too_many_nodes_are_too_large() -> None:
    chain = [node("Gemm", ["x", "w"], ["0"])] + [node("Relu", [str(i)], [str(i + 1)]) for i in range(10)]
    file = encoded(chain, [weights("w", WIDTH, 2)], output="10")
    parse(file, num_features=WIDTH, limits=Limits(max_nodes=11))
    assert reason_of(file, Limits(max_nodes=10)) is TOO_LARGE


def test_too_many_parameters_are_too_large() -> None:
    file = linear_proto().SerializeToString()
    parse(file, num_features=WIDTH, limits=Limits(max_parameters=10))
    assert reason_of(file, Limits(max_parameters=9)) is TOO_LARGE


def test_raw_weights_may_be_as_many_as_parameters_and_listed_ones_fewer() -> None:
    proto = linear_proto()
    raw = proto.graph.initializer[0]
    count = math.prod(raw.dims)
    limits = Limits(max_parameters=2 * count, max_elements=count - 1)
    parse(proto.SerializeToString(), num_features=WIDTH, limits=limits)
    raw.float_data.extend(onnx.numpy_helper.to_array(raw).ravel().tolist())
    raw.ClearField("raw_data")
    assert reason_of(proto.SerializeToString(), limits) is TOO_LARGE


INDEX = np.int64
BRANCH = helper.make_graph(
    [node("Identity", ["x"], ["b"])], "branch", [], [helper.make_tensor_value_info("b", 1, None)]
)
STATISTICS = ("scale", "bias", "mean", "variance")
RESHAPED = [node("Reshape", ["x", "s"], ["r"]), node("Gemm", ["r", "w"], ["y"])]
FILLED = [
    node("ConstantOfShape", ["s"], ["c"]),
    node("Gemm", ["x", "w"], ["z"]),
    node("Add", ["z", "c"], ["y"]),
]
Graph = tuple[ModelReason, list[onnx.NodeProto], list[onnx.TensorProto], str]
GRAPHS: dict[str, Graph] = {
    "control flow": (
        ModelReason.SUBGRAPH,
        [node("If", ["c"], ["y"], then_branch=BRANCH, else_branch=BRANCH)],
        [tensor("c", True, np.bool_)],
        "y",
    ),
    "an expansion past the limit": (
        TOO_LARGE,
        [
            node("Expand", ["x", "s"], ["big"]),
            node("ReduceSum", ["big", "a"], ["sum"], keepdims=0),
            node("Gemm", ["sum", "w"], ["y"]),
        ],
        [tensor("s", [1 << 30, 1, WIDTH], INDEX), tensor("a", [0], INDEX)],
        "y",
    ),
    "a doubling chain": (
        TOO_LARGE,
        [node("Gemm", ["x", "w"], ["0"])]
        + [node("Concat", [str(i), str(i)], [str(i + 1)], axis=1) for i in range(40)],
        [],
        "40",
    ),
    "a constant filled past the limit": (TOO_LARGE, FILLED, [tensor("s", [1 << 40], INDEX)], "y"),
    "a negative fill": (WRONG_SHAPE, FILLED, [tensor("s", [-1], INDEX)], "y"),
    "an output that mixes records": (
        WRONG_SHAPE,
        [node("ReduceMean", ["x", "a"], ["m"], keepdims=1), node("Gemm", ["m", "w"], ["y"])],
        [tensor("a", [0], INDEX)],
        "y",
    ),
    "a division by zero in a shape": (
        WRONG_SHAPE,
        [node("Div", ["a", "zero"], ["s"]), *RESHAPED],
        [tensor("a", [1, 4], INDEX), tensor("zero", [1, 0], INDEX)],
        "y",
    ),
    "the least integer divided by minus one": (
        WRONG_SHAPE,
        [node("Div", ["a", "b"], ["s"]), *RESHAPED],
        [tensor("a", [-(2**63), 4], INDEX), tensor("b", [-1, 1], INDEX)],
        "y",
    ),
    "normalisation in training mode": (
        ModelReason.UNSUPPORTED_ATTRIBUTE,
        [
            node("Gemm", ["x", "w"], ["z"]),
            node("BatchNormalization", ["z", *STATISTICS], ["y"], training_mode=1),
        ],
        [tensor(name, np.ones(2)) for name in STATISTICS],
        "y",
    ),
    "dropout in training mode": (
        ModelReason.UNSUPPORTED_ATTRIBUTE,
        [node("Gemm", ["x", "w"], ["z"]), node("Dropout", ["z", "ratio", "mode"], ["y"])],
        [tensor("ratio", 0.5), tensor("mode", True, np.bool_)],
        "y",
    ),
}


@pytest.mark.parametrize("trick", GRAPHS)
def test_a_hostile_graph_is_refused_with_its_reason(trick: str) -> None:
    reason, nodes, initializers, output = GRAPHS[trick]
    file = encoded(nodes, [*initializers, weights("w", WIDTH, 2)], output=output)
    assert reason_of(file) is reason


def test_a_doubling_chain_of_computed_constants_is_too_large() -> None:
    nodes = [node("Concat", [str(i), str(i)], [str(i + 1)], axis=0) for i in range(6)]
    nodes += [node("Gather", ["w", "6"], ["rows"]), node("MatMul", ["x", "w"], ["y"])]
    nodes += [node("ReduceSum", ["rows"], ["s"], keepdims=0), node("Add", ["y", "s"], ["z"])]
    file = encoded(nodes, [tensor("0", [0, 1], np.int64), weights("w", WIDTH, 2)], output="z")
    computed = sum(2 << i for i in range(1, 7))
    parse(file, num_features=WIDTH, limits=Limits(max_computed_elements=computed))
    assert reason_of(file, Limits(max_computed_elements=computed - 1)) is TOO_LARGE


def test_too_much_arithmetic_is_too_large() -> None:
    nodes = [node("Reshape", ["x", "s"], ["image"]), node("Conv", ["image", "k"], ["c"], pads=[500] * 4)]
    nodes += [node("ReduceMean", ["c", "a"], ["m"], keepdims=0), node("Gemm", ["m", "w"], ["y"])]
    initializers = [
        tensor("s", [-1, 1, 2, 2], np.int64),
        weights("k", 4, 1, 300, 300),
        tensor("a", [2, 3], np.int64),
        weights("w", 4, 2),
    ]
    file = encoded(nodes, initializers)
    parse(file, num_features=WIDTH, limits=Limits(max_multiplications=1 << 40))
    assert reason_of(file) is TOO_LARGE


def test_no_trick_opens_a_file_or_takes_more_than_a_second_and_256_mib() -> None:
    """In a process that can open no file any more, which tells of each attempt by Python code and would fail
    in native code."""
    script = dedent("""
        import pickle, resource, sys, time
        from maskedlark.errors import InvalidModel
        from maskedlark.model.onnx_file import parse

        def answer(file):
            started = time.process_time()
            try:
                parse(file, num_features=4)
            except InvalidModel as refusal:
                return refusal.reason.value, time.process_time() - started
            return "", time.process_time() - started

        honest, *files = pickle.load(sys.stdin.buffer)
        answer(honest)
        opened = []
        watched = ("open", "socket.connect", "subprocess.Popen")
        sys.addaudithook(lambda event, args: opened.append((event, args)) if event in watched else None)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answers = [answer(file) for file in files]
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        slowest = max(seconds for _, seconds in answers)
        print(opened, grown, slowest, *[reason for reason, _ in answers], sep="\\n")
    """)
    honest = linear_proto().SerializeToString()
    files = [honest]
    for _, spoil in SPOILED.values():
        proto = linear_proto()
        spoil(proto)
        files.append(proto.SerializeToString())
    result = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(files), capture_output=True, check=True
    )
    opened, kibibytes, seconds, *reasons = result.stdout.decode().splitlines()
    assert opened == "[]"
    assert int(kibibytes) < 256 * 1024
    assert float(seconds) < second()
    assert reasons == [reason.value for reason, _ in SPOILED.values()]


@pytest.mark.parametrize(
    "bomb", ["empty nodes", "weights", "packed integers", "floats one by one", "many honest nodes"]
)
def test_an_answer_takes_less_than_a_second_and_256_mib(bomb: str) -> None:
    """In a process of its own, so that its peak memory is this file's."""
    script = dedent("""
        import contextlib, resource, sys, time
        from maskedlark.errors import InvalidModel
        from maskedlark.model.limits import HELPER_PARAMETERS, Limits
        from maskedlark.model.onnx_file import parse
        file = sys.stdin.buffer.read()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.process_time()
        with contextlib.suppress(InvalidModel):
            parse(file, num_features=4, limits=Limits.admitting(HELPER_PARAMETERS))
        print(time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """)
    result = subprocess.run(
        [sys.executable, "-c", script], input=BOMBS[bomb](), capture_output=True, check=True
    )
    seconds, kibibytes = map(float, result.stdout.split())
    assert seconds < second()
    assert kibibytes < 256 * 1024


def _weights(count: int) -> bytes:
    """An honest file of `count` weights: nothing but its size is wrong with it."""
    return encoded([node("Gemm", ["x", "w"], ["y"])], [tensor("w", np.zeros((WIDTH, count // WIDTH)))])


def _floats_one_by_one() -> bytes:
    proto = model_proto([node("Gemm", ["x", "w"], ["y"])], [])
    values = proto.graph.initializer.add(name="w", data_type=1, dims=[WIDTH, 1 << 21])
    values.float_data.extend([0.0] * (WIDTH << 21))
    return bytes(proto.SerializeToString())


BOMBS: dict[str, Callable[[], bytes]] = {
    "empty nodes": lambda: chunk(7, b"\x0a\x00" * (16 << 20)),
    "weights": lambda: _weights(1 << 23),
    "packed integers": lambda: chunk(7, chunk(5, chunk(7, b"\x01" * ((8 << 20) - 64)))),
    "floats one by one": _floats_one_by_one,
    "many honest nodes": lambda: encoded(
        [node("Gemm", ["x", "w"], ["0"])]
        + [node("Relu", [str(i)], [str(i + 1)], name="n" * 2000) for i in range(2047)],
        [weights("w", WIDTH, 2)],
        output="2047",
    ),
}


def test_a_file_of_torch_is_told_how_it_is_exported() -> None:
    """`torch.save` writes an archive."""
    saved = BytesIO()
    torch.save({"weight": torch.zeros(2)}, saved)
    with pytest.raises(InvalidModel, match=r"torch\.onnx\.export"):
        parse(saved.getvalue(), num_features=2)
