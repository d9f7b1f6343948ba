"""The exact engine: one job's model and loss, evaluated in integers (see the package).

It works on blocks of records, on several threads.

A round is cut into parts, one a thread; a part into chunks, after each of which the masked products run; a
chunk into blocks whose values stay in the cache. Where records are large, blocks and chunks hold fewer of
them, down to one, so that memory is bounded before the round begins. Sums are exact, so no bit depends on the
division into parts and blocks or on the order of records.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Final

import numpy as np

from helper.gradient.engine import Batch, Interrupt, MaskedSum, PartialSum, Reclippable, never
from helper.gradient.exact.kernels.buffers import Buffers, BufferShelf, Owner
from helper.gradient.exact.kernels.clipping import MAX_SENSITIVITY, Masking, clip_factors
from helper.gradient.exact.kernels.field import add_to
from helper.gradient.exact.kernels.masking import Hashed, ValuesDigest, hash_keys
from helper.gradient.exact.kernels.rows import Real, Value
from helper.gradient.exact.layers.layer import NotExact, RoundSetup, Running
from helper.gradient.exact.layers.losses import count_seeds, seeds
from helper.gradient.exact.lowering.lowered import Lowered
from helper.gradient.exact.lowering.lowering import lower
from helper.gradient.exact.memory import PartBytes, part_bytes, plan_bytes, records_within
from helper.gradient.exact.products.fastest import FastestBackend
from helper.gradient.exact.products.product import CHUNK_RECORDS, Backend
from maskedlark.frozen import frozen
from maskedlark.model.graph import Model
from maskedlark.model.heads import BoundHeads, TrainedLoss, bind
from maskedlark.model.losses import Loss
from maskedlark.model.weights import QuantisedTensor
from maskedlark.numbers.field import FieldVector, add, multiply, subtract, total
from maskedlark.privacy.clip import Clip

# What stays in a core's cache from the way forward to the masks.
_BLOCK_BYTES: Final = 1 << 23
_MAX_BLOCK: Final = 512
_CHUNK_BYTES: Final = 1 << 27
_BYTES_A_VALUE: Final = 32  # of a chunk: up to three float64 limbs of a masked delta and one operand
_WORTHWHILE_BLOCK: Final = 32
# Bounds on memory, where one record is larger than the sizes above are made for.
_MOST_BLOCK_BYTES: Final = 1 << 26
_MOST_CHUNK_BYTES: Final = 1 << 28
_SUM_BYTES: Final = 8
_MIN_PART: Final = 128
# A part of less is not worth a thread: Python's lock goes to and fro between short steps.
_MIN_PART_NS: Final = 8e6
# Rough, and of a core that multiplies digits fast: they decide the number of threads alone.
_NS_A_MULTIPLICATION: Final = 0.05
_NS_AN_ENTRY: Final = 4.0
# Of the digest keys of the count: beyond the layers of any model.
_COUNT_LAYER: Final = 1 << 20
_SHELF: Final = BufferShelf()


class ExactEngine(Reclippable):
    """A `GradientEngine` whose values are the same integers on every machine.

    Args:
        model: The checked graph.
        loss: Its loss, or its heads.
        clip: The bound on each record's gradient.
        threads: How many threads share a round.
        backend: How products are computed; by default as is fastest here.

    Raises:
        NotExact: the model has no exact form; the message says why.
    """

    path: Final = "exact"
    reason: Final = "every operator of the model has an exact integer form"

    def __init__(
        self, model: Model, loss: TrainedLoss, clip: Clip, *, threads: int = 1, backend: Backend | None = None
    ) -> None:
        if not clip.sensitivity < MAX_SENSITIVITY:
            raise NotExact(
                f"the clip bound is {clip.sensitivity} units of 2^-{clip.frac_bits}: the exact path takes "
                "less than 2^62"
            )
        self._plan, self._loss, self._clip = lower(model, loss), bind(loss, model), clip
        self._multiplications = model.work.multiplications
        self._threads = threads
        self._owner = Owner()  # of the buffers of all rounds
        self._backend: Backend = FastestBackend() if backend is None else backend

    def masked_sum(
        self, weights: tuple[QuantisedTensor, ...], batch: Batch, interrupt: Interrupt = never
    ) -> MaskedSum:
        """See `GradientEngine`.

        Raises:
            JobRefused(MALFORMED): a label is not a class of the model.
        """
        return self.masked_sums(weights, (batch,), interrupt)

    def masked_sums(
        self, weights: tuple[QuantisedTensor, ...], batches: Iterable[Batch], interrupt: Interrupt = never
    ) -> MaskedSum:
        """See `OrderFree`; at least one batch.

        Raises:
            JobRefused(MALFORMED): a label is not a class of the model.
        """
        return self.whole_sum((self.partial_sum(weights, batches, interrupt),))

    def partial_sum(
        self,
        weights: tuple[QuantisedTensor, ...],
        batches: Iterable[Batch],
        interrupt: Interrupt = never,
        *,
        hashed: int | None = None,
    ) -> PartialSum:
        """See `OrderFree`.

        Raises:
            JobRefused(MALFORMED): a label is not a class of the model.
        """
        parts = (
            part
            for batch, count in _with_hashed(batches, hashed)
            for part in self._parts(weights, batch, count, interrupt)
        )
        # The first part's vector is the sum: a round holds no more than one vector of the model's size for
        # each thread.
        vector, digest = next(parts)
        for other, more in parts:
            add_to(vector, other)
            digest.merge(more)
        return PartialSum(vector=vector, hashes=digest.total, records=digest.records)

    def whole_sum(self, parts: Iterable[PartialSum]) -> MaskedSum:
        """See `OrderFree`."""
        vector, digest = np.zeros(0, np.uint64), ValuesDigest()
        for number, part in enumerate(parts):
            digest.merge(ValuesDigest(part.hashes, part.records))
            if number == 0:
                vector = part.vector
                continue
            if number == 1:  # a part by itself is the sum: as large as the model, and not copied
                vector = vector.copy()
            add_to(vector, part.vector)
        return MaskedSum(
            vector=vector, values_digest=digest.digest(), sensitivity=self._clip.released_sensitivity
        )

    def _parts(
        self, weights: tuple[QuantisedTensor, ...], batch: Batch, hashed: int, interrupt: Interrupt
    ) -> list[tuple[FieldVector, ValuesDigest]]:
        """Return the masked sums of a batch's parts, one a thread, and the digests of their values.

        The digests are of the first records of the batch, so many.
        """
        batch = Batch(
            features=np.ascontiguousarray(batch.features, np.uint8),
            labels=np.ascontiguousarray(batch.labels, np.uint32),
            mask_shares=np.ascontiguousarray(batch.mask_shares, np.uint64),
        )  # what the loops are compiled for
        work = _Work(
            plan=self._plan,
            loss=self._loss,
            clip=self._clip,
            backend=self._backend,
            weights=(*weights, *self._plan.frozen),
            batch=batch,
            hashed=hashed,
            interrupt=interrupt,
            owner=self._owner,
        )
        parts = _cut(len(batch), self._threads, self._record_ns(batch.labels.shape[1]))
        if len(parts) == 1:  # a small round would spend its time on starting a thread
            return [work.run(parts[0])]
        with ThreadPoolExecutor(len(parts)) as pool:
            return list(pool.map(work.run, parts))

    def round_bytes(self, records: int, labels: int) -> int:
        """See `GradientEngine`."""
        sizes = _sizes(self._plan, self._loss, self._backend, labels)
        parts = _cut(records, self._threads, self._record_ns(labels))
        longest = max(map(len, parts))
        return len(parts) * (
            _SUM_BYTES * self._plan.num_parameters
            + sizes.bytes.fixed
            + sizes.bytes.chunk * min(longest, sizes.chunk_records)
            + sizes.bytes.block * min(longest, sizes.block_records)
        )

    @property
    def held_bytes(self) -> int:
        """See `GradientEngine`."""
        return plan_bytes(self._plan)

    def _record_ns(self, labels: int) -> float:
        """Estimate roughly how long a record takes a core that multiplies digits fast."""
        entries = self._plan.block_entries(count_seeds(self._loss, labels))
        return _NS_A_MULTIPLICATION * self._multiplications + _NS_AN_ENTRY * entries


@frozen
class _Sizes:
    """How many records a chunk and a block have at most, and the bytes of each."""

    chunk_records: int
    block_records: int
    bytes: PartBytes


def _sizes(plan: Lowered, loss: Loss | BoundHeads, backend: Backend, labels: int) -> _Sizes:
    """Return as many records as an accumulator takes, and as many as keep a block's values in the cache.

    Fewer where layers are so wide, or records so large, that they would fill the memory.
    """
    seeds = count_seeds(loss, labels)
    needed = part_bytes(plan, backend, seeds=seeds, labels=labels)
    chunk = np.clip(_CHUNK_BYTES // (_BYTES_A_VALUE * sum(plan.sizes)), _MAX_BLOCK, CHUNK_RECORDS)
    block = np.clip(_BLOCK_BYTES // (8 * plan.block_entries(seeds)), _WORTHWHILE_BLOCK, _MAX_BLOCK)
    return _Sizes(
        chunk_records=records_within(_MOST_CHUNK_BYTES, needed.chunk, most=int(chunk)),
        block_records=records_within(_MOST_BLOCK_BYTES, needed.block, most=int(block)),
        bytes=needed,
    )


class _WithinCount:
    """How many values a part of a round left unclipped: one more masked coordinate, for adaptive bounds.

    A value is within the bound if its factor is its coefficient (`clipping`). That compares numbers that are
    the same on every machine, so the helpers agree on it as on everything else.
    """

    __slots__ = ("_clip", "_keys", "_sum")

    def __init__(self, clip: Clip, labels: int) -> None:
        self._clip = clip
        self._keys = hash_keys(_COUNT_LAYER, Hashed.VALUES, 1, labels)[0]
        self._sum = np.zeros(1, np.uint64)

    def add(self, masking: Masking, coefficients: Real) -> None:
        """Count a block, and hash what was counted. Shapes: coefficients (records, labels)."""
        if not self._clip.is_counted:
            return
        within = (masking.factors == coefficients).astype(np.uint64)
        np.add(
            masking.hashes,
            (self._keys ^ (within - np.uint64(1))).sum(axis=1, dtype=np.uint64),  # ~key where it is not
            out=masking.hashes,
        )
        # Both passes go over all records, whichever are within: a selection would show how many are in the
        # time.
        for counted, into in ((within, add), (within ^ np.uint64(1), subtract)):  # no value is left out
            self._sum = into(self._sum, total((masking.shares * counted).reshape(-1, 1)))

    def append_to(self, vector: FieldVector) -> FieldVector:
        """Append the coordinate to the vector, if there is one."""
        if not self._clip.is_counted:
            return vector
        return np.append(vector, multiply(self._sum, np.full(1, self._clip.count_units, np.uint64)))


@frozen
class _Work:
    """One round's arguments, and what a thread does with its part of the records."""

    plan: Lowered
    loss: Loss | BoundHeads
    clip: Clip
    backend: Backend
    weights: tuple[QuantisedTensor, ...]
    batch: Batch
    hashed: int
    interrupt: Interrupt
    owner: Owner

    def run(self, part: range) -> tuple[FieldVector, ValuesDigest]:
        """Return the masked sum over a range of records, and the digest of their values."""
        with _SHELF.lent(self.owner) as buffers:
            return self._run(part, buffers)

    def _run(self, part: range, buffers: Buffers) -> tuple[FieldVector, ValuesDigest]:
        labels = self.batch.labels.shape[1]
        sizes = _sizes(self.plan, self.loss, self.backend, labels)
        chunks = _chunks(part, sizes.chunk_records)
        vector = np.zeros(self.plan.num_parameters, np.uint64)
        setup = RoundSetup(
            weights=self.weights,
            backend=self.backend,
            norm=self.clip.norm,
            labels=labels,
            chunk_records=max((len(chunk) for chunk in chunks), default=0),
            vector=vector,
            buffers=buffers,
        )
        running = self.plan.start(setup)
        trained = self._select_trained(running)
        digest, within = ValuesDigest(), _WithinCount(self.clip, labels)
        size = sizes.block_records
        for chunk in chunks:
            for layer in trained:
                layer.begin(len(chunk))
            with np.errstate(all="ignore"):  # infinities and NaNs have a defined result, see `rows`
                for start in range(0, len(chunk), size):
                    self.interrupt()
                    block = chunk[start : start + size]
                    self._block(running, block, start, digest, within, buffers.part("loss"))
            for layer in trained:
                layer.flush()
        for layer in trained:
            layer.write(vector)
        return within.append_to(vector), digest

    def _block(
        self,
        running: list[Running],
        block: range,
        first: int,
        digest: ValuesDigest,
        within: _WithinCount,
        buffers: Buffers,
    ) -> None:
        """Forward, loss, backward, norms, clip and mask of one block of records.

        The block starts at record `first` of its chunk.
        """
        rows = slice(block.start, block.stop)
        values: dict[int, Value] = {0: self.batch.features[rows]}
        for layer, step in zip(running, self.plan.steps, strict=True):
            values[step.output] = layer.forward(*(values[number] for number in step.inputs))
        start = seeds(self.loss, values[self.plan.output], self.batch.labels[rows], buffers)
        self._back(running, start.deltas)
        # One hash a record over all its layers: swapping values between two records changes the digest.
        hashes = np.zeros(len(block), np.uint64)
        groups, clip = self._clip_jointly(self._select_trained(running))
        # Zero, or infinite where a record's input is outside a table: an infinite norm makes the factor 0, in
        # the steps of every other record.
        rejected = np.zeros(len(block))
        for layer in running:
            layer.reject(rejected)
        for layers in groups:
            squares = np.zeros(start.deltas.shape[:2]) + rejected
            for layer in layers:
                layer.add_norm(squares)
            masking = Masking(
                factors=clip_factors(squares, start.coefficients, clip),
                shares=self.batch.mask_shares[rows],
                hashes=hashes,
                frac_bits=clip.frac_bits,
                sensitivity=clip.sensitivity,
            )
            for layer in layers:
                layer.mask(masking, first)
            within.add(masking, start.coefficients)
        # Padding records are summed with shares of zero, and their hashes left out: a worker's digest equals
        # the head's.
        digest.add(hashes[: max(0, self.hashed - block.start)])

    def _select_trained(self, running: list[Running]) -> list[Running]:
        """Return the layers that have parameters to train."""
        return [layer for layer, step in zip(running, self.plan.steps, strict=True) if step.has_parameters]

    def _clip_jointly(self, trained: list[Running]) -> tuple[list[list[Running]], Clip]:
        """Return all trained layers and the bound; or each alone, and its part of the bound."""
        if not self.clip.is_per_layer:
            return [trained], self.clip
        return [[layer] for layer in trained], self.clip.of_each(len(trained))

    def _back(self, running: list[Running], output: Real) -> None:
        """Send the deltas back through every layer.

        A value with several readers gets the sum of their deltas, last reader first.
        """
        deltas: dict[int, Real] = {self.plan.output: output}
        for layer, step in zip(reversed(running), reversed(self.plan.steps), strict=True):
            received = deltas.pop(step.output, None)
            # Nothing before it is trained: its deltas would be computed for nothing.
            if received is None or not self.plan.is_trained[step.output]:
                continue
            for number, sent in zip(step.inputs, layer.backward(received), strict=True):
                if sent is not None and self.plan.is_trained[number]:
                    deltas[number] = deltas[number] + sent if number in deltas else sent


def _with_hashed(batches: Iterable[Batch], hashed: int | None) -> Iterator[tuple[Batch, int]]:
    """Yield each batch, and how many of its first records the digest covers."""
    before = 0
    for batch in batches:
        yield batch, len(batch) if hashed is None else min(len(batch), max(0, hashed - before))
        before += len(batch)


def _cut(records: int, parts: int, record_ns: float) -> list[range]:
    """Cut into ranges of nearly equal length, at least one and at most `parts`, each worth a thread.

    `record_ns` is what a record takes, roughly: it follows from the model and the number of labels alone.
    """
    # From public numbers only, never from what records hold: the number of threads shows in the time.
    count = max(1, min(parts, -(-records // _MIN_PART), int(records * record_ns / _MIN_PART_NS)))
    bounds = [records * part // count for part in range(count + 1)]
    return [range(low, high) for low, high in pairwise(bounds)]


def _chunks(part: range, most: int) -> list[range]:
    """Cut a thread's records into chunks of nearly equal length, at most `most`."""
    count = -(-len(part) // most)
    return [part[len(part) * one // count : len(part) * (one + 1) // count] for one in range(count)]
