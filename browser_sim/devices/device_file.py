"""A file of what simulated devices remember: a SQLite database whose commits are on the disk."""

import sqlite3
from pathlib import Path
from typing import Self


class DeviceFile:
    """One file, used by one thread; close it, or use it in a `with`."""

    def __init__(self, path: Path, tables: str) -> None:
        """Open the file, or make it with these tables."""
        # Nobody else on the machine may read what devices remember.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._database = sqlite3.connect(path)
        # FULL: a commit is on the disk when it returns, for what was sent must never be forgotten.
        self._database.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; {tables}")

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
