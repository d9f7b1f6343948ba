"""Checks of the owners and modes of secret files and data folders, made before a party serves from them.

They are never corrected silently: a server that changed a file's mode would hide that others may already have
read the secret.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from maskedlark.errors import InvalidSetting

_OTHERS: Final = 0o077
_OTHERS_WRITE: Final = 0o022
_ROOT: Final = 0
_PRIVATE_FOLDER: Final = 0o700


def check_secret_file(path: Path) -> None:
    """Return if only a file's owner may read it.

    Raises:
        InvalidSetting: others may, or the file cannot be looked at.
    """
    if _stat(path).st_mode & _OTHERS:
        raise InvalidSetting(
            f"{path} may be read by others: chmod 600 it, treat a key in it as leaked, and rotate that"
        )


def check_own(path: Path) -> None:
    """Return if a file or folder belongs to this process's user, or to root, which may do anything anyway.

    Raises:
        InvalidSetting: another user owns it, and could replace it.
    """
    _check_owner(path, _stat(path).st_uid)


def make_folder(folder: Path) -> None:
    """Make a party's data folder, which nobody else may look into, unless it exists.

    Raises:
        InvalidSetting: it is a file, or cannot be made.
    """
    try:
        folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
    except FileExistsError:
        raise InvalidSetting(f"{folder} is not a folder: choose another name with --data") from None
    except OSError as error:
        raise InvalidSetting(f"cannot make the folder {folder}: {error.strerror}") from None


def check_is_folder(folder: Path) -> None:
    """Return if a party's data folder exists.

    Raises:
        InvalidSetting: it does not, or is a file.
    """
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise InvalidSetting(
            f"{folder} {what}: --data is the folder in which `keygen` made this party's keys; correct it, or "
            "run `lark-helper keygen` or `adserver keygen` first"
        )


def check_data_folder(folder: Path) -> None:
    """Return if a party may serve from a data folder: it owns the folder, and no other user may write to it.

    Raises:
        InvalidSetting: it is not.
    """
    check_own(folder)
    if _stat(folder).st_mode & _OTHERS_WRITE:
        raise InvalidSetting(f"others may write into {folder}: chmod 700 it, and see whether they did")


def check_not_writable(path: Path) -> None:
    """Return if only a file's owner may write it. A device such as /dev/null is accepted: it holds nothing.

    Raises:
        InvalidSetting: others may, or the file cannot be looked at.
    """
    mode = _stat(path).st_mode
    if stat.S_ISREG(mode) and mode & _OTHERS_WRITE:
        raise InvalidSetting(f"others may write {path}: chmod go-w it, and see whether they did")


def check_program(path: Path) -> None:
    """Return if a file may be run or loaded: only this user and root can change or replace it.

    Looked at are the file, and every folder and link on the way to it; a folder that others may write is
    accepted only if it is sticky, as /tmp is.

    Raises:
        InvalidSetting: another user can, or the path is not absolute and so may lead to another file.
    """
    if not path.is_absolute():
        raise InvalidSetting(f"{path} is run as code: give its absolute path")
    check_own(path)  # and that links end
    check_not_writable(path)
    # Step by step: `resolve` would skip the links in between, which their owners could point elsewhere.
    at, ahead = Path(path.root), [*reversed(path.parts)]
    while ahead:
        name = ahead.pop()
        if name == "..":
            at = at.parent
            continue
        one = at / name  # the root, of a name that is the root
        check_own(at)
        _check_around(one)
        if one.is_symlink():
            _check_owner(one, one.lstat().st_uid)  # who may point it elsewhere in a sticky folder
            ahead += reversed(one.readlink().parts)
        else:
            at = one


def check_loaded_folder(folder: Path, *, installed_with: Path | None = None) -> None:
    """Return if what lies in a folder may be loaded as code: it was put there by this user, or by root.

    Args:
        folder: With its files; it need not be there. The folder that it is in may be written by others only
            if it is sticky, as /tmp is.
        installed_with: A file of the program: its owner, whose code runs anyway, may own the folder too.

    Raises:
        InvalidSetting: another user owns or may write the folder or a file in it, and so could run code here.
    """
    if not folder.exists():
        return
    owners = {os.geteuid(), _ROOT} | ({_stat(installed_with).st_uid} if installed_with else set())
    for path in (folder, *folder.iterdir()):
        found = _stat(path)
        if found.st_uid not in owners or found.st_mode & _OTHERS_WRITE:
            raise InvalidSetting(
                f"{path} belongs to user {found.st_uid} with mode {stat.filemode(found.st_mode)}, and what it"
                " holds is loaded as code: remove it, or chown it and chmod go-w it"
            )
    _check_around(folder)


def keep_owner(descriptor: int, like: Path) -> None:
    """Give an open file the owner of another one that it is to replace, when root does the operator's work.

    Another user than root cannot, and need not: what it writes is its own.
    """
    found = _stat(like)
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (found.st_uid, found.st_gid):
        with suppress(PermissionError):
            os.fchown(descriptor, found.st_uid, found.st_gid)


def _check_owner(path: Path, owner: int) -> None:
    if owner not in (os.geteuid(), _ROOT):
        raise InvalidSetting(
            f"{path} belongs to user {owner}, and this process runs as {os.geteuid()}: run it as its owner, "
            "or chown it"
        )


def _check_around(path: Path) -> None:
    around = _stat(path.parent).st_mode
    if around & _OTHERS_WRITE and not around & stat.S_ISVTX:
        raise InvalidSetting(f"others may replace {path}, which is loaded as code: chmod go-w {path.parent}")


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise InvalidSetting(f"cannot read {path}: {error.strerror}") from None
