"""The bytes that a round takes on the exact path, counted from the plan before anything is computed.

Each layer takes some bytes whatever the records are, some for each record of a chunk, some for each record of
a block until its values are masked, and some only while it goes forwards or back. The arrays are those of the
layers' running forms, and of the ways in which this machine computes products.
"""

from math import prod
from typing import Final

from helper.gradient.exact.layers.convolution import Convolution
from helper.gradient.exact.layers.dense import Dense
from helper.gradient.exact.layers.elementwise import Activation, Join, Product, Softmax
from helper.gradient.exact.layers.embedding import Embedding
from helper.gradient.exact.layers.layer import Trainable, select_trained
from helper.gradient.exact.layers.layout import Concatenate, Fixed, Rearrange, Repeat
from helper.gradient.exact.layers.normalisation import BatchNormalization, LayerNormalization
from helper.gradient.exact.layers.offset import Offset, Scale
from helper.gradient.exact.layers.pooling import AveragePool, MaxPool
from helper.gradient.exact.lowering.lowered import Lowered, Step
from helper.gradient.exact.products.product import Backend, largest_block
from maskedlark.frozen import frozen

_REAL: Final = 8
_ROW: Final = 2  # an int16 of a quantised row
_FLAG: Final = 1  # which of two slopes it is
_ROW_NUMBER: Final = 4  # an int32


@frozen
class _LayerBytes:
    """The bytes of one layer at work on one thread.

    Attributes:
        fixed: Whatever the records are.
        flushed: Only while this layer ends a chunk.
        chunk: For each record of a chunk.
        kept: For each record of a block, until its values are masked.
        passing: For each record of a block, only while this layer goes forwards or back.
    """

    fixed: int = 0
    flushed: int = 0
    chunk: int = 0
    kept: int = 0
    passing: int = 0


@frozen
class PartBytes:
    """The bytes of one thread's part of a round.

    Attributes:
        fixed: Whatever the records are.
        chunk: For each record of a chunk.
        block: For each record of a block.
    """

    fixed: int
    chunk: int
    block: int


def part_bytes(plan: Lowered, backend: Backend, *, seeds: int, labels: int) -> PartBytes:
    """Return the bytes of one thread's part of a round, but for the sum.

    Args:
        plan: The model in exact form.
        backend: How products are computed.
        seeds: How many ways back a record takes; 0 where there is only a way forward.
        labels: The number of candidate labels.
    """
    layers = [_layer_bytes(step, plan, backend, seeds, labels) for step in plan.steps]
    output = plan.sizes[plan.output]
    return PartBytes(
        fixed=sum(one.fixed for one in layers) + max((one.flushed for one in layers), default=0),
        chunk=sum(one.chunk for one in layers),
        # Layers run one after the other: what passes is freed, or overwritten, before the next one needs it.
        block=plan.sizes[0]
        + _REAL * output * (1 + seeds)
        + 5 * _REAL * labels
        + sum(one.kept for one in layers)
        + max((one.passing for one in layers), default=0),
    )


def _layer_bytes(  # noqa: PLR0911, PLR0912 # one for each kind of layer
    step: Step, plan: Lowered, backend: Backend, seeds: int, labels: int
) -> _LayerBytes:
    """Return the bytes of one layer: its values, its deltas, and what it keeps between them."""
    source, result = sum(plan.sizes[number] for number in step.inputs), plan.sizes[step.output]
    back = seeds * source if any(plan.is_trained[number] for number in step.inputs) else 0
    ahead = seeds * result if plan.is_trained[step.output] else 0
    match step.layer:
        case Dense() as layer:
            return _dense(layer, backend, source, result, seeds, labels)
        case Convolution() as layer:
            return _convolution(layer, backend, source, result, seeds, labels)
        case Embedding() as layer:
            places = len(layer.indices.offsets)
            joined = places > 1 and bool(seeds)  # deltas of places of one row are summed, found by a table
            return _LayerBytes(
                fixed=_REAL * labels * result + _ROW_NUMBER * layer.table.shape[0] * joined,
                kept=_ROW_NUMBER * places
                + _REAL * (1 + (1 + bool(seeds)) * result + ahead * joined)
                + _ROW * ahead,
            )
        case BatchNormalization() as layer:
            width = _count_trained(layer.scale, layer.bias)
            return _LayerBytes(
                fixed=_REAL * (6 * len(layer.mean) + (1 + labels) * width),
                kept=(_REAL + _ROW) * result + _ROW * seeds * width,
                passing=2 * _REAL * result + _REAL * result * bool(seeds) + (4 * _REAL + _ROW) * ahead,
            )
        case LayerNormalization() as layer:
            width = _count_trained(layer.scale, layer.bias)
            return _LayerBytes(
                fixed=_REAL * (6 * layer.scale.size + (1 + labels) * width),
                kept=(3 * _REAL + _ROW) * result + _ROW * seeds * width,
                passing=2 * _REAL * result + _REAL * result * bool(seeds) + (4 * _REAL + _ROW) * ahead,
            )
        case (Offset() | Scale()) as layer:
            width = _count_trained(layer.parameter)
            return _LayerBytes(
                fixed=_REAL * (layer.parameter.size + (1 + labels) * width + result),
                kept=2 * _REAL * result + _ROW * seeds * width,
                passing=_REAL * (source + 2 * ahead + back) + 2 * _REAL * seeds * width,
            )
        case Product():
            return _LayerBytes(kept=_REAL * (result + source), passing=_REAL * (back + ahead))
        case Activation() as layer:
            slope = _FLAG if layer.is_straight else _REAL
            return _LayerBytes(kept=(_REAL + slope) * result + _REAL * ahead, passing=_REAL * source)
        case Softmax():
            return _LayerBytes(kept=_REAL * result, passing=2 * _REAL * (result + ahead))
        case MaxPool():
            return _LayerBytes(kept=(_REAL + 4) * result, passing=max(_REAL * source, _REAL * (back + ahead)))
        case AveragePool():
            return _LayerBytes(
                kept=_REAL * result,
                passing=max(_ROW * source, _REAL * back + (2 * _REAL + _ROW) * ahead),
            )
        case Rearrange() | Repeat() | Concatenate() | Fixed() | Join():
            return _LayerBytes(kept=_REAL * result, passing=max(_REAL * source, _REAL * (back + ahead)))
        case other:
            raise AssertionError(f"the bytes of {type(other).__name__} are counted")


def _dense(layer: Dense, backend: Backend, inputs: int, outputs: int, seeds: int, labels: int) -> _LayerBytes:
    """Return the bytes of a dense layer, whose gradient is never written out."""
    there = backend.bytes_taken(inputs, is_bytes=layer.reads_bytes)
    back = backend.bytes_taken(outputs, is_bytes=False)
    way_back = seeds * layer.passes_back
    weights = there.weight + (back.weight if way_back else 0) + _ROW
    operand = there.entry + (0 if layer.reads_bytes else _ROW)
    is_summed = bool(seeds) and not layer.weight.is_frozen
    at_once = largest_block(inputs, there.sum * outputs) * outputs * is_summed
    return _LayerBytes(
        fixed=weights * inputs * outputs
        + _REAL * (labels * outputs + inputs) * bool(seeds)
        + _REAL * at_once,
        flushed=there.sum * at_once,
        chunk=(there.chunk_entry * inputs + there.chunk_output * outputs) * is_summed,
        kept=operand * inputs
        + _REAL * outputs * (1 + bool(seeds))
        + seeds * _ROW * outputs
        + way_back * (back.entry * outputs + _REAL * inputs),
        passing=max(there.output * outputs, way_back * back.output * inputs),
    )


def _convolution(
    layer: Convolution, backend: Backend, source: int, result: int, seeds: int, labels: int
) -> _LayerBytes:
    """Return the bytes of a convolution, which writes out its patches and each seed's gradient."""
    outputs, patch = layer.weight.shape[0], prod(layer.weight.shape[1:])
    patches = len(layer.windows.places) * patch
    width = _count_trained(layer.weight, layer.bias)
    there = backend.bytes_taken(patch, is_bytes=layer.reads_bytes)
    back = backend.bytes_taken(outputs, is_bytes=False)
    operand = 1 if layer.reads_bytes else _ROW
    way_back = layer.passes_back * seeds
    return _LayerBytes(
        fixed=(there.weight + (back.weight if way_back else 0) + _ROW) * layer.weight.size
        + (1 + labels) * _REAL * width * bool(seeds),
        kept=(0 if layer.reads_bytes else _ROW * source)
        + (operand + there.entry) * patches
        + 2 * _REAL * result
        + _ROW * seeds * width
        + way_back * (back.entry * result + _REAL * patches),
        passing=max(
            there.output * result,
            seeds * (_ROW + 2 * _REAL) * result + _REAL * patches * bool(seeds) + seeds * 2 * _REAL * width,
            way_back * (2 * _ROW * result + back.output * patches),
            way_back * (_REAL * source + (_ROW + _REAL) * result),
        ),
    )


def _count_trained(*parameters: Trainable | None) -> int:
    """Return how many numbers of these parameters are trained."""
    return sum(one.size for one in select_trained(*parameters))


def plan_bytes(plan: Lowered) -> int:
    """Return the bytes of a plan's tables: where windows look, how entries move, and constants."""
    found = sum(one.values.nbytes for one in plan.frozen)
    for step in plan.steps:
        match step.layer:
            case Convolution() | MaxPool():
                found += step.layer.windows.places.nbytes
            case AveragePool():
                found += step.layer.windows.places.nbytes + step.layer.counts.nbytes
            case Rearrange() | Repeat():
                found += step.layer.order.nbytes
            case Offset() | Scale():
                found += step.layer.homes.nbytes
            case Fixed():
                found += step.layer.factor.nbytes + step.layer.offset.nbytes
            case Embedding():
                found += step.layer.indices.num_bytes
            case BatchNormalization():
                found += step.layer.mean.nbytes + step.layer.inverse.nbytes
            case _:
                pass  # numbers alone
    return found


def records_within(limit: int, a_record: int, most: int) -> int:
    """Return how many records, one at least, keep to a number of bytes."""
    return max(1, min(most, limit // max(1, a_record)))
