"""The parser on honest files.

What is trained, what the normal form is, what the digest names, and the way back to ONNX.
"""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

from maskedlark.errors import ModelReason
from maskedlark.model.onnx_file import parse, replace_parameters
from tests.onnx_builders import WIDTH, encoded, features, linear_proto, model_proto, node, tensor, weights
from tests.refusals import refused
from tests.torch_models import EXPORTED, export


@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.parametrize("records", [1, 2])
@pytest.mark.parametrize("name", EXPORTED)
def test_what_torch_exports_parses_and_trains_all_that_torch_trains(
    name: str, records: int, dynamo: bool
) -> None:
    module, width = EXPORTED[name]()
    model = parse(export(module, width, records, dynamo=dynamo), num_features=width)
    assert model.output_width == module(torch.zeros(1, width)).numel()
    folded = sum(
        p.numel() for part in module.modules() if isinstance(part, nn.BatchNorm2d) for p in part.parameters()
    )
    assert (
        model.num_parameters == sum(p.numel() for p in module.parameters()) - folded
    )  # exporters fold it into the convolution


def test_parameters_keep_their_names_order_and_values() -> None:
    model = parse(linear_proto().SerializeToString(), num_features=WIDTH)
    assert [(p.name, p.shape) for p in model.parameters] == [("w", (2, WIDTH)), ("b", (2,))]
    np.testing.assert_array_equal(model.initial_values[0], numpy_helper.to_array(weights("w", 2, WIDTH)))
    assert model.num_parameters == 2 * WIDTH + 2


def test_statistics_bounds_scalars_and_constant_nodes_are_not_trained() -> None:
    nodes = [
        node("Constant", [], ["two"], value=tensor("", [2.0, 2.0])),
        node("Gemm", ["x", "w"], ["a"]),
        node("BatchNormalization", ["a", "scale", "bias", "mean", "variance"], ["b"]),
        node("Mul", ["b", "two"], ["c"]),
        node("Add", ["c", "scalar"], ["d"]),
        node("Clip", ["d", "low", "high"], ["y"]),
    ]
    constants = [
        tensor("mean", np.zeros(2)),
        tensor("variance", np.ones(2)),
        tensor("scalar", 1.5),
        tensor("low", -9),
        tensor("high", 9),
    ]
    model = parse(
        encoded(nodes, [weights("w", WIDTH, 2), weights("scale", 2), weights("bias", 2), *constants]),
        num_features=WIDTH,
    )
    assert [p.name for p in model.parameters] == ["w", "scale", "bias"]
    assert set(model.constants) == {"mean", "variance", "two", "scalar"}
    assert model.nodes[-1].attributes == {"min": -9.0, "max": 9.0}


@pytest.mark.parametrize("operator", ["Transpose", "Identity", "Cast", "Reshape", "Unsqueeze"])
def test_a_weight_that_is_moved_on_its_way_is_still_trained(operator: str) -> None:
    extra = {
        "Transpose": (node("Transpose", ["w"], ["v"]), []),
        "Identity": (node("Identity", ["w"], ["v"]), []),
        "Cast": (node("Cast", ["w"], ["v"], to=1), []),
        "Reshape": (node("Reshape", ["w", "s"], ["v"]), [tensor("s", [4, 4], np.int64)]),
        "Unsqueeze": (node("Unsqueeze", ["w", "s"], ["v"]), [tensor("s", [], np.int64)]),
    }[operator]
    model = parse(
        encoded([extra[0], node("MatMul", ["x", "v"], ["y"])], [weights("w", 4, 4), *extra[1]]),
        num_features=WIDTH,
    )
    assert [p.name for p in model.parameters] == ["w"]


def test_what_does_not_reach_the_output_is_left_out() -> None:
    nodes = [node("Gemm", ["x", "w"], ["y"]), node("Gemm", ["x", "unused"], ["nothing"])]
    model = parse(
        encoded(nodes, [weights("w", WIDTH, 2), weights("unused", WIDTH, 2), weights("lonely", 3)]),
        num_features=WIDTH,
    )
    assert len(model.nodes) == 1
    assert [p.name for p in model.parameters] == ["w"]


def test_identity_dropout_and_a_flatten_of_rows_disappear() -> None:
    nodes = [
        node("Identity", ["x"], ["a"]),
        node("Flatten", ["a"], ["b"]),
        node("Gemm", ["b", "w"], ["c"]),
        node("Dropout", ["c"], ["d"]),
        node("Identity", ["d"], ["y"]),
    ]
    model = parse(encoded(nodes, [weights("w", WIDTH, 2)]), num_features=WIDTH)
    assert [n.operator for n in model.nodes] == ["Gemm"]
    assert model.nodes[0].inputs == ("x", "w")
    assert model.output_name == "c"


def test_initializers_may_also_be_listed_as_inputs() -> None:
    proto = linear_proto()
    proto.graph.input.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [2, WIDTH]))
    assert parse(proto.SerializeToString(), num_features=WIDTH).input_name == "x"


def test_shapes_computed_in_the_graph_become_numbers() -> None:
    nodes = [
        node("Shape", ["x"], ["s"], start=0, end=1),
        node("Concat", ["s", "rest"], ["t"], axis=0),
        node("Reshape", ["x", "t"], ["r"]),
        node("MatMul", ["r", "w"], ["m"]),
        node("Flatten", ["m"], ["y"]),
    ]
    model = parse(encoded(nodes, [tensor("rest", [2, 2], np.int64), weights("w", 2, 3)]), num_features=WIDTH)
    assert [(n.operator, dict(n.attributes)) for n in model.nodes] == [
        ("Reshape", {"shape": (1, 2, 2)}),
        ("MatMul", {}),
        ("Reshape", {"shape": (1, 6)}),
    ]
    assert model.output_width == 6
    assert not model.constants


@pytest.mark.parametrize(
    ("operator", "attributes", "constant", "opset"),
    [
        ("Squeeze", {"axes": [1]}, None, 11),
        ("Squeeze", {}, [1], 13),
        ("ReduceSum", {"axes": [1], "keepdims": 0}, None, 11),
        ("ReduceSum", {"keepdims": 0}, [1], 13),
        ("ReduceMean", {"axes": [1], "keepdims": 0}, None, 13),
        ("ReduceMean", {"keepdims": 0}, [1], 18),
    ],
)
def test_attributes_of_old_operator_sets_and_inputs_of_new_ones_mean_the_same(
    operator: str, attributes: dict[str, object], constant: list[int] | None, opset: int
) -> None:
    inputs = ["u", "axes"] if constant else ["u"]
    unsqueeze = ["x", "axes"] if opset >= 13 and constant else ["x"]
    first = node("Unsqueeze", unsqueeze, ["u"], **({} if len(unsqueeze) > 1 else {"axes": [1]}))
    nodes = [first, node(operator, inputs, ["s"], **attributes), node("Gemm", ["s", "w"], ["y"])]
    initializers = [weights("w", WIDTH, 2)] + ([tensor("axes", constant, np.int64)] if constant else [])
    model = parse(encoded(nodes, initializers, opset=opset), num_features=WIDTH)
    assert model.output_width == 2


def test_softmax_before_opset_13_needs_the_last_axis() -> None:
    nodes = [node("Gemm", ["x", "w"], ["z"]), node("Softmax", ["z"], ["y"])]
    assert parse(encoded(nodes, [weights("w", WIDTH, 2)], opset=11), num_features=WIDTH).nodes[
        1
    ].attributes == {"axis": 1}
    nodes[1] = node("Softmax", ["z"], ["y"], axis=0)
    with refused(ModelReason.UNSUPPORTED_ATTRIBUTE):
        parse(encoded(nodes, [weights("w", WIDTH, 2)], opset=11), num_features=WIDTH)


def test_a_file_with_a_batch_of_one_may_fix_its_shapes() -> None:
    nodes = [node("Reshape", ["x", "s"], ["r"]), node("Gemm", ["r", "w"], ["y"])]
    initializers = [tensor("s", [1, WIDTH], np.int64), weights("w", WIDTH, 2)]
    assert parse(encoded(nodes, initializers, records=1), num_features=WIDTH).output_width == 2
    with refused(ModelReason.WRONG_SHAPE):
        parse(encoded(nodes, initializers, records="n"), num_features=WIDTH)


def test_new_values_leave_the_digest_and_everything_else_changes_it() -> None:
    original = linear_proto()
    digest = parse(original.SerializeToString(), num_features=WIDTH).digest
    other_values = linear_proto()
    other_values.graph.initializer[0].CopyFrom(tensor("w", np.ones((2, WIDTH))))
    other_values.producer_name = "another"
    assert parse(other_values.SerializeToString(), num_features=WIDTH).digest == digest
    others = [
        model_proto(
            [node("Gemm", ["x", "w", "b"], ["y"], transB=1, alpha=2.0)],
            [weights("w", 2, WIDTH), weights("b", 2)],
        ),
        model_proto(
            [node("Gemm", ["x", "w", "b"], ["y"], transB=1)], [weights("b", 2), weights("w", 2, WIDTH)]
        ),
        model_proto(
            [node("Gemm", ["x", "w", "b"], ["y"], transB=1)], [weights("w", 3, WIDTH), weights("b", 3)]
        ),
        model_proto(
            [node("Gemm", ["x", "w", "b"], ["z"], transB=1)],
            [weights("w", 2, WIDTH), weights("b", 2)],
            output="z",
        ),
        model_proto(
            [node("Gemm", ["x", "w"], ["z"], transB=1), node("Relu", ["z"], ["y"])], [weights("w", 2, WIDTH)]
        ),
    ]
    digests = {parse(proto.SerializeToString(), num_features=WIDTH).digest for proto in others}
    assert len(digests | {digest}) == len(others) + 1


def test_the_digest_depends_on_a_constant() -> None:
    def digest_with(value: float) -> bytes:
        nodes = [node("Gemm", ["x", "w"], ["z"]), node("Mul", ["z", "c"], ["y"])]
        return parse(encoded(nodes, [weights("w", WIDTH, 2), tensor("c", value)]), num_features=WIDTH).digest

    assert digest_with(1.0) == digest_with(1.0)
    assert digest_with(1.0) != digest_with(2.0)


def test_replaced_parameters_are_what_onnxruntime_runs() -> None:
    file = linear_proto().SerializeToString()
    model = parse(file, num_features=WIDTH)
    weight, bias = np.arange(8, dtype=np.float32).reshape(2, 4), np.array([10, 20], np.float32)
    replaced = replace_parameters(file, model, [weight, bias])
    x = features(3).astype(np.float32) / 256
    result = onnxruntime.InferenceSession(replaced, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    np.testing.assert_allclose(result, x @ weight.T + bias, rtol=1e-6)
    again = parse(replaced, num_features=WIDTH)
    assert again.digest == model.digest
    np.testing.assert_array_equal(again.initial_values[0], weight)


def test_parameters_stored_as_numbers_are_replaced_too() -> None:
    proto = linear_proto()
    proto.graph.initializer[1].CopyFrom(helper.make_tensor("b", onnx.TensorProto.FLOAT, [2], [1.0, 2.0]))
    file = proto.SerializeToString()
    model = parse(file, num_features=WIDTH)
    np.testing.assert_array_equal(model.initial_values[1], [1.0, 2.0])
    replaced = replace_parameters(file, model, [model.initial_values[0], np.array([3, 4], np.float32)])
    np.testing.assert_array_equal(parse(replaced, num_features=WIDTH).initial_values[1], [3.0, 4.0])


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([np.zeros((2, 4), np.float32)], ModelReason.WRONG_SHAPE),
        ([np.zeros((4, 2), np.float32), np.zeros(2, np.float32)], ModelReason.WRONG_SHAPE),
        ([np.zeros((2, 4), np.float32), np.array([0, np.nan], np.float32)], ModelReason.NOT_FINITE),
    ],
)
def test_values_that_do_not_fit_are_refused(values: list[np.ndarray], reason: ModelReason) -> None:
    file = linear_proto().SerializeToString()
    with refused(reason):
        replace_parameters(file, parse(file, num_features=WIDTH), values)


def test_parameters_of_another_model_are_refused() -> None:
    other = encoded([node("Gemm", ["x", "w"], ["y"])], [weights("w", WIDTH, 2)])
    model = parse(linear_proto().SerializeToString(), num_features=WIDTH)
    with refused(ModelReason.NOT_ONNX):
        replace_parameters(other, model, model.initial_values)
