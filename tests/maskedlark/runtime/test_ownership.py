import os
from pathlib import Path
from typing import NamedTuple

import pytest

from maskedlark.errors import InvalidTask
from maskedlark.runtime import ownership
from maskedlark.runtime.ownership import (
    check_data_folder,
    check_loaded_folder,
    check_own,
    check_program,
    check_secret_file,
    keep_owner,
)

SOMEBODY = 4711


class Stat(NamedTuple):
    """What the system says of a file."""

    st_mode: int = 0o600
    st_uid: int = SOMEBODY
    st_gid: int = SOMEBODY


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "secret"
    made.touch(mode=0o600)
    return made


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604, 0o610])
def test_a_secret_that_others_may_read_is_refused_with_the_remedy(file: Path, mode: int) -> None:
    check_secret_file(file)
    file.chmod(mode)
    with pytest.raises(InvalidTask, match="chmod 600 it, treat a key in it as leaked, and rotate"):
        check_secret_file(file)
    assert file.stat().st_mode & 0o777 == mode  # it is not mended: the operator shall know


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o772, 0o1777])
def test_a_data_folder_that_others_may_write_into_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    check_data_folder(folder)
    folder.chmod(mode)
    with pytest.raises(InvalidTask, match="chmod 700"):
        check_data_folder(folder)


def test_what_belongs_to_another_user_is_refused_and_what_is_roots_is_not(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_own(file)
    monkeypatch.setattr(ownership, "_stat", lambda _: Stat())
    with pytest.raises(InvalidTask, match=f"belongs to user {SOMEBODY}"):
        check_own(file)
    monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)
    check_own(file)
    monkeypatch.setattr(ownership, "_stat", lambda _: Stat(st_uid=0))
    check_own(file)


def test_what_is_missing_is_refused(tmp_path: Path) -> None:
    for check in (check_own, check_secret_file, check_data_folder):
        with pytest.raises(InvalidTask, match="cannot read"):
            check(tmp_path / "absent")


def test_a_file_that_replaces_another_gets_its_owner(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda *asked: given.append(asked))
    with file.open("wb") as stream:
        keep_owner(stream.fileno(), file)
        assert given == []
        monkeypatch.setattr(ownership, "_stat", lambda _: Stat())
        keep_owner(stream.fileno(), file)
        assert given == [(stream.fileno(), SOMEBODY, SOMEBODY)]


def test_a_user_that_cannot_give_files_away_keeps_its_own(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    before = file.stat().st_uid
    monkeypatch.setattr(os, "fchown", refuse)
    monkeypatch.setattr(ownership, "_stat", lambda _: Stat())
    with file.open("wb") as stream:
        keep_owner(stream.fileno(), file)
    assert file.stat().st_uid == before


@pytest.fixture
def loops(tmp_path: Path) -> Path:
    made = tmp_path / "cache" / "loops"
    made.mkdir(mode=0o755, parents=True)
    (made / "loop.nbc").touch(mode=0o644)
    return made


def test_code_is_loaded_from_a_folder_that_its_user_or_root_alone_writes(loops: Path) -> None:
    check_loaded_folder(loops)
    check_loaded_folder(loops / "missing")
    loops.parent.chmod(0o1777)  # as /tmp
    check_loaded_folder(loops)


@pytest.mark.parametrize("where", ["loops/loop.nbc", "loops", "."])
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_code_is_not_loaded_from_where_others_may_write(loops: Path, where: str, mode: int) -> None:
    (loops.parent / where).chmod(mode)
    with pytest.raises(InvalidTask, match="loaded as code"):
        check_loaded_folder(loops)


@pytest.mark.parametrize("where", ["loop.nbc", "loops"])
def test_code_that_another_user_put_there_is_not_loaded(
    loops: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = ownership._stat
    monkeypatch.setattr(ownership, "_stat", lambda one: Stat() if one.name == where else looked_up(one))
    with pytest.raises(InvalidTask, match=f"belongs to user {SOMEBODY}"):
        check_loaded_folder(loops)


def test_an_installation_of_another_user_may_bring_its_loops(
    loops: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "_stat", lambda _: Stat())
    check_loaded_folder(loops, installed_with=file)
    with pytest.raises(InvalidTask, match="loaded as code"):
        check_loaded_folder(loops)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A link to a link to a program that lies elsewhere, two folders deep; the second is relative."""
    real = tmp_path / "opt" / "kms" / "program"
    real.parent.mkdir(mode=0o755, parents=True)
    real.touch(mode=0o700)
    for folder, target in (
        ("between", Path("../opt/kms/program")),
        ("bin", tmp_path / "between" / "program"),
    ):
        (tmp_path / folder).mkdir(mode=0o755)
        (tmp_path / folder / "program").symlink_to(target)
    return tmp_path / "bin" / "program"


PLACES = ["opt/kms/program", "opt/kms", "opt", "between", "bin"]


@pytest.mark.parametrize("where", PLACES)
def test_a_program_that_others_could_write_or_replace_is_not_run(program: Path, where: str) -> None:
    check_program(program)
    (program.parents[1] / where).chmod(0o777)
    with pytest.raises(InvalidTask, match="others may"):
        check_program(program)


@pytest.mark.parametrize("where", PLACES)
def test_a_program_on_whose_way_another_user_owns_something_is_not_run(
    program: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up, elses = ownership._stat, (program.parents[1] / where).stat()
    monkeypatch.setattr(
        ownership, "_stat", lambda one: Stat() if os.path.samestat(one.stat(), elses) else looked_up(one)
    )
    with pytest.raises(InvalidTask, match=f"belongs to user {SOMEBODY}"):
        check_program(program)


@pytest.mark.parametrize("folder", ["between", "bin"])
def test_a_program_behind_another_users_link_is_not_run(
    program: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, look_at = program.parents[1] / folder / "program", Path.lstat
    link.parent.chmod(0o1777)  # as /tmp, where anybody may put a link
    check_program(program)
    monkeypatch.setattr(
        Path, "lstat", lambda one: Stat(st_mode=look_at(one).st_mode) if one == link else look_at(one)
    )
    with pytest.raises(InvalidTask, match=f"belongs to user {SOMEBODY}"):
        check_program(program)


def test_a_program_is_named_by_an_absolute_path_and_lies_there(program: Path) -> None:
    for path, why in ((Path("program"), "absolute"), (program.with_name("absent"), "cannot read")):
        with pytest.raises(InvalidTask, match=why):
            check_program(path)
