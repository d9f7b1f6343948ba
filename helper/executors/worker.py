"""A worker on another machine: keeps opened segments in its memory, and does what the head orders.

    answer = SegmentWorker(capacity_bytes).do(order, interrupt)      # see `helper.executors.orders`

It has the key of the datasets that its orders name and no other key of the helper, unless it opens shares: it
sees features, labels and one helper's mask shares, and which records a round sums. It knows no pair key, no
noise and no ledger. An error is an answer too, of one word.
"""

from collections.abc import Iterable, Sequence
from typing import assert_never

import numpy as np
from cryptography.exceptions import InvalidTag

from helper.datasets.fair_cache import FairCache
from helper.datasets.frames import open_segment
from helper.datasets.segments import SegmentRows
from helper.executors.executor import Adding
from helper.executors.gathering import gather
from helper.executors.opening_orders import read_order, write_opened
from helper.executors.orders import (
    AddingUp,
    Done,
    Failed,
    Opening,
    Order,
    Scanning,
    SegmentOrder,
    Summing,
    Totals,
    flags,
    read,
    write,
)
from helper.executors.summing import sum_updates
from helper.gradient.exact.engine import ExactEngine
from helper.gradient.scoring import score
from maskedlark.errors import JobRefused
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt, never
from maskedlark.model import weights as weights_format
from maskedlark.model.graph import Model
from maskedlark.model.heads import TrainedLoss
from maskedlark.model.onnx_file import parse
from maskedlark.model.weights import QuantisedTensor
from maskedlark.never_pickled import NeverPickled
from maskedlark.numbers.field import to_bytes
from maskedlark.privacy.clip import Clip
from maskedlark.releases.round import Evaluated


class _Damaged(Exception):
    """The frames of a segment do not open."""


@frozen
class _Weighted:
    """The model and weights of a round, and what they were read from."""

    onnx: bytes
    encoded: bytes
    num_features: int
    trained: tuple[str, ...] | None
    model: Model
    weights: tuple[QuantisedTensor, ...]


class SegmentWorker(NeverPickled):
    """One worker. Used by one thread at a time, and by another one for orders to open shares."""

    def __init__(self, capacity_bytes: int) -> None:
        """Keep so many bytes of opened segments at most."""
        self._held = FairCache[bytes, SegmentRows](capacity_bytes)
        self._last: _Weighted | None = None
        self._made: tuple[Model, TrainedLoss, ExactEngine] | None = None

    def do(self, encoded: bytes, interrupt: Interrupt = never) -> bytes:
        """Do an order, and return the answer. Nothing of shares to open or to add up is kept.

        Args:
            encoded: An `Order`, its parts, and what it is about.
            interrupt: Ends the order if it raises.
        """
        try:
            message = read(Order, encoded)
            *parts, frames = message.parts
            return self._answer(message.head, parts, frames, interrupt)
        except JobRefused:
            return write(Failed(reason="refused"))
        except _Damaged:
            return write(Failed(reason="damaged"))
        except Exception as error:  # noqa: BLE001 # its text could hold anything, and the head logs what comes
            return write(Failed(reason=type(error).__name__[:100]))

    def _answer(self, order: Order, parts: Sequence[bytes], frames: bytes, interrupt: Interrupt) -> bytes:
        match order.work:
            case Opening() as opening:
                asked = read_order(opening, parts)
                return write_opened(asked.opener.open_columns(asked.shares))
            case AddingUp() as adding:
                return _add(order, adding, parts, frames, interrupt)
            case Summing() as summing:
                return self._sums(order, summing, parts, self._segments(order, frames, interrupt), interrupt)
            case Scanning() as scanning:
                weighted = self._load_weights(parts, scanning.num_features, None)
                return _scores(scanning, weighted, self._segments(order, frames, interrupt), interrupt)
            case _:
                assert_never(order.work)

    def _segments(self, order: Order, frames: bytes, interrupt: Interrupt) -> dict[int, SegmentRows]:
        """Return the segments of an order that are here, by their positions in it."""
        found: dict[int, SegmentRows] = {}
        for place, segment in enumerate(order.segments):
            interrupt()
            rows = self._rows(segment, frames)
            if rows is not None:
                found[place] = rows
        return found

    def _sums(
        self,
        order: Order,
        summing: Summing,
        parts: Sequence[bytes],
        held: dict[int, SegmentRows],
        interrupt: Interrupt,
    ) -> bytes:
        if not held:
            return write(Done(done=()))
        weighted = self._load_weights(parts, summing.num_features, summing.trained)
        engine = self._engine(weighted.model, summing.loss, summing.clip)
        evaluated = _join_flags(order, parts[2:], held)
        work = summing.work(sum(order.segments[place].chosen for place in held))
        summed = engine.partial_sum(
            weighted.weights,
            gather(list(held.values()), evaluated, work, interrupt),
            interrupt,
            hashed=int(evaluated.is_evaluated.sum()),  # the others are no part of the sum
        )
        totals = Totals(hashes=summed.hashes, records=summed.records)
        return write(Done(done=tuple(held)), [to_bytes(summed.vector), totals.encoded])

    def _rows(self, segment: SegmentOrder, frames: bytes) -> SegmentRows | None:
        """Return the rows of a segment, from memory or from its frames; None if not cached any more."""
        name = segment.place.name
        rows = self._held.get(name)
        if rows is None and frames:
            try:
                rows = open_segment(segment.shape, segment.place, segment.key, frames)
            except (InvalidTag, ValueError):
                raise _Damaged from None
            num_bytes = sum(column.nbytes for column in rows.columns)
            self._held.put(name, rows, num_bytes=num_bytes, owner="")  # segments do not tell whose they are
        return rows

    def _load_weights(
        self, parts: Sequence[bytes], num_features: int, trained: tuple[str, ...] | None
    ) -> _Weighted:
        """Return the model and weights of an order, cached from the order before."""
        (onnx, encoded), last = parts[:2], self._last
        read = (onnx, num_features, trained)
        if last is not None and (last.onnx, last.num_features, last.trained) == read:
            if last.encoded == encoded:
                return last
            model = last.model  # the next round of the same job: only its weights are new
        else:
            model = parse(onnx, num_features=num_features, trained=trained)
        self._last = _Weighted(
            onnx=onnx,
            encoded=encoded,
            num_features=num_features,
            trained=trained,
            model=model,
            weights=weights_format.decode(encoded, model.parameters),
        )
        return self._last

    def _engine(self, model: Model, loss: TrainedLoss, clip: Clip) -> ExactEngine:
        """Return the engine of a job, created anew if another job was worked on last."""
        if self._made is None or self._made[0] is not model or self._made[1] != loss:
            self._made = model, loss, ExactEngine(model, loss, clip)
        # A bound that adapts costs no new engine.
        return self._made[2].with_clip(clip)


def _add(
    order: Order, adding: AddingUp, parts: Sequence[bytes], frames: bytes, interrupt: Interrupt
) -> bytes:
    (segment,), (chosen,) = order.segments, parts
    what = Adding(form=adding.form, role=adding.role, task_id=adding.task_id)
    try:
        rows = open_segment(segment.shape, segment.place, segment.key, frames)
        summed = sum_updates(what, [rows.rows(flags(chosen, segment.records))], interrupt)
    except (InvalidTag, ValueError):
        raise _Damaged from None
    totals = Totals(hashes=0, records=summed.records)
    return write(Done(done=(0,)), [to_bytes(summed.vector), totals.encoded])


def _scores(
    scanning: Scanning, weighted: _Weighted, held: dict[int, SegmentRows], interrupt: Interrupt
) -> bytes:
    parts: list[bytes] = []
    for rows in held.values():
        found = score(
            weighted.model,
            scanning.loss,
            weighted.weights,
            rows.shares.features,
            scanning.num_bins,
            interrupt=interrupt,
        )
        parts.append(found.bins.astype("<i8").tobytes())
        parts.append(b"" if found.choices is None else found.choices.astype("<i8").tobytes())
    return write(Done(done=tuple(held)), parts)


def _join_flags(order: Order, parts: Sequence[bytes], held: Iterable[int]) -> Evaluated:
    """Concatenate the flags of the segments at some positions of an order."""
    is_evaluated, counts = (
        np.concatenate([flags(parts[2 * place + kind], order.segments[place].records) for place in held])
        for kind in (0, 1)
    )
    return Evaluated(is_evaluated=is_evaluated, counts=counts)
