"""Indices as sums of bytes: what the sums give for any bytes is what the graph gives, and what cannot be a
row's number is refused."""

from collections.abc import Callable
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helper.gradient.exact.layers.embedding import ByteSums
from helper.gradient.exact.layers.layer import NotExact
from helper.gradient.exact.lowering.indices import index_inputs, index_sums, join_sums, read_as_numbers
from maskedlark.model.graph import GraphCost, Model, Node

Array = NDArray[Any]
WIDTH = 12


class Written:
    """A graph in normal form over 12 features, and what numpy makes of it beside."""

    def __init__(self, width: int = WIDTH) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.width = width
        self._apply: list[Callable[[dict[str, Array]], Any]] = []

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(values, dtype)
        return name

    def node(
        self, operator: str, *inputs: str, apply: Callable[..., Any], outputs: int = 1, **attributes: Any
    ) -> str:
        names = tuple(f"v{len(self.nodes)}.{number}" for number in range(outputs))
        self.nodes.append(Node(operator=operator, inputs=inputs, outputs=names, attributes=attributes))

        def step(values: dict[str, Array]) -> None:
            made = apply(*(values[name] for name in inputs))
            values.update(zip(names, made if outputs > 1 else (made,), strict=True))

        self._apply.append(step)
        return names[0]

    def whole(self) -> str:
        """The features times 256."""
        return self.node("Mul", "x", self.constant(256), apply=np.multiply)

    def rows(self) -> str:
        """The same as (1, 3, 4)."""
        return self.node("Reshape", self.whole(), apply=lambda x: x.reshape(1, 3, 4), shape=(1, 3, 4))

    @property
    def model(self) -> Model:
        nothing: Any = ()
        return Model(
            input_name="x", input_width=self.width, output_name="y", output_width=1, outputs=nothing,
            nodes=tuple(self.nodes), parameters=nothing, initial_values=nothing,
            constants=MappingProxyType(self.constants), digest=b"",
            work=GraphCost(multiplications=0, entries=0),
        )  # fmt: skip

    def sums(self, *names: str) -> dict[str, tuple[tuple[int, ...], ByteSums]]:
        return index_sums(self.model, self.nodes, names)

    def numpy(self, name: str, features: NDArray[np.uint8]) -> Array:
        values: dict[str, Array] = {"x": features[None] / 256.0, **self.constants}
        for step in self._apply:
            step(values)
        return values[name]


def evaluated(sums: ByteSums, features: NDArray[np.uint8]) -> Array:
    read = features[sums.places].astype(np.int64) if sums.places.size else np.zeros(sums.places.shape, int)
    return np.asarray(sums.offsets + (sums.factors * read).sum(1))


def add_rows(g: Written) -> str:
    offsets = g.constant([[7], [100], [3]])
    return g.node("Add", g.rows(), offsets, apply=np.add)


def subtract(g: Written) -> str:
    high = g.node("Add", g.whole(), g.constant(1000), apply=np.add)
    return g.node("Sub", high, g.whole(), apply=np.subtract)


def subtract_from_a_constant(g: Written) -> str:
    return g.node("Sub", g.constant(np.arange(300, 312)), g.whole(), apply=np.subtract)


def multiply_and_divide(g: Written) -> str:
    weights = g.constant([[[1, 2, 3, 5]]])
    scaled = g.node("Mul", weights, g.rows(), apply=np.multiply)
    twice = g.node("Mul", scaled, g.constant([[8], [4], [2]]), apply=np.multiply)
    return g.node("Div", twice, g.constant([[4], [2], [1]]), apply=np.divide)


def two_constants(g: Written) -> str:
    both = g.node("Mul", g.constant([2, 3]), g.constant([5, 7]), apply=np.multiply)
    both = g.node("Sub", both, g.constant([1, 1]), apply=np.subtract)
    chosen = g.node("Gather", g.whole(), g.constant([1, 4], np.int64), apply=lambda x, i: x[:, i], axis=1)
    return g.node("Add", chosen, both, apply=np.add)


def matrix(g: Written) -> str:
    moved = g.node("Add", g.rows(), g.constant([[1], [2], [3]]), apply=np.add)
    return g.node("MatMul", moved, g.constant([[1, 0], [256, 3], [0, 0], [5, 2]]), apply=np.matmul)


def matrix_of_sums(g: Written) -> str:
    pairs = g.node(
        "MatMul", g.whole(), g.constant(np.eye(12)[:, ::2] + 2 * np.eye(12)[:, 1::2]), apply=np.matmul
    )
    return g.node("MatMul", pairs, g.constant(np.arange(12).reshape(6, 2)), apply=np.matmul)


def reduced(axes: tuple[int, ...], *, keepdims: bool) -> Callable[[Written], str]:
    def write(g: Written) -> str:
        moved = g.node("Add", g.rows(), g.constant(np.arange(12).reshape(3, 4)), apply=np.add)
        return g.node(
            "ReduceSum", moved, axes=axes, keepdims=int(keepdims),
            apply=lambda x: x.sum(axis=axes, keepdims=keepdims),
        )  # fmt: skip

    return write


def cast(g: Written) -> str:
    whole = g.node("Cast", g.whole(), to=7, apply=np.rint)
    return g.node("Cast", whole, to=1, apply=lambda x: x)


def cast_of_fractions(g: Written) -> str:
    return g.node("Mul", g.node("Cast", "x", to=1, apply=lambda x: x), g.constant(512), apply=np.multiply)


def transposed(g: Written) -> str:
    return g.node("Transpose", g.rows(), perm=(0, 2, 1), apply=lambda x: x.transpose(0, 2, 1))


def expanded(g: Written) -> str:
    rows = g.node("Reshape", g.whole(), shape=(1, 1, 12), apply=lambda x: x.reshape(1, 1, 12))
    return g.node("Expand", rows, shape=(1, 3, 12), apply=lambda x: np.broadcast_to(x, (1, 3, 12)))


def sliced(g: Written) -> str:
    return g.node(
        "Slice", g.rows(), axes=(2, 1), starts=(3, 0), ends=(0, 2), steps=(-2, 1),
        apply=lambda x: x[:, 0:2, 3:0:-2],
    )  # fmt: skip


def split(g: Written) -> str:
    g.node("Split", g.rows(), axis=2, split=(1, 2, 1), outputs=3, apply=lambda x: np.split(x, [1, 3], axis=2))
    return f"v{len(g.nodes) - 1}.1"


def gathered(g: Written) -> str:
    chosen = g.constant([[2, 0], [-1, 2]], np.int64)
    return g.node("Gather", g.rows(), chosen, axis=1, apply=lambda x, i: x[:, i])


def gathered_by_several(g: Written) -> str:
    chosen = g.constant([[[0, 2, 3], [0, 0, 1]]], np.int64)
    return g.node("GatherND", g.rows(), chosen, apply=lambda x, i: x[tuple(np.moveaxis(i, -1, 0))])


def joined(g: Written) -> str:
    total = reduced((2,), keepdims=True)(g)
    return g.node(
        "Concat", g.rows(), total, g.constant([[[4], [5], [6]]]), axis=2,
        apply=lambda *parts: np.concatenate(parts, axis=2),
    )  # fmt: skip


GRAPHS: list[Callable[[Written], str]] = [
    add_rows, subtract, subtract_from_a_constant, multiply_and_divide, two_constants, matrix, matrix_of_sums,
    reduced((2,), keepdims=False), reduced((1,), keepdims=False), reduced((1,), keepdims=True),
    reduced((1, 2), keepdims=False), reduced((2, 1), keepdims=True), cast, cast_of_fractions, transposed,
    expanded, sliced, split, gathered, gathered_by_several, joined,
]  # fmt: skip


@pytest.mark.parametrize("write", GRAPHS)
def test_the_sums_are_what_the_graph_gives(write: Callable[[Written], str]) -> None:
    graph = Written()
    name = write(graph)
    ((shape, sums),) = graph.sums(name).values()
    rng = np.random.default_rng(3)
    for features in [*rng.integers(0, 256, (4, WIDTH), np.uint8), np.full(WIDTH, 255, np.uint8)]:
        wanted = graph.numpy(name, features)
        assert wanted.shape == (1, *shape)
        assert evaluated(sums, features).tolist() == wanted.reshape(-1).tolist()
    assert sums.places.shape == sums.factors.shape == (prod(shape), sums.places.shape[1])
    assert {part.dtype.name for part in (sums.places, sums.factors, sums.offsets)} == {"int32"}


def test_each_of_several_names_has_its_sums_and_other_nodes_are_not_evaluated() -> None:
    graph = Written()
    first, second = transposed(graph), matrix(graph)
    graph.node("Relu", first, apply=np.abs)
    found = graph.sums(first, second)
    assert found.keys() == {first, second}
    assert [found[first][0], found[second][0]] == [(4, 3), (3, 2)]
    assert graph.sums() == {}


def test_terms_of_zero_are_left_out_of_a_product() -> None:
    graph = Written()
    ((_, sums),) = graph.sums(matrix(graph)).values()
    assert sums.places.shape == (6, 3)


def times(*factors: float) -> Callable[[Written], str]:
    """The first bytes, each times a factor, in one sum."""

    def write(g: Written) -> str:
        weights = np.zeros((WIDTH, 1))
        weights[: len(factors), 0] = factors
        return g.node("MatMul", g.whole(), g.constant(weights, np.float64), apply=np.matmul)

    return write


def moved(by: float, write: Callable[[Written], str]) -> Callable[[Written], str]:
    return lambda g: g.node("Add", write(g), g.constant(by, np.float64), apply=np.add)


def of_x(operator: str, other: Any, dtype: Any = np.float64) -> Callable[[Written], str]:
    return lambda g: g.node(operator, "x", g.constant(other, dtype), apply=np.multiply)


def by_features(operator: str, *, is_first: bool = False) -> Callable[[Written], str]:
    def write(g: Written) -> str:
        pair = (g.constant(np.ones((12, 12))), g.rows()) if is_first else (g.rows(), g.rows())
        return g.node(operator, *pair, axis=1, apply=np.multiply)

    return write


def product(g: Written, by: Array) -> str:
    return g.node("MatMul", g.whole(), g.constant(by), apply=np.matmul)


MOST = 2**24 - 1


@pytest.mark.parametrize(
    ("write", "largest"),
    [(times(65536, 256, 1), MOST), (moved(765, times(65535, 255)), MOST),
     (moved(255 * 7, times(-7)), 255 * 7), (moved(255 * 3, times(-2, -1)), 255 * 3)],
)  # fmt: skip
def test_an_index_may_reach_0_and_all_of_24_bits(write: Callable[[Written], str], largest: int) -> None:
    graph = Written()
    ((_, sums),) = graph.sums(write(graph)).values()
    least = sums.offsets + 255 * np.minimum(sums.factors, 0).sum(1)
    most = sums.offsets + 255 * np.maximum(sums.factors, 0).sum(1)
    assert least.min() >= 0
    assert most.max() == largest


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (moved(766, times(65535, 255)), r"not below 2\^24"),
        (moved(1, times(65536, 256, 1)), r"not below 2\^24"),
        (times(65536, 256, 2), r"not below 2\^24"),
        (moved(254, times(-1)), "may be negative"),
        (moved(255 * 3 - 1, times(-2, -1)), "may be negative"),
        (of_x("Mul", 1), "is not a whole number"),
        (of_x("Mul", 0.5), "not made of whole bytes"),
        (of_x("Mul", np.nan), r"not below 2\^24"),
        (of_x("Mul", np.inf), r"not below 2\^24"),
        (of_x("Div", 0), "or by zero"),
        (by_features("Div"), "Div by a value that features make"),
        (by_features("Mul"), "Mul of two values that features make"),
        (by_features("MatMul"), "must be a constant matrix"),
        (lambda g: product(g, np.ones(12)), "must be a constant matrix"),
        (lambda g: product(g, np.ones((1, 12, 2))), "must be a constant matrix"),
        (by_features("Gather"), "Gather of features by features"),
        (lambda g: g.node("Cast", "x", to=7, apply=np.rint), "Cast to integers is exact only"),
        (lambda g: g.node("Relu", g.whole(), apply=np.abs), "made by Relu"),
        (lambda g: g.node("Add", g.whole(), "weights", apply=np.add), "depends on 'weights'"),
        (lambda g: g.node("Add", g.whole(), g.constant(np.ones(12), np.bool_), apply=np.add), "depends on"),
        (lambda g: g.node("Reshape", g.whole(), shape=(12,), apply=np.ravel), "lost the record axis"),
        (lambda g: g.node("Reshape", g.whole(), shape=(2, 6), apply=np.ravel), "lost the record axis"),
    ],
)  # fmt: skip
def test_what_is_no_rows_number_is_refused(write: Callable[[Written], str], why: str) -> None:
    graph = Written()
    with pytest.raises(NotExact, match=why):
        graph.sums(write(graph))


def test_no_indices_at_all_are_no_rows() -> None:
    graph = Written()
    name = graph.node("Slice", graph.whole(), axes=(1,), starts=(3,), ends=(3,), steps=(1,), apply=np.abs)
    ((shape, sums),) = graph.sums(name).values()
    assert shape == (0,)
    assert sums.offsets.size == 0


def many(outputs: int) -> None:
    graph = Written(width=1 << 10)
    graph.constants["zeros"] = np.zeros((1 << 10, outputs), np.float32)
    graph.sums(graph.node("MatMul", "x", "zeros", apply=np.matmul))


def test_as_many_terms_as_are_listed_and_no_more() -> None:
    many(1 << 11)  # of features, so a term beside each offset
    with pytest.raises(NotExact, match="4196352 terms"):
        many((1 << 11) + 1)


def counted(write: Callable[[Written], str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The least limit under which a graph is evaluated."""
    low, high = 0, 1 << 10
    while high - low > 1:
        middle = (low + high) // 2
        monkeypatch.setattr("helper.gradient.exact.lowering.indices._MOST_TERMS", middle)
        graph = Written()
        try:
            graph.sums(write(graph))
            high = middle
        except NotExact:
            low = middle
    return high


@pytest.mark.parametrize(
    ("write", "terms"),
    [
        # 12 numbers of the features times 256 with a term and an offset each, and of the constant beside
        (Written.whole, 12 * 2),
        (Written.rows, 12 * 2 + 12 * 2),
        (transposed, 3 * 12 * 2),
        (expanded, 2 * 12 * 2 + 36 * 2),
        (gathered_by_several, 2 * 12 * 2 + 2 * 2),
        (split, 3 * 12 * 2),
        (subtract, 12 * 2 + 12 * 2 + 12 * 2 + 12 * 3),
        (matrix, 3 * 12 * 2 + 3 * 2 * 4 * 2),
        (reduced((2,), keepdims=False), 4 * 12 * 2),
        (matrix_of_sums, 12 * 2 + 6 * 12 * 2 + 2 * 6 * 3),
        (joined, 4 * 12 * 2 + 2 * 12 * 2 + (12 + 3 + 3) * 5),
    ],
)  # fmt: skip
def test_terms_are_counted_before_they_are_made(
    write: Callable[[Written], str], terms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert counted(write, monkeypatch) == terms


def sums_of(entries: int, terms: int, start: int = 0) -> ByteSums:
    numbers = np.arange(start, start + entries * terms, dtype=np.int32).reshape(entries, terms)
    return ByteSums(places=numbers, factors=numbers + 1, offsets=np.arange(entries, dtype=np.int32))


def test_parts_of_one_table_are_joined_in_order() -> None:
    one, two = sums_of(2, 1), sums_of(1, 3, start=5)
    found = join_sums([one, two])
    assert found.places.tolist() == [[0, 0, 0], [1, 0, 0], [5, 6, 7]]
    assert found.factors.tolist() == [[1, 0, 0], [2, 0, 0], [6, 7, 8]]
    assert found.offsets.tolist() == [0, 1, 0]


def test_parts_of_too_many_terms_together_are_refused() -> None:
    def zeros(entries: int, terms: int) -> ByteSums:
        row = np.zeros(1, np.int32)
        table = np.broadcast_to(row, (entries, terms))
        return ByteSums(places=table, factors=table, offsets=np.broadcast_to(row, (entries,)))

    assert len(join_sums([zeros(1, 1 << 10), zeros((1 << 12) - 1, 1)]).offsets) == 1 << 12
    with pytest.raises(NotExact, match="more than 4194304 terms"):
        join_sums([zeros(1, 1 << 10), zeros(1 << 12, 1)])


def test_only_computed_indices_are_inputs_of_lookups() -> None:
    graph = Written()
    index, fixed = graph.whole(), graph.constant([1], np.int64)
    graph.constants["table"] = np.ones((4, 2), np.float32)
    looked_up = graph.node("Gather", "table", index, axis=0, apply=np.take)
    graph.node("Gather", looked_up, fixed, axis=0, apply=np.take)
    graph.node("GatherND", "table", index, apply=np.take)
    assert index_inputs(graph.nodes, graph.constants) == {index}


def test_nodes_that_only_make_an_index_are_not_read_as_numbers() -> None:
    graph = Written()
    index = graph.whole()
    unused = graph.node("Relu", index, apply=np.abs)
    rows = graph.node("Gather", "table", index, axis=0, apply=np.take)
    dense = graph.node("MatMul", "x", "weights", apply=np.matmul)
    chosen = graph.node("Gather", dense, unused, axis=1, apply=np.take)
    output = graph.node("Add", rows, chosen, apply=np.add)

    def kept(*indices: str) -> list[str]:
        return [node.outputs[0] for node in read_as_numbers(graph.nodes, output, indices)]

    assert kept(index) == [index, unused, rows, dense, chosen, output]  # by another way
    assert kept(index, unused) == [rows, dense, chosen, output]
    assert kept() == [index, unused, rows, dense, chosen, output]
