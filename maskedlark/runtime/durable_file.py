"""Files that are there in full or not at all, also after a power cut.

How checkpoints, models, curves, keys and the helpers' datasets are written.

>>> from tempfile import mkdtemp
>>> path = Path(mkdtemp()) / "model.bin"
>>> write_durably(path, b"weights")
>>> path.read_bytes()
b'weights'
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any, BinaryIO, Final

_UNFINISHED: Final = ".maskedlark-unfinished"


def write_durably(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step: a temporary file, flushed to the disk, is renamed over it.

    Guarantees: a reader, or a process started after a crash at any point, sees the old content or the new
        one. What a writer that was killed left in the folder is removed.

    Raises:
        OSError: the disk refused, of `path`; the old content stands.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished(path.parent)
        with _lock_temporary(path) as temporary:
            try:
                temporary.write(content)
                _put_in_place(temporary, Path(temporary.name), path)
            except BaseException:
                Path(temporary.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        # A full disk names no file, and others name the temporary one
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def replacing(path: Path, unfinished: Path) -> Iterator[BinaryIO]:
    """Open a private new file that becomes `path`, durably, when the block ends.

    For folders that one process writes to. If the block raises, `path` stays as it was and nothing is left.

    Args:
        path: What is replaced, or made.
        unfinished: Where the new file is written, in the same folder.
    """
    # Left by a process that was killed; this is the folder's only writer.
    unfinished.unlink(missing_ok=True)
    try:
        with open(unfinished, "xb", opener=private) as stream:
            yield stream
            _put_in_place(stream, unfinished, path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def _put_in_place(stream: IO[Any], unfinished: Path, path: Path) -> None:
    """Flush a finished file to the disk, and rename it over `path`.

    The rename is durable when this returns.
    """
    stream.flush()
    # Before the rename: else a power cut could leave the new name with an empty file.
    os.fsync(stream.fileno())
    unfinished.replace(path)
    _sync_folder(path.parent)


def private(path: str, flags: int) -> int:
    """Open a file that only its owner can read and write."""
    return os.open(path, flags, 0o600)


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files of writers that were killed.

    Those of writers at work are locked, and stay.
    """
    for found in folder.glob(f".*{_UNFINISHED}"):
        with suppress(OSError), found.open("rb") as left:  # locked, finished meanwhile, or not ours to remove
            fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.unlink()


@contextmanager
def _lock_temporary(path: Path) -> Iterator[IO[Any]]:
    """Open a new file next to `path`, locked for as long as it is open.

    The system takes the lock from a writer that dies.
    """
    while True:
        with NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", suffix=_UNFINISHED, delete=False
        ) as temporary:
            with suppress(OSError):  # a file system without locks, where nothing is ever removed
                fcntl.flock(temporary, fcntl.LOCK_EX)
            if os.fstat(temporary.fileno()).st_nlink:  # else it was removed before it was locked
                yield temporary
                return


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
