"""Files that are there in full or not at all, also after a power cut: how checkpoints, models and curves are written."""

import os
from pathlib import Path
from tempfile import NamedTemporaryFile


def write_durably(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step: a temporary file, flushed to the disk, is renamed over it.

    Guarantees: a reader, or a process started after a crash at any point, sees the old content or the new one.

    Raises:
        OSError: the disk refused; the old content stands.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as temporary:
        try:
            temporary.write(content)
            temporary.flush()
            os.fsync(temporary.fileno())
            Path(temporary.name).replace(path)
        except BaseException:
            Path(temporary.name).unlink(missing_ok=True)
            raise
    _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
