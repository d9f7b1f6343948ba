"""A worker on another machine: keeps opened segments in its memory, and does what the head orders.

    answer = worker.do(order, shared, frames)     # sums, scores, opened shares; see `orders`

It has the key of the datasets that it is told of and no other key of the helper, unless it opens shares: it
sees features, labels and one helper's mask shares, and which records a round sums. It knows no pair key, no
noise and no ledger. What carries its messages sees ciphertext: orders and answers are sealed (`handshake`),
frames are as they lie on the head's disk, and an error is an answer too.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, assert_never

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from helper.datasets.frames import open_segment
from helper.datasets.segments import SegmentRows
from helper.executors.executor import Adding
from helper.executors.gathering import gather
from helper.executors.handshake import NONCE_BYTES, HandshakeClient, JoinToken, NotSealed, Session
from helper.executors.heartbeats import ALIVE
from helper.executors.opening_orders import read_order, write_opened
from helper.executors.orders import (
    AddingUp,
    Done,
    Failed,
    Opening,
    Order,
    Scanning,
    SegmentOrder,
    Shared,
    Summing,
    Totals,
    flags,
    read,
    write,
)
from helper.executors.segment_cache import SegmentCache
from helper.executors.summing import sum_updates
from helper.gradient.exact.engine import ExactEngine
from helper.gradient.scoring import score
from maskedlark.errors import InvalidTask, JobRefused
from maskedlark.frozen import frozen
from maskedlark.model import weights as weights_format
from maskedlark.model.graph import Model
from maskedlark.model.losses import Loss
from maskedlark.model.onnx_file import parse
from maskedlark.model.weights import QuantisedTensor
from maskedlark.never_pickled import NeverPickled
from maskedlark.numbers.field import to_bytes
from maskedlark.privacy.clip import Clip
from maskedlark.releases.round import Evaluated

ORDER: Final = b"order"
STOP: Final = b"stop"
SHARED: Final = b"shared"
_STOPPED_KEPT: Final = 1024
"""How many orders that were to end are remembered: far more than ever wait at one worker."""
_WELCOME_S: Final = 10.0


class _Stopped(Exception):
    """The head no longer waits for an order."""


class _Damaged(Exception):
    """The frames of a segment do not open."""


@frozen
class _Weighted:
    """The model and weights of a round, and the file that the model was read from."""

    onnx: bytes
    num_features: int
    model: Model
    weights: tuple[QuantisedTensor, ...]


class SegmentWorker(NeverPickled):
    """One worker. Safe to call from many threads: one order is done at a time, and one that opens shares."""

    def __init__(self, token: JoinToken, capacity_bytes: int) -> None:
        """Keep so many bytes of opened segments at most."""
        self._applicant = HandshakeClient(token)
        self._challenge = b""
        self._session: Session | None = None
        self._held = SegmentCache(capacity_bytes)
        self._stopped: OrderedDict[bytes, None] = OrderedDict()
        self._last: tuple[bytes, _Weighted] | None = None
        self._made: tuple[Model, Loss, ExactEngine] | None = None
        self._working = threading.Lock()
        self._opening = threading.Lock()
        self._is_welcome = threading.Event()

    def apply(self, challenge: bytes) -> bytes:
        """Answer a head that asks whether this worker may join it."""
        self._challenge = challenge
        return self._applicant.apply(challenge)

    def welcome(self, welcome: bytes) -> None:
        """Join.

        Raises:
            JoinRefused: the welcome is another worker's.
        """
        self._session = self._applicant.finish(self._challenge, welcome)
        self._is_welcome.set()

    def stop(self, sealed: bytes) -> None:
        """End an order that is worked on, or waits; one that is not sealed by the head changes nothing."""
        try:
            self._stopped[self._join().open(sealed, STOP)] = None
        except NotSealed:
            return
        if len(self._stopped) > _STOPPED_KEPT:
            self._stopped.popitem(last=False)

    def alive(self, sealed: bytes) -> bytes:
        """Answer the head's question whether this worker goes on; empty if it has not joined yet."""
        try:
            session = self._join()
            session.open(sealed, ALIVE)
        except NotSealed:
            return b""
        return session.seal(b"", sealed[:NONCE_BYTES])

    def do(self, sealed_order: bytes, sealed_shared: bytes, frames: bytes) -> bytes:
        """Do what the head orders, and return the answer, sealed, and bound to the order.

        Shares are opened beside other work, and nothing of them is kept.

        Args:
            sealed_order: An `Order`.
            sealed_shared: The model and the weights of a sum or a scan.
            frames: What the order is about, as it lies on the head's disk; empty if this worker keeps it.

        Raises:
            NotSealed: the order is not the head's, or this worker has not joined.
        """
        self._is_welcome.wait(_WELCOME_S)  # which comes another way
        session = self._join()
        message = read(Order, session.open(sealed_order, ORDER))
        order: Order = message.head
        with self._opening if isinstance(order.work, Opening) else self._working:
            answer = _answer(lambda: self._answer(order, message.parts, sealed_shared, frames))
            return session.seal(answer, sealed_order[:NONCE_BYTES])

    def _answer(self, order: Order, parts: tuple[bytes, ...], sealed_shared: bytes, frames: bytes) -> bytes:
        match order.work:
            case Opening() as opening:
                asked = read_order(opening, parts)
                return write_opened(asked.opener.open_columns(asked.shares))
            case AddingUp() as adding:
                return self._add(order, adding, parts, frames)
            case Summing() as summing:
                weighted, held = self._load_weights(order, sealed_shared), self._segments(order, frames)
                return self._sums(order, summing, weighted, parts, held)
            case Scanning() as scanning:
                weighted, held = self._load_weights(order, sealed_shared), self._segments(order, frames)
                return self._scores(order, scanning, weighted, held)
            case _:
                assert_never(order.work)

    def _add(self, order: Order, adding: AddingUp, parts: tuple[bytes, ...], frames: bytes) -> bytes:
        (segment,), (chosen,) = order.segments, parts
        what = Adding(form=adding.form, role=adding.role, task_id=adding.task_id)
        try:
            rows = open_segment(segment.shape, segment.place, segment.key, frames)
            rows = rows.rows(flags(chosen, segment.records))
            summed = sum_updates(what, [rows], self._interrupt(order.order_id))
        except (InvalidTag, ValueError):
            raise _Damaged from None
        totals = Totals(hashes=0, records=summed.records)
        return write(Done(done=(0,)), [to_bytes(summed.vector), totals.encoded])

    def _segments(self, order: Order, frames: bytes) -> dict[int, SegmentRows]:
        """Return the segments of an order that are here, by their positions in it."""
        found: dict[int, SegmentRows] = {}
        for place, segment in enumerate(order.segments):
            self._check_awaited(order.order_id)
            rows = self._rows(segment, frames)
            if rows is not None:
                found[place] = rows
        return found

    def _sums(
        self,
        order: Order,
        summing: Summing,
        weighted: _Weighted,
        parts: tuple[bytes, ...],
        held: dict[int, SegmentRows],
    ) -> bytes:
        if not held:
            return write(Done(done=()))
        engine = self._engine(weighted.model, summing.loss, summing.clip)
        evaluated = _join_flags(order, parts, held)
        work = summing.work(sum(order.segments[place].chosen for place in held))
        interrupt = self._interrupt(order.order_id)
        summed = engine.partial_sum(
            weighted.weights,
            gather(list(held.values()), evaluated, work, interrupt),
            interrupt,
            hashed=int(evaluated.is_evaluated.sum()),  # the others are no part of the sum
        )
        totals = Totals(hashes=summed.hashes, records=summed.records)
        return write(Done(done=tuple(held)), [to_bytes(summed.vector), totals.encoded])

    def _scores(
        self, order: Order, scanning: Scanning, weighted: _Weighted, held: dict[int, SegmentRows]
    ) -> bytes:
        parts: list[bytes] = []
        for rows in held.values():
            found = score(
                weighted.model,
                scanning.loss,
                weighted.weights,
                rows.shares.features,
                scanning.num_bins,
                interrupt=self._interrupt(order.order_id),
            )
            parts.append(found.bins.astype("<i8").tobytes())
            parts.append(b"" if found.choices is None else found.choices.astype("<i8").tobytes())
        return write(Done(done=tuple(held)), parts)

    def _rows(self, segment: SegmentOrder, frames: bytes) -> SegmentRows | None:
        """Return the rows of a segment, from memory or from its frames; None if not cached any more."""
        name = segment.place.name
        rows = self._held.get(name)
        if rows is None and frames:
            try:
                rows = open_segment(segment.shape, segment.place, segment.key, frames)
            except (InvalidTag, ValueError):
                raise _Damaged from None
            self._held.put(name, rows)
        return rows

    def _load_weights(self, order: Order, sealed_shared: bytes) -> _Weighted:
        """Return the model and weights of an order, cached from the round that was last worked on."""
        if order.shared_key is None:
            raise InvalidTask("an order of a sum or a scan names no model")
        if self._last is None or self._last[0] != order.shared_key:
            opened = ChaCha20Poly1305(order.shared_key).decrypt(bytes(NONCE_BYTES), sealed_shared, SHARED)
            shared = read(Shared, opened)
            onnx, encoded = shared.parts
            width, before = shared.head.num_features, self._last[1] if self._last is not None else None
            if before is not None and (before.onnx, before.num_features) == (onnx, width):
                model = before.model
            else:
                model = parse(onnx, num_features=width)
            tensors = weights_format.decode(encoded, model.parameters)
            weighted = _Weighted(onnx=onnx, num_features=width, model=model, weights=tensors)
            self._last = order.shared_key, weighted
        return self._last[1]

    def _engine(self, model: Model, loss: Loss, clip: Clip) -> ExactEngine:
        """Return the engine of a job, created anew if another job was worked on last."""
        if self._made is None or self._made[0] is not model or self._made[1] is not loss:
            self._made = model, loss, ExactEngine(model, loss, clip)
        return self._made[2].with_clip(clip)

    def _interrupt(self, order_id: bytes) -> Callable[[], None]:
        return lambda: self._check_awaited(order_id)

    def _check_awaited(self, order_id: bytes) -> None:
        if order_id in self._stopped:
            raise _Stopped

    def _join(self) -> Session:
        if self._session is None:
            raise NotSealed
        return self._session


def _answer(work: Callable[[], bytes]) -> bytes:
    """Encode the result of some work, or its error."""
    try:
        return work()
    except _Stopped:
        return write(Failed(reason="stopped"))
    except JobRefused:
        return write(Failed(reason="refused"))
    except _Damaged:
        return write(Failed(reason="damaged"))
    except Exception as error:  # noqa: BLE001 # its text could hold anything, and would travel unsealed
        return write(Failed(reason=type(error).__name__[:100]))


def _join_flags(order: Order, parts: Sequence[bytes], held: Iterable[int]) -> Evaluated:
    """Concatenate the flags of the segments at some positions of an order."""
    is_evaluated, counts = (
        np.concatenate([flags(parts[2 * place + kind], order.segments[place].records) for place in held])
        for kind in (0, 1)
    )
    return Evaluated(is_evaluated=is_evaluated, counts=counts)
