"""What people export, exact: parameters added and multiplied, products of two values, LayerNorm, torch's
choice of columns; each against the oracle and against autograd."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from helper.gradient.exact.engine import ExactEngine
from helper.gradient.exact.layers.layer import NotExact
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.numbers.field import reconstruct, to_signed
from maskedlark.privacy.clip import Clip, Norm
from tests.helper.gradient.exact.checks import check_example, check_graph
from tests.helper.gradient.exact.graphs import GraphBuilder, autograd_sum, example, quantised
from tests.torch_models import export

L2 = Clip(norm=Norm.L2, bound=0.8, frac_bits=32)
L1 = Clip(norm=Norm.L1, bound=3.0, frac_bits=32)


def vectors(graph: GraphBuilder, rows: int, width: int) -> str:
    """(rows, width) values of a record, of a layer that is trained."""
    inputs = graph.inputs
    shape = graph.tensor(np.array([-1, rows, width], np.int64))
    return graph.node("Reshape", graph.gemm("x", inputs, rows * width), shape)


@pytest.mark.parametrize("clip", [L1, L2], ids=["l1", "l2"])
@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize("shape", [(1,), (4,), (3, 1), (1, 3, 4)])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_parameter_beside_a_value(
    operator: str, shape: tuple[int, ...], clip: Clip, *, is_first: bool
) -> None:
    graph = GraphBuilder(5, seed=1)
    value, parameter = vectors(graph, 3, 4), graph.weight(*shape, scale=0.5)
    pair = (parameter, value) if is_first else (value, parameter)
    value = graph.node("Flatten", graph.node(operator, *pair), axis=1)
    check_graph(graph.model(graph.gemm(value, 12, 3), 3), Loss.CROSS_ENTROPY, clip, labels=2, records=5)


def test_one_number_that_becomes_as_many_as_the_parameter() -> None:
    graph = GraphBuilder(5, seed=2)
    value = graph.node("Add", graph.node("Tanh", graph.gemm("x", 5, 1)), graph.weight(3, scale=0.5))
    check_graph(graph.model(value, 3), Loss.CROSS_ENTROPY, L2, labels=2)


def test_one_bias_for_all_outputs_of_a_product() -> None:
    graph = GraphBuilder(5, seed=2)
    value = graph.node("Add", graph.node("MatMul", "x", graph.weight(5, 3)), graph.weight(1, scale=0.5))
    check_graph(graph.model(value, 3), Loss.CROSS_ENTROPY, L2, labels=2)


def test_features_and_a_parameter() -> None:
    graph = GraphBuilder(4, seed=3)
    value = graph.node("Mul", graph.node("Sub", "x", graph.weight(4, scale=0.3)), graph.weight(4, scale=2.0))
    check_graph(graph.model(graph.gemm(value, 4, 2), 2), Loss.CROSS_ENTROPY, L2, labels=2)


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((3, 1), (1, 4)), ((1, 4), (3, 4))])
def test_two_values(operator: str, shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    graph = GraphBuilder(5, seed=4)
    left, right = (vectors(graph, *shape) for shape in shapes)
    value = graph.node("Flatten", graph.node(operator, left, right), axis=1)
    check_graph(graph.model(graph.gemm(value, 12, 3), 3), Loss.CROSS_ENTROPY, L2, labels=2, records=5)


@pytest.mark.parametrize("clip", [L1, L2], ids=["l1", "l2"])
@pytest.mark.parametrize(("axis", "has_bias"), [(-1, True), (-1, False), (1, True)])
def test_layer_normalisation(axis: int, clip: Clip, *, has_bias: bool) -> None:
    graph = GraphBuilder(5, seed=5)
    shape = (4,) if axis == -1 else (3, 4)
    more = [graph.weight(*shape, scale=0.3)] if has_bias else []
    value = graph.node(
        "LayerNormalization",
        graph.node("Relu", vectors(graph, 3, 4)),
        graph.weight(*shape, scale=1.0),
        *more,
        axis=axis,
        epsilon=1e-5,
    )
    value = graph.node("Flatten", value, axis=1)
    check_graph(graph.model(graph.gemm(value, 12, 3), 3), Loss.CROSS_ENTROPY, clip, labels=2, records=5)


def words(graph: GraphBuilder) -> str:
    """The features as indices."""
    return graph.node("Cast", graph.node("Mul", "x", graph.tensor(np.array(256, np.float32))), to=7)


@pytest.mark.parametrize("power", ["Pow", "Mul"])
def test_a_factorisation_machine(power: str) -> None:
    graph = GraphBuilder(4, seed=6)
    rows = graph.node("Gather", graph.weight(256, 3, scale=0.5), words(graph))
    one, two = (graph.tensor(np.array([axis], np.int64)) for axis in (1, 1))

    def squared(value: str) -> str:
        if power == "Mul":
            return graph.node("Mul", value, value)
        return graph.node("Pow", value, graph.constant(np.array(2.0)))

    whole = squared(graph.node("ReduceSum", rows, one, keepdims=0))
    parts = graph.node("ReduceSum", squared(rows), one, keepdims=0)
    pairs = graph.node("ReduceSum", graph.node("Sub", whole, parts), two, keepdims=1)
    value = graph.node("Mul", pairs, graph.constant(np.array(0.5)))
    value = graph.node("Add", graph.node("Add", value, graph.gemm("x", 4, 1)), graph.weight(1, scale=0.3))
    made = example(9, graph.model(value, 1), Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, 2, seed=6)
    check_example(graph.model(value, 1), Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, L2, made)


def test_a_cross_layer() -> None:
    graph = GraphBuilder(5, seed=7)
    value = first = graph.node("Tanh", graph.gemm("x", 5, 4))
    for _ in range(2):
        value = graph.node("Add", graph.node("Mul", first, graph.gemm(value, 4, 4)), value)
    check_graph(graph.model(graph.gemm(value, 4, 2), 2), Loss.CROSS_ENTROPY, L2, labels=2)


def test_entries_that_are_chosen_several_times() -> None:
    graph = GraphBuilder(6, seed=8)
    value = graph.node("Tanh", graph.gemm("x", 6, 4))
    chosen = graph.node("Gather", value, graph.tensor(np.array([3, 0, 3, -1], np.int64)), axis=1)
    check_graph(graph.model(graph.gemm(chosen, 4, 2), 2), Loss.CROSS_ENTROPY, L2, labels=2)


class Natural(nn.Module):
    """A logistic regression as people write it: zeros everywhere, a bias of its own, columns by a list."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(256, 1) for _ in range(3)])
        self.linear = nn.Linear(4, 1, bias=False)
        self.bias = nn.Parameter(torch.full((1,), 0.25))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        indices = (x * 256).long()
        z = self.linear(x[:, [3, 6, 4, 5]]) + self.bias
        for column, table in enumerate(self.tables):
            z = z + table(indices[:, column])
        return z  # type: ignore[no-any-return]


@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.parametrize("records", [1, 2])
def test_what_torch_exports_of_a_logistic_regression(records: int, *, dynamo: bool) -> None:
    torch.manual_seed(0)
    model = parse(export(Natural().eval(), 7, records, dynamo=dynamo), num_features=7)
    assert model.num_parameters == 3 * 256 + 4 + 1
    loss = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS
    made = example(6, model, loss, 2, seed=0)
    weights = quantised(model)
    got = [ExactEngine(model, loss, L2).masked_sum(weights, made.batch(helper)).vector for helper in (0, 1)]
    want = autograd_sum(model, weights, L2, loss, made)
    found = np.ldexp(to_signed(reconstruct(*got)).astype(np.float64), -L2.frac_bits)
    assert np.linalg.norm(found - want) <= 0.01 * np.linalg.norm(want)


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (lambda g: g.node("Div", g.gemm("x", 4, 2), g.weight(2)), "Div by a parameter"),
        (lambda g: g.node("Div", g.gemm("x", 4, 2), g.gemm("x", 4, 2)), "Div by a computed value"),
        (lambda g: g.node("Pow", g.gemm("x", 4, 2), g.constant(np.array(3.0))), "exponent 2"),
    ],
)
def test_what_has_no_exact_form_says_why(write: "Callable[[GraphBuilder], str]", why: str) -> None:
    graph = GraphBuilder(4, seed=9)
    value = graph.node("Flatten", write(graph), axis=1)
    model = graph.model(value, 2)
    with pytest.raises(NotExact, match=why):
        ExactEngine(model, Loss.CROSS_ENTROPY, L2)
