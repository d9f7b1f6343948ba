"""Embeddings: a table row for each categorical byte.

A record's gradient is its deltas, summed over the places that read one row.

The masked values are added straight to the table's rows. An index outside the table makes the record's
gradient zero.
"""

import numpy as np
from numpy.typing import NDArray

from helper.gradient.exact.kernels.clipping import Masking
from helper.gradient.exact.kernels.compiled import kernel
from helper.gradient.exact.kernels.field import add
from helper.gradient.exact.kernels.masking import Hashed, hash_keys, hash_operand, mask_rows
from helper.gradient.exact.kernels.rows import Bytes, Real, RowBlock, Value, quantise, row_norms
from helper.gradient.exact.layers.layer import DescribedLayer, RoundSetup, Running, Trainable
from maskedlark.frozen import frozen
from maskedlark.numbers.field import FieldVector


@frozen
class Embedding(DescribedLayer):
    """A Gather of rows of a trained (rows, width) table by byte features.

    Attributes:
        table: The parameter.
        number: Of the trained layers, for the digest.
    """

    table: Trainable
    number: int


class _RunningEmbedding(Running):
    def __init__(self, layer: Embedding, setup: RoundSetup) -> None:
        self._layer, self._setup = layer, setup
        self._table = setup.weights[layer.table.index].to_float()
        self._total = np.zeros(layer.table.shape, np.uint64)
        self._keys: NDArray[np.uint64] | None = None
        self._operand_keys: NDArray[np.uint64]
        self._indices: Bytes
        self._penalties: Real
        self._deltas: RowBlock

    def forward(self, *inputs: Value) -> Real:
        """See `Running`."""
        size = len(self._table)
        self._penalties = np.empty(len(inputs[0]))
        _penalise(inputs[0], size, self._penalties)
        self._indices = np.minimum(inputs[0], size - 1).astype(np.uint8)
        return self._table[self._indices].reshape(len(self._indices), -1)

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        seeds, records, size = deltas.shape
        gathered = np.zeros(deltas.shape)
        _gather_equal(deltas, self._indices, gathered)
        self._deltas = quantise(gathered.reshape(seeds * records, size), self._setup.norm)
        return (None,)

    def add_norm(self, squares: Real) -> None:
        """See `Running`."""
        squares += row_norms(self._deltas, self._setup.norm).reshape(squares.shape)
        squares += self._penalties

    def mask(self, masking: Masking, first: int) -> None:
        """See `Running`."""
        del first
        if self._keys is None:
            self._keys = hash_keys(
                self._layer.number, Hashed.VALUES, self._setup.labels, self._deltas.q.shape[1]
            )
            self._operand_keys = hash_keys(self._layer.number, Hashed.OPERAND, 1, self._indices.shape[1])
        masked = mask_rows(self._deltas, _unit(len(self._indices)), masking, self._keys, masking.sensitivity)
        hash_operand(self._indices, self._operand_keys, masking.hashes)
        _scatter(masked, self._indices, self._total)

    def write(self, vector: FieldVector) -> None:
        """See `Running`."""
        self._layer.table.place(vector)[...] = self._total


Embedding.running = _RunningEmbedding


def _unit(records: int) -> RowBlock:
    """Return the operand 1 for every record."""
    ones = np.ones(records, np.int64)
    return RowBlock(q=np.ones((records, 1), np.int16), exponent=np.zeros(records, np.int64), norm=ones)


@kernel
def _penalise(features: Bytes, size: int, penalties: Real) -> None:
    """Fill in infinity for each record with an index outside the table, and 0 for the others."""
    for r in range(features.shape[0]):
        top = np.uint8(0)
        for place in range(features.shape[1]):
            top = max(top, features[r, place])
        penalties[r] = np.inf if top >= size else 0.0


@kernel
def _gather_equal(deltas: Real, indices: Bytes, gathered: Real) -> None:
    """Add each place's delta to the first place with the same index, in the order of the places.

    The others stay zero. Two passes over the places find the first ones, whatever the indices are.
    """
    places = indices.shape[1]
    width = deltas.shape[2] // places
    first = np.zeros(256, np.int64)
    for r in range(deltas.shape[1]):
        for place in range(places - 1, -1, -1):
            first[indices[r, place]] = place
        for s in range(deltas.shape[0]):
            for place in range(places):
                home = first[indices[r, place]]
                for j in range(width):
                    gathered[s, r, home * width + j] += deltas[s, r, place * width + j]


@kernel
def _scatter(masked: FieldVector, indices: Bytes, total: FieldVector) -> None:
    """Add the masked values of each place to total[index]."""
    width = total.shape[1]
    for r in range(indices.shape[0]):
        for place in range(indices.shape[1]):
            row = indices[r, place]
            for j in range(width):
                total[row, j] = add(total[row, j], masked[r, place * width + j])
