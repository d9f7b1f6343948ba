"""What each operator becomes in the exact path's plan, and which graphs have no exact form.

The graphs are in normal form and never were a file: each guard is met, whatever the parser refuses.
"""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helper.gradient.exact.layers.convolution import Convolution
from helper.gradient.exact.layers.dense import Dense
from helper.gradient.exact.layers.elementwise import Activation, Curve
from helper.gradient.exact.layers.embedding import Embedding
from helper.gradient.exact.layers.layer import NotExact, Trainable
from helper.gradient.exact.layers.layout import Concatenate, Fixed, Rearrange, Repeat
from helper.gradient.exact.layers.normalisation import BatchNormalization, LayerNormalization
from helper.gradient.exact.layers.offset import Offset, Scale
from helper.gradient.exact.layers.pooling import AveragePool
from helper.gradient.exact.lowering import lowered
from helper.gradient.exact.lowering.lowered import Lowered, attribute, integers
from helper.gradient.exact.lowering.lowering import lower
from maskedlark.model.graph import GraphCost, Model, Node, Parameter
from maskedlark.model.losses import Loss

WIDTH = 12
SLIDE: dict[str, Any] = {"strides": (1,), "pads": (0, 0), "dilations": (1,)}
GEMM: dict[str, Any] = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}


class Graph:
    """A graph in normal form over features `x`; each method returns a value's name."""

    def __init__(self, width: int = WIDTH) -> None:
        self.width = width
        self.nodes: list[Node] = []
        self.parameters: list[Parameter] = []
        self.constants: dict[str, NDArray[Any]] = {}
        self.frozen: list[str] = []

    def parameter(self, *shape: int) -> str:
        name = f"p{len(self.parameters)}"
        self.parameters.append(Parameter(name=name, shape=shape))
        return name

    def freeze(self, *shape: int) -> str:
        name = self.constant(np.full(shape, 0.5))
        self.frozen.append(name)
        return name

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(values, dtype)
        return name

    def node(self, operator: str, *inputs: str, outputs: tuple[str, ...] = (), **attributes: Any) -> str:
        names = outputs or (f"v{len(self.nodes)}",)
        self.nodes.append(Node(operator=operator, inputs=inputs, outputs=names, attributes=attributes))
        return names[0]

    def gemm(self, source: str, inputs: int, outputs: int, *bias: str, **attributes: Any) -> str:
        return self.node("Gemm", source, self.parameter(inputs, outputs), *bias, **GEMM | attributes)

    def shaped(self, source: str, *shape: int) -> str:
        return self.node("Reshape", source, shape=(1, *shape))

    def conv(self, source: str, *weight_and_bias: str, **attributes: Any) -> str:
        return self.node("Conv", source, *weight_and_bias, **SLIDE | attributes)

    def lower(self, loss: Loss = Loss.CROSS_ENTROPY) -> Lowered:
        """Return the plan up to the last node."""
        nothing: Any = ()
        return lower(
            Model(
                input_name="x", input_width=self.width, output_name=self.nodes[-1].outputs[0], output_width=1,
                outputs=nothing, nodes=tuple(self.nodes), parameters=tuple(self.parameters),
                initial_values=nothing, constants=MappingProxyType(self.constants), digest=b"",
                work=GraphCost(multiplications=0, entries=0), frozen=tuple(self.frozen),
            ),
            loss,
        )  # fmt: skip


def steps(plan: Lowered) -> list[str]:
    """Return each step as `Layer inputs > output`, with `*` where it trains and `!` where its value is."""
    return [
        f"{type(step.layer).__name__}{'*' * step.has_parameters} {','.join(map(str, step.inputs))}"
        f" > {step.output}{'!' * plan.is_trained[step.output]}"
        for step in plan.steps
    ]


# What is refused.


def two(g: Graph) -> str:
    return g.gemm("x", WIDTH, 2)


def rows(g: Graph) -> str:
    """Values of shape (3, 4)."""
    return g.shaped("x", 3, 4)


def whole(g: Graph) -> str:
    return g.node("Mul", "x", g.constant(256))


def normalised(mean: list[float] | None, variance: list[float] | None) -> Callable[[Graph], str]:
    def write(g: Graph) -> str:
        statistics = [g.parameter(12) if one is None else g.constant(one) for one in (mean, variance)]
        return g.node("BatchNormalization", "x", g.parameter(12), g.parameter(12), *statistics, epsilon=0.0)

    return write


def by_layer(axis: int, scale: int, bias: int = 0) -> Callable[[Graph], str]:
    def write(g: Graph) -> str:
        extra = [g.parameter(bias)] if bias else []
        return g.node("LayerNormalization", rows(g), g.parameter(scale), *extra, axis=axis, epsilon=0.0)

    return write


def joined(operator: str, left: tuple[int, ...], right: tuple[int, ...]) -> Callable[[Graph], str]:
    return lambda g: g.node(operator, g.shaped("x", *left), g.shaped(two(g), *right))


def with_parameter(operator: str, *shape: int) -> Callable[[Graph], str]:
    return lambda g: g.node(operator, rows(g), g.parameter(*shape))


def with_constant(operator: str, values: Any, dtype: Any = np.float32) -> Callable[[Graph], str]:
    return lambda g: g.node(operator, two(g), g.constant(values, dtype))


def looked_up(*shape: int, axis: int = 0) -> Callable[[Graph], str]:
    return lambda g: g.node("Gather", g.parameter(*shape), whole(g), axis=axis)


def turned(g: Graph) -> str:
    """Values (3, 4) with the record axis in the middle."""
    return g.node("Transpose", rows(g), perm=(1, 0, 2))


def chosen_of(source: Callable[[Graph], str], values: Any, axis: int) -> Callable[[Graph], str]:
    return lambda g: g.node("Gather", source(g), g.constant(values, np.int64), axis=axis)


def coordinates(source: Callable[[Graph], str], values: Any) -> Callable[[Graph], str]:
    return lambda g: g.node("GatherND", source(g), g.constant(values, np.int64))


def twice(g: Graph) -> str:
    weight = g.parameter(12, 12)
    return g.node("Gemm", g.node("Gemm", "x", weight, **GEMM), weight, **GEMM)


def two_ways(g: Graph) -> str:
    """A table that a Gather reads by the features and another by its columns."""
    table = g.parameter(4, 4)
    first = g.node("Gather", table, whole(g), axis=0)
    return g.node("Add", first, g.node("Gather", table, whole(g), axis=1))


def by_features_and_constants(g: Graph) -> str:
    """A table whose rows the features choose, and whose first row is read in each record."""
    table = g.parameter(4, 4)
    first = g.node("Gather", table, whole(g), axis=0)
    return g.node("Add", first, g.node("Gather", table, g.constant([0], np.int64), axis=0))


WIDEST = 2**15


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (lambda g: g.gemm("x", WIDTH, 2, alpha=2.0), "Gemm has a factor"),
        (lambda g: g.gemm("x", WIDTH, 2, beta=0.5), "Gemm has a factor"),
        (lambda g: g.gemm("x", WIDTH, 2, transA=1), "Gemm has a factor"),
        (lambda g: g.gemm("x", WIDTH, 2, alpha="1"), "attribute alpha that is not a number"),
        (lambda g: g.gemm(rows(g), WIDTH, 2), "Gemm multiplies a value of 3 axes"),
        (lambda g: g.node("MatMul", "x", g.parameter(1, WIDTH, 2)), "MatMul multiplies a value of 2 axes"),
        (lambda g: g.gemm("x", WIDTH, WIDEST + 1), "Gemm sums 32769 products: .* up to 32768"),
        (lambda g: g.gemm("x", WIDEST + 1, 2), "Gemm sums 32769 products"),
        (lambda g: g.conv(rows(g), g.parameter(WIDEST + 1, 3, 1)), "Conv sums 32769 products"),
        (lambda g: g.conv(rows(g), g.parameter(2, 3, WIDEST // 2)), "Conv sums 49152 products"),
        (lambda g: g.gemm("x", WIDTH, 2, g.parameter(1)), r"Gemm has a bias of shape \(1,\) for 2 outputs"),
        (lambda g: g.gemm("x", WIDTH, 2, g.parameter(3)), r"Gemm has a bias of shape \(3,\) for 2 outputs"),
        (lambda g: g.conv(rows(g), g.parameter(2, 3, 1), g.parameter(3)), "Conv has a bias"),
        (lambda g: g.node("Gemm", "x", g.constant(np.ones((12, 2))), **GEMM), "'c0' that is not trained"),
        (lambda g: g.node("MatMul", g.parameter(2, 12), g.parameter(12, 2)), "'p0' is a parameter or"),
        (lambda g: biased(g, weight=g.constant(np.ones((12, 2)))), "'c0' that is not trained"),
        (lambda g: biased(g, weight=g.parameter(1, 12, 2)), "MatMul multiplies a value of 2 axes"),
        (twice, "'p0' is used more than once"),
        (lambda g: g.node("Relu", "x" if g.parameter(3) else ""), "'p0' is not reached"),
        (lambda g: g.node("ReduceSum", rows(g), axes=(0, 1), keepdims=0), "ReduceSum joins the record axis"),
        (lambda g: g.node("ReduceMean", rows(g), axes=(0,), keepdims=1), "ReduceMean joins the record axis"),
        (lambda g: g.node("ReduceSum", rows(g), axes=1, keepdims=0), "attribute axes that is not a list"),
        (normalised(None, [1.0] * 12), "statistics that are not constants"),
        (normalised([0.0] * 12, None), "statistics that are not constants"),
        (normalised([0.0] * 12, [1.0] * 11 + [0.0]), "variance that is not positive"),
        (normalised([0.0] * 12, [1.0] * 11 + [-1.0]), "variance that is not positive"),
        (normalised([0.0] * 12, [np.nan] * 12), "variance that is not positive"),
        (by_layer(0, 4), "LayerNormalization joins the record axis"),
        (by_layer(-3, 4), "LayerNormalization joins the record axis"),
        (by_layer(2, 3), "not of the 4 entries of a row"),
        (by_layer(-1, 4, 3), "not of the 4 entries of a row"),
        (by_layer(1, 4, 12), "not of the 12 entries of a row"),
        (lambda g: g.node("Softmax", rows(g), axis=2), "Softmax is exact only over all"),
        (with_constant("Add", [1, 2], np.int64), "Add of integers"),
        (with_constant("Mul", 2, np.int64), "Mul of integers"),
        (lambda g: g.node("Add", g.constant(1), g.constant(2)), "'c1' is a parameter or a constant"),
        (with_constant("Div", [1.0, 0.0]), "Div by a computed value or by zero"),
        (lambda g: g.node("Div", g.constant([1, 2]), two(g)), "Div by a computed value or by zero"),
        (with_constant("Add", np.ones((1, 1, 2))), "more axes than the value"),
        (with_constant("Mul", np.ones((2, 2))), "changes the shape of the value"),
        (with_constant("Mul", np.ones(3)), "changes the shape of the value"),
        (joined("Div", (12,), (2,)), "Div by a computed value"),
        (joined("Add", (12,), (2,)), r"Add of values of shapes \(12,\) and \(2,\)"),
        (joined("Mul", (6, 2), (2,)), r"Mul of values of shapes \(6, 2\) and \(2,\)"),
        (joined("Sub", (12,), (1, 2)), r"Sub of values of shapes \(12,\) and \(1, 2\)"),
        (with_parameter("Div", 4), "Div by a parameter"),
        (with_parameter("Add", 3), r"shape \(3, 4\) and the parameter 'p0' of shape \(3,\)"),
        (with_parameter("Mul", 2, 3, 4), "the parameter 'p0' of shape"),
        (with_parameter("Sub", 1, 1, 3, 4), "the parameter 'p0' of shape"),
        (lambda g: g.node("Pow", two(g), two(g)), "constant exponent 2"),
        (with_constant("Pow", [2.0, 2.0]), "constant exponent 2"),
        (with_constant("Pow", 3.0), "constant exponent 2"),
        (lambda g: g.node("Expand", two(g), shape=(2, 2)), "Expand changes the record axis"),
        (lambda g: g.node("Expand", two(g), shape=(1, 2, 2)), "Expand changes the record axis"),
        (lambda g: g.node("Cast", "x", to=7), "Cast is exact only"),
        (looked_up(4), "only of the rows of a matrix"),
        (looked_up(4, 2, 2), "only of the rows of a matrix"),
        (looked_up(4, 2, axis=1), "only of the rows of a matrix"),
        (two_ways, "only of the rows of a matrix"),
        (by_features_and_constants, "only of the rows of a matrix"),
        (chosen_of(two, [0], 0), "chooses among records"),
        (chosen_of(turned, [0], 1), "chooses among records"),
        (lambda g: g.node("Relu", turned(g)), "Transpose moves the record axis"),
        (coordinates(rows, [[0]]), "GatherND is exact only by constants"),
        (coordinates(turned, [[0, 0]]), "GatherND is exact only by constants"),
        (lambda g: g.node("GatherND", turned(g), two(g)), "GatherND is exact only by constants"),
        (lambda g: g.node("Reshape", two(g), shape=(2,)), "Reshape moves entries across"),
        (lambda g: g.node("Reshape", two(g), shape=(2, 1)), "Reshape moves entries across"),
        (lambda g: g.node("Transpose", g.parameter(2, 3, 4), perm=(1, 0, 2)), "that is not a matrix"),
        (lambda g: g.node("Transpose", g.parameter(2, 3), perm=(0, 1)), "transposed that is not a matrix"),
        (
            lambda g: g.node("Slice", rows(g), axes=(1, 0), starts=(0, 0), ends=(1, 1), steps=(1, 1)),
            "Slice cuts the record axis",
        ),
        (lambda g: g.node("Concat", two(g), two(g), axis=0), "Concat joins the record axis"),
        (lambda g: g.node("Erf", g.node("Abs", two(g))), "uses Abs, Erf, which"),
    ],
)  # fmt: skip
def test_a_graph_that_has_no_exact_form_is_refused(write: Callable[[Graph], str], why: str) -> None:
    graph = Graph()
    write(graph)
    with pytest.raises(NotExact, match=why):
        graph.lower()


@pytest.mark.parametrize(("inputs", "outputs"), [(WIDEST, 1), (WIDTH, WIDEST)])
def test_a_dense_layer_may_be_as_wide_as_its_sums_are_exact(inputs: int, outputs: int) -> None:
    graph = Graph(inputs)
    graph.gemm("x", inputs, outputs)
    assert graph.lower().sizes == (inputs, outputs)


def test_a_convolution_may_have_as_wide_a_window_as_its_sums_are_exact() -> None:
    graph = Graph(WIDEST)
    graph.conv(graph.shaped("x", 2, WIDEST // 2), graph.parameter(1, 2, WIDEST // 2))
    assert graph.lower().sizes == (WIDEST, 1)


@pytest.mark.parametrize("more", [0, 1])
def test_a_window_may_have_a_million_positions(more: int) -> None:
    graph = Graph((1 << 20) + more)
    source = graph.shaped("x", 1, graph.width)
    graph.node("MaxPool", source, kernel_shape=(1,), **SLIDE)
    if more:
        with pytest.raises(NotExact, match=r"MaxPool has 1048577 positions: .* up to 1048576"):
            graph.lower()
    else:
        assert graph.lower().sizes == (1 << 20, 1 << 20)


@pytest.mark.parametrize("most", [26, 25])
def test_the_places_of_all_windows_are_counted_together(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered, "MAX_PLACES", most)
    graph = Graph()
    hidden = graph.conv(graph.shaped("x", 1, 12), graph.parameter(3, 1, 3), strides=(2,))  # 5 times 3
    hidden = graph.node("MaxPool", hidden, kernel_shape=(2,), **SLIDE | {"strides": (3,)})  # 2 times 2
    hidden = graph.node("MaxPool", hidden, kernel_shape=(1,), **SLIDE | {"pads": (2, 3)})  # 7 times 1
    if most < 26:
        with pytest.raises(NotExact, match=r"up to this MaxPool have 26 places: .* up to 25"):
            graph.lower()
    else:
        assert graph.lower().sizes == (12, 15, 6, 21)


# What is lowered.


def biased(g: Graph, *, is_first: bool = False, size: int = 2, weight: str = "") -> str:
    made = g.node("MatMul", "x", weight or g.parameter(12, 2))
    pair = (g.parameter(size), made) if is_first else (made, g.parameter(size))
    return g.node("Add", *pair)


def read_twice(g: Graph) -> str:
    made = g.node("MatMul", "x", g.parameter(12, 2))
    return g.node("Mul", g.node("Add", made, g.parameter(2)), made)


def transposed_weight(g: Graph) -> str:
    return biased(g, weight=g.node("Transpose", g.parameter(2, 12), perm=(1, 0)))


def frozen_weight(g: Graph) -> str:
    return g.node("Gemm", "x", g.freeze(12, 2), g.parameter(2), **GEMM)


def frozen_bias(g: Graph) -> str:
    return g.conv(rows(g), g.parameter(2, 3, 3), g.freeze(2))


def all_frozen(g: Graph) -> str:
    """One frozen weight may be read twice."""
    weight = g.freeze(12, 12)
    first = g.node("Gemm", "x", weight, g.freeze(12), **GEMM)
    return g.node("Gemm", first, weight, **GEMM)


def two_lookups(g: Graph) -> str:
    """Two Gathers of one table."""
    index, table = whole(g), g.parameter(5, 2)
    one = g.node("Gather", table, g.node("Gather", index, g.constant(0, np.int64), axis=1), axis=0)
    other = g.node("Gather", table, g.node("Gather", index, g.constant([3, 4], np.int64), axis=1), axis=0)
    return g.node("Concat", one, g.shaped(other, 4), axis=1)


def transposes(g: Graph) -> str:
    """A choice of entries while the record axis is the last, and back."""
    away = g.node("Transpose", rows(g), perm=(1, 2, 0))
    away = g.node("GatherND", away, g.constant([[0, 1], [2, 3]], np.int64))
    return g.gemm(g.node("Transpose", away, perm=(1, 0)), 2, 1)


@pytest.mark.parametrize(
    ("write", "wanted", "sizes"),
    [
        (two, ["Dense* 0 > 1!"], (12, 2)),
        (biased, ["Dense* 0 > 1!"], (12, 2)),
        (lambda g: biased(g, is_first=True), ["Dense* 0 > 1!"], (12, 2)),
        (transposed_weight, ["Dense* 0 > 1!"], (12, 2)),
        (lambda g: biased(g, size=1), ["Dense* 0 > 1!", "Offset* 1 > 2!"], (12, 2, 2)),
        (read_twice, ["Dense* 0 > 1!", "Offset* 1 > 2!", "Product 2,1 > 3!"], (12, 2, 2, 2)),
        (frozen_weight, ["Dense 0 > 1", "Offset* 1 > 2!"], (12, 2, 2)),
        (frozen_bias, ["Convolution* 0 > 1!", "Offset 1 > 2!"], (12, 4, 4)),
        (all_frozen, ["Dense 0 > 1", "Dense 1 > 2"], (12, 12, 12)),
        (
            lambda g: g.node("Sub", g.parameter(12), "x"),
            ["Fixed 0 > 1", "Offset* 1 > 2!"], (12, 12, 12),
        ),
        (
            lambda g: g.node("Mul", g.node("Sub", "x", g.parameter(12)), g.parameter(1)),
            ["Offset* 0 > 1!", "Scale* 1 > 2!"], (12, 12, 12),
        ),
        (
            lambda g: g.node("Add", g.shaped("x", 12, 1), g.parameter(2)),
            ["Repeat 0 > 1", "Offset* 1 > 2!"], (12, 24, 24),
        ),
        (
            lambda g: g.node("Sub", g.shaped("x", 6, 2), g.shaped(two(g), 1, 2)),
            ["Dense* 0 > 1!", "Repeat 1 > 2!", "Fixed 2 > 3!", "Join 0,3 > 4!"], (12, 2, 12, 12, 12),
        ),
        (with_constant("Pow", [2.0]), ["Dense* 0 > 1!", "Product 1,1 > 2!"], (12, 2, 2)),
        (
            lambda g: g.node("Expand", g.shaped(two(g), 2, 1), shape=(1, 2, 3)),
            ["Dense* 0 > 1!", "Repeat 1 > 2!"], (12, 2, 6),
        ),
        (two_lookups, ["Embedding* 0 > 1!", "Rearrange 1 > 2!", "Rearrange 1 > 3!", "Concatenate 2,3 > 4!"],
         (12, 6, 2, 4, 6)),
        (looked_up(5, 2), ["Embedding* 0 > 1!"], (12, 24)),
        (transposes, ["Rearrange 0 > 1", "Dense* 1 > 2!"], (12, 2, 1)),
        (lambda g: g.gemm(whole(g), 12, 2), ["Fixed 0 > 1", "Dense* 1 > 2!"], (12, 12, 2)),
        (lambda g: g.node("LogSoftmax", two(g), axis=1), ["Dense* 0 > 1!"], (12, 2)),
        (
            lambda g: g.node("Concat", g.shaped("x", 2, 6), g.shaped(two(g), 2, 1), axis=2),
            ["Dense* 0 > 1!", "Concatenate 0,1 > 2!", "Rearrange 2 > 3!"], (12, 2, 14, 14),
        ),
    ],
)  # fmt: skip
def test_what_a_graph_becomes(
    write: Callable[[Graph], str], wanted: list[str], sizes: tuple[int, ...]
) -> None:
    graph = Graph()
    write(graph)
    plan = graph.lower()
    assert steps(plan) == wanted
    assert plan.sizes == sizes
    assert plan.output == len(sizes) - 1
    assert plan.num_parameters == sum(one.size for one in graph.parameters)
    assert [one.values.shape for one in plan.frozen] == [graph.constants[name].shape for name in graph.frozen]


def layer_of(write: Callable[[Graph], str], position: int = -1) -> Any:
    graph = Graph()
    write(graph)
    return graph.lower().steps[position].layer


def test_parameters_lie_in_the_vector_in_their_order_and_trained_layers_are_numbered() -> None:
    graph = Graph()
    hidden = graph.gemm("x", 12, 3, graph.parameter(3))
    hidden = graph.node("Mul", hidden, graph.freeze(3))
    hidden = graph.node("Add", hidden, graph.parameter(3))
    graph.gemm(hidden, 3, 2)
    first, frozen, second, last = (step.layer for step in graph.lower().steps)
    assert isinstance(first, Dense)
    assert isinstance(frozen, Scale)
    assert isinstance(second, Offset)
    assert isinstance(last, Dense)
    assert (first.bias, first.weight) == (
        Trainable(index=0, offset=0, shape=(3,)), Trainable(index=1, offset=3, shape=(12, 3))
    )  # fmt: skip
    assert frozen.parameter == Trainable(index=4, offset=0, shape=(3,), is_frozen=True)
    assert (second.parameter.index, second.parameter.offset) == (2, 39)
    assert (last.weight.index, last.weight.offset) == (3, 42)
    assert [first.number, second.number, last.number] == [0, 1, 2]
    assert [first.passes_back, last.passes_back] == [False, True]
    assert [first.reads_bytes, last.reads_bytes] == [True, False]


@pytest.mark.parametrize(
    ("write", "is_transposed"),
    [
        (lambda g: g.gemm("x", 12, 2), False),
        (lambda g: g.gemm("x", 2, 12, transB=1), True),
        (transposed_weight, True),
        (lambda g: g.node("Gemm", "x", g.node("Transpose", g.parameter(12, 2), perm=(1, 0)),
                          **GEMM | {"transB": 1}), False),
    ],
)  # fmt: skip
def test_a_dense_layer_reads_its_weights_either_way(
    write: Callable[[Graph], str], *, is_transposed: bool
) -> None:
    layer = layer_of(write)
    assert isinstance(layer, Dense)
    assert layer.is_transposed is is_transposed


def test_a_frozen_bias_of_a_trained_convolution_is_repeated_for_each_position() -> None:
    graph = Graph()
    graph.conv(rows(graph), graph.parameter(2, 3, 2), graph.freeze(2))
    convolution, offset = (step.layer for step in graph.lower().steps)
    assert isinstance(convolution, Convolution)
    assert isinstance(offset, Offset)
    assert convolution.bias is None
    assert offset.homes.tolist() == [0, 0, 0, 1, 1, 1]
    assert (offset.sign, offset.number) == (1.0, 1)


@pytest.mark.parametrize(
    ("write", "sign", "homes"),
    [
        (lambda g: g.node("Add", rows(g), g.parameter(4)), 1.0, [0, 1, 2, 3] * 3),
        (lambda g: g.node("Add", g.parameter(3, 1), rows(g)), 1.0, [0] * 4 + [1] * 4 + [2] * 4),
        (lambda g: g.node("Sub", rows(g), g.parameter(1, 1, 4)), -1.0, [0, 1, 2, 3] * 3),
        (lambda g: g.node("Sub", g.parameter(1), rows(g)), 1.0, [0] * 12),
    ],
)
def test_a_parameter_is_added_as_onnx_broadcasts_it(
    write: Callable[[Graph], str], sign: float, homes: list[int]
) -> None:
    layer = layer_of(write)
    assert isinstance(layer, Offset)
    assert (layer.sign, layer.homes.tolist()) == (sign, homes)


@pytest.mark.parametrize(
    ("write", "factor", "offset"),
    [
        (lambda g: g.node("Add", two(g), g.constant([3, 4])), [1, 1], [3, 4]),
        (lambda g: g.node("Add", g.constant(3), two(g)), [1, 1], [3, 3]),
        (lambda g: g.node("Mul", g.constant([[3, 4]]), two(g)), [3, 4], [0, 0]),
        (lambda g: g.node("Sub", two(g), g.constant([3, 4])), [1, 1], [-3, -4]),
        (lambda g: g.node("Sub", g.constant([3, 4]), two(g)), [-1, -1], [3, 4]),
        (lambda g: g.node("Div", two(g), g.constant([2, 4])), [0.5, 0.25], [0, 0]),
        (lambda g: g.gemm(whole(g), 12, 2), 256, 0),
    ],
)
def test_constants_become_a_factor_and_an_offset(
    write: Callable[[Graph], str], factor: Any, offset: Any
) -> None:
    graph = Graph()
    write(graph)
    (layer,) = [step.layer for step in graph.lower().steps if isinstance(step.layer, Fixed)]
    assert (layer.factor.tolist(), layer.offset.tolist()) == (factor, offset)


def test_an_output_of_scaled_bytes_is_made_by_a_last_step() -> None:
    graph = Graph()
    graph.node("Mul", "x", graph.constant([4.0]))
    plan = graph.lower()
    assert steps(plan) == ["Fixed 0 > 1"]
    assert (plan.output, len(plan.sizes), len(plan.is_trained)) == (1, 2, 2)


def test_scales_of_bytes_are_multiplied_and_applied_once() -> None:
    graph = Graph()
    scaled = graph.node("Mul", graph.node("Mul", "x", graph.constant([4.0])), graph.constant(0.5))
    half = graph.node("Slice", scaled, axes=(1,), starts=(0,), ends=(6,), steps=(1,))
    graph.node("Add", graph.gemm(half, 6, 2), graph.gemm(half, 6, 2))
    plan = graph.lower()
    assert steps(plan) == [
        "Rearrange 0 > 1", "Fixed 1 > 2", "Dense* 2 > 3!", "Dense* 2 > 4!", "Join 3,4 > 5!"
    ]  # fmt: skip
    fixed = plan.steps[1].layer
    assert isinstance(fixed, Fixed)
    assert (float(fixed.factor), float(fixed.offset)) == (2.0, 0.0)


@pytest.mark.parametrize(
    ("write", "kind", "order"),
    [
        (
            lambda g: g.node("Transpose", rows(g), perm=(0, 2, 1)),
            Rearrange, [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11],
        ),
        (
            lambda g: g.node("Slice", rows(g), axes=(1, 2), starts=(0, 3), ends=(2, 0), steps=(1, -2)),
            Rearrange, [3, 1, 7, 5],
        ),
        (chosen_of(rows, [2, 0], 1), Rearrange, [8, 9, 10, 11, 0, 1, 2, 3]),
        (chosen_of(rows, [3, 3], 2), Repeat, [3, 3, 7, 7, 11, 11]),
        (
            lambda g: g.node("Expand", g.shaped("x", 12, 1), shape=(1, 12, 2)),
            Repeat, [entry // 2 for entry in range(24)],
        ),
        (
            lambda g: g.node("Split", rows(g), axis=1, split=(1, 2), outputs=("", "b")),
            Rearrange, [*range(4, 12)],
        ),
        (lambda g: g.node("Split", rows(g), axis=2, split=(3, 1), outputs=("", "b")), Rearrange, [3, 7, 11]),
    ],
)  # fmt: skip
def test_entries_are_moved(write: Callable[[Graph], str], kind: type, order: list[int]) -> None:
    graph = Graph()
    write(graph)
    source = graph.nodes[-1].outputs[-1]
    width = len(order)
    graph.gemm(graph.shaped(source, width), width, 1)
    first, dense = (step.layer for step in graph.lower().steps)
    assert isinstance(first, Rearrange | Repeat)
    assert type(first) is kind
    assert first.order.tolist() == order
    assert isinstance(dense, Dense)
    assert dense.reads_bytes  # what is moved stays bytes


def test_the_record_axis_may_be_away_while_entries_are_chosen() -> None:
    graph = Graph()
    away = graph.node("Transpose", rows(graph), perm=(1, 2, 0))  # (3, 4, n)
    away = graph.node("Gather", away, graph.constant([[2, 0]], np.int64), axis=0)  # (1, 2, 4, n)
    away = graph.node("GatherND", away, graph.constant([[0, 1], [0, 0]], np.int64))  # (2, 4, n)
    away = graph.node("Gather", away, graph.constant(3, np.int64), axis=1)  # (2, n)
    back = graph.node("Transpose", away, perm=(1, 0))
    graph.gemm(back, 2, 1)
    first, _ = (step.layer for step in graph.lower().steps)
    assert isinstance(first, Rearrange)
    assert first.order.tolist() == [3, 11]


def test_a_choice_behind_the_record_axis_leaves_it_where_it_is() -> None:
    graph = Graph()
    away = graph.node("Gather", turned(graph), graph.constant([[1], [3]], np.int64), axis=2)  # (3, n, 2, 1)
    graph.gemm(graph.shaped(graph.node("Transpose", away, perm=(1, 0, 2, 3)), 6), 6, 1)
    first, _ = (step.layer for step in graph.lower().steps)
    assert isinstance(first, Rearrange)
    assert first.order.tolist() == [1, 3, 5, 7, 9, 11]


@pytest.mark.parametrize(
    ("write", "counts", "sizes"),
    [
        (
            lambda g: g.node("AveragePool", g.shaped("x", 1, 12), kernel_shape=(2,), count_include_pad=0,
                             **SLIDE | {"pads": (1, 0), "strides": (4,)}),
            [1, 2, 2], (12, 3),
        ),
        (
            lambda g: g.node("AveragePool", g.shaped("x", 1, 12), kernel_shape=(2,), count_include_pad=1,
                             **SLIDE | {"pads": (1, 0), "strides": (4,)}),
            [2, 2, 2], (12, 3),
        ),
        (lambda g: g.node("ReduceMean", rows(g), axes=(1,), keepdims=0), [3] * 4, (12, 4)),
        (lambda g: g.node("ReduceSum", rows(g), axes=(2,), keepdims=1), [1] * 3, (12, 3)),
    ],
)  # fmt: skip
def test_pools_are_means_of_their_windows(
    write: Callable[[Graph], str], counts: list[int], sizes: tuple[int, ...]
) -> None:
    graph = Graph()
    write(graph)
    plan = graph.lower()
    (layer,) = [step.layer for step in plan.steps]
    assert isinstance(layer, AveragePool)
    assert layer.counts.tolist() == counts
    assert plan.sizes == sizes


@pytest.mark.parametrize(("keepdims", "shape"), [(0, (4,)), (1, (1, 4))])
def test_axes_that_are_reduced_are_left_out_or_kept(keepdims: int, shape: tuple[int, ...]) -> None:
    """Only a vector goes into a dense layer, and the message names the number of axes."""
    graph = Graph()
    pooled = graph.node("ReduceSum", rows(graph), axes=(1,), keepdims=keepdims)
    graph.gemm(pooled, 4, 1)
    if len(shape) == 1:
        assert graph.lower().sizes == (12, 4, 1)
    else:
        with pytest.raises(NotExact, match="a value of 3 axes"):
            graph.lower()


def test_normalisations_keep_their_numbers() -> None:
    graph = Graph()
    mean, variance = graph.constant(np.arange(12)), graph.constant(np.full(12, 3.0))
    value = graph.node(
        "BatchNormalization", "x", graph.parameter(12), graph.parameter(12), mean, variance, epsilon=1.0
    )
    value = graph.node(
        "LayerNormalization", graph.shaped(value, 3, 4), graph.parameter(4), "", axis=-1, epsilon=0.1
    )
    graph.node("LayerNormalization", value, graph.parameter(3, 4), graph.parameter(12), axis=1, epsilon=0.25)
    batch, row, whole_record = (step.layer for step in graph.lower().steps)
    assert isinstance(batch, BatchNormalization)
    assert isinstance(row, LayerNormalization)
    assert isinstance(whole_record, LayerNormalization)
    assert (batch.scale.index, batch.bias.index) == (0, 1)
    assert batch.mean.tolist() == list(range(12))
    assert batch.inverse.tolist() == [0.5] * 12
    assert (row.bias, row.scale.index, row.epsilon) == (None, 2, float(np.float32(0.1)))
    assert whole_record.bias is not None
    assert (whole_record.bias.index, whole_record.epsilon) == (4, 0.25)
    assert [batch.number, row.number, whole_record.number] == [0, 1, 2]


@pytest.mark.parametrize(
    ("operator", "curve", "alpha"),
    [
        ("Relu", Curve.RELU, 0.0),
        ("LeakyRelu", Curve.LEAKY_RELU, float(np.float32(0.1))),
        ("Elu", Curve.ELU, float(np.float32(0.1))),
        ("Sigmoid", Curve.SIGMOID, 0.0),
        ("Tanh", Curve.TANH, 0.0),
        ("Softplus", Curve.SOFTPLUS, 0.0),
    ],
)
def test_an_activation_has_its_curve_and_its_alpha(operator: str, curve: Curve, alpha: float) -> None:
    layer = layer_of(lambda g: g.node(operator, two(g), alpha=0.1))
    assert layer == Activation(curve=curve, alpha=alpha)


def test_lookups_of_one_table_are_one_layer_in_the_order_of_the_gathers() -> None:
    graph = Graph()
    two_lookups(graph)
    plan = graph.lower()
    first, one, other, last = (step.layer for step in plan.steps)
    assert isinstance(first, Embedding)
    assert first.indices.places.tolist() == [[0], [3], [4]]
    assert isinstance(one, Rearrange)
    assert isinstance(other, Rearrange)
    assert (one.order.tolist(), other.order.tolist()) == ([0, 1], [2, 3, 4, 5])
    assert isinstance(last, Concatenate)
    assert last.sizes == (2, 4)


@pytest.mark.parametrize(
    ("last", "loss", "wanted"),
    [
        ("Sigmoid", Loss.BINARY_CROSS_ENTROPY, ["Dense* 0 > 1!"]),
        ("Sigmoid", Loss.MSE, ["Dense* 0 > 1!", "Activation 1 > 2!"]),
        ("LogSoftmax", Loss.CROSS_ENTROPY, ["Dense* 0 > 1!"]),
        ("Relu", Loss.CROSS_ENTROPY, ["Dense* 0 > 1!", "Activation 1 > 2!"]),
        ("LogSoftmax", Loss.MSE, "uses LogSoftmax, which"),
        ("Relu", Loss.BINARY_CROSS_ENTROPY, "only where the model ends in Sigmoid"),
    ],
)
def test_a_loss_takes_in_its_own_head(last: str, loss: Loss, wanted: "list[str] | str") -> None:
    graph = Graph()
    graph.node(last, two(graph))
    if isinstance(wanted, str):
        with pytest.raises(NotExact, match=wanted):
            graph.lower(loss)
    else:
        assert steps(graph.lower(loss)) == wanted


def test_a_record_of_a_block_has_its_values_and_their_deltas() -> None:
    graph = Graph(17)
    graph.node("Relu", graph.gemm("x", 17, 5))
    plan = graph.lower()
    assert [plan.block_entries(seeds) for seeds in (0, 1, 3)] == [2 + 10, 2 + 20, 2 + 40]


def test_attributes_are_read_as_what_they_are() -> None:
    node = Node(
        operator="Op",
        inputs=(),
        outputs=(),
        attributes={"one": 2, "half": 0.5, "list": (3, 4.0), "word": "w"},
    )
    assert [attribute(node, "one"), attribute(node, "half")] == [2, 0.5]
    assert integers(node, "list") == (3, 4)
    for name in ("list", "word"):
        with pytest.raises(NotExact, match=f"Op has an attribute {name} that is not a number"):
            attribute(node, name)
    for name in ("one", "word"):
        with pytest.raises(NotExact, match=f"Op has an attribute {name} that is not a list"):
            integers(node, name)
