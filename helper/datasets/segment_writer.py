"""Opened shares on their way to a dataset: sealed and stored segment by segment, as they come.

    writer = SegmentWriter(objects, shape, quota.claim(owner, name), ...)
    writer.add(rows)                              # a full segment is stored, and leaves memory
    manifest = writer.store(dataset_id, ranks)    # every object is durable; the ledger commits them or not
    writer.commit(dataset_id)

Each object has a random name in the ad server's part of this helper's folder (`helper.datasets.vault`).
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from threading import Lock
from typing import Final

from helper.datasets.frames import KeyFor, Ranks
from helper.datasets.sealed_segments import SegmentSealer, Tail, estimate_bytes
from helper.datasets.segment_store import SegmentStore
from helper.datasets.segments import NOT_CHOSEN, RowShape, SegmentRows
from helper.datasets.storage_quota import Claim, StorageQuota
from helper.ledger.records import Manifest, SealedObject
from maskedlark.frozen import frozen
from maskedlark.randomness import Randomness

_PUTS_AT_ONCE: Final = 4
_NAME_BYTES: Final = 16


class ObjectWriter:
    """Stores a helper's objects, and knows which ones may still be committed.

    Safe to call from many threads.
    """

    def __init__(self, store: SegmentStore, folder: str, randomness: Randomness, quota: StorageQuota) -> None:
        self._store = store
        self._folder = folder
        self._randomness = randomness
        self._quota = quota
        self._lock = Lock()
        self._held: set[str] = set()
        self._dropped: set[str] = set()

    @property
    def held(self) -> frozenset[str]:
        """The objects of preparations that go on or may be committed."""
        with self._lock:
            return frozenset(self._held)

    def put(self, content: bytes, tag: bytes) -> str:
        """Write an object, and hold it; return its name, which is made anew for each try.

        Args:
            content: What to write; its bytes are claimed already.
            tag: The ad server's.

        Raises:
            HelperUnavailable, OSError: the store does not take it.
        """
        tried: list[str] = []

        def fresh_name() -> str:
            name = f"{self._folder}/{tag.hex()}/{self._randomness(_NAME_BYTES).hex()}"
            with self._lock:
                # Before it is written: the sweep takes an object that is neither held nor named for an
                # orphan.
                self._held.add(name)
            tried.append(name)
            return name

        try:
            name = self._store.put_fresh(fresh_name, content)
        except BaseException:
            self.drop(dict.fromkeys(tried, len(content)))
            raise
        # a try that failed may have written it all the same
        self.drop(dict.fromkeys(tried[:-1], len(content)))
        return name

    def drop(self, objects: Mapping[str, int]) -> None:
        """Give up objects, which are of no dataset and never will be; they count until they are deleted.

        Args:
            objects: The bytes of each, by name.
        """
        # Counted first: at every moment the quota has all bytes that are there.
        self._count(objects)
        with self._lock:
            self._held.difference_update(objects)
            self._dropped.update(objects)

    def release(self, objects: Mapping[str, int], *, is_committed: bool) -> None:
        """Hold objects no longer, as the ledger says whether they are a dataset's.

        Args:
            objects: The bytes of each, by name.
            is_committed: Whether they are known to be one's; else each counts until it is deleted.
        """
        if not is_committed:
            self._count(objects)
        with self._lock:
            self._held.difference_update(objects)

    def _count(self, objects: Mapping[str, int]) -> None:
        for name, num_bytes in objects.items():
            self._quota.count(name, tag_in(name), num_bytes)

    def put_back(self, names: Sequence[str]) -> None:
        """Keep objects among the dropped ones, as they could not be deleted."""
        with self._lock:
            self._dropped.update(names)

    def take_dropped(self) -> list[str]:
        """Return the dropped objects to be removed; each is returned once."""
        with self._lock:
            dropped, self._dropped = sorted(self._dropped), set()
        return dropped


@frozen
class SegmentPlan:
    """What a dataset's segments are, besides the shape of their records.

    Attributes:
        round_id: Of updates, the id of their round, without which they are not read; else empty.
        most_records: The most records of a segment, if it is not to be as large as its shape allows.
    """

    round_id: bytes = b""
    most_records: int | None = None


ANY_SEGMENTS: Final = SegmentPlan()
"""As large as the shape of the records allows, and of no round."""


@frozen
class _Stored:
    """A dataset that everything was put of."""

    dataset_id: bytes
    ranks: tuple[SealedObject, ...]


class SegmentWriter:
    """The segments of one preparation. Used by one thread at a time; dropped unless it is stored."""

    def __init__(
        self,
        writer: ObjectWriter,
        shape: RowShape,
        claim: Claim,
        *,
        key_for: KeyFor,
        randomness: Randomness,
        plan: SegmentPlan,
    ) -> None:
        self._writer = writer
        self._shape = shape
        self._round_id = plan.round_id
        self._segment_records = min(shape.segment_records, plan.most_records or shape.segment_records)
        self._sealer = SegmentSealer(shape, key_for, randomness)
        self._waiting: list[SegmentRows] = []
        self._num_waiting = 0
        self._segments: list[SealedObject] = []
        self._is_whole = False
        self._stored: _Stored | None = None
        self._claim = claim
        self._is_committed = False

    @property
    def waiting(self) -> int:
        """The number of records still in memory."""
        return self._num_waiting

    @property
    def num_bytes(self) -> int:
        """The size of the objects of all records."""
        return self._bytes_with(0)

    def takes(self, dataset_id: bytes) -> bool:
        """Return whether it may be stored as a dataset.

        Not while another one, stored and not withdrawn, may be committed: both would have the same objects.
        """
        return self._stored is None or self._stored.dataset_id == dataset_id

    def add(self, rows: SegmentRows) -> None:
        """Take records; what fills a segment is put, and leaves memory.

        Raises:
            HelperUnavailable, OSError: the store does not take it; the preparation ends.
            JobRefused(QUOTA_EXCEEDED): the objects of all records have no room in the ad server's quota.
        """
        if self._is_whole:
            raise AssertionError("nothing is added to a dataset that was stored")
        if not len(rows):
            return  # or chunks of which nothing is admitted would pile up
        self._claim.resize(self._bytes_with(len(rows)))
        self._waiting.append(rows)
        self._num_waiting += len(rows)
        size = self._segment_records
        if self.waiting < size:
            return
        together = SegmentRows.join(self._waiting)
        for start in range(0, len(together) - size + 1, size):
            self._put_segment(together.rows(slice(start, start + size)))
        # A copy, so that the small rest does not keep the whole of what came in memory.
        rest = together.rows(slice(len(together) // size * size, None))
        self._waiting, self._num_waiting = [rest] if len(rest) else [], len(rest)

    def store(self, dataset_id: bytes, ranks: Ranks) -> Manifest:
        """Put what waits and the ranks of all records; what the ledger is to name.

        May be tried again, also if it is not known whether the dataset was committed: it is the same then.

        Args:
            dataset_id: The dataset's.
            ranks: (n,) of each record, in the order in which they came, or `NOT_CHOSEN`.

        Raises:
            HelperUnavailable, OSError: the store does not take it; the segments that were put stay.
        """
        if not self.takes(dataset_id):
            raise AssertionError("a preparation is one dataset until that is withdrawn")
        if self._waiting:
            self._put_segment(SegmentRows.join(self._waiting))
            self._waiting, self._num_waiting = [], 0
        self._is_whole = True
        if self._stored is None:
            self._stored = _Stored(dataset_id=dataset_id, ranks=self._put_ranks(dataset_id, ranks))
        return tuple(one for pair in zip(self._segments, self._stored.ranks, strict=True) for one in pair)

    def commit(self, dataset_id: bytes) -> None:
        """Count the objects as the dataset's, which the ledger names now."""
        self._is_committed = True
        self._claim.rename(dataset_id.hex())

    def withdraw(self) -> None:
        """Take back a dataset that is refused: the segments may be stored as another one."""
        if self._stored is not None:
            self._writer.drop(_sizes(self._stored.ranks))
            self._stored = None

    def remove(self) -> None:
        """Forget a preparation; for one that was stored, the ledger decides whether it is a dataset."""
        self._waiting, self._num_waiting = [], 0
        if self._stored is None:
            self._writer.drop(_sizes(self._segments))
        else:
            # Neither dropped nor kept: after a commit whose answer was lost, only the ledger knows.
            objects = _sizes([*self._segments, *self._stored.ranks])
            self._writer.release(objects, is_committed=self._is_committed)
        if not self._is_committed:
            self._claim.end()

    def _bytes_with(self, count: int) -> int:
        """Return the bytes of the objects of all records and of so many more."""
        records = sum(one.records for one in self._segments) + self.waiting + count
        return estimate_bytes(self._shape, records, self._segment_records)

    def _put_segment(self, rows: SegmentRows) -> None:
        number = len(self._segments)
        self._segments.append(self._put(self._sealer.seal(rows, number), number, len(rows), is_ranks=False))

    def _put_ranks(self, dataset_id: bytes, ranks: Ranks) -> tuple[SealedObject, ...]:
        """Put the ranks of each segment, a few at a time; all of them or, if one fails, none."""
        tail = Tail(count=len(ranks), records=int((ranks != NOT_CHOSEN).sum()))
        if tail.count != sum(one.records for one in self._segments):
            raise AssertionError("a dataset is stored with a rank for each record")
        size, name = self._segment_records, dataset_id + self._round_id

        def put(segment: SealedObject) -> SealedObject:
            start = segment.number * size
            own = ranks[start : start + segment.records]
            sealed = self._sealer.seal_ranks(own, segment.number, tail, name)
            return self._put(sealed, segment.number, segment.records, is_ranks=True)

        with ThreadPoolExecutor(_PUTS_AT_ONCE, thread_name_prefix="ranks") as pool:
            putting = [pool.submit(put, segment) for segment in self._segments]
        # The pool has waited for all: after a failure no put goes on whose object nobody would drop.
        failed = next((one.exception() for one in putting if one.exception()), None)
        if failed is not None:
            self._writer.drop(_sizes([one.result() for one in putting if not one.exception()]))
            raise failed
        return tuple(one.result() for one in putting)

    def _put(self, sealed: bytes, number: int, records: int, *, is_ranks: bool) -> SealedObject:
        return SealedObject(
            number=number,
            holds_ranks=is_ranks,
            name=self._writer.put(sealed, self._claim.tag),
            digest=sha256(sealed).digest(),
            num_bytes=len(sealed),
            records=records,
        )


def tag_in(name: str) -> bytes:
    """Return the tag of the ad server in an object's name; empty if `ObjectWriter` did not make the name."""
    with suppress(ValueError, IndexError):
        return bytes.fromhex(name.split("/")[-2])
    return b""


def _sizes(objects: Sequence[SealedObject]) -> dict[str, int]:
    """Return the bytes of each object, by name."""
    return {one.name: one.num_bytes for one in objects}
