"""Embeddings: a table row for each index that a record's bytes make.

A record costs what it touches. The way forward reads its rows; its gradient is its deltas, summed over the
places that read one row; the masked values are added straight to the rows of the round's vector. An index
outside the table makes the record's gradient zero.

Each lookup takes the same steps whichever row it reads: a read at a computed address, never a search.
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

Rows = NDArray[np.int32]
"""Each place's row of the table, (records, places)."""


@frozen
class ByteSums:
    """Integers made of a record's bytes.

    Entry i is offsets[i] + the sum over t of factors[i, t] * byte[places[i, t]].

    No partial sum leaves 0..2^24.

    Attributes:
        places: int32 (entries, terms): which byte.
        factors: int32 (entries, terms).
        offsets: int32 (entries,).
    """

    places: NDArray[np.int32]
    factors: NDArray[np.int32]
    offsets: NDArray[np.int32]

    @property
    def num_bytes(self) -> int:
        """The bytes that the arrays take."""
        return self.places.nbytes + self.factors.nbytes + self.offsets.nbytes


@frozen
class Embedding(DescribedLayer):
    """All Gathers of rows of one (rows, width) table.

    Attributes:
        table: The parameter.
        indices: Of each place that a row is read for, in the order of the Gathers.
        number: Of the trained layers, for the digest.
    """

    table: Trainable
    indices: ByteSums
    number: int


class _RunningEmbedding(Running):
    def __init__(self, layer: Embedding, setup: RoundSetup) -> None:
        self._layer, self._setup = layer, setup
        weights = setup.weights[layer.table.index]
        self._table = np.ascontiguousarray(weights.values)
        self._scale = 2.0**-weights.exponent
        self._keys: NDArray[np.uint64] | None = None
        self._operand_keys: NDArray[np.uint64]
        self._rows: Rows
        self._penalties: Real
        self._deltas: RowBlock

    def forward(self, *inputs: Value) -> Real:
        """See `Running`."""
        records, places = len(inputs[0]), len(self._layer.indices.offsets)
        indices = self._layer.indices
        self._penalties = np.empty(records)
        self._rows = self._setup.buffers.empty("rows", (records, places), np.int32)
        size, width = self._layer.table.shape
        _find_rows(
            inputs[0], indices.places, indices.factors, indices.offsets, size, self._rows, self._penalties
        )
        values = np.empty((records, places * width))
        _read_rows(self._table, self._scale, self._rows, values)
        return values

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """See `Running`."""
        seeds, records, size = deltas.shape
        gathered = deltas  # as it is, if there is one place: it shares its row with no other
        if self._rows.shape[1] > 1:
            gathered = self._setup.buffers.zeros("gathered", deltas.shape)
            first = self._setup.buffers.empty("first", (self._layer.table.shape[0],), np.int32)
            _gather_equal(deltas, self._rows, first, gathered)
        self._deltas = quantise(gathered.reshape(seeds * records, size), self._setup.norm)
        return (None,)

    def reject(self, squares: Real) -> None:
        """See `Running`."""
        squares += self._penalties

    def add_norm(self, squares: Real) -> None:
        """See `Running`."""
        squares += row_norms(self._deltas, self._setup.norm).reshape(squares.shape)

    def mask(self, masking: Masking, first: int) -> None:
        """See `Running`."""
        del first
        if self._keys is None:
            self._keys = hash_keys(
                self._layer.number, Hashed.VALUES, self._setup.labels, self._deltas.q.shape[1]
            )
            self._operand_keys = hash_keys(self._layer.number, Hashed.OPERAND, 1, self._rows.shape[1])
        masked = mask_rows(self._deltas, _unit(len(self._rows)), masking, self._keys, masking.sensitivity)
        hash_operand(self._rows, self._operand_keys, masking.hashes)
        _scatter(masked, self._rows, self._layer.table.place(self._setup.vector))


Embedding.running = _RunningEmbedding


def _unit(records: int) -> RowBlock:
    """Return the operand 1 for every record."""
    ones = np.ones(records, np.int64)
    return RowBlock(q=np.ones((records, 1), np.int16), exponent=np.zeros(records, np.int64), norm=ones)


@kernel
def _find_rows(
    features: Bytes, places: Rows, factors: Rows, offsets: Rows, size: int, rows: Rows, penalties: Real
) -> None:
    """Fill in each place's row, the last one where the index is outside the table.

    Penalties are infinite for each record with such an index, and 0 for the others.
    """
    for r in range(features.shape[0]):
        top = np.int64(0)
        for place in range(rows.shape[1]):
            index = np.int64(offsets[place])
            for term in range(places.shape[1]):
                index += factors[place, term] * np.int64(features[r, places[place, term]])
            top = max(top, index)
            rows[r, place] = min(index, np.int64(size - 1))
        penalties[r] = np.inf if top >= size else 0.0


@kernel
def _read_rows(table: NDArray[np.int16], scale: float, rows: Rows, values: Real) -> None:
    """Fill in the reals of each place's row: integers times a power of two."""
    width = table.shape[1]
    for r in range(rows.shape[0]):
        for place in range(rows.shape[1]):
            row = rows[r, place]
            for j in range(width):
                values[r, place * width + j] = np.float64(table[row, j]) * scale


@kernel
def _gather_equal(deltas: Real, rows: Rows, first: Rows, gathered: Real) -> None:
    """Add each place's delta to the first place with the same row, in the order of the places.

    The others stay zero. Two passes over the places find the first ones, whatever the rows are: `first` has
    an entry for each row of the table, of which only those are read that the record's first pass has written.
    """
    places = rows.shape[1]
    width = deltas.shape[2] // places
    for r in range(deltas.shape[1]):
        for place in range(places - 1, -1, -1):
            first[rows[r, place]] = place
        for s in range(deltas.shape[0]):
            for place in range(places):
                home = first[rows[r, place]]
                for j in range(width):
                    gathered[s, r, home * width + j] += deltas[s, r, place * width + j]


@kernel
def _scatter(masked: FieldVector, rows: Rows, total: FieldVector) -> None:
    """Add the masked values of each place to its row of the total."""
    width = total.shape[1]
    for r in range(rows.shape[0]):
        for place in range(rows.shape[1]):
            row = rows[r, place]
            for j in range(width):
                total[row, j] = add(total[row, j], masked[r, place * width + j])
