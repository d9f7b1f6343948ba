"""The indices that a graph makes of a record's bytes, as sums of bytes times constants.

    low + 256 * high + 65536 * top        rows of a table of up to 2^24 rows, by three features

They are worked out from the graph alone, before there is any record. Each is an integer below 2^24, and so is
every partial sum on the way: float32, float64 and integers agree on it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.layers.embedding import ByteSums
from helper.gradient.exact.layers.layer import NotExact
from helper.gradient.exact.lowering.lowered import Shape, attribute, integers
from maskedlark.frozen import frozen
from maskedlark.model.graph import Constant, Model, Node

_MOST_BYTE: Final = 255
# Below it float32, float64 and integers agree on every sum.
_MOST_INDEX: Final = 1 << 24
# Of all sums together that a graph makes on the way to its indices: 48 MiB.
_MOST_TERMS: Final = 1 << 22
# A feature is a byte over 256, until the graph multiplies it by 256.
_UNITS: Final = (1.0, 1.0 / 256.0)
_FLOAT: Final = 1  # of Cast, in normal form
_INDEX_INPUT: Final = 1
_Number = TypeVar("_Number", np.int32, np.float64)


@frozen
class _Sums:
    """Entry i, in C order, is offsets[i] + the sum over t of factors[i, t] * byte[places[i, t]].

    Attributes:
        shape: The ONNX shape for one record.
        places: int32 (entries, terms).
        factors: float64 (entries, terms).
        offsets: float64 (entries,).
    """

    shape: Shape
    places: NDArray[np.int32]
    factors: NDArray[np.float64]
    offsets: NDArray[np.float64]

    def take(self, order: NDArray[np.int64]) -> "_Sums":
        """Return other entries, or the same in another order."""
        flat = order.reshape(-1)
        return _Sums(
            shape=order.shape,
            places=self.places[flat],
            factors=self.factors[flat],
            offsets=self.offsets[flat],
        )

    def number(self) -> NDArray[np.int64]:
        """Number the entries in C order."""
        return np.arange(prod(self.shape)).reshape(self.shape)

    def scale(self, by: NDArray[np.float64]) -> "_Sums":
        """Multiply each entry by a constant."""
        return replace(self, factors=self.factors * by[:, None], offsets=self.offsets * by)


def index_inputs(nodes: Sequence[Node], constants: Mapping[str, Constant]) -> frozenset[str]:
    """Return the values that a Gather reads as indices and that the graph computes."""
    return frozenset(
        node.inputs[_INDEX_INPUT]
        for node in nodes
        if node.operator == "Gather" and node.inputs[_INDEX_INPUT] not in constants
    )


def read_as_numbers(nodes: Sequence[Node], output_name: str, indices: Collection[str]) -> tuple[Node, ...]:
    """Return the nodes that the output depends on other than through an index."""
    wanted, kept = {output_name}, []
    for node in reversed(nodes):
        if wanted.isdisjoint(node.outputs):
            continue
        kept.append(node)
        # A lookup reads its table as numbers, and its index only as places.
        is_lookup = node.operator == "Gather" and node.inputs[_INDEX_INPUT] in indices
        wanted.update(node.inputs[:1] if is_lookup else node.inputs)
    return tuple(reversed(kept))


def index_sums(
    model: Model, nodes: Sequence[Node], names: Collection[str]
) -> dict[str, tuple[Shape, ByteSums]]:
    """Return the shape without the record axis, and the sums, of each named index.

    Raises:
        NotExact: one is not a sum of bytes times constants, or may be negative or 2^24 or more.
    """
    if not names:
        return {}
    evaluation = _Evaluation(model)
    for node in _ancestors(nodes, names):
        evaluation.step(node)
    return {name: _finish(name, evaluation.value(name)) for name in names}


def join_sums(parts: Sequence[ByteSums]) -> ByteSums:
    """Return all parts' entries, one part after the other.

    Raises:
        NotExact: they are too many.
    """
    terms = max(part.places.shape[1] for part in parts)
    if terms * sum(len(part.offsets) for part in parts) > _MOST_TERMS:
        raise NotExact(f"the indices of one table are sums of more than {_MOST_TERMS} terms")
    return ByteSums(
        places=np.concatenate([_widen(part.places, terms) for part in parts]),
        factors=np.concatenate([_widen(part.factors, terms) for part in parts]),
        offsets=np.concatenate([part.offsets for part in parts]),
    )


def _widen(terms: NDArray[_Number], count: int) -> NDArray[_Number]:
    """Append terms of zero."""
    return np.pad(terms, ((0, 0), (0, count - terms.shape[1])))


def _ancestors(nodes: Sequence[Node], names: Collection[str]) -> list[Node]:
    wanted, kept = set(names), []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs):
            wanted.update(node.inputs)
            kept.append(node)
    return kept[::-1]


def _finish(name: str, sums: _Sums) -> tuple[Shape, ByteSums]:
    """Check that an index is a row's number, and return it in integers."""
    if not _are_whole(sums, 1.0):
        raise NotExact(f"the index {name!r} is not a whole number: multiply the features by 256, then cast")
    if sums.shape[:1] != (1,):
        raise NotExact(f"the index {name!r} has lost the record axis")
    least = sums.offsets + _MOST_BYTE * np.minimum(sums.factors, 0.0).sum(1)
    if least.size and least.min() < 0:
        raise NotExact(f"the index {name!r} may be negative: the exact path counts rows from 0")
    return sums.shape[1:], ByteSums(
        places=np.ascontiguousarray(sums.places),
        factors=sums.factors.astype(np.int32),
        offsets=sums.offsets.astype(np.int32),
    )


def _are_whole(sums: _Sums, unit: float) -> bool:
    """Return whether all numbers are multiples of a power of two."""
    numbers = np.concatenate([sums.factors.reshape(-1), sums.offsets])
    return bool((numbers == np.rint(numbers / unit) * unit).all())


class _Evaluation:
    """Evaluates nodes in order; constants are sums without a term."""

    def __init__(self, model: Model) -> None:
        width = model.input_width
        self._model = model
        self._values = {
            model.input_name: _Sums(
                shape=(1, width),
                places=np.arange(width, dtype=np.int32)[:, None],
                factors=np.full((width, 1), 1.0 / 256.0),
                offsets=np.zeros(width),
            )
        }
        self._terms = 0

    def value(self, name: str) -> _Sums:
        """Return a value by name.

        Raises:
            NotExact: it is trained.
        """
        if (found := self._values.get(name)) is not None:
            return found
        constant = self._model.constants.get(name)
        if constant is None or constant.dtype.kind not in "fi":
            raise NotExact(
                f"an index depends on {name!r}: the exact path makes indices of features and constants"
            )
        return _Sums(
            shape=constant.shape,
            places=np.zeros((constant.size, 0), np.int32),
            factors=np.zeros((constant.size, 0)),
            offsets=constant.reshape(-1).astype(np.float64),
        )

    def step(self, node: Node) -> None:
        """Evaluate one node.

        Raises:
            NotExact: it makes something else than sums, or sums that floats may round.
        """
        rule = _RULES.get(node.operator)
        if rule is None:
            raise NotExact(
                f"an index is made by {node.operator}: the exact path makes indices by sums of bytes"
            )
        with np.errstate(all="ignore"):  # what is not finite is refused below
            made = rule(self, node)
            for name, sums in zip(node.outputs, (made,) if isinstance(made, _Sums) else made, strict=False):
                self._values[name] = self._check(node, sums)

    def count(self, terms: int, node: Node) -> None:
        """Count terms before they are made."""
        self._terms += terms
        if self._terms > _MOST_TERMS:
            raise NotExact(
                f"the indices up to this {node.operator} are sums of {self._terms} terms: the exact path"
                f" lists up to {_MOST_TERMS}"
            )

    @staticmethod
    def _check(node: Node, sums: _Sums) -> _Sums:
        """Check that every partial sum is a multiple of one unit that 24 bits hold."""
        largest = float((np.abs(sums.offsets) + _MOST_BYTE * np.abs(sums.factors).sum(1)).max(initial=0.0))
        if not any(largest < _MOST_INDEX * unit and _are_whole(sums, unit) for unit in _UNITS):
            raise NotExact(
                f"an index by {node.operator} is not below 2^24, or not made of whole bytes: the exact path"
                " takes sums of features times 256 times whole numbers"
            )
        return sums


def _add(evaluation: _Evaluation, node: Node) -> _Sums:
    left, right = _broadcast(evaluation, node)
    if node.operator == "Sub":
        right = right.scale(np.full(len(right.offsets), -1.0))
    return _Sums(
        shape=left.shape,
        places=np.concatenate([left.places, right.places], axis=1),
        factors=np.concatenate([left.factors, right.factors], axis=1),
        offsets=left.offsets + right.offsets,
    )


def _multiply(evaluation: _Evaluation, node: Node) -> _Sums:
    left, right = _broadcast(evaluation, node)
    if node.operator == "Div":
        if right.places.shape[1] or not right.offsets.all():
            raise NotExact("an index is made by Div by a value that features make, or by zero")
        return left.scale(1.0 / right.offsets)
    if left.places.shape[1] and right.places.shape[1]:
        raise NotExact("an index is made by Mul of two values that features make")
    return left.scale(right.offsets) if left.places.shape[1] else right.scale(left.offsets)


def _broadcast(evaluation: _Evaluation, node: Node) -> tuple[_Sums, _Sums]:
    left, right = (evaluation.value(name) for name in node.inputs)
    shape = np.broadcast_shapes(left.shape, right.shape)
    evaluation.count(prod(shape) * (1 + left.places.shape[1] + right.places.shape[1]), node)
    left, right = (one.take(np.broadcast_to(one.number(), shape)) for one in (left, right))
    return left, right


def _product(evaluation: _Evaluation, node: Node) -> _Sums:
    """Return a matrix product with a constant on the right, without its terms of zero."""
    left, right = (evaluation.value(name) for name in node.inputs)
    if right.places.shape[1] or len(right.shape) != 2 or len(left.shape) < 2:
        raise NotExact("an index is made by MatMul: the second factor must be a constant matrix")
    inner, outputs = right.shape
    rows, terms = prod(left.shape[:-1]), left.places.shape[1]
    evaluation.count(rows * outputs * inner * (1 + terms), node)
    matrix = right.offsets.reshape(inner, outputs)
    factors = left.factors.reshape(rows, 1, inner, terms) * matrix.T[None, :, :, None]
    places = np.broadcast_to(left.places.reshape(rows, 1, inner, terms), factors.shape)
    size = rows * outputs
    # A matrix that chooses features is nearly all zeros: each sum would have a term for every feature.
    return _without_zeros(
        _Sums(
            shape=(*left.shape[:-1], outputs),
            places=places.reshape(size, -1),
            factors=factors.reshape(size, -1),
            offsets=(left.offsets.reshape(rows, inner) @ matrix).reshape(size),
        )
    )


def _without_zeros(sums: _Sums) -> _Sums:
    """Move terms of factor 0 to the end, and drop those that all entries have there."""
    is_zero = sums.factors == 0.0
    kept = int((~is_zero).sum(1).max(initial=0))
    order = np.argsort(is_zero, axis=1, kind="stable")[:, :kept]
    return replace(
        sums,
        places=np.take_along_axis(sums.places, order, axis=1),
        factors=np.take_along_axis(sums.factors, order, axis=1),
    )


def _sum(evaluation: _Evaluation, node: Node) -> _Sums:
    source = evaluation.value(node.inputs[0])
    axes = integers(node, "axes")
    rest = [axis for axis in range(len(source.shape)) if axis not in axes]
    together = source.number().transpose(*rest, *axes)
    kept = together.shape[: len(rest)]
    grouped = together.reshape(prod(kept), -1)
    evaluation.count(grouped.size * (1 + source.places.shape[1]), node)
    shape = (
        tuple(1 if axis in axes else size for axis, size in enumerate(source.shape))
        if node.attributes["keepdims"]
        else kept
    )
    return _Sums(
        shape=shape,
        places=source.places[grouped].reshape(len(grouped), -1),
        factors=source.factors[grouped].reshape(len(grouped), -1),
        offsets=source.offsets[grouped].sum(1),
    )


def _cast(evaluation: _Evaluation, node: Node) -> _Sums:
    source = evaluation.value(node.inputs[0])
    if node.attributes["to"] != _FLOAT and not _are_whole(source, 1.0):
        raise NotExact("Cast to integers is exact only of features times 256, which are the bytes themselves")
    return source


def _move(evaluation: _Evaluation, node: Node) -> tuple[_Sums, ...]:
    """Move entries as the operator moves their numbers."""
    source = evaluation.value(node.inputs[0])
    numbers = source.number()
    match node.operator:
        case "Reshape":
            found = [numbers.reshape(integers(node, "shape"))]
        case "Transpose":
            found = [numbers.transpose(integers(node, "perm"))]
        case "Expand":
            found = [np.broadcast_to(numbers, integers(node, "shape"))]
        case "Slice":
            found = [_cut(node, numbers)]
        case "Gather":
            found = [np.take(numbers, _chosen(evaluation, node), axis=int(attribute(node, "axis")))]
        case "GatherND":
            found = [numbers[tuple(np.moveaxis(_chosen(evaluation, node), -1, 0))]]
        case _:
            bounds = np.cumsum(integers(node, "split"))[:-1]
            found = np.split(numbers, bounds, axis=int(attribute(node, "axis")))
    evaluation.count(sum(order.size for order in found) * (1 + source.places.shape[1]), node)
    return tuple(source.take(order) for order in found)


def _chosen(evaluation: _Evaluation, node: Node) -> NDArray[np.int64]:
    """Return the constant by which a node chooses entries."""
    constant = evaluation.value(node.inputs[1])
    if constant.places.shape[1]:
        raise NotExact(f"an index is made by {node.operator} of features by features")
    return constant.offsets.astype(np.int64).reshape(constant.shape)


def _cut(node: Node, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    cuts = [slice(None)] * numbers.ndim
    for axis, start, end, step in zip(
        *(integers(node, name) for name in ("axes", "starts", "ends", "steps")), strict=True
    ):
        cuts[axis] = slice(start, end, step)
    return numbers[tuple(cuts)]


def _concat(evaluation: _Evaluation, node: Node) -> _Sums:
    sources = [evaluation.value(name) for name in node.inputs]
    terms = max(source.places.shape[1] for source in sources)
    evaluation.count(sum(len(source.offsets) for source in sources) * (1 + terms), node)
    starts = np.cumsum([0, *(len(source.offsets) for source in sources)])
    order = np.concatenate(
        [source.number() + start for source, start in zip(sources, starts, strict=False)],
        axis=int(attribute(node, "axis")),
    )
    joined = _Sums(
        shape=(int(starts[-1]),),
        places=np.concatenate([_widen(source.places, terms) for source in sources]),
        factors=np.concatenate([_widen(source.factors, terms) for source in sources]),
        offsets=np.concatenate([source.offsets for source in sources]),
    )
    return joined.take(order)


_RULES: Final[Mapping[str, Callable[[_Evaluation, Node], _Sums | tuple[_Sums, ...]]]] = {
    "Add": _add,
    "Sub": _add,
    "Mul": _multiply,
    "Div": _multiply,
    "MatMul": _product,
    "ReduceSum": _sum,
    "Cast": _cast,
    "Concat": _concat,
    **dict.fromkeys(("Reshape", "Transpose", "Expand", "Slice", "Split", "Gather", "GatherND"), _move),
}
