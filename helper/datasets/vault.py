"""Opened datasets at rest: sealed objects in a folder or a bucket, which a manifest in the ledger names.

    writer = vault.begin(shape, owner)                  # while shares are opened
    vault.add(writer, rows)
    manifest = vault.commit(writer, dataset_id, ranks)  # every object is durable; the ledger names them
    for piece in vault.pieces(dataset_id): ...          # the next segments are read meanwhile, never all

So a restart costs no re-opening and a stolen disk shows no feature. Until a transaction of the ledger names
an object, it belongs to no dataset: a crash at any point leaves a whole dataset or orphans, which are swept
(`helper.datasets.sweeping`). A helper that was given a bucket still reads what it has in its folder.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final

from cryptography.exceptions import InvalidTag

from helper.datasets.frames import KeyFor, Ranks, SealedSegment, open_segment
from helper.datasets.sealed_segments import Tail, describe_segment, features_of, frames_in
from helper.datasets.segment_store import BucketStore, FolderStore, SegmentStore
from helper.datasets.segment_writer import ANY_SEGMENTS, ObjectWriter, SegmentPlan, SegmentWriter, tag_in
from helper.datasets.segments import RowShape, SegmentRows, SegmentSlice, put_together
from helper.datasets.storage_quota import StorageQuota
from helper.ledger.ledger import Ledger
from helper.ledger.records import Manifest, SealedObject
from helper.trust.floors import MOST_HELD_BYTES
from maskedlark.errors import HelperUnavailable, InvalidTask
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt, never
from maskedlark.randomness import Randomness, system_randomness
from maskedlark.reports.dataset import OpenedDataset
from maskedlark.runtime.disk import LEAST_FREE_BYTES, check_room
from maskedlark.runtime.objects import RETRY_AFTER_S, Listed, ObjectLost, ObjectStore

IN_FLIGHT: Final = 3
"""How many segments are read, or wait in memory, while one is computed on."""
_FOLDER_BYTES: Final = 8
_INTERRUPTED_EVERY_S: Final = 0.1


class VaultDamaged(Exception):
    """A stored dataset is missing or is not what this helper wrote.

    Local: to the peer, the dataset is unknown.
    """


@frozen
class _Segment:
    """The two objects of a segment."""

    rows: SealedObject
    ranks: SealedObject


class Vault:
    """The sealed datasets of one helper, which one process writes to. Safe to call from many threads."""

    def __init__(
        self,
        folder: Path,
        ledger: Ledger,
        key_for: KeyFor,
        *,
        bucket: ObjectStore | None = None,
        quota: StorageQuota | None = None,
        randomness: Randomness = system_randomness,
    ) -> None:
        """Open the folder, or create it; nothing is sent to the bucket yet.

        Each ledger of each helper has its own part of a folder or bucket, so helpers may share a bucket, and
        one that was started with another ledger by mistake takes no dataset for an orphan.

        Args:
            folder: Of files.
            ledger: Has the manifests.
            key_for: See `HelperKeys.vault_key`.
            bucket: Where new datasets go; None for the folder.
            quota: Counts what is stored, and what is to come; by default a new one.
            randomness: Of names and salts.

        Raises:
            InvalidTask: the ledger names datasets in a bucket, or of other keys, and no bucket is given.
        """

        def part(of: bytes) -> str:
            # Of the storage key: a name tells nobody else whose ledger it is of.
            return key_for(of + ledger.manifests.ledger_id())[:_FOLDER_BYTES].hex()

        self._ledger = ledger
        self._key_for = key_for
        self._randomness = randomness
        self._quota = quota or StorageQuota(MOST_HELD_BYTES, key_for)
        self._disk = FolderStore(folder)
        self._folder = part(b"folder on disk")
        self._stores: dict[str, SegmentStore] = {self._folder: self._disk}
        if bucket is not None:
            self._folder = part(b"folder in object storage")
            self._stores[self._folder] = BucketStore(bucket)
        elif not all(self._is_ours(name) for name, _ in ledger.manifests.sizes().values()):
            raise InvalidTask(
                "this ledger names datasets that are not in this data folder: they are in object storage "
                "(give it with --segments), or sealed with other keys"
            )
        self._objects = ObjectWriter(self._stores[self._folder], self._folder, randomness, self._quota)
        self._lacked_bytes = 0
        self._counting = Lock()
        self._is_counted = False
        # A bucket is asked with the first preparation: it may not answer while the helper starts.
        if bucket is None:
            self.count_once()

    def begin(self, shape: RowShape, owner: str, plan: SegmentPlan = ANY_SEGMENTS) -> SegmentWriter:
        """Return a writer of an ad server's records of a shape, in segments of a plan.

        Raises:
            HelperUnavailable: the bucket cannot be read at the moment, so it is not known what it holds.
        """
        self.count_once()
        claim = self._quota.claim(owner, f"{self._folder}/{self._randomness(_FOLDER_BYTES).hex()}")
        return SegmentWriter(
            self._objects, shape, claim, key_for=self._key_for, randomness=self._randomness, plan=plan
        )

    def add(self, writer: SegmentWriter, rows: SegmentRows) -> None:
        """Take records; a full segment is stored.

        Raises:
            JobRefused(QUOTA_EXCEEDED): they have no room in the ad server's quota.
            HelperUnavailable: the disk or the bucket is full or cannot be written.
        """
        with self._storing(writer):
            writer.add(rows)

    def commit(self, writer: SegmentWriter, dataset_id: bytes, ranks: Ranks) -> Manifest:
        """Store the records that have a rank as a dataset, durably, before the ledger commits it.

        May be called again with the same dataset: the manifest is the same then.

        Returns:
            What the ledger is to name in the transaction that commits the dataset.

        Raises:
            HelperUnavailable: the disk or the bucket is full or cannot be written.
        """
        with self._storing(writer):
            manifest = writer.store(dataset_id, ranks)
        self._lacked_bytes = 0
        return manifest

    @contextmanager
    def _storing(self, writer: SegmentWriter) -> Iterator[None]:
        """Map a failure of the disk; as much is lacking then as the whole dataset takes."""
        try:
            yield
        except OSError as error:
            # Health says so until one fits again: a disk with a little room is full for this dataset.
            self._lacked_bytes = writer.num_bytes
            raise HelperUnavailable(
                f"this helper cannot store the dataset ({error.strerror}): its operator must make room; ask "
                "again"
            ) from None

    def check_room(self) -> None:
        """Return if the disk has room: a little, and as much as the last dataset lacked that did not fit.

        Raises:
            HelperUnavailable: it has not.
        """
        check_room(self._disk.folder, max(LEAST_FREE_BYTES, self._lacked_bytes))

    def num_bytes(self, dataset_id: bytes) -> int:
        """Return how many bytes a dataset takes, sealed.

        Raises:
            VaultDamaged: the ledger names no objects of it.
        """
        with distinguish_damage():
            return sum(one.num_bytes for one in self._manifest(dataset_id))

    def read(
        self, dataset_id: bytes, interrupt: Interrupt = never, *, has_features: bool = True
    ) -> OpenedDataset:
        """Read all of a dataset; see `pieces`."""
        pieces = self.pieces(dataset_id, interrupt, has_features=has_features)
        with distinguish_damage(), closing(pieces):
            return put_together(dataset_id, pieces, self._segments(dataset_id)[1].records)

    def pieces(
        self,
        dataset_id: bytes,
        interrupt: Interrupt = never,
        *,
        has_features: bool = True,
        round_id: bytes = b"",
    ) -> Generator[SegmentSlice, None, None]:
        """Yield the chosen records of each segment, in order; skip segments without any.

        Args:
            dataset_id: The dataset.
            interrupt: Called while a segment is awaited; what it raises ends the reading.
            has_features: False where features are not needed: they have no width then, and those in the
                folder are not read.
            round_id: Of updates, their round's.

        Raises:
            VaultDamaged: it is missing, cut, altered, or another dataset's or round's; perhaps only after
                some pieces.
            HelperUnavailable: it cannot be read at the moment; perhaps only after some pieces.
        """
        with distinguish_damage():
            segments, tail = self._segments(dataset_id)
            found, coming, name = 0, iter(segments), dataset_id + round_id
            fetched: deque[Future[SegmentSlice | None]] = deque()
            pool = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="segments")

            def fetch_next() -> None:
                if (segment := next(coming, None)) is not None:
                    fetched.append(pool.submit(self._piece, segment, tail, name, has_features=has_features))

            try:
                for _ in range(IN_FLIGHT):
                    fetch_next()
                while fetched:
                    piece = _await(fetched.popleft(), interrupt)
                    fetch_next()  # before the piece is given out: it is read while the caller computes
                    if piece is not None:
                        found += len(piece.ranks)
                        yield piece
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # a caller that leaves waits for no read
            _check_found(found, tail)

    def read_sealed(
        self, dataset_id: bytes, interrupt: Interrupt = never, *, round_id: bytes = b""
    ) -> list[SealedSegment]:
        """Return each segment with a chosen record, still sealed; only ranks are read.

        Args:
            dataset_id: The dataset.
            interrupt: Called before ranks are read; what it raises ends the reading.
            round_id: Of updates, their round's.

        Raises:
            VaultDamaged: it is missing, cut, or another dataset's or round's.
            HelperUnavailable: it cannot be read at the moment.
        """

        def describe(segment: _Segment) -> SealedSegment:
            interrupt()
            return self._describe(segment, tail, dataset_id + round_id)

        with distinguish_damage():
            segments, tail = self._segments(dataset_id)
            with ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="ranks") as pool:
                found = list(pool.map(describe, segments))
            _check_found(sum(int(one.is_chosen.sum()) for one in found), tail)
            return [one for one in found if one.is_chosen.any()]

    def count_once(self) -> None:
        """Count in the quota what was stored before this process wrote or deleted anything.

        Datasets count as the ledger names them; objects that it does not name, by themselves.

        Raises:
            HelperUnavailable: the bucket cannot be read at the moment.
        """
        with self._counting:
            if self._is_counted:
                return
            for page in self.list_objects():
                named = self._ledger.manifests.select_named([one.name for one in page])
                for one in page:
                    if one.name not in named:
                        self._quota.count(one.name, tag_in(one.name), one.num_bytes)
            for dataset_id, (name, num_bytes) in self._ledger.manifests.sizes().items():
                self._quota.count(dataset_id.hex(), tag_in(name), num_bytes)
            self._is_counted = True

    def list_objects(self) -> Iterator[list[Listed]]:
        """Yield every object of this ledger, committed or not, in pages.

        Raises:
            HelperUnavailable: the bucket cannot be read at the moment.
        """
        for folder, store in self._stores.items():
            yield from store.list(folder)

    @property
    def held(self) -> frozenset[str]:
        """The names of objects of preparations that go on or may be committed."""
        return self._objects.held

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects that are of no dataset.

        Raises:
            HelperUnavailable, OSError: the bucket or the disk does not answer; some may be gone.
        """
        doomed = list(names)
        for folder, store in self._stores.items():
            store.delete([name for name in doomed if name.startswith(f"{folder}/")])
        # They count until they are gone: a quota that dropped them first could be exceeded.
        self._quota.drop(doomed)

    def forget(self, dataset_id: bytes, manifest: Manifest) -> None:
        """Give up the objects of a dataset that the ledger no longer names; `delete_dropped` deletes them."""
        self._objects.drop({one.name: one.num_bytes for one in manifest})  # they count until they are gone
        self._quota.drop([dataset_id.hex()])

    def delete_dropped(self) -> int:
        """Delete the objects that were given up; return how many.

        Raises:
            HelperUnavailable, OSError: the bucket or the disk does not answer; they go the next time.
        """
        dropped = self._objects.take_dropped()
        try:
            self.delete(dropped)
        except BaseException:
            self._objects.put_back(dropped)
            raise
        return len(dropped)

    def _segments(self, dataset_id: bytes) -> tuple[list[_Segment], Tail]:
        """Return the segments of a dataset, and how many records they have to hold."""
        stored, segments = self._ledger.dataset_of_any_task(dataset_id), _pair(self._manifest(dataset_id))
        if stored is None:
            raise ObjectLost("no such dataset")
        return segments, Tail(count=sum(one.rows.records for one in segments), records=stored.size)

    def _manifest(self, dataset_id: bytes) -> Manifest:
        manifest = self._ledger.manifests.of(dataset_id)
        if not manifest:
            raise ObjectLost("no objects of the dataset are known")
        return manifest

    def _read(self, one: SealedObject, gap: slice = slice(0, 0)) -> bytes:
        if not self._is_ours(one.name):
            raise ObjectLost("the dataset is in no store of this helper")
        with self._noting(one):
            return self._stores[_folder_in(one.name)].read(one, gap)

    @contextmanager
    def _noting(self, one: SealedObject) -> Iterator[None]:
        """Note the file or object that is at fault, for `distinguish_damage`."""
        try:
            yield
        except Exception as error:
            store = self._stores[_folder_in(one.name)]
            error.add_note(store.path(one.name).name if isinstance(store, FolderStore) else one.name)
            raise

    def _describe(self, segment: _Segment, tail: Tail, name: bytes) -> SealedSegment:
        read = partial(self._read, segment.rows)
        ranks, number = self._read(segment.ranks), segment.rows.number
        with self._noting(segment.ranks):
            return describe_segment(ranks, number, tail, name, key_for=self._key_for, read=read)

    def _piece(
        self, segment: _Segment, tail: Tail, name: bytes, *, has_features: bool
    ) -> SegmentSlice | None:
        """Return the chosen records of a segment; None if there are none."""
        one = self._describe(segment, tail, name)
        # Records that nobody chose are not read: only their ranks were.
        if not one.is_chosen.any():
            return None
        sealed = self._read(segment.rows, slice(0, 0) if has_features else features_of(one))
        with self._noting(segment.rows):
            frames = frames_in(sealed, one.place.header)
            rows = open_segment(one.shape, one.place, one.key, frames, has_features=has_features)
        return rows.chosen(one.ranks)

    def _is_ours(self, name: str) -> bool:
        return _folder_in(name) in self._stores


@contextmanager
def distinguish_damage() -> Iterator[None]:
    """Tell what is damaged from what cannot be read at the moment.

    Raises:
        VaultDamaged: an object is missing, cut, altered, or another dataset's.
        HelperUnavailable: the disk does not give it, or there are too many open files.
    """
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, InvalidTag, ObjectLost, ValueError) as error:
        where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        raise VaultDamaged(f"a stored dataset cannot be read: {type(error).__name__}{where}") from None
    except OSError as error:
        raise HelperUnavailable(
            f"this helper cannot read the dataset at the moment ({error.strerror}); ask again",
            retry_after_s=RETRY_AFTER_S,
        ) from None


def _folder_in(name: str) -> str:
    return name.partition("/")[0]


def _await(fetched: Future[SegmentSlice | None], interrupt: Interrupt) -> SegmentSlice | None:
    interrupt()
    # Not without end: a caller that has gone must not hold a thread until a bucket answers.
    while not wait([fetched], timeout=_INTERRUPTED_EVERY_S).done:
        interrupt()
    return fetched.result()


def _check_found(found: int, tail: Tail) -> None:
    if found != tail.records:
        raise ValueError("not as many records as were committed")


def _pair(manifest: Manifest) -> list[_Segment]:
    """Return the segments of a manifest, if it has no gaps."""
    segments = [
        _Segment(rows=rows, ranks=ranks) for rows, ranks in zip(manifest[::2], manifest[1::2], strict=True)
    ]
    # Told before anything is read. A missing last one shows as well: ranks open beside the right tail alone.
    for number, one in enumerate(segments):
        places = (one.rows.number, one.rows.holds_ranks, one.ranks.number, one.ranks.holds_ranks)
        if places != (number, False, number, True):
            raise ValueError("a manifest with gaps")
    return segments
