import os
from pathlib import Path

import pytest

from adserver.durable_file import write_durably


def test_what_is_written_is_read_back_and_nothing_else_is_left(tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "file"
    write_durably(target, b"first")
    write_durably(target, b"second")
    assert target.read_bytes() == b"second"
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_a_failure_before_the_rename_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    write_durably(target, b"old")

    def full(_descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_durably(target, b"new")
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
