"""A helper that finds its secrets open to others, or another user's, does not serve from them."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

import pytest

from helper.serving.server import HelperSettings, serve
from helper.trust.floors import Floors
from helper.trust.keys import FILE_NAME, HelperKeys, rotate
from maskedlark.errors import InvalidTask
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.rpc.certificates import write_certificate
from maskedlark.runtime import ownership
from maskedlark.runtime.folder_lock import only_process
from tests.builders import NOW
from tests.maskedlark.runtime.test_ownership import SOMEBODY, Stat

Holds = Callable[[Path], AbstractContextManager[None]]


def _serving(data: Path) -> AbstractContextManager[None]:
    return only_process(data, "helper", "use another folder")


@contextmanager
def _rotating(data: Path) -> Iterator[None]:
    rotate(data, now=NOW, suite=HpkeSuite.X25519_AES128GCM, active_in_s=0, overlap_s=60)
    yield


@pytest.fixture
def settings(tmp_path: Path) -> HelperSettings:
    data = tmp_path / "data"
    HelperKeys.generate(name="north", suite=HpkeSuite.X25519_AES128GCM).write(data)
    tls = write_certificate(data, name="localhost", now=datetime.now(UTC))
    return HelperSettings(data=data, listen="127.0.0.1:0", tls=tls, floors=Floors())


def refusal(settings: HelperSettings) -> str:
    with pytest.raises(InvalidTask) as refused:
        serve(settings, Event())
    return str(refused.value)


@pytest.mark.parametrize("name", ["tls.key", FILE_NAME])
def test_a_secret_that_others_may_read_is_not_served_from(settings: HelperSettings, name: str) -> None:
    (settings.data / name).chmod(0o644)
    assert f"{name} may be read by others: chmod 600 it" in refusal(settings)


def test_a_data_folder_that_others_may_write_into_is_not_served_from(settings: HelperSettings) -> None:
    settings.data.chmod(0o777)
    assert "others may write into" in refusal(settings)


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
@pytest.mark.parametrize("name", ["trusted.crt", "trusted.names", "tls.crt"])
def test_what_says_who_is_trusted_is_not_believed_while_others_may_write_it(
    settings: HelperSettings, name: str, mode: int
) -> None:
    (settings.data / name).touch()
    (settings.data / name).chmod(mode)
    assert f"others may write {settings.data / name}: chmod go-w it" in refusal(settings)


def test_keys_are_made_for_their_owner_to_write_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files = write_certificate(tmp_path, name="localhost", now=datetime.now(UTC))
    finally:
        os.umask(before)
    files.read()
    assert {path.stat().st_mode & 0o022 for path in tmp_path.iterdir()} == {0}


@pytest.mark.parametrize("holds", [_serving, _rotating])
def test_a_lock_can_be_held_by_no_other_user(settings: HelperSettings, holds: Holds) -> None:
    """Whoever may open a file may lock it, and a service that waits for it, or gives up, is stopped."""
    before = os.umask(0)
    try:
        for name in ("lock", "keys.lock"):
            (settings.data / name).touch(mode=0o666)
        with holds(settings.data):
            pass
    finally:
        os.umask(before)
    name = "lock" if holds is _serving else "keys.lock"
    assert (settings.data / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", [FILE_NAME, "tls.key", "tls.crt", "trusted.crt", "data"])
def test_what_another_user_owns_is_not_served_from(
    settings: HelperSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = ownership._stat
    monkeypatch.setattr(ownership, "_stat", lambda path: Stat() if path.name == name else looked_up(path))
    assert f"belongs to user {SOMEBODY}" in refusal(settings)


def test_a_rotation_by_root_leaves_the_files_to_their_owner(
    settings: HelperSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []
    looked_up = ownership._stat
    monkeypatch.setattr(
        ownership, "_stat", lambda path: Stat() if path.name == FILE_NAME else looked_up(path)
    )
    monkeypatch.setattr(os, "fchown", lambda _descriptor, user, group: given.append((user, group)))
    rotate(settings.data, now=NOW, suite=HpkeSuite.X25519_AES128GCM, active_in_s=0, overlap_s=60)
    assert given == [(SOMEBODY, SOMEBODY)] * 2  # the key file and its lock
