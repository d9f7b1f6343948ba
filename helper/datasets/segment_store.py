"""Where a helper's sealed objects are: in a folder of its disk, or in a bucket. Both hold the same bytes.

    store = FolderStore(folder)                       # or BucketStore(open_bucket("s3://bucket/prefix"))
    name = store.put_fresh(fresh_name, content)       # durable when it returns
    content = store.read(one)                         # these bytes, or a typed error

An object is written once, under a name that was never used, and is never changed.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from helper.ledger.records import SealedObject
from maskedlark.runtime.durable_file import replacing
from maskedlark.runtime.objects import Listed, ObjectLost, Retrying

_SUFFIX: Final = ".sealed"
_UNFINISHED: Final = ".unfinished"
_NO_GAP: Final = slice(0, 0)


class SegmentStore(Protocol):
    """Sealed objects by name. Safe to call from many threads.

    A store on a disk raises `OSError`, one elsewhere `HelperUnavailable`, for what may succeed later.
    """

    def put_fresh(self, fresh_name: Callable[[], str], content: bytes) -> str:
        """Write an object durably, under a name that is made for each try; return the name that it has."""

    def read(self, one: SealedObject, gap: slice = _NO_GAP) -> bytes:
        """Return the bytes of an object without those of a gap, which a folder does not read at all.

        Raises:
            ObjectLost, FileNotFoundError: the object is missing, or has another length.
        """

    def list(self, folder: str) -> Iterator[list[Listed]]:
        """List the objects whose names begin with a folder, in pages."""

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; names that are not there are no error."""


class FolderStore:
    """A `SegmentStore` of files in one folder, which one process writes to.

    The seals of an object show whether its bytes are those that were put, so no digest is computed here.
    """

    def __init__(self, folder: Path) -> None:
        """Create the folder, private to its owner, and remove files that a killed process left half."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for unfinished in folder.glob(f"*{_UNFINISHED}"):
            unfinished.unlink(missing_ok=True)
        self.folder = folder

    def put_fresh(self, fresh_name: Callable[[], str], content: bytes) -> str:
        """See `SegmentStore`."""
        name = fresh_name()
        path = self.path(name)
        # Whole or not there: a crash while it is written leaves only what the next start removes.
        with replacing(path, path.with_suffix(_UNFINISHED)) as stream:
            stream.write(content)
        return name

    def read(self, one: SealedObject, gap: slice = _NO_GAP) -> bytes:
        """See `SegmentStore`."""
        with self.path(one.name).open("rb") as stream:
            if stream.seek(0, 2) != one.num_bytes:  # before anything is allocated for it
                raise ObjectLost("an object is not as long as the one that was put")
            stream.seek(0)
            before = stream.read(gap.start)
            stream.seek(gap.stop)
            return before + stream.read()

    def list(self, folder: str) -> Iterator[list[Listed]]:
        """See `SegmentStore`."""
        found = []
        for path in self.folder.glob(f"{folder}.*{_SUFFIX}"):
            with suppress(FileNotFoundError):  # deleted meanwhile
                about, name = path.stat(), path.stem.replace(".", "/")
                found.append(Listed(name=name, num_bytes=about.st_size, modified_s=about.st_mtime))
        yield found

    def delete(self, names: Iterable[str]) -> None:
        """See `SegmentStore`."""
        for name in names:
            self.path(name).unlink(missing_ok=True)

    def path(self, name: str) -> Path:
        """Return the file of an object."""
        # One folder holds all files: a dot stands for the slash of a name.
        return self.folder / f"{name.replace('/', '.')}{_SUFFIX}"


class BucketStore(Retrying):
    """A `SegmentStore` in a bucket; each read is compared with the digest of what was put."""

    def read(self, one: SealedObject, gap: slice = _NO_GAP) -> bytes:
        """See `SegmentStore`."""
        # The gap too: the digest is of the whole object.
        content = self.read_exactly(one.name, one.num_bytes, one.digest)
        return content[: gap.start] + content[gap.stop :] if gap.stop else content
