"""What a layer of the exact path is.

A frozen description made once a job, and its running form made once a round and thread.

Within a block of records a round calls, for every step: `forward` in topological order, `backward` in
reverse, `add_norm`, and, once the clip factors are known, `mask`. `begin` and `flush` stand around the blocks
of a chunk, `write` ends the round.
"""

from collections.abc import Callable
from math import prod
from typing import Any, ClassVar, Protocol

import numpy as np

from helper.gradient.exact.kernels.buffers import Buffers
from helper.gradient.exact.kernels.clipping import Masking
from helper.gradient.exact.kernels.masking import Hashed, hash_keys, mask_sum
from helper.gradient.exact.kernels.rows import Real, RowBlock, Value, quantise, row_norms
from helper.gradient.exact.products.product import Backend
from maskedlark.frozen import frozen
from maskedlark.model.weights import QuantisedTensor
from maskedlark.numbers.field import FieldVector
from maskedlark.privacy.clip import Norm


class NotExact(Exception):
    """The graph has no exact form; the message says in one sentence why."""


@frozen
class Trainable:
    """Where a parameter is: among the weights of a round, and in the flat gradient vector.

    A frozen one is in no gradient: its values stand behind the round's own.
    """

    index: int
    offset: int
    shape: tuple[int, ...]
    is_frozen: bool = False

    @property
    def size(self) -> int:
        """Its number of entries."""
        return prod(self.shape)

    def place(self, vector: FieldVector) -> FieldVector:
        """Return its part of a flat vector, in its shape: a view."""
        return vector[self.offset : self.offset + self.size].reshape(self.shape)


def select_trained(*parameters: Trainable | None) -> tuple[Trainable, ...]:
    """Return the parameters that are there and not frozen."""
    return tuple(one for one in parameters if one is not None and not one.is_frozen)


@frozen
class RoundSetup:
    """What is the same for all records of a round.

    Attributes:
        weights: The round's weights, and behind them those of frozen parameters.
        backend: How products are computed.
        norm: The norm of the clip.
        labels: The number of candidate labels.
        chunk_records: The most records between `begin` and `flush`.
        vector: The flat sum, zeros: a layer may add to its part of it on the way. Empty if there is only a
            way forward.
        buffers: The layer's own, of earlier rounds of the job; each round fills them anew.
    """

    weights: tuple[QuantisedTensor, ...]
    backend: Backend
    norm: Norm
    labels: int
    chunk_records: int
    vector: FieldVector
    buffers: Buffers


class Running:
    """A layer at work on one thread of one round.

    What a layer without parameters need not do, does nothing here. Of a layer whose parameters are all
    frozen, only `forward`, `backward` and `reject` are called.
    """

    __slots__ = ()

    def forward(self, *inputs: Value) -> Real:
        """Return the layer's value (records, size) from its inputs; keep what later steps need."""
        raise NotImplementedError

    def backward(self, deltas: Real) -> tuple[Real | None, ...]:
        """Return the inputs' deltas from the output's, (seeds, records, size) each.

        None where no parameter lies before the input.
        """
        raise NotImplementedError

    def begin(self, records: int) -> None:
        """Start a chunk of this many records."""

    def reject(self, squares: Real) -> None:
        """Add infinity to `squares` (records,) where a record has no gradient at all, and 0 elsewhere."""

    def add_norm(self, squares: Real) -> None:
        """Add each gradient's squared L2 norm, or L1 norm, to `squares` (seeds, records)."""

    def mask(self, masking: Masking, first: int) -> None:
        """Take in the masked values of the block, whose first record is the chunk's record `first`."""

    def flush(self) -> None:
        """End the chunk."""

    def write(self, vector: FieldVector) -> None:
        """Set the layer's part of the flat sum, where it is not written on the way."""


class DescribedLayer:
    """A layer's description, with the class of its running form in `running`."""

    __slots__ = ()

    # Set where the running form is defined, behind the description that it takes.
    running: ClassVar[Callable[[Any, RoundSetup], Running]]

    def start(self, setup: RoundSetup) -> Running:
        """See `Layer`."""
        return type(self).running(self, setup)


@frozen
class Affine(DescribedLayer):
    """What a dense layer and a convolution have in common.

    Attributes:
        weight: What the input is multiplied with.
        bias: (outputs,), or None.
        reads_bytes: Whether the input is the features.
        passes_back: Whether a parameter lies before the input.
        number: Of the trained layers, for the digest.
    """

    weight: Trainable
    bias: Trainable | None
    reads_bytes: bool
    passes_back: bool
    number: int


class Stateless(Running):
    """A layer that keeps nothing from `forward` to `backward`: it is its own running form."""

    __slots__ = ()

    def start(self, setup: RoundSetup) -> Running:
        """See `Layer`."""
        del setup
        return self


class _WholeGradient:
    """The gradients of a layer that is applied at many positions, for one thread of one round.

    They do not factor: a seed's gradient is a row of reals, each an exact integer times a power of two (or
    one rounded product of such). The row is quantised like any other; its norm and masked values follow.
    """

    __slots__ = ("_keys", "_norm", "rows", "total")

    def __init__(self, width: int, *, labels: int, number: int, norm: Norm) -> None:
        self._keys, self._norm = hash_keys(number, Hashed.VALUES, labels, width), norm
        self.total: FieldVector = np.zeros(width, np.uint64)
        self.rows: RowBlock

    def take(self, gradients: Real) -> None:
        """Set the block's gradients, (seeds * records, width)."""
        self.rows = quantise(gradients, self._norm)

    def add_norm(self, squares: Real) -> None:
        """See `Running`."""
        squares += row_norms(self.rows, self._norm).reshape(squares.shape)

    def mask(self, masking: Masking) -> None:
        """Add the block's masked values to the total."""
        mask_sum(self.rows, masking, self._keys, self.total)


class Whole(Running):
    """A layer at work that writes out each record's gradient before it masks it.

    The gradient is of `_trained`, one parameter after the other.
    """

    _trained: tuple[Trainable, ...]
    _gradient: _WholeGradient

    def _collect(self, number: int, setup: RoundSetup, *parameters: Trainable | None) -> None:
        """Prepare to collect the gradients of those parameters that are trained."""
        self._trained = select_trained(*parameters)
        width = sum(one.size for one in self._trained)
        self._gradient = _WholeGradient(width, labels=setup.labels, number=number, norm=setup.norm)

    def add_norm(self, squares: Real) -> None:
        """See `Running`."""
        self._gradient.add_norm(squares)

    def mask(self, masking: Masking, first: int) -> None:
        """See `Running`."""
        del first
        self._gradient.mask(masking)

    def write(self, vector: FieldVector) -> None:
        """See `Running`."""
        ends = np.cumsum([one.size for one in self._trained])
        for one, part in zip(self._trained, np.split(self._gradient.total, ends[:-1]), strict=True):
            one.place(vector)[...] = part.reshape(one.shape)


class Layer(Protocol):
    """One step of a plan."""

    def start(self, setup: RoundSetup) -> Running:
        """Make ready for a round."""
