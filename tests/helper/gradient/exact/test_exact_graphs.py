"""Convolutions, pools, embeddings, normalisation and the layout between them, each against the oracle and
against autograd."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from helper.gradient.exact.engine import ExactEngine
from helper.gradient.exact.layers.layer import NotExact
from helper.gradient.exact.lowering.lowered import attribute
from maskedlark.errors import InvalidModel
from maskedlark.model.graph import Node
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.numbers.field import reconstruct, to_signed
from maskedlark.privacy.clip import Clip, Norm
from tests.bench.peers import export
from tests.helper.gradient.exact.checks import check_example, check_graph, expected
from tests.helper.gradient.exact.graphs import Example, GraphBuilder, example, quantised

L2 = Clip(norm=Norm.L2, bound=0.8, frac_bits=32)
L1 = Clip(norm=Norm.L1, bound=3.0, frac_bits=32)


def shaped(graph: GraphBuilder, source: str, *shape: int) -> str:
    return graph.node("Reshape", source, graph.tensor(np.array([-1, *shape], np.int64)))


def flat(graph: GraphBuilder, source: str) -> str:
    return graph.node("Flatten", source, axis=1)


@pytest.mark.parametrize("clip", [L1, L2], ids=["l1", "l2"])
@pytest.mark.parametrize(
    ("pool", "window"),
    [
        ("MaxPool", {"strides": [1, 1]}),
        ("MaxPool", {"strides": [2, 1], "pads": [1, 1, 0, 0]}),
        ("AveragePool", {"strides": [1, 1], "pads": [1, 0, 1, 0], "count_include_pad": 0}),
        ("AveragePool", {"strides": [2, 1], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    ],
)
def test_convolutions_and_pools(pool: str, window: dict[str, object], clip: Clip) -> None:
    graph = GraphBuilder(2 * 7 * 6, seed=1)
    value = shaped(graph, "x", 2, 7, 6)
    value = graph.node(
        "Conv", value, graph.weight(3, 2, 3, 2), graph.weight(3, scale=0.1), strides=[1, 2], pads=[1, 0, 1, 1]
    )
    value = graph.node(pool, graph.node("Relu", value), kernel_shape=[2, 2], **window)
    value = graph.node("Tanh", graph.node("Conv", value, graph.weight(4, 3, 2, 2)))
    value = flat(graph, graph.node("GlobalAveragePool", value))
    check_graph(graph.model(graph.gemm(value, 4, 3), 3), Loss.CROSS_ENTROPY, clip, labels=2, records=7)


def test_dilated_and_one_dimensional_convolutions() -> None:
    graph = GraphBuilder(20, seed=2)
    value = graph.node("Conv", shaped(graph, "x", 2, 10), graph.weight(3, 2, 3), dilations=[2], pads=[2, 1])
    value = flat(graph, graph.node("Elu", value))
    check_graph(graph.model(graph.gemm(value, 27, 1), 1), Loss.POISSON, L2, labels=2, records=7)


def test_embeddings_of_repeated_categories_beside_dense_features() -> None:
    graph = GraphBuilder(7, seed=3)
    bounds = [graph.tensor(np.array([value], np.int64)) for value in (0, 3, 7, 1)]
    chosen = graph.node("Slice", "x", bounds[0], bounds[1], bounds[3])
    rest = graph.node("Slice", "x", bounds[1], bounds[2], bounds[3])
    indices = graph.node("Cast", graph.node("Mul", chosen, graph.tensor(np.array(256, np.float32))), to=7)
    embedded = flat(graph, graph.node("Gather", graph.weight(5, 4, scale=0.5), indices))
    value = graph.node("Relu", graph.gemm(graph.node("Concat", embedded, rest, axis=1), 16, 6))
    model = graph.model(graph.gemm(value, 6, 3), 3)
    made = example(13, model, Loss.CROSS_ENTROPY, 2, seed=3)
    made.features[:, :3] %= 5
    check_example(model, Loss.CROSS_ENTROPY, L2, made)
    check_example(model, Loss.CROSS_ENTROPY, L1, made)


@pytest.mark.parametrize(("operator", "keepdims"), [("ReduceMean", 0), ("ReduceSum", 1)])
def test_a_bag_of_embeddings(operator: str, keepdims: int) -> None:
    graph = GraphBuilder(5, seed=11)
    indices = graph.node("Cast", graph.node("Mul", "x", graph.tensor(np.array(256, np.float32))), to=7)
    rows = graph.node("Gather", graph.weight(256, 4, scale=0.5), indices)
    axes = [graph.tensor(np.array([1], np.int64))] if operator == "ReduceSum" else []
    bag = graph.node(operator, rows, *axes, keepdims=keepdims, **({} if axes else {"axes": [1]}))
    check_graph(
        graph.model(graph.gemm(flat(graph, bag), 4, 3), 3), Loss.CROSS_ENTROPY, L2, labels=2, records=8
    )


def test_a_category_outside_the_table_gives_a_zero_gradient() -> None:
    graph = GraphBuilder(2, seed=4)
    indices = graph.node("Cast", graph.node("Mul", "x", graph.tensor(np.array(256, np.float32))), to=7)
    embedded = flat(graph, graph.node("Gather", graph.weight(5, 3, scale=0.5), indices))
    model = graph.model(graph.gemm(embedded, 6, 2), 2)
    made = example(6, model, Loss.CROSS_ENTROPY, 2, seed=4)
    made.features[:] = 5
    engine = ExactEngine(model, Loss.CROSS_ENTROPY, L2)
    results = [engine.masked_sum(quantised(model), made.batch(helper)) for helper in (0, 1)]
    assert not reconstruct(results[0].vector, results[1].vector).any()
    made.features[0, 0] = 4
    made.features[1:4] = 0
    got = [engine.masked_sum(quantised(model), made.batch(helper)).vector for helper in (0, 1)]
    assert reconstruct(*got).tolist() == expected(model, L2, Loss.CROSS_ENTROPY, made).total


def integer(graph: GraphBuilder, *values: int) -> str:
    return graph.tensor(np.array(values, np.int64))


def whole(graph: GraphBuilder, source: str) -> str:
    return graph.node("Mul", source, graph.tensor(np.array(256, np.float32)))


def bytes_of(made: Example, columns: Sequence[int], numbers: NDArray[np.int64]) -> None:
    """Spell numbers (records,) in columns of features, the lowest byte first."""
    for place, column in enumerate(columns):
        made.features[:, column] = numbers >> (8 * place) & 255


def sum_of_integers(graph: GraphBuilder) -> str:
    """Cast, cut into pairs, low + 256 * high: (n, 2)."""
    codes = graph.node("Cast", whole(graph, "x"), to=7)
    pairs = graph.node("Reshape", codes, integer(graph, -1, 2, 2))
    low, high = (graph.node("Gather", pairs, graph.tensor(np.array(at, np.int64)), axis=2) for at in (0, 1))
    return graph.node("Add", low, graph.node("Mul", integer(graph, 256), high))


def product_of_floats(graph: GraphBuilder) -> str:
    """A constant matrix, then a cast."""
    matrix = graph.constant(np.array([[256, 0], [65536, 0], [0, 256], [0, 65536]]))
    return graph.node("Cast", graph.node("MatMul", "x", matrix), to=7)


def sum_of_products(graph: GraphBuilder) -> str:
    """Weights for each byte, summed over the last axis and shifted to and fro."""
    pairs = graph.node("Reshape", whole(graph, "x"), integer(graph, -1, 2, 2))
    weighted = graph.node("Mul", pairs, graph.constant(np.array([1, 256])))
    total = graph.node("ReduceSum", weighted, integer(graph, 2), keepdims=0)
    shifted = graph.node("Cast", graph.node("Add", total, graph.constant(np.array(3))), to=7)
    return graph.node("Sub", shifted, integer(graph, 3))


@pytest.mark.parametrize("clip", [L1, L2], ids=["l1", "l2"])
@pytest.mark.parametrize("made_by", [sum_of_integers, product_of_floats, sum_of_products])
def test_two_bytes_are_a_row_of_a_wide_table(made_by: Callable[[GraphBuilder], str], clip: Clip) -> None:
    graph = GraphBuilder(4, seed=12)
    rows = graph.node("Gather", graph.weight(700, 2, scale=0.5), made_by(graph))
    model = graph.model(graph.gemm(flat(graph, rows), 4, 2), 2)
    made = example(9, model, Loss.CROSS_ENTROPY, 2, seed=12)
    first, second = np.random.default_rng(1).integers(0, 700, (2, 9))
    second[::3] = first[::3]  # two fields of one vocabulary, often of one row
    bytes_of(made, (0, 1), first)
    bytes_of(made, (2, 3), second)
    made.features[1] = (255, 255, 0, 0)  # no row of the table
    check_example(model, Loss.CROSS_ENTROPY, clip, made)


def test_three_bytes_are_a_row_of_a_table_of_a_hundred_thousand() -> None:
    graph = GraphBuilder(4, seed=13)
    codes = graph.node("Cast", whole(graph, "x"), to=7)
    parts = [graph.node("Gather", codes, integer(graph, at), axis=1) for at in range(4)]
    index = parts[3]
    for part in (parts[2], parts[0]):
        index = graph.node("Add", graph.node("Mul", index, integer(graph, 256)), part)
    rows = flat(graph, graph.node("Gather", graph.weight(100_000, 1, scale=0.5), index))
    joined = graph.node("Concat", rows, "x", axis=1)
    model = graph.model(graph.gemm(joined, 5, 1), 1)
    made = example(5, model, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, 2, seed=13)
    bytes_of(made, (0, 2, 3), np.array([0, 99_999, 65_536, 255, 70_000]))
    check_example(model, Loss.BINARY_CROSS_ENTROPY_WITH_LOGITS, L2, made)


def test_several_gathers_of_one_table_are_one_gradient() -> None:
    graph = GraphBuilder(5, seed=14)
    codes = graph.node("Cast", whole(graph, "x"), to=7)
    table = graph.weight(6, 3, scale=0.5)
    one = flat(graph, graph.node("Gather", table, graph.node("Gather", codes, integer(graph, 0), axis=1)))
    two = graph.node("Gather", table, graph.node("Gather", codes, integer(graph, 4, 1), axis=1))
    bag = graph.node("ReduceSum", two, integer(graph, 1), keepdims=0)
    hidden = graph.node("Tanh", graph.node("Add", graph.gemm(one, 3, 3), bag))
    model = graph.model(graph.gemm(hidden, 3, 3), 3)
    made = example(12, model, Loss.CROSS_ENTROPY, 2, seed=14)
    made.features[:] %= 7  # now and then beyond the table
    check_example(model, Loss.CROSS_ENTROPY, L2, made)
    check_example(model, Loss.CROSS_ENTROPY, L1, made)


def relu(graph: GraphBuilder) -> str:
    return graph.node("Cast", graph.node("Relu", whole(graph, "x")), to=7)


def fraction(graph: GraphBuilder) -> str:
    return graph.node("Cast", graph.node("Mul", "x", graph.tensor(np.array(255, np.float32))), to=7)


def squared(graph: GraphBuilder) -> str:
    return graph.node("Cast", graph.node("Mul", whole(graph, "x"), whole(graph, "x")), to=7)


def negative(graph: GraphBuilder) -> str:
    return graph.node("Sub", graph.node("Cast", whole(graph, "x"), to=7), integer(graph, 1))


def too_far(graph: GraphBuilder) -> str:
    return graph.node("Cast", graph.node("Mul", "x", graph.tensor(np.array(2.0**25, np.float32))), to=7)


def trained(graph: GraphBuilder) -> str:
    return graph.node("Cast", graph.gemm("x", 4, 2), to=7)


@pytest.mark.parametrize(
    ("made_by", "why"),
    [
        (relu, "an index is made by Relu"),
        (fraction, "features times 256, which are the bytes"),
        (squared, "Mul of two values that features make"),
        (negative, "may be negative"),
        (too_far, "not below 2\\^24"),
        (trained, "made by Gemm"),
    ],
)
def test_indices_that_are_not_sums_of_bytes_are_not_exact(
    made_by: Callable[[GraphBuilder], str], why: str
) -> None:
    graph = GraphBuilder(4, seed=9)
    rows = graph.node("Gather", graph.weight(700, 2), made_by(graph))
    width = 4 if made_by is trained else 8
    with pytest.raises(NotExact, match=why):
        ExactEngine(graph.model(graph.gemm(flat(graph, rows), width, 2), 2), Loss.CROSS_ENTROPY, L2)


def test_a_table_that_a_dense_layer_reads_too_is_not_exact() -> None:
    graph = GraphBuilder(4, seed=9)
    table = graph.weight(4, 4)
    rows = graph.node("Gather", table, graph.node("Cast", whole(graph, "x"), to=7))
    bag = graph.node("ReduceSum", rows, integer(graph, 1), keepdims=0)
    value = graph.node("Add", bag, graph.node("Gemm", "x", table))
    with pytest.raises(NotExact, match="nothing else reads"):
        ExactEngine(graph.model(value, 4), Loss.CROSS_ENTROPY, L2)


def test_integers_that_no_gather_reads_are_not_exact() -> None:
    graph = GraphBuilder(4, seed=9)
    codes = graph.node("Cast", graph.node("Cast", whole(graph, "x"), to=7), to=1)
    with pytest.raises(NotExact, match="Cast is exact only"):
        ExactEngine(graph.model(graph.gemm(codes, 4, 2), 2), Loss.CROSS_ENTROPY, L2)


@pytest.mark.parametrize("is_image", [False, True])
def test_batch_normalisation_trains_its_scale_and_bias(is_image: bool) -> None:
    graph = GraphBuilder(18, seed=5)
    value = (
        graph.node("Conv", shaped(graph, "x", 2, 3, 3), graph.weight(3, 2, 2, 2))
        if is_image
        else graph.gemm("x", 18, 3)
    )
    statistics = [graph.weight(3, scale=0.2), graph.tensor(np.array([0.5, 1.0, 2.0], np.float32))]
    value = graph.node(
        "BatchNormalization",
        value,
        graph.weight(3, scale=1.0),
        graph.weight(3, scale=0.3),
        *statistics,
        epsilon=1e-5,
    )
    value = flat(graph, graph.node("Softplus", value))
    check_graph(graph.model(graph.gemm(value, 12 if is_image else 3, 3), 3), Loss.CROSS_ENTROPY, L2, labels=2)


def test_a_residual_sum_that_is_read_twice() -> None:
    graph = GraphBuilder(6, seed=6)
    first = graph.node("Relu", graph.gemm("x", 6, 5))
    second = graph.node("Add", graph.node("Tanh", graph.gemm(first, 5, 5)), first)
    third = graph.node("Add", second, second)
    check_graph(graph.model(graph.gemm(third, 5, 3), 3), Loss.CROSS_ENTROPY, L2, labels=3)


def test_features_are_rescaled_by_constants() -> None:
    graph = GraphBuilder(6, seed=7)
    centred = graph.node("Sub", "x", graph.constant(np.linspace(0.1, 0.6, 6)))
    scaled = graph.node("Div", centred, graph.constant(np.array(0.25)))
    shifted = graph.node(
        "Add", graph.node("Mul", scaled, graph.constant(np.full(6, 0.5))), graph.constant(np.ones((1, 6)))
    )
    check_graph(graph.model(graph.gemm(shifted, 6, 3), 3), Loss.CROSS_ENTROPY, L2, labels=2)


@pytest.mark.parametrize("loss", [Loss.CROSS_ENTROPY, Loss.MSE, Loss.POISSON])
@pytest.mark.parametrize("spoil", ["inf", "nan"])
def test_values_beyond_float64_keep_the_bound(spoil: str, loss: Loss) -> None:
    graph = GraphBuilder(4, seed=10)
    value = graph.gemm("x", 4, 3)
    huge = graph.constant(np.array(3e38))
    for _ in range(9):
        value = graph.node("Mul", value, huge)
    if spoil == "nan":
        value = graph.node("Mul", value, graph.constant(np.array(0.0)))
    outputs = 3 if loss is Loss.CROSS_ENTROPY else 1
    model = graph.model(
        graph.node("Add", graph.gemm(value, 3, outputs), value) if outputs == 3 else graph.gemm(value, 3, 1),
        outputs,
    )
    made = example(8, model, loss, 2, seed=10)
    result = ExactEngine(model, loss, L2).masked_sum(
        quantised(model), replace(made, shares=(np.ones_like(made.shares[0]),) * 2).batch(0)
    )
    coordinates = to_signed(result.vector).astype(np.float64)
    assert np.linalg.norm(coordinates) <= 16 * result.sensitivity


def test_axes_are_transposed_and_values_concatenated_behind_the_first_axis() -> None:
    graph = GraphBuilder(12, seed=8)
    image = graph.node("Conv", shaped(graph, "x", 2, 6), graph.weight(3, 2, 1))
    other = graph.node(
        "Transpose", shaped(graph, flat(graph, graph.node("Relu", image)), 6, 3), perm=[0, 2, 1]
    )
    joined = graph.node("Concat", image, other, axis=2)
    check_graph(graph.model(graph.gemm(flat(graph, joined), 36, 2), 2), Loss.CROSS_ENTROPY, L2, labels=2)


@settings(max_examples=15, deadline=None)
@given(
    channels=st.integers(1, 2),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    pads=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    dilations=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    norm=st.sampled_from(list(Norm)),
    seed=st.integers(0, 10**6),
)
def test_random_convolutions_equal_the_oracle(
    *,
    channels: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: list[int],
    dilations: tuple[int, int],
    norm: Norm,
    seed: int,
) -> None:
    graph = GraphBuilder(channels * 30, seed)
    window = {"strides": list(strides), "pads": pads, "dilations": list(dilations)}
    value = graph.node(
        "Conv",
        shaped(graph, "x", channels, 6, 5),
        graph.weight(2, channels, *kernel),
        graph.weight(2, scale=0.2),
        **window,
    )
    value = flat(graph, graph.node("GlobalAveragePool", graph.node("LeakyRelu", value)))
    model = graph.model(graph.gemm(value, 2, 2), 2)
    clip = replace(L2, norm=norm)
    made = example(3, model, Loss.CROSS_ENTROPY, 2, seed=seed)
    got = [
        ExactEngine(model, Loss.CROSS_ENTROPY, clip).masked_sum(quantised(model), made.batch(helper)).vector
        for helper in (0, 1)
    ]
    assert reconstruct(*got).tolist() == expected(model, clip, Loss.CROSS_ENTROPY, made).total


class Residual(nn.Module):
    """What torch's exporters make of common modules."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.pool = nn.AvgPool2d(2)
        self.first, self.second = nn.Linear(16, 8), nn.Linear(8, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.pool(torch.relu(self.norm(self.conv(x.reshape(-1, 1, 8, 8))))).flatten(1)
        y = torch.relu(self.first(y))
        return self.last(y + torch.relu(self.second(y)))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore")
def test_what_torch_exports_of_a_residual_network_is_exact() -> None:
    torch.manual_seed(0)
    model = parse(export(Residual(), 64), num_features=64)
    check_graph(model, Loss.CROSS_ENTROPY, L2, labels=2, records=5)


def test_a_parameter_that_is_used_twice_is_not_exact() -> None:
    graph = GraphBuilder(4, seed=9)
    weight = graph.weight(4, 4)
    value = graph.node("Gemm", graph.node("Relu", graph.node("Gemm", "x", weight)), weight)
    with pytest.raises(NotExact, match="used more than once"):
        ExactEngine(graph.model(value, 4), Loss.CROSS_ENTROPY, L2)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_axis_of_records_cannot_be_split(axis: int) -> None:
    graph = GraphBuilder(4, seed=9)
    parts = graph.tensor(np.array([4 if axis else 1], np.int64))
    value = graph.node("Relu", graph.node("Split", "x", parts, axis=axis))
    output = graph.gemm(value, 4, 2)
    if axis == 0:
        with pytest.raises(InvalidModel, match="do not add up to axis 0"):
            graph.model(output, 2)
    else:
        ExactEngine(graph.model(output, 2), Loss.CROSS_ENTROPY, L2)


def test_a_normalisation_without_variance_is_not_exact() -> None:
    graph = GraphBuilder(4, seed=9)
    ones, zeros = (graph.constant(np.full(4, value)) for value in (1.0, 0.0))
    value = graph.node("BatchNormalization", "x", ones, zeros, zeros, zeros, epsilon=0.0)
    with pytest.raises(NotExact, match="variance that is not positive"):
        ExactEngine(graph.model(graph.gemm(value, 4, 2), 2), Loss.CROSS_ENTROPY, L2)


def test_a_dense_layer_of_several_vectors_a_record_is_not_exact() -> None:
    graph = GraphBuilder(6, seed=9)
    value = graph.node("MatMul", shaped(graph, "x", 2, 3), graph.weight(3, 4))
    with pytest.raises(NotExact, match="multiplies a value of 3 axes"):
        ExactEngine(graph.model(graph.gemm(flat(graph, value), 8, 2), 2), Loss.CROSS_ENTROPY, L2)


def test_an_attribute_that_is_no_number_is_not_exact() -> None:
    node = Node(operator="Elu", inputs=("x",), outputs=("y",), attributes={"alpha": "1.0"})
    with pytest.raises(NotExact, match="Elu has an attribute alpha that is not a number"):
        attribute(node, "alpha")


@pytest.mark.parametrize("operator", ["Mul", "Div", "Add", "Sub"])
@pytest.mark.parametrize("given", [[0.5], [0.5, 1.0, 2.0, 4.0]], ids=["one", "one each"])
def test_features_and_a_constant_or_one_each(operator: str, given: list[float]) -> None:
    graph = GraphBuilder(4, seed=9)
    value = graph.node(operator, "x", graph.constant(np.array(given)))
    check_graph(graph.model(graph.gemm(value, 4, 2), 2), Loss.CROSS_ENTROPY, L2, labels=2, records=5)
