"""What is listed as forcing the general path does force it, and an exact graph has nothing listed."""

from collections.abc import Callable

import numpy as np
import pytest

from helper.gradient.exact.layers.layer import NotExact
from helper.gradient.exact.lowering import lowering
from helper.gradient.exact.lowering.lowering import lower
from maskedlark.model import exactness
from maskedlark.model.exactness import why_general
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss
from tests.helper.gradient.exact.graphs import GraphBuilder
from tests.helper.gradient.exact.step_cases import CASES

LOGITS = Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS


def one(write: Callable[[GraphBuilder, str], str]) -> Model:
    graph = GraphBuilder(4, seed=1)
    return graph.model(graph.gemm(write(graph, graph.gemm("x", 4, 3)), 3, 1), 1)


def twice(graph: GraphBuilder, value: str) -> str:
    weight = graph.weight(3, 3)
    return graph.node("Gemm", graph.node("Gemm", value, weight), weight)


def at_each_step(graph: GraphBuilder, value: str, operator: str) -> str:
    """A value of three numbers as three steps of one, and back."""
    steps = graph.node("Reshape", value, graph.tensor(np.array([-1, 3, 1])))
    given = (steps, graph.weight(1, 1)) if operator == "MatMul" else (steps,)
    return graph.node("Reshape", graph.node(operator, *given), graph.tensor(np.array([-1, 3])))


@pytest.mark.parametrize("case", CASES)
def test_an_exact_graph_has_nothing_listed(case: str) -> None:
    made = CASES[case]()
    lower(made.model, made.loss)
    assert why_general(made.model, made.loss) == ()
    assert why_general(made.model, None) == ()


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (lambda g, v: g.node("Exp", v), "the operator Exp: use the loss poisson"),
        (lambda g, v: g.node("Sqrt", g.node("Relu", v)), "the operator Sqrt: use LayerNormalization"),
        (lambda g, v: g.node("Div", v, g.gemm("x", 4, 3)), "Div by a computed value"),
        (lambda g, v: g.node("Div", v, g.weight(3)), "Div by a computed value"),
        (lambda g, v: g.node("Pow", v, g.constant(np.array(3.0))), "Pow with another exponent than 2"),
        (twice, "has 2 uses"),
        (lambda g, v: at_each_step(g, v, "MatMul"), "MatMul at each step of a sequence"),
        (lambda g, v: at_each_step(g, v, "Softmax"), "Softmax over a part of a record's values"),
    ],
)
def test_what_forces_the_general_path_is_listed(write: Callable[[GraphBuilder, str], str], why: str) -> None:
    model = one(write)
    with pytest.raises(NotExact):
        lower(model, LOGITS)
    (found,) = why_general(model, LOGITS)
    assert why in found


def test_probabilities_need_their_sigmoid() -> None:
    model = one(lambda g, v: g.node("Relu", v))
    with pytest.raises(NotExact):
        lower(model, Loss.BINARY_CROSS_ENTROPY)
    assert "without a last Sigmoid" in why_general(model, Loss.BINARY_CROSS_ENTROPY)[0]


def test_the_operators_are_the_engines() -> None:
    assert frozenset(lowering._LOWERINGS) == exactness.EXACT
