"""What the head orders of a worker, and what it gets: plain values, written out. They only travel sealed.

A message is its canonical head and byte strings behind it, each with its length. Nothing is pickled, so
nothing that a worker answers can do more than be wrong.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from helper.datasets.frames import SealedPlace
from helper.datasets.segments import RowShape
from maskedlark.canonical import Bytes32, canonical, decode, encode
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.model.losses import Loss
from maskedlark.numbers.field import FieldVector, from_bytes
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.privacy.sample_size import work_size
from maskedlark.releases.round import Evaluated

CARRIED_BYTES: Final = 96 << 10
"""What is no longer than this goes with its call; Ray keeps more in its object stores, which takes longer."""
MOST_CARRIED: Final = 1 << 20
"""An order of up to so many bytes goes with its call all the same, cut into pieces."""
_LENGTH_BYTES: Final = 8
_MAX_HEAD_BYTES: Final = 64 << 20
_TOTALS_BYTES: Final = 16
_OVER: Final = 50  # e^-50 is 1.9e-22: a million orders in a round leave its chances under `EXPOSURE`
_T = TypeVar("_T")
Count = Annotated[int, Field(ge=0, le=1 << 62)]


@canonical
class Summing:
    """A masked sum over rows of segments; two bit vectors go with each segment: evaluated, and counting.

    Attributes:
        norm: Of the bound, as all to `is_per_layer`: see `Clip`.
        bound: See `Clip`.
        frac_bits: See `Clip`.
        is_counted: See `Clip`.
        is_per_layer: See `Clip`.
        evaluated: How many records of the dataset the round evaluates.
        records: How many the dataset has.
        reports: How many of them may be one person's.
    """

    norm: Norm
    bound: float
    frac_bits: int
    is_counted: bool
    is_per_layer: bool
    evaluated: Count
    records: Count
    reports: Count

    @classmethod
    def of(cls, clip: Clip, evaluated: Evaluated) -> "Summing":
        """Build the order of a round with this bound over these records."""
        return cls(
            norm=clip.norm,
            bound=clip.bound,
            frac_bits=clip.frac_bits,
            is_counted=clip.is_counted,
            is_per_layer=clip.is_per_layer,
            evaluated=int(evaluated.is_evaluated.sum()),
            records=len(evaluated.is_evaluated),
            reports=evaluated.reports,
        )

    def work(self, records: int) -> int:
        """Return how many records to work on for so many of the dataset's, whichever are sampled.

        All reports of one person may be among them. No part of a round evaluates more than all of it does, so
        one that has the whole dataset pads nothing.
        """
        expected, most = self.evaluated * records // self.records, min(records, self.evaluated)
        return work_size(expected=expected, least=0, most=most, reports=self.reports, over=_OVER)

    @property
    def clip(self) -> Clip:
        """The round's bound."""
        return Clip(
            norm=self.norm,
            bound=self.bound,
            frac_bits=self.frac_bits,
            is_counted=self.is_counted,
            is_per_layer=self.is_per_layer,
        )


@canonical
class Scanning:
    """The scores of all rows of segments."""

    num_bins: Count


@canonical
class SegmentOrder:
    """One segment to work on.

    Attributes:
        header: See `SealedPlace`.
        number: See `SealedPlace`.
        records: See `SealedPlace`.
        widths: Its records' features, candidates, keys and columns: see `RowShape`.
        key: Opens its frames.
        chosen: How many of its records are in the dataset.
        is_sent: Whether its frames come with the order.
    """

    header: Annotated[bytes, Field(max_length=1024)]
    number: Count
    records: Count
    widths: tuple[Count, Count, Count, Count]
    key: Bytes32 = Field(repr=False)
    chosen: Count
    is_sent: bool

    @property
    def place(self) -> SealedPlace:
        """The segment's name."""
        return SealedPlace(header=self.header, number=self.number, records=self.records)

    @property
    def shape(self) -> RowShape:
        """Of its records."""
        features, candidates, keys, columns = self.widths
        return RowShape(features=features, candidates=candidates, keys=keys, columns=columns)


@canonical
class Order:
    """Work on some segments with the model and weights that `shared_key` opens."""

    order_id: Bytes32
    shared_key: Bytes32 = Field(repr=False)
    loss: Loss
    summing: Summing | None
    scanning: Scanning | None
    segments: tuple[SegmentOrder, ...]


@canonical
class Done:
    """What became of an order.

    A sum and its `Totals` follow, or scores. How long an answer is tells nothing of what was sampled.

    Attributes:
        done: Which of its segments were worked on, by their place in it; the others were not held any more.
    """

    done: tuple[Count, ...]


@frozen
class Totals:
    """What goes with a sum, in as many bytes whatever it is.

    Attributes:
        hashes: Of the values, modulo 2^64.
        records: How many were evaluated.
    """

    hashes: int
    records: int

    @property
    def encoded(self) -> bytes:
        """`_TOTALS_BYTES` bytes."""
        return np.array([self.hashes, self.records], "<u8").tobytes()

    @classmethod
    def decode(cls, encoded: bytes) -> "Totals":
        """Decode what `encoded` gave.

        Raises:
            InvalidTask: it is of another length.
        """
        if len(encoded) != _TOTALS_BYTES:
            raise InvalidTask("the totals of a message of the cluster are cut")
        hashes, records = np.frombuffer(encoded, "<u8").tolist()
        return cls(hashes=hashes, records=records)


@canonical
class Failed:
    """An order that was not done.

    Attributes:
        reason: `refused` (the records or the model are at fault), `damaged` (frames do not open), `stopped`,
            or the name of what went wrong; one word, for the head logs it.
    """

    reason: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{1,100}$")]


@canonical
class Shared:
    """What all orders of a round have in common: the ONNX file and the weights follow."""

    num_features: Count


@frozen
class Message:
    """A value and the byte strings behind it."""

    head: Any
    parts: tuple[bytes, ...]


def write(head: Any, parts: Sequence[bytes] = ()) -> bytes:
    """Encode a message."""
    encoded = encode(head)
    return b"".join(
        piece for part in (encoded, *parts) for piece in (len(part).to_bytes(_LENGTH_BYTES, "little"), part)
    )


def read(kind: type[Any], message: bytes) -> Message:
    """Decode a message that `write` wrote.

    Raises:
        InvalidTask: it is none of this kind.
    """
    pieces, at = [], 0
    while at < len(message):
        start = at + _LENGTH_BYTES
        at = start + int.from_bytes(message[at:start], "little")
        if at > len(message):
            raise InvalidTask("a message of the cluster is cut")
        pieces.append(message[start:at])
    if not pieces:
        raise InvalidTask("a message of the cluster is empty")
    return Message(head=decode(kind, pieces[0], max_bytes=_MAX_HEAD_BYTES), parts=tuple(pieces[1:]))


def elements(part: bytes, count: int) -> FieldVector:
    """Read so many field elements of a message.

    Raises:
        InvalidTask: there are more or fewer, or one is none.
    """
    try:
        return from_bytes(part, count)
    except ValueError as error:
        raise InvalidTask(f"a message of the cluster has no such sum: {error}") from None


def pieces(order: bytes) -> list[bytes]:
    """Split an order into pieces that each go with its call; one that is too long is one piece."""
    size = CARRIED_BYTES if len(order) <= MOST_CARRIED else len(order)
    return [order[start : start + size] for start in range(0, len(order), size)]


def bits(flags: NDArray[np.bool_]) -> bytes:
    """Pack flags, eight a byte."""
    return np.packbits(flags, bitorder="little").tobytes()


def flags(packed: bytes, count: int) -> NDArray[np.bool_]:
    """Unpack so many flags of `bits`.

    Raises:
        InvalidTask: there are not as many.
    """
    if len(packed) != -(-count // 8):
        raise InvalidTask("a message of the cluster has not a flag for each record")
    return np.unpackbits(np.frombuffer(packed, np.uint8), count=count, bitorder="little").astype(np.bool_)
