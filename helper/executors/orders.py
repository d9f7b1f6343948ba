"""The one kind of order that the head gives a worker, and the one kind of answer.

    message = write(Order(work=Summing(...), segments=...), [*parts, frames])    # the head
    order = read(Order, message)                                            # the worker
    answer = write(Done(done=(0,)), [sum, Totals(...).encoded])             # or write(Failed(reason=...))

A message is its canonical head followed by byte strings, each with its length. Nothing is pickled, so a wrong
answer can do no more than be wrong. An order contains everything that it takes, except for records that the
worker keeps in memory, so any worker can do it, and do it again.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from helper.datasets.frames import SealedPlace, SealedSegment
from helper.datasets.segments import RowShape
from helper.gradient.exact.self_check import NUMERICS_DIGEST
from maskedlark.canonical import Bytes32, canonical, decode, digest, encode
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.model.heads import TrainedLoss
from maskedlark.privacy.clip import Clip, Norm
from maskedlark.privacy.sample_size import work_size
from maskedlark.releases.round import Evaluated
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.updates import UpdateForm

# Another one whenever orders are written in another way: then no worker of before joins.
_FORMAT: Final = b"orders 10"
SOFTWARE: Final = digest("cluster software", NUMERICS_DIGEST, _FORMAT)
"""What head and workers must have in common: the numerics of the exact path, and how orders are written."""
_LENGTH_BYTES: Final = 8
# Above the usual limit: a head may name all segments of a dataset, each with its key.
_MAX_HEAD_BYTES: Final = 64 << 20
_TOTALS_BYTES: Final = 16
_OVER: Final = 50  # e^-50 is 1.9e-22: a million orders in a round leave its chances under `EXPOSURE`
Count = Annotated[int, Field(ge=0, le=1 << 62)]


@canonical
class Summing:
    """A masked sum over rows of segments.

    Parts of the order: the ONNX file, the weights, and two bit vectors of each segment: evaluated, counting.

    Attributes:
        num_features: See `ModelFile`.
        loss: The loss.
        norm: Of the bound, as all to `is_per_layer`: see `Clip`.
        bound: See `Clip`.
        frac_bits: See `Clip`.
        is_counted: See `Clip`.
        is_per_layer: See `Clip`.
        evaluated: How many records of the dataset the round evaluates.
        records: How many the dataset has.
        reports: How many of them may be one person's.
        trained: See `JobSpec`.
    """

    num_features: Count
    loss: TrainedLoss
    norm: Norm
    bound: float
    frac_bits: int
    is_counted: bool
    is_per_layer: bool
    evaluated: Count
    records: Count
    reports: Count
    trained: tuple[str, ...] | None

    @classmethod
    def of(
        cls,
        num_features: int,
        loss: TrainedLoss,
        clip: Clip,
        evaluated: Evaluated,
        trained: tuple[str, ...] | None = None,
    ) -> "Summing":
        """Describe a round with this loss and bound over these records."""
        return cls(
            num_features=num_features,
            trained=trained,
            loss=loss,
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
    """The scores of all rows of segments. Parts of the order: the ONNX file and the weights."""

    num_features: Count
    loss: TrainedLoss
    num_bins: Count


@canonical
class AddingUp:
    """The sum of a segment's shares of a federated round; flags follow, which of its records are meant.

    Attributes:
        form: What the task's update reports hold.
        role: The helper whose shares they are.
        task_id: The task.
    """

    form: UpdateForm
    role: Annotated[int, Field(ge=0, le=1)]
    task_id: Bytes32


@canonical
class OpeningSecret:
    """A private HPKE key."""

    key_id: Annotated[int, Field(ge=0, le=255)]
    suite: HpkeSuite
    secret: Annotated[bytes, Field(max_length=256)] = Field(repr=False)


@canonical
class Opening:
    """How to open report shares of a task. Parts of the order: see `opening_orders`."""

    role: Annotated[int, Field(ge=0, le=1)]
    keys: tuple[OpeningSecret, ...]
    view_key: Bytes32 = Field(repr=False)


WorkKind: TypeAlias = Summing | Scanning | AddingUp | Opening


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
    """

    header: Annotated[bytes, Field(max_length=1024)]
    number: Count
    records: Count
    widths: tuple[Count, Count, Count, Count]
    key: Bytes32 = Field(repr=False)
    chosen: Count

    @classmethod
    def of(cls, segment: SealedSegment) -> "SegmentOrder":
        """Name a segment, and say how its frames open."""
        shape = segment.shape
        return cls(
            header=segment.place.header,
            number=segment.place.number,
            records=segment.place.records,
            widths=(shape.features, shape.candidates, shape.keys, shape.columns),
            key=segment.key,
            chosen=int(segment.is_chosen.sum()),
        )

    @property
    def place(self) -> SealedPlace:
        """The segment's name."""
        return SealedPlace(header=self.header, number=self.number, records=self.records)

    @property
    def shape(self) -> RowShape:
        """The shape of its records."""
        features, candidates, keys, columns = self.widths
        return RowShape(features=features, candidates=candidates, keys=keys, columns=columns)


@canonical
class Order:
    """Some work.

    The last part of its message is what the work is about, as it lies on the head's disk (the frames of the
    only segment, or shares of updates); it is empty if the worker keeps that, or needs none.

    Attributes:
        work: What to do.
        segments: The segments to do it on, unless it is to open shares.
    """

    work: WorkKind
    segments: tuple[SegmentOrder, ...] = ()


@canonical
class Done:
    """The answer to an order that was done; the results follow.

    After a sum, its values and `Totals`; after a scan, bins and choices of each segment; after opened shares,
    their columns (`opening_orders`). The length of an answer does not depend on what was sampled or found.

    Attributes:
        done: The parts that were worked on, by their positions in the order: the segments that the worker
            still has, and otherwise the only part, 0.
    """

    done: tuple[Count, ...]


@frozen
class Totals:
    """The figures of a sum, of the same length whatever they are.

    Attributes:
        hashes: The sum of the values' hashes, modulo 2^64; 0 of updates.
        records: How many records or updates were summed.
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
        reason: `refused` (the records or the model are at fault), `damaged` (frames do not open), or the name
            of what went wrong; one word, for the head logs it.
    """

    reason: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{1,100}$")]


@frozen
class OrderMessage:
    """A value and the byte strings behind it."""

    head: Any
    parts: tuple[bytes, ...]


def write(head: Any, parts: Sequence[bytes] = ()) -> bytes:
    """Encode a message."""
    encoded = encode(head)
    return b"".join(
        piece for part in (encoded, *parts) for piece in (len(part).to_bytes(_LENGTH_BYTES, "little"), part)
    )


def read(kind: type[Any], message: bytes) -> OrderMessage:
    """Decode a message that `write` wrote.

    Raises:
        InvalidTask: it is not one of this kind.
    """
    pieces, at = [], 0
    while at < len(message):
        start = at + _LENGTH_BYTES
        at = start + int.from_bytes(message[at:start], "little")
        # Before anything is cut: a length may say anything.
        if at > len(message):
            raise InvalidTask("a message of the cluster is cut")
        pieces.append(message[start:at])
    if not pieces:
        raise InvalidTask("a message of the cluster is empty")
    return OrderMessage(head=decode(kind, pieces[0], max_bytes=_MAX_HEAD_BYTES), parts=tuple(pieces[1:]))


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
