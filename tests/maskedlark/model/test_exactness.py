"""What is listed as forcing the general path does force it, and an exact graph has nothing listed."""

from collections.abc import Callable

import numpy as np
import pytest

from helper.gradient.choose import choose_engine
from helper.gradient.exact.layers.layer import NotExact
from helper.gradient.exact.lowering import lowering
from helper.gradient.exact.lowering.lowering import lower
from maskedlark.model import exactness
from maskedlark.model.exactness import why_general
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss
from maskedlark.model.weights import quantise
from maskedlark.numbers.field import to_signed
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.reports.input_shares import InputShares
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


def looked_up(graph: GraphBuilder, factor: float) -> str:
    """The rows of a table that whole numbers of the first feature, times a factor, choose."""
    chosen = graph.node("Gather", "x", graph.tensor(np.array(0)), axis=1)
    scaled = chosen if factor == 1 else graph.node("Mul", chosen, graph.constant(np.array(factor)))
    return graph.node("Gather", graph.weight(5, 3), graph.node("Cast", scaled, to=7))


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
        (lambda g, v: g.node("Add", v, looked_up(g, 1)), r"times 1: write (x * 256).long()"),
        (lambda g, v: g.node("Add", v, looked_up(g, 255)), r"times 255: write (x * 256).long()"),
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


def test_a_table_that_fractions_are_looked_up_in_trains_on_the_general_path() -> None:
    """Every record reads its first row: a forgotten factor is no error of a helper."""
    model = one(lambda g, v: g.node("Add", v, looked_up(g, 1)))
    engine = choose_engine(model, LOGITS, Clip(norm=Norm.L2, bound=1.0, frac_bits=20), 2)
    assert engine.path == "general"
    batch = InputShares(
        features=np.random.default_rng(1).integers(0, 256, (6, 4)).astype(np.uint8),
        labels=np.ones((6, 1), np.uint32),
        mask_shares=np.ones((6, 1), np.uint64),
    )
    weights = tuple(quantise(value) for value in model.initial_values)
    found = to_signed(engine.masked_sum(weights, batch).vector)
    ends = np.cumsum([parameter.size for parameter in model.parameters])
    [table] = [place for place, parameter in enumerate(model.parameters) if parameter.shape == (5, 3)]
    rows = found[ends[table] - 15 : ends[table]].reshape(5, 3)
    assert rows[0].any()
    assert not rows[1:].any()


def test_probabilities_need_their_sigmoid() -> None:
    model = one(lambda g, v: g.node("Relu", v))
    with pytest.raises(NotExact):
        lower(model, Loss.BINARY_CROSS_ENTROPY)
    assert "without a last Sigmoid" in why_general(model, Loss.BINARY_CROSS_ENTROPY)[0]


def test_the_operators_are_the_engines() -> None:
    assert frozenset(lowering._LOWERINGS) == exactness.EXACT
