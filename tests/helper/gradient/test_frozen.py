"""Jobs that train some of a model's parameters: gradient, norm and clip are of these alone, on both
paths, and what is frozen has the numbers of a round's weights."""

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helper.gradient.choose import choose_engine
from helper.gradient.exact.engine import ExactEngine
from helper.gradient.exact.layers.convolution import Convolution
from helper.gradient.exact.layers.dense import Dense
from helper.gradient.exact.layers.embedding import Embedding
from helper.gradient.exact.layers.normalisation import BatchNormalization, LayerNormalization
from helper.gradient.exact.layers.offset import Offset, Scale
from helper.gradient.general.engine import GeneralEngine
from maskedlark.errors import InvalidModel, ModelReason
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse, replace_parameters, trained_names
from maskedlark.model.weights import quantise
from maskedlark.numbers.field import reconstruct, to_signed
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.reports.input_shares import InputShares
from tests.helper.gradient.exact.graphs import Example, GraphBuilder, autograd_sum, example, quantised

FEATURES, CLASSES = 37, 3
WIDE = Clip(norm=Norm.L2, bound=1000.0, frac_bits=32)
CLIPS = [
    Clip(norm=Norm.L2, bound=0.2, frac_bits=32),
    Clip(norm=Norm.L1, bound=1.0, frac_bits=32),
    Clip(norm=Norm.L2, bound=0.2, frac_bits=32, is_counted=True),
]
LAYERS = ("table", "conv", "batch", "layer", "offset", "scale", "dense", "low", "last")
"""The graph's layers with parameters, in its order; `dense` is added to `low`, as an adapter is."""


def all_kinds() -> tuple[bytes, dict[str, list[str]]]:
    """A graph with each kind of layer, and each layer's parameters."""
    graph, names = GraphBuilder(FEATURES, seed=21), dict[str, list[str]]()

    def weight(layer: str, *shape: int, scale: float = 0.3) -> str:
        name = graph.weight(*shape, scale=scale)
        names.setdefault(layer, []).append(name)
        return name

    def integers(*values: int) -> str:
        return graph.tensor(np.array(values, np.int64))

    last = graph.node("Slice", "x", integers(36), integers(37), integers(1))
    index = graph.node("Cast", graph.node("Mul", last, graph.tensor(np.array(256, np.float32))), to=7)
    rows = graph.node("Flatten", graph.node("Gather", weight("table", 200, 4), index), axis=1)
    image = graph.node("Slice", "x", integers(0), integers(36), integers(1))
    image = graph.node("Reshape", image, integers(-1, 1, 6, 6))
    value = graph.node("Conv", image, weight("conv", 2, 1, 3, 3), weight("conv", 2))
    statistics = [graph.constant(np.array(values)) for values in ([0.1, -0.2], [0.5, 1.5])]
    value = graph.node(
        "BatchNormalization",
        value,
        weight("batch", 2, scale=1.0),
        weight("batch", 2),
        *statistics,
        epsilon=1e-5,
    )
    value = graph.node("Flatten", graph.node("Tanh", value), axis=1)
    value = graph.node(
        "LayerNormalization",
        value,
        weight("layer", 32, scale=1.0),
        weight("layer", 32),
        axis=-1,
        epsilon=1e-5,
    )
    value = graph.node(
        "Mul", graph.node("Add", value, weight("offset", 1, 32)), weight("scale", 1, 32, scale=1.0)
    )
    full = graph.node("Gemm", value, weight("dense", 32, 4), weight("dense", 4))
    low = graph.node("MatMul", graph.node("MatMul", value, weight("low", 32, 1)), weight("low", 1, 4))
    value = graph.node("Add", graph.node("Tanh", graph.node("Add", full, low)), rows)
    value = graph.node("Gemm", value, weight("last", 4, CLASSES), weight("last", CLASSES))
    return graph.encode(value, CLASSES), names


FILE, NAMES = all_kinds()
WHOLE = parse(FILE, num_features=FEATURES)


def batch_of(records: int = 23, seed: int = 3) -> Example:
    made = example(records, WHOLE, Loss.CROSS_ENTROPY, 2, seed=seed)
    made.features[:, 36] %= 200
    return made


def in_order(chosen: set[str]) -> list[str]:
    return [one.name for one in WHOLE.parameters if one.name in chosen]


def summed(engine: Any, made: Example) -> NDArray[np.int64]:
    first, second = (engine.masked_sum(WEIGHTS[engine], made.batch(one)) for one in (0, 1))
    assert first.values_digest == second.values_digest
    return to_signed(reconstruct(first.vector, second.vector))


WEIGHTS: dict[Any, Any] = {}


def exact(trained: list[str] | None, clip: Clip, **more: Any) -> ExactEngine:
    model = parse(FILE, num_features=FEATURES, trained=trained)
    engine = ExactEngine(model, Loss.CROSS_ENTROPY, clip, **more)
    WEIGHTS[engine] = quantised(model)
    return engine


def test_the_gradient_is_the_whole_ones_part_bit_by_bit_where_layers_are_frozen() -> None:
    made = batch_of()
    whole = summed(exact(None, WIDE), made)
    offsets = np.cumsum([0, *(one.size for one in WHOLE.parameters)])
    places = {
        one.name: np.arange(start, start + one.size)
        for one, start in zip(WHOLE.parameters, offsets, strict=False)
    }
    for layers in [*combinations(LAYERS, 1), *combinations(LAYERS, 2), LAYERS[1:], LAYERS[:-1]]:
        trained = in_order({name for layer in layers for name in NAMES[layer]})
        got = summed(exact(trained, WIDE), made)
        assert got.tolist() == whole[np.concatenate([places[name] for name in trained])].tolist(), layers
        assert np.abs(got).sum() > 0


@pytest.mark.parametrize("clip", CLIPS, ids=["l2", "l1", "counted"])
def test_what_is_trained_is_clipped_by_itself_on_both_paths(clip: Clip) -> None:
    made = batch_of()
    for trained in (
        NAMES["last"],
        NAMES["low"],
        NAMES["table"],
        [name for layer in LAYERS for name in NAMES[layer][1:]],  # biases without their weights
        [name for layer in LAYERS for name in NAMES[layer][:1]],  # weights without their biases
        [*NAMES["conv"][1:], *NAMES["batch"][:1], *NAMES["layer"][1:], *NAMES["dense"][1:]],
    ):
        model = parse(FILE, num_features=FEATURES, trained=in_order(set(trained)))
        weights = quantised(model)
        general: Any = GeneralEngine(model, Loss.CROSS_ENTROPY, clip, CLASSES)
        WEIGHTS[general] = weights
        want = autograd_sum(model, weights, clip, Loss.CROSS_ENTROPY, made)
        engines = {
            "exact": exact(in_order(set(trained)), clip),
            "threads": exact(in_order(set(trained)), clip, threads=2),
            "general": general,
        }
        assert engines["exact"].path == "exact"
        for name, engine in engines.items():
            got = np.ldexp(summed(engine, made).astype(np.float64), -clip.frac_bits)
            assert len(got) == model.num_parameters + clip.is_counted
            near = np.linalg.norm(got[: model.num_parameters] - want)
            assert near <= 0.01 * np.linalg.norm(want), (name, trained)
        counts = {name: int(summed(engine, made)[-1]) for name, engine in engines.items() if clip.is_counted}
        assert len(set(counts.values())) <= 1


@pytest.mark.parametrize("norm", Norm)
@pytest.mark.parametrize("path", ["exact", "general"])
def test_no_record_moves_a_sum_by_more_than_the_bound(path: str, norm: Norm) -> None:
    """In integers, at features and weights that make gradients as long as they get."""
    clip = Clip(norm=norm, bound=0.125, frac_bits=24)
    reached = 0
    for layers in [*((layer,) for layer in LAYERS), ("conv", "last"), ("table", "low", "offset")]:
        trained = in_order({name for layer in layers for name in NAMES[layer]})
        model = parse(FILE, num_features=FEATURES, trained=trained)
        engine: Any = exact(trained, clip)
        if path == "general":
            engine = GeneralEngine(model, Loss.CROSS_ENTROPY, clip, CLASSES)
        for scale, value in ((1.0, 0), (64.0, 255), (1.0, 137), (1024.0, 1)):
            row = np.full((1, FEATURES), value, np.uint8)
            row[0, 36] = 7
            batch = InputShares(
                features=row, labels=np.array([[2]], np.uint32), mask_shares=np.ones((1, 1), np.uint64)
            )
            weights = tuple(quantise(one * np.float32(scale)) for one in model.initial_values)
            found = [int(one) for one in to_signed(engine.masked_sum(weights, batch).vector)]
            if norm is Norm.L1:
                assert sum(map(abs, found)) <= clip.sensitivity
            else:
                assert sum(one * one for one in found) <= clip.sensitivity**2
            reached += max(map(abs, found)) > clip.sensitivity // 8
    assert reached > 8


@pytest.mark.parametrize("path", ["exact", "general"])
def test_per_layer_clips_share_the_bound_among_what_is_trained(path: str) -> None:
    """Of m layers each has 1/sqrt(m) of it: frozen ones have no share."""
    made = batch_of(1)
    clip = Clip(norm=Norm.L2, bound=1e-3, frac_bits=40, is_per_layer=True)
    trained = in_order({*NAMES["dense"], *NAMES["last"]})
    engine: Any = exact(trained, clip)
    if path == "general":
        model = parse(FILE, num_features=FEATURES, trained=trained)
        engine = GeneralEngine(model, Loss.CROSS_ENTROPY, clip, CLASSES)
        WEIGHTS[engine] = quantised(model)
    groups = 2 if path == "exact" else 4
    value = summed(engine, made).astype(np.float64)
    each = np.ldexp(clip.of_each(groups).sensitivity, 0)
    cuts = [132] if path == "exact" else [128, 132, 144]
    for part in np.split(value, cuts):
        assert 0.99 * each <= np.linalg.norm(part) <= each


@pytest.mark.parametrize("is_per_layer", [False, True])
@pytest.mark.parametrize("path", ["exact", "general"])
def test_an_index_beyond_a_frozen_table_gives_no_gradient(path: str, is_per_layer: bool) -> None:
    made = batch_of()
    made.features[:, 36] = 200 + np.arange(23) % 50
    clip = Clip(norm=Norm.L2, bound=1.0, frac_bits=32, is_per_layer=is_per_layer)
    for trained in (NAMES["last"], NAMES["conv"], NAMES["table"]):
        engine: Any = exact(trained, clip)
        if path == "general":
            model = parse(FILE, num_features=FEATURES, trained=trained)
            engine = GeneralEngine(model, Loss.CROSS_ENTROPY, clip, CLASSES)
            WEIGHTS[engine] = quantised(model)
        assert not summed(engine, made).any()


def test_freezing_keeps_a_model_exact_and_allows_a_frozen_parameter_two_uses() -> None:
    graph = GraphBuilder(5, seed=2)
    shared = graph.weight(5, 5)
    value = graph.node("MatMul", graph.node("Tanh", graph.node("MatMul", "x", shared)), shared)
    file = graph.encode(graph.node("MatMul", value, graph.weight(5, 2)), 2)
    model = parse(file, num_features=5, trained=["t1"])
    clip = Clip(norm=Norm.L2, bound=0.3, frac_bits=32)
    engine = choose_engine(model, Loss.CROSS_ENTROPY, clip, 2)
    assert engine.path == "exact"
    assert choose_engine(parse(file, num_features=5), Loss.CROSS_ENTROPY, clip, 2).path == "general"
    WEIGHTS[engine] = quantised(model)
    made = example(9, model, Loss.CROSS_ENTROPY, 2, seed=5)
    got = np.ldexp(summed(engine, made).astype(np.float64), -32)
    want = autograd_sum(model, quantised(model), clip, Loss.CROSS_ENTROPY, made)
    assert np.linalg.norm(got - want) <= 0.01 * np.linalg.norm(want)


def test_the_way_back_stops_where_nothing_below_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    called = Counter[str]()
    for kind in (Convolution, BatchNormalization, LayerNormalization, Offset, Scale, Embedding, Dense):
        running: Any = kind.running
        for step in ("backward", "mask"):
            monkeypatch.setattr(
                running, step, counting(called, f"{kind.__name__} {step}", getattr(running, step))
            )
    made, table = batch_of(5), {}
    for layer in ("last", "scale", "conv", "table"):
        called.clear()
        engine = exact(NAMES[layer], WIDE)
        engine.masked_sum(WEIGHTS[engine], made.batch(0))
        table[layer] = dict(called)
    assert table["last"] == {"Dense backward": 1, "Dense mask": 1}
    assert table["table"] == {"Dense backward": 1, "Embedding backward": 1, "Embedding mask": 1}
    assert table["scale"] == {"Dense backward": 4, "Scale backward": 1, "Scale mask": 1}
    back = {f"{kind} backward": 1 for kind in ("Convolution", "BatchNormalization", "LayerNormalization")}
    assert table["conv"] == {
        **back, "Dense backward": 4, "Scale backward": 1, "Offset backward": 1, "Convolution mask": 1
    }  # fmt: skip


def counting(called: Counter[str], name: str, step: Any) -> Any:
    def counted(self: Any, *given: Any) -> Any:
        called[name] += 1
        return step(self, *given)

    return counted


def test_a_round_holds_no_more_than_what_is_trained_needs() -> None:
    """The flat sum and the products' sums are of trained parameters."""
    small, large = exact(NAMES["last"], WIDE), exact(None, WIDE)
    assert small.round_bytes(512, 2) < large.round_bytes(512, 2)


def test_frozen_values_and_names_are_in_the_digest() -> None:
    trained = NAMES["last"]
    model = parse(FILE, num_features=FEATURES, trained=trained)
    moved = [
        value + (name.name in NAMES["dense"])
        for value, name in zip(WHOLE.initial_values, WHOLE.parameters, strict=True)
    ]
    other = replace_parameters(FILE, WHOLE, moved)
    assert parse(other, num_features=FEATURES).digest == WHOLE.digest
    digests = {
        WHOLE.digest,
        model.digest,
        parse(other, num_features=FEATURES, trained=trained).digest,
        parse(FILE, num_features=FEATURES, trained=NAMES["low"]).digest,
    }
    assert len(digests) == 4
    stepped = replace_parameters(FILE, model, [value + 1 for value in model.initial_values])
    assert parse(stepped, num_features=FEATURES, trained=trained).digest == model.digest
    kept = parse(stepped, num_features=FEATURES)
    for name, before, after in zip(WHOLE.parameters, WHOLE.initial_values, kept.initial_values, strict=True):
        assert (before.tolist() == after.tolist()) == (name.name not in trained)
    assert trained_names(model) == tuple(trained)
    assert trained_names(WHOLE) is None


def test_frozen_values_are_those_of_a_rounds_weights() -> None:
    model = parse(FILE, num_features=FEATURES, trained=NAMES["last"])
    for name, values in zip(WHOLE.parameters, WHOLE.initial_values, strict=True):
        if name.name in model.frozen:
            assert model.constants[name.name].tolist() == quantise(values).to_float().tolist()
            again = quantise(model.constants[name.name])
            assert again.exponent == quantise(values).exponent
            assert again.values.tolist() == quantise(values).values.tolist()


@pytest.mark.parametrize(
    "trained",
    [
        [],
        ["nothing"],
        ["x"],
        ["t2"],  # an initializer that no gradient reaches
        [*NAMES["last"], *NAMES["last"]],
        NAMES["last"][::-1],
        in_order({name for names in NAMES.values() for name in names}),
    ],
    ids=["none", "unknown", "input", "constant", "repeated", "order", "all"],
)
def test_names_that_choose_nothing_are_refused(trained: list[str]) -> None:
    with pytest.raises(InvalidModel) as refused:
        parse(FILE, num_features=FEATURES, trained=trained)
    assert refused.value.reason is ModelReason.WRONG_PARAMETERS


def test_a_frozen_value_beyond_the_grid_is_refused() -> None:
    moved = [
        value * (2.0**40 if name.name == NAMES["dense"][0] else 1)
        for value, name in zip(WHOLE.initial_values, WHOLE.parameters, strict=True)
    ]
    huge = replace_parameters(FILE, WHOLE, [value.astype(np.float32) for value in moved])
    with pytest.raises(InvalidModel) as refused:
        parse(huge, num_features=FEATURES, trained=NAMES["last"])
    assert refused.value.reason is ModelReason.NOT_FINITE
