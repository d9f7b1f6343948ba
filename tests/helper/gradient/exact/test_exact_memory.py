"""The bytes of one layer of each kind, worked out by hand from its arrays.

A backend whose figures are all different stands in for the two that there are.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from helper.gradient.exact.kernels.buffers import Buffers
from helper.gradient.exact.kernels.windows import Windows
from helper.gradient.exact.layers.convolution import Convolution
from helper.gradient.exact.layers.dense import Dense
from helper.gradient.exact.layers.elementwise import Activation, Curve, Join, Product, Softmax
from helper.gradient.exact.layers.embedding import ByteSums, Embedding
from helper.gradient.exact.layers.layer import Layer, Trainable
from helper.gradient.exact.layers.layout import Concatenate, Fixed, Rearrange, Repeat
from helper.gradient.exact.layers.normalisation import BatchNormalization, LayerNormalization
from helper.gradient.exact.layers.offset import Offset, Scale
from helper.gradient.exact.layers.pooling import AveragePool, MaxPool
from helper.gradient.exact.lowering.lowered import Lowered, Step
from helper.gradient.exact.memory import PartBytes, part_bytes, plan_bytes
from helper.gradient.exact.products.product import Accumulator, Factor, ProductBytes, Weights
from maskedlark.model.weights import quantise
from maskedlark.numbers.field import FieldVector

FEATURES, LABELS, SEEDS = 7, 2, 3
ORDER = np.zeros(6, np.int64)


@dataclass(frozen=True)
class Figures:
    """A backend of made-up figures; what a weight takes shows the width that it was asked for."""

    output: int = 13

    def bytes_taken(self, width: int, *, is_bytes: bool) -> ProductBytes:
        if is_bytes:
            return ProductBytes(
                weight=100 + width, entry=29, output=31, chunk_entry=37, chunk_output=41, sum=43
            )
        return ProductBytes(
            weight=width, entry=11, output=self.output, chunk_entry=17, chunk_output=19, sum=23
        )

    def factor(self, weights: Weights, buffers: Buffers | None = None) -> Factor:
        raise NotImplementedError

    def accumulator(
        self, total: FieldVector, *, is_bytes: bool, records: int, buffers: Buffers | None = None
    ) -> Accumulator:
        raise NotImplementedError


def parameter(*shape: int, is_frozen: bool = False) -> Trainable:
    return Trainable(index=0, offset=0, shape=shape, is_frozen=is_frozen)


def windows(positions: int, window: int) -> Windows:
    return Windows(places=np.zeros((positions, window), np.int32), space=(6,), result=(positions,))


def sums(entries: int, terms: int = 1) -> ByteSums:
    listed = np.zeros((entries, terms), np.int32)
    return ByteSums(places=listed, factors=listed, offsets=np.zeros(entries, np.int32))


def plan(*steps: tuple[Layer, tuple[int, ...]], sizes: tuple[int, ...], trained: tuple[bool, ...]) -> Lowered:
    """Return a plan whose last values are written by the steps, one each; the features have 7 bytes."""
    first = 1 + len(sizes) - len(steps)
    return Lowered(
        steps=tuple(
            Step(layer=layer, inputs=inputs, output=first + index, has_parameters=False)
            for index, (layer, inputs) in enumerate(steps)
        ),
        sizes=(FEATURES, *sizes),
        is_trained=(False, *trained),
        output=len(sizes),
        num_parameters=0,
        frozen=(),
    )


def dense(
    inputs: int, outputs: int, *, reads_bytes: bool = False, back: bool = True, is_frozen: bool = False
) -> Dense:
    return Dense(
        weight=parameter(inputs, outputs, is_frozen=is_frozen),
        bias=None,
        reads_bytes=reads_bytes,
        passes_back=back,
        number=0,
        is_transposed=False,
    )


def conv(
    *, reads_bytes: bool = False, back: bool = True, bias: bool = True, is_frozen: bool = False
) -> Convolution:
    """Two outputs of a window of three at four positions: 12 entries of patches, 8 outputs."""
    return Convolution(
        weight=parameter(2, 1, 3, is_frozen=is_frozen),
        bias=parameter(2, is_frozen=is_frozen) if bias else None,
        reads_bytes=reads_bytes,
        passes_back=back,
        number=0,
        windows=windows(4, 3),
    )


def embedding(places: int) -> Embedding:
    return Embedding(table=parameter(10, 4), indices=sums(places), number=0)


def batch_normalisation(*, is_frozen: bool = False) -> BatchNormalization:
    return BatchNormalization(
        scale=parameter(2),
        bias=parameter(2, is_frozen=is_frozen),
        mean=np.zeros(2),
        inverse=np.ones(2),
        number=0,
    )


def layer_normalisation(*, bias: bool) -> LayerNormalization:
    return LayerNormalization(scale=parameter(3), bias=parameter(3) if bias else None, epsilon=0.1, number=0)


def offset(*, is_frozen: bool = False) -> Offset:
    return Offset(parameter=parameter(3, is_frozen=is_frozen), homes=ORDER, sign=1.0, number=0)


def average(positions: int, window: int) -> AveragePool:
    return AveragePool(windows=windows(positions, window), counts=np.ones(positions))


def activation(curve: Curve = Curve.TANH) -> Activation:
    return Activation(curve=curve, alpha=0.0)


SCALE = Scale(parameter=parameter(3), homes=ORDER, number=0)
FIXED = Fixed(factor=np.ones(6), offset=np.zeros(6))
MOVES: tuple[Layer, ...] = (
    Rearrange(order=ORDER),
    Repeat(order=ORDER),
    Concatenate(sizes=(6,)),
    FIXED,
    Join(),
)
BOTH, AFTER, NEITHER = (True, True), (False, True), (False, False)


@pytest.mark.parametrize(
    ("layer", "sizes", "trained", "seeds", "fixed", "chunk", "block"),
    [
        # keys of hashes, first places of rows; rows, penalty, values, masked ones, sums, quantised sums
        (embedding(3), (9, 12), AFTER, 3, 8 * 24 + 4 * 10, 0, 4 * 3 + 8 * (1 + 12 + 12 + 36) + 2 * 36),
        (embedding(1), (9, 4), AFTER, 3, 8 * 8, 0, 4 + 8 * (1 + 4 + 4) + 2 * 12),
        (embedding(3), (9, 12), AFTER, 0, 8 * 24, 0, 4 * 3 + 8 * (1 + 12)),
        (embedding(3), (9, 12), NEITHER, 3, 8 * 24 + 40, 0, 4 * 3 + 8 * (1 + 12 + 12)),
        # six numbers a channel, total and keys; value and rows, quantised gradients; on the way
        (batch_normalisation(), (6, 6), BOTH, 3, 8 * (12 + 4 + 8), 0, 10 * 6 + 2 * 12 + 24 * 6 + 34 * 18),
        (batch_normalisation(is_frozen=True), (6, 6), BOTH, 3, 8 * (12 + 2 + 4), 0, 60 + 2 * 6 + 144 + 612),
        (batch_normalisation(), (6, 6), BOTH, 0, 8 * 24, 0, 60 + 96),
        (layer_normalisation(bias=False), (6, 6), BOTH, 3, 8 * (18 + 3 + 6), 0, 26 * 6 + 2 * 9 + 144 + 612),
        (layer_normalisation(bias=True), (6, 6), BOTH, 3, 8 * (18 + 6 + 12), 0, 26 * 6 + 2 * 18 + 144 + 612),
        (layer_normalisation(bias=True), (6, 6), BOTH, 0, 8 * (18 + 6 + 12), 0, 26 * 6 + 96),
        # the parameter, total and keys, and at each entry; value and source, quantised gradients
        (offset(), (6, 6), BOTH, 3, 8 * (3 + 3 + 6 + 6), 0, 16 * 6 + 2 * 9 + 8 * (6 + 36 + 18) + 16 * 9),
        (SCALE, (6, 6), BOTH, 3, 8 * 18, 0, 96 + 18 + 480 + 144),
        (offset(), (6, 6), AFTER, 3, 8 * 18, 0, 96 + 18 + 8 * (6 + 36) + 144),
        (offset(is_frozen=True), (6, 6), NEITHER, 3, 8 * (3 + 6), 0, 96 + 48),
        (offset(), (2, 6), BOTH, 3, 8 * 18, 0, 96 + 18 + 8 * (2 + 36 + 6) + 144),
        # value and slope, deltas; the source as reals
        (activation(), (6, 6), BOTH, 3, 0, 0, 16 * 6 + 8 * 18 + 8 * 6),
        (activation(), (6, 6), NEITHER, 3, 0, 0, 16 * 6 + 8 * 6),
        (activation(Curve.LEAKY_RELU), (6, 6), BOTH, 3, 0, 0, 9 * 6 + 8 * 18 + 8 * 6),
        (Softmax(), (6, 6), BOTH, 3, 0, 0, 8 * 6 + 16 * (6 + 18)),
        (Softmax(), (6, 6), BOTH, 0, 0, 0, 8 * 6 + 16 * 6),
        # value and chosen places; the source as reals, or deltas of both sides
        (MaxPool(windows=windows(3, 4)), (12, 3), BOTH, 3, 0, 0, 12 * 3 + 8 * (36 + 9)),
        (MaxPool(windows=windows(3, 4)), (12, 3), BOTH, 0, 0, 0, 12 * 3 + 8 * 12),
        (average(3, 4), (12, 3), BOTH, 3, 0, 0, 8 * 3 + 8 * 36 + 18 * 9),
        (average(3, 4), (12, 3), BOTH, 0, 0, 0, 8 * 3 + 2 * 12),
        *((move, (12, 6), BOTH, 3, 0, 0, 8 * 6 + 8 * (36 + 18)) for move in MOVES),
        *((move, (12, 6), BOTH, 0, 0, 0, 8 * 6 + 8 * 12) for move in MOVES),
        # three forms of the weights, keys, a block of the sum and its products;
        # operand, value and masked value, quantised deltas, the way back
        (
            dense(20, 3), (20, 3), BOTH, 3, (20 + 3 + 2) * 60 + 8 * (6 + 20) + (8 + 23) * 60,
            17 * 20 + 19 * 3, (11 + 2) * 20 + 8 * 6 + 2 * 9 + 3 * (11 * 3 + 8 * 20) + 3 * 13 * 20,
        ),
        (
            dense(20, 3, reads_bytes=True, back=False), (20, 3), AFTER, 3,
            (120 + 2) * 60 + 8 * (6 + 20) + (8 + 43) * 60, 37 * 20 + 41 * 3,
            29 * 20 + 8 * 6 + 2 * 9 + 31 * 3,
        ),
        (
            dense(20, 3, is_frozen=True), (20, 3), BOTH, 3, (20 + 3 + 2) * 60 + 8 * (6 + 20), 0,
            260 + 48 + 18 + 579 + 780,
        ),
        (dense(20, 3), (20, 3), BOTH, 0, (20 + 2) * 60, 0, 13 * 20 + 8 * 3 + 13 * 3),
        # 1,000 inputs in blocks of 250
        (
            dense(1000, 3000, back=False), (1000, 3000), AFTER, 3,
            (1000 + 2) * 3_000_000 + 8 * (6000 + 1000) + (8 + 23) * 750_000, 17 * 1000 + 19 * 3000,
            13 * 1000 + 8 * 6000 + 2 * 9000 + 13 * 3000,
        ),
        # three forms of the weights, total and keys; operand, patches, value, gradients, the way back
        (
            conv(), (6, 8), BOTH, 3, (3 + 2 + 2) * 6 + 8 * (8 + 16), 0,
            2 * 6 + (2 + 11) * 12 + 16 * 8 + 2 * 24 + 3 * (11 * 8 + 8 * 12)
            + 3 * 18 * 8 + 8 * 12 + 3 * 16 * 8,
        ),
        (
            conv(), (200, 8), BOTH, 3, 42 + 192, 0,
            2 * 200 + 156 + 128 + 48 + 552 + 3 * (8 * 200 + 10 * 8),
        ),
        (
            conv(reads_bytes=True, back=False, bias=False), (6, 8), AFTER, 3, (103 + 2) * 6 + 8 * (6 + 12), 0,
            (1 + 29) * 12 + 128 + 2 * 18 + 3 * 18 * 8 + 96 + 3 * 16 * 6,
        ),
        (conv(), (6, 8), BOTH, 0, (3 + 2) * 6, 0, 12 + 156 + 128 + 13 * 8),
        (conv(is_frozen=True), (6, 8), BOTH, 3, 42, 0, 12 + 156 + 128 + 552 + 3 * (4 * 8 + 13 * 12)),
    ],
)  # fmt: skip
def test_the_bytes_of_a_layer_are_those_of_its_arrays(
    *,
    layer: Layer,
    sizes: tuple[int, int],
    trained: tuple[bool, bool],
    seeds: int,
    fixed: int,
    chunk: int,
    block: int,
) -> None:
    """Beside the layer, a record has its features, the output and its deltas, and five numbers a label."""
    made = plan((layer, (1,)), sizes=sizes, trained=trained)
    around = {0: 7 + 8 * sizes[1] + 40 * 2, 3: 7 + 32 * sizes[1] + 40 * 2}[seeds]
    assert part_bytes(made, Figures(), seeds=seeds, labels=LABELS) == PartBytes(
        fixed=fixed, chunk=chunk, block=around + block
    )


@pytest.mark.parametrize(
    ("trained", "back"), [((True, True, True), 8 * (36 + 18)), ((False, True, True), 432), ((False,) * 3, 0)]
)
def test_a_product_keeps_both_factors(trained: tuple[bool, ...], back: int) -> None:
    made = plan((Product(), (1, 2)), sizes=(6, 6, 6), trained=trained)
    got = part_bytes(made, Figures(), seeds=SEEDS, labels=LABELS)
    assert got == PartBytes(fixed=0, chunk=0, block=7 + 32 * 6 + 80 + 8 * (6 + 12) + back)


def test_what_a_product_keeps_is_there_while_other_layers_pass() -> None:
    made = plan((Product(), (1, 2)), (Softmax(), (3,)), sizes=(6, 6, 6, 6), trained=(False,) * 4)
    got = part_bytes(made, Figures(), seeds=SEEDS, labels=LABELS)
    assert got.block == 7 + 32 * 6 + 80 + 8 * (6 + 12) + 8 * 6 + 16 * 6


def test_a_backend_of_large_outputs_takes_most_on_the_way_back_of_a_convolution() -> None:
    made = plan((conv(), (1,)), sizes=(6, 8), trained=BOTH)
    few, many = (part_bytes(made, Figures(output=output), seeds=SEEDS, labels=LABELS) for output in (13, 113))
    assert many == replace(few, block=few.block + 3 * (4 * 8 + 113 * 12) - (3 * 18 * 8 + 8 * 12 + 3 * 16 * 8))


def test_layers_keep_their_bytes_together_and_pass_one_after_the_other() -> None:
    """Each dense layer's block of products is there only while it ends its chunk."""
    made = plan(
        (activation(), (1,)), (Softmax(), (2,)), (dense(6, 3), (3,)), (dense(3, 2), (4,)),
        sizes=(6, 6, 6, 3, 2), trained=(True,) * 5,
    )  # fmt: skip
    wide, narrow = (6 + 3 + 2) * 18 + 8 * (6 + 6) + 8 * 18, (3 + 2 + 2) * 6 + 8 * (4 + 3) + 8 * 6
    kept = (
        (16 * 6 + 8 * 18) + 8 * 6
        + (13 * 6 + 16 * 3 + 2 * 9 + 3 * (11 * 3 + 8 * 6))
        + (13 * 3 + 16 * 2 + 2 * 6 + 3 * (11 * 2 + 8 * 3))
    )  # fmt: skip
    most = max(8 * 6, 16 * (6 + 18), 3 * 13 * 6, 3 * 13 * 3)
    assert part_bytes(made, Figures(), seeds=SEEDS, labels=LABELS) == PartBytes(
        fixed=wide + narrow + 23 * 18, chunk=17 * 9 + 19 * 5, block=7 + 32 * 2 + 80 + kept + most
    )


def test_a_model_that_is_its_features_has_no_layer() -> None:
    made = plan(sizes=(), trained=())
    assert part_bytes(made, Figures(), seeds=SEEDS, labels=LABELS) == PartBytes(
        fixed=0, chunk=0, block=7 + 32 * 7 + 80
    )


def test_a_layer_of_no_known_kind_is_not_taken_for_one_without_bytes() -> None:
    class Other:
        start = Join.start

    with pytest.raises(AssertionError, match="the bytes of Other are counted"):
        part_bytes(
            plan((Other(), (1,)), sizes=(6, 6), trained=BOTH),
            Figures(),
            seeds=0,
            labels=1,
        )


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (conv(), 4 * 12),
        (MaxPool(windows=windows(3, 4)), 4 * 12),
        (average(3, 4), 4 * 12 + 8 * 3),
        (Rearrange(order=ORDER), 8 * 6),
        (Repeat(order=ORDER), 8 * 6),
        (offset(), 8 * 6),
        (SCALE, 8 * 6),
        (FIXED, 8 * 12),
        (Embedding(table=parameter(10, 4), indices=sums(3, 5), number=0), 4 * (15 + 15 + 3)),
        (batch_normalisation(), 8 * 4),
        (layer_normalisation(bias=True), 0),
        (dense(20, 3), 0),
        (Join(), 0),
    ],
)
def test_the_bytes_of_a_plan_are_those_of_its_tables(layer: Layer, expected: int) -> None:
    one = plan((layer, (1,)), sizes=(6, 6), trained=BOTH)
    assert plan_bytes(one) == expected
    two = plan((layer, (1,)), (Rearrange(order=ORDER), (2,)), sizes=(6, 6, 6), trained=(True,) * 3)
    weights = quantise(np.ones((5, 3), np.float32))
    assert plan_bytes(replace(two, frozen=(weights, weights))) == expected + 48 + 2 * 2 * 15
