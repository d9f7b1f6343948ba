import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from adserver.store.job_folder import JobFolder
from maskedlark.runtime.durable_file import remove_unfinished, write_durably
from tests.patience import HANGS_S


def test_what_is_written_is_read_back_and_nothing_else_is_left(tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "file"
    write_durably(target, b"first")
    write_durably(target, b"second")
    assert target.read_bytes() == b"second"
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_a_failure_before_the_rename_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file"
    write_durably(target, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as the system does, which names no file

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as refused:
        write_durably(target, b"new")
    assert refused.value.filename == str(target)
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def killed_in(folder: Path, name: str) -> Path:
    """What a process that is killed in the middle of a write leaves behind."""
    script = (
        "import os, signal, sys; from pathlib import Path; from maskedlark.runtime.durable_file import "
        "write_durably; "
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL); write_durably(Path(sys.argv[1]), b'half')"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(folder / name)], check=False, timeout=HANGS_S)
    assert ended.returncode == -signal.SIGKILL
    (left,) = (path for path in folder.iterdir() if name in path.name)
    return left


def test_what_a_killed_writer_left_is_removed_by_the_next_write_to_the_folder(tmp_path: Path) -> None:
    left = killed_in(tmp_path, "checkpoint-00000004.npz")
    others = tmp_path / ".somebody-elses"
    others.write_bytes(b"")
    write_durably(tmp_path / "checkpoint-00000005.npz", b"whole")
    assert not left.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [others.name, "checkpoint-00000005.npz"]


def test_what_killed_writers_left_in_jobs_that_end_is_removed_at_the_start(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path, b"j" * 16)
    folder.write_checkpoint(b"first", rounds_done=1)
    left = killed_in(folder.path, "checkpoint-00000002.npz")
    JobFolder.remove_unfinished(tmp_path)
    assert not left.exists()
    assert folder.checkpoint() == b"first"


def test_a_writer_at_work_keeps_its_file_while_others_write_and_tidy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, seen = os.fsync, []

    def meanwhile(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", flush)
        write_durably(tmp_path / "other", b"other")
        seen.append(len(list(tmp_path.iterdir())))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", meanwhile)
    write_durably(tmp_path / "mine", b"mine")
    assert seen == [2]
    assert [(tmp_path / name).read_bytes() for name in ("mine", "other")] == [b"mine", b"other"]


def test_a_writer_whose_file_is_removed_before_it_is_locked_takes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock

    def late(file: Any, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        remove_unfinished(tmp_path)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    write_durably(tmp_path / "mine", b"mine")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"mine": b"mine"}
