"""The clipped sum of records' gradients in float64, in the clear: what both helpers' shares add up to.

    sums = ClippedSums(model, Loss.CROSS_ENTROPY)
    total = sums.of(weights, features, labels, clip)

A rehearsal trains with it. No record's whole gradient is made for the large parameters: of a matrix that one
vector is multiplied with, the vector and the gradient of the product are kept, whose lengths multiply; of a
table, the rows that the record looks up. Differences to the helpers' exact sums are those of rounding.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from maskedlark.autodiff.interpreter import Interpreter
from maskedlark.autodiff.output_gradients import output_gradients
from maskedlark.frozen import frozen
from maskedlark.model.graph import Model, Node
from maskedlark.model.heads import TrainedLoss, bind
from maskedlark.privacy.clip import Clip, Norm

# Float64 numbers of gradients that one chunk of records holds at a time
_CHUNK_NUMBERS: Final = 1 << 22
_MAX_CHUNK: Final = 1_024


class _ClippedSum(NamedTuple):
    """A sum over records, and how many were within the clip bound.

    Shapes: vector float64 (P,), in the model's order of parameters.
    """

    vector: NDArray[np.float64]
    within: int


@frozen
class _Use:
    """The only node that reads a parameter: a lookup in a table, or a product of one vector and a matrix."""

    node: Node
    parameter: int


@frozen
class _Product:
    """Gradients of a matrix: x^T g for each record. Shapes: x (records, rows); g (records, columns)."""

    x: Tensor
    g: Tensor
    is_transposed: bool

    def measure(self, norm: Norm) -> Tensor:
        """Return what adds up to a norm: a rank-one matrix's is the product of its factors'."""
        return _measure(self.x, norm) * _measure(self.g, norm)

    def add(self, total: Tensor, factors: Tensor) -> None:
        """Add the records' gradients, each times its factor."""
        # A factor of 0 does not remove what is not finite: 0 times NaN is NaN.
        left, right = (self.g, self.x) if self.is_transposed else (self.x, self.g)
        total += torch.nan_to_num(left * factors[:, None]).T @ torch.nan_to_num(right)


@frozen
class _Rows:
    """Gradients of a table. Shapes: places (records, k); values (records, k, width), equal places merged."""

    places: Tensor
    values: Tensor

    def measure(self, norm: Norm) -> Tensor:
        """Return what adds up to a norm."""
        return _measure(self.values.flatten(1), norm)

    def add(self, total: Tensor, factors: Tensor) -> None:
        """Add the records' gradients, each times its factor."""
        scaled = torch.nan_to_num(self.values) * factors[:, None, None]
        # Several records may have one row, and all of them count: an assignment would keep one.
        total.index_add_(0, self.places.reshape(-1), scaled.reshape(-1, *total.shape[1:]))


@frozen
class _Whole:
    """Gradients as they are. Shapes: values (records, size)."""

    values: Tensor

    def measure(self, norm: Norm) -> Tensor:
        """Return what adds up to a norm."""
        return _measure(self.values, norm)

    def add(self, total: Tensor, factors: Tensor) -> None:
        """Add the records' gradients, each times its factor."""
        total += (factors @ torch.nan_to_num(self.values)).reshape(total.shape)


class ClippedSums:
    """One model and loss, ready to sum the clipped gradients of any records at any weights."""

    def __init__(self, model: Model, loss: TrainedLoss) -> None:
        self._model, self._loss = model, bind(loss, model)
        self._interpreter = Interpreter(model)
        uses = _only_uses(model)
        self._lookups = [one for one in uses if _is_lookup(one.node, self._interpreter, model.input_width)]
        self._shapes = shapes = self._interpreter.shapes()
        self._products = [one for one in uses if _is_product(one.node, shapes)]
        apart = {one.parameter for one in (*self._lookups, *self._products)}
        self._whole = [index for index in range(len(model.parameters)) if index not in apart]
        # What one record holds: whole gradients of the small parameters, and two vectors of each large one.
        held = sum(model.parameters[index].size for index in self._whole)
        held += sum(shapes[one.node.outputs[0]].numel() for one in (*self._lookups, *self._products))
        self._chunk = max(1, min(_MAX_CHUNK, _CHUNK_NUMBERS // max(1, held)))

    def of(
        self,
        weights: Sequence[NDArray[np.generic]],
        features: NDArray[np.uint8],
        labels: NDArray[np.generic],
        clip: Clip,
        times: NDArray[np.int64] | None = None,
    ) -> _ClippedSum:
        """Return the sum of the records' gradients, each clipped to the bound.

        A gradient that is not finite counts as zero, and not as within.

        Shapes: weights as the model's parameters; features (records, d); labels (records,); times (records,),
            how often each record counts, by default once.
        """
        repeats = torch.ones(len(features)) if times is None else torch.from_numpy(times)
        repeats = repeats.to(torch.float64)
        tensors = [torch.from_numpy(np.asarray(weight, np.float64)) for weight in weights]
        totals = [torch.zeros(parameter.shape, dtype=torch.float64) for parameter in self._model.parameters]
        within = 0
        for start in range(0, len(features), self._chunk):
            part = slice(start, start + self._chunk)
            gradients = self._gradients(tensors, features[part], labels[part])
            factors, is_within = _factors(torch.stack([one.measure(clip.norm) for one in gradients]), clip)
            for one, total, factor in zip(gradients, totals, factors, strict=True):
                one.add(total, factor * repeats[part])
            within += int(is_within.to(torch.float64) @ repeats[part])
        return _ClippedSum(torch.cat([total.reshape(-1) for total in totals]).numpy(), within)

    def _gradients(
        self, weights: Sequence[Tensor], features: NDArray[np.uint8], labels: NDArray[np.generic]
    ) -> list[_Product | _Rows | _Whole]:
        """Return each parameter's gradients for some records."""
        reals = torch.from_numpy(features.astype(np.float64) / 256.0)
        indices, rows = self._look_up(weights, reals)
        zeros = tuple(
            reals.new_zeros(len(reals), *self._shapes[one.node.outputs[0]]) for one in self._products
        )
        whole = tuple(weights[index] for index in self._whole)
        products = [one.node.outputs[0] for one in self._products]
        looked_up = [one.node.outputs[0] for one in self._lookups]
        vectors = [one.node.inputs[0] for one in self._products]

        def record_gradients(
            rows: tuple[Tensor, ...], zeros: tuple[Tensor, ...], record: Tensor, label: Tensor
        ) -> tuple[tuple[tuple[Tensor, ...], ...], tuple[Tensor, ...]]:
            def outputs(
                whole: tuple[Tensor, ...], rows: tuple[Tensor, ...], zeros: tuple[Tensor, ...]
            ) -> tuple[Tensor, tuple[Tensor, ...]]:
                own = list(weights)
                for index, value in zip(self._whole, whole, strict=True):
                    own[index] = value
                given = dict(zip(looked_up, rows, strict=True))
                added = dict(zip(products, zeros, strict=True))
                return self._interpreter.trace(own, record, given=given, added=added, names=vectors)

            # The gradient by zeros that are added to a product is the product's own: with the vector, it
            # stands for the matrix's gradient, which is never made.
            scores, pull_back, *seen = torch.func.vjp(outputs, whole, rows, zeros, has_aux=True)
            return pull_back(output_gradients(self._loss, scores, label.reshape(1))[0]), seen[0]

        (of_whole, of_rows, of_zeros), seen = torch.func.vmap(record_gradients)(
            rows, zeros, reals, torch.from_numpy(np.asarray(labels))
        )
        found: dict[int, _Product | _Rows | _Whole] = dict(_merge_tables(self._lookups, indices, of_rows))
        for index, values in zip(self._whole, of_whole, strict=True):
            found[index] = _Whole(values=values.flatten(1))
        for one, x, g in zip(self._products, seen, of_zeros, strict=True):
            is_transposed = bool(one.node.attributes.get("transB"))
            found[one.parameter] = _Product(x=x.flatten(1), g=g.flatten(1), is_transposed=is_transposed)
        return [found[index] for index in range(len(self._model.parameters))]

    def _look_up(self, weights: Sequence[Tensor], reals: Tensor) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """Return each lookup's indices (records, *indices), in range, and the rows there.

        A row beyond its table is NaN, so that its record counts as zero.
        """
        if not self._lookups:
            return [], ()
        names = [one.node.inputs[1] for one in self._lookups]
        found = torch.func.vmap(lambda record: self._interpreter.values(names, record))(reals)
        indices, rows = [], []
        for one, index in zip(self._lookups, found, strict=True):
            table = weights[one.parameter]
            # In range even where the row becomes NaN: torch would raise, and end all records of the chunk.
            indices.append(torch.remainder(index, len(table)))
            is_inside = ((index >= -len(table)) & (index < len(table))).reshape(
                *index.shape, *(1,) * (table.ndim - 1)
            )
            rows.append(torch.where(is_inside, table[indices[-1]], torch.nan))
        return indices, tuple(rows)


def _only_uses(model: Model) -> list[_Use]:
    """Return the parameters' nodes, where a lookup's table or a product's matrix is read nowhere else.

    A table may be read by several lookups.
    """
    places = {parameter.name: index for index, parameter in enumerate(model.parameters)}
    uses = [
        _Use(node=node, parameter=places[name])
        for node in model.nodes
        for name in node.inputs
        if name in places
    ]
    found = list[_Use]()
    for index, parameter in enumerate(model.parameters):
        own = [one for one in uses if one.parameter == index]
        if all(one.node.operator == "Gather" and one.node.inputs[0] == parameter.name for one in own) or (
            len(own) == 1
            and own[0].node.operator in {"Gemm", "MatMul"}
            and own[0].node.inputs[1] == parameter.name
        ):
            found += own
    return found


def _is_lookup(node: Node, interpreter: Interpreter, width: int) -> bool:
    """Return whether a node looks up rows by indices that depend on the record alone."""
    if node.operator != "Gather" or node.attributes["axis"] != 0:
        return False
    try:
        interpreter.values([node.inputs[1]], torch.zeros(width, dtype=torch.float64))
    except KeyError:
        return False
    return True


def _is_product(node: Node, shapes: Mapping[str, torch.Size]) -> bool:
    """Return whether a node multiplies one vector a record with a matrix, and nothing more."""
    if node.operator not in {"Gemm", "MatMul"}:
        return False
    # With a factor, x and g alone would not give the matrix's gradient: such a matrix is kept whole.
    plain = {"transA": 0, "alpha": 1.0, "beta": 1.0}
    is_plain = all(node.attributes.get(name, value) == value for name, value in plain.items())
    return is_plain and len(shapes[node.inputs[0]]) == 2 and shapes[node.inputs[0]][0] == 1


def _merge_tables(
    lookups: Sequence[_Use], indices: Sequence[Tensor], rows: Sequence[Tensor]
) -> dict[int, _Rows]:
    """Return each table's gradients.

    A record's gradients of one row are added up in the row's first place; its other places hold zeros.
    """
    found = dict[int, _Rows]()
    for table in {one.parameter for one in lookups}:
        own = [position for position, one in enumerate(lookups) if one.parameter == table]
        count = len(indices[own[0]])
        places = torch.cat([indices[position].reshape(count, -1) for position in own], 1)
        values = torch.cat(
            [rows[position].reshape(count, indices[position][0].numel(), -1) for position in own], 1
        )
        # A row that is read twice has one gradient, the sum of both, whose norm is not the sum of theirs.
        is_equal = places[:, :, None] == places[:, None, :]
        # As integers, because torch has no argmax of booleans; of equal ones it names the first.
        is_first = is_equal.to(torch.int8).argmax(2) == torch.arange(places.shape[1])
        merged = (is_equal & is_first[:, :, None]).to(torch.float64) @ values
        found[table] = _Rows(places=places, values=merged)
    return found


def _measure(gradients: Tensor, norm: Norm) -> Tensor:
    """Return what adds up over parts to a norm: squares for L2, magnitudes for L1."""
    match norm:
        case Norm.L1:
            return gradients.abs().sum(1)
        case Norm.L2:
            return (gradients * gradients).sum(1)


def _factors(measured: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
    """Return each parameter's factors (parameters, records), and which records are within the bound."""
    if clip.is_per_layer:
        bound = clip.of_each(len(measured)).bound
        norms = _norms(measured, clip.norm)
    else:
        bound = clip.bound
        norms = _norms(measured.sum(0, keepdim=True), clip.norm).expand_as(measured)
    is_finite = torch.isfinite(norms).all(0)
    # The floor keeps 0 / 0 out: a gradient of zeros has the factor 1.
    factors = torch.where(is_finite, torch.clamp(bound / norms.clamp(min=1e-300), max=1.0), 0.0)
    return factors, is_finite & (norms <= bound).all(0)


def _norms(measured: Tensor, norm: Norm) -> Tensor:
    match norm:
        case Norm.L1:
            return measured
        case Norm.L2:
            return measured.sqrt()
