"""Datasets in object storage: segments and ranks as objects, which a manifest in the ledger names.

    objects = ObjectSegments(Retrying(store), ledger, keys.vault_key)
    spool = objects.begin(shape, owner)               # see `helper.datasets.object_spool`
    for piece in objects.pieces(dataset_id): ...      # the next segments are fetched meanwhile

Until a transaction of the ledger names an object, it belongs to no dataset: a crash at any point leaves a
whole dataset or orphans, which are swept (`helper.datasets.sweeping`).
"""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from threading import Lock
from typing import Final

from helper.datasets.frames import KeyFor, SealedSegment
from helper.datasets.object_spool import ObjectSpool, ObjectWriter, tag_in
from helper.datasets.sealed_segments import (
    Tail,
    is_of_one_attempt,
    open_ranks,
    open_rows,
    seal_ranks,
)
from helper.datasets.segments import NOT_CHOSEN, RowShape, SegmentSlice, chosen_of
from helper.datasets.storage_quota import StorageQuota
from helper.ledger.ledger import Ledger
from helper.ledger.records import Manifest, SealedObject
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt, never
from maskedlark.randomness import Randomness, system_randomness
from maskedlark.runtime.objects import Listed, ObjectLost, Retrying, read_exactly

IN_FLIGHT: Final = 3
"""How many segments are fetched, or wait in memory, while one is computed on."""
_FOLDER_BYTES: Final = 8
_INTERRUPTED_EVERY_S: Final = 0.1


@frozen
class _Segment:
    """The two objects of a segment."""

    rows: SealedObject
    ranks: SealedObject


class ObjectSegments:
    """The datasets of one helper in a store, which one process writes to. Safe to call from many threads."""

    def __init__(
        self,
        store: Retrying,
        ledger: Ledger,
        key_for: KeyFor,
        quota: StorageQuota,
        randomness: Randomness = system_randomness,
    ) -> None:
        """Send nothing to the store yet.

        Helpers may share one: each has a folder of its own. So has each ledger of a helper: one that was made
        anew by mistake does not take an older one's objects for orphans.
        """
        self._folder = key_for(b"folder in object storage" + ledger.manifests.ledger_id())[
            :_FOLDER_BYTES
        ].hex()
        self._store = store
        self._ledger = ledger
        self._key_for = key_for
        self._randomness = randomness
        self._quota = quota
        self._counting = Lock()
        self._is_counted = False
        self.writer = ObjectWriter(store, self._folder, randomness, quota)

    def begin(self, shape: RowShape, owner: str) -> ObjectSpool:
        """Return a spool of an ad server for records of a shape.

        Raises:
            HelperUnavailable: the store cannot be read at the moment, so it is not known what it holds.
        """
        self.count_once()
        claim = self._quota.claim(owner, f"{self._folder}/{self._randomness(_FOLDER_BYTES).hex()}")
        return ObjectSpool(self.writer, shape, self._key_for, self._randomness, claim)

    def count_once(self) -> None:
        """Count in the quota what lay in the store before this process put or deleted anything.

        Datasets count as the ledger names them; objects that it does not name, by themselves.

        Raises:
            HelperUnavailable: the store cannot be read at the moment.
        """
        with self._counting:
            if self._is_counted:
                return
            for page in self.listed():
                named = self._ledger.manifests.named_among([one.name for one in page])
                for one in page:
                    if one.name not in named:
                        self._quota.count(one.name, tag_in(one.name), one.num_bytes)
            for dataset_id, (name, num_bytes) in self._ledger.manifests.sizes().items():
                self._quota.count(dataset_id.hex(), tag_in(name), num_bytes)
            self._is_counted = True

    def num_bytes(self, dataset_id: bytes) -> int:
        """Return how many bytes the objects of a dataset have.

        Raises:
            ObjectLost: it has none.
        """
        return sum(one.num_bytes for one in self._manifest(dataset_id))

    def records(self, dataset_id: bytes) -> int:
        """Return how many records a dataset has.

        Raises:
            ObjectLost: the ledger does not know it.
        """
        stored = self._ledger.dataset_of_any_task(dataset_id)
        if stored is None:
            raise ObjectLost("no such dataset")
        return stored.size

    def sealed(self, one: SealedObject) -> bytes:
        """Return the bytes of one object, still sealed.

        Raises:
            ObjectLost: it is missing, cut, or another one.
            HelperUnavailable: the store cannot be read at the moment.
        """
        return read_exactly(self._store, one.name, one.num_bytes, one.digest)

    def pieces(self, dataset_id: bytes, interrupt: Interrupt = never) -> Generator[SegmentSlice, None, None]:
        """Yield the chosen records of each segment, in order; skip segments without any.

        Args:
            dataset_id: The dataset.
            interrupt: Called while a segment is awaited; what it raises ends the reading.

        Raises:
            ObjectLost, ValueError, InvalidTag: what lies there is not what was put, perhaps only after some
                pieces.
            HelperUnavailable: the store cannot be read at the moment.
        """
        segments = _pair(self._manifest(dataset_id))
        tail = Tail(count=sum(one.rows.records for one in segments), records=self.records(dataset_id))
        found = 0
        coming = iter(segments)
        fetched: deque[Future[SegmentSlice | None]] = deque()
        pool = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="segments")

        def fetch_next() -> None:
            if (segment := next(coming, None)) is not None:
                fetched.append(pool.submit(self._piece, segment, tail, dataset_id))

        try:
            for _ in range(IN_FLIGHT):
                fetch_next()
            while fetched:
                piece = _await(fetched.popleft(), interrupt)
                fetch_next()
                if piece is not None:
                    found += len(piece.ranks)
                    yield piece
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # who leaves does not wait for what is on its way
        if found != tail.records:
            raise ValueError("not as many records as it says")

    def sealed_segments(
        self, dataset_id: bytes, interrupt: Interrupt = never
    ) -> Generator[SealedSegment, None, None]:
        """Yield each segment with a chosen record, still in the store; only ranks are fetched.

        Args:
            dataset_id: The dataset.
            interrupt: Called before each fetch; what it raises ends the reading.

        Raises:
            ObjectLost, ValueError, InvalidTag: what lies there is not what was put.
            HelperUnavailable: the store cannot be read at the moment.
        """
        segments = _pair(self._manifest(dataset_id))
        tail = Tail(count=sum(one.rows.records for one in segments), records=self.records(dataset_id))
        found = 0

        def ranks_of(segment: _Segment) -> bytes:
            interrupt()
            return self.sealed(segment.ranks)

        with ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="ranks") as pool:
            for segment, sealed_ranks in zip(segments, pool.map(ranks_of, segments), strict=True):
                ranks = open_ranks(sealed_ranks, segment.rows.number, tail, dataset_id, self._key_for)
                found += int((ranks != NOT_CHOSEN).sum())
                if not (ranks == NOT_CHOSEN).all():
                    yield seal_ranks(
                        sealed_ranks,
                        ranks,
                        segment.rows.number,
                        self._key_for,
                        partial(self.sealed, segment.rows),
                    )
        if found != tail.records:
            raise ValueError("not as many records as it says")

    def listed(self) -> Iterator[list[Listed]]:
        """Yield everything in this helper's folder, in pages.

        Raises:
            HelperUnavailable: the store cannot be read at the moment.
        """
        return self._store.list(self._folder)

    def delete(self, names: list[str]) -> None:
        """Remove objects that are of no dataset.

        Raises:
            HelperUnavailable: the store does not answer; some may be gone.
        """
        self._store.delete(names)
        self._quota.drop(names)

    def delete_dataset(self, dataset_id: bytes, manifest: Manifest) -> None:
        """Remove the objects of a dataset that the ledger no longer names.

        Raises:
            HelperUnavailable: the store does not answer; what is left is swept as orphans.
        """
        for one in manifest:  # they count until they are gone
            self._quota.count(one.name, tag_in(one.name), one.num_bytes)
        self._quota.drop([dataset_id.hex()])
        self.delete([one.name for one in manifest])

    def _manifest(self, dataset_id: bytes) -> Manifest:
        manifest = self._ledger.manifests.of(dataset_id)
        if not manifest:
            raise ObjectLost("no objects of the dataset are known")
        return manifest

    def _piece(self, segment: _Segment, tail: Tail, dataset_id: bytes) -> SegmentSlice | None:
        """Return the chosen records of a segment; None if there are none."""
        number = segment.rows.number
        sealed_ranks = self.sealed(segment.ranks)
        ranks = open_ranks(sealed_ranks, number, tail, dataset_id, self._key_for)
        if (ranks == NOT_CHOSEN).all():
            return None
        sealed_rows = self.sealed(segment.rows)
        if not is_of_one_attempt(sealed_rows, sealed_ranks):
            raise ValueError("records and ranks of two attempts")
        return chosen_of(open_rows(sealed_rows, number, self._key_for), ranks)


def _await(fetched: Future[SegmentSlice | None], interrupt: Interrupt) -> SegmentSlice | None:
    interrupt()
    while not wait([fetched], timeout=_INTERRUPTED_EVERY_S).done:
        interrupt()
    return fetched.result()


def _pair(manifest: Manifest) -> list[_Segment]:
    """Return the segments of a manifest, if it has no gaps."""
    segments = [
        _Segment(rows=rows, ranks=ranks) for rows, ranks in zip(manifest[::2], manifest[1::2], strict=True)
    ]
    for number, one in enumerate(segments):
        places = (one.rows.number, one.rows.holds_ranks, one.ranks.number, one.ranks.holds_ranks)
        if places != (number, False, number, True):
            raise ValueError("a manifest with gaps")
    return segments
