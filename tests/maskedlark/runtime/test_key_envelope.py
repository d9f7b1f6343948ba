"""Secrets that a token or a KMS wraps: a real PKCS#11 token (SoftHSM), a program, and what fails closed."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Final

import pytest

from helper.trust import keys as helper_keys
from helper.trust.keys import HelperKeys
from maskedlark.errors import InvalidTask
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.rpc import certificates
from maskedlark.rpc.certificates import write_certificate
from maskedlark.rpc.renewal import activate, prepare
from maskedlark.rpc.tls_files import TlsFiles, server_context
from maskedlark.runtime import key_envelope
from maskedlark.runtime.key_envelope import (
    COMMAND_VARIABLE,
    MODULE_VARIABLE,
    PIN_VARIABLE,
    keeper_of,
    read_secret,
    wrap_file,
)
from tests.patience import HANGS_S
from tests.programs import do_without

TOKEN: Final = "pkcs11:token=lark;object=kek"  # noqa: S105  a label
REQUIRED: Final = "MASKEDLARK_REQUIRE_SOFTHSM"
MODULES: Final = ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib64/pkcs11/libsofthsm2.so")
PROGRAM: Final = """#!{python}
import sys
from pathlib import Path
from cryptography.hazmat.primitives.keywrap import aes_key_unwrap, aes_key_wrap
kek, calls = Path({folder!r}, "kek"), Path({folder!r}, "calls")
calls.write_text((calls.read_text() if calls.exists() else "") + sys.argv[1] + " ")
act = {{"wrap": aes_key_wrap, "unwrap": aes_key_unwrap}}[sys.argv[1]]
sys.stdout.buffer.write(act(kek.read_bytes(), sys.stdin.buffer.read()))
"""


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> Iterator[None]:
    key_envelope._unwrap_once.cache_clear()
    key_envelope._refused.clear()
    yield
    key_envelope._unwrap_once.cache_clear()


@pytest.fixture
def kms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a program that stands for a KMS."""
    folder = tmp_path / "kms"
    folder.mkdir()
    (folder / "kek").write_bytes(os.urandom(32))
    program = folder / "program"
    program.write_text(PROGRAM.format(python=sys.executable, folder=str(folder)))
    program.chmod(0o700)
    monkeypatch.setenv(COMMAND_VARIABLE, str(program))
    return folder


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new token of SoftHSM with a key that cannot leave it; the folder of its objects."""
    module = os.environ.get(MODULE_VARIABLE) or next(filter(os.path.exists, MODULES), None)
    if module is None or shutil.which("softhsm2-util") is None:
        do_without("no SoftHSM: install the package softhsm2", REQUIRED)
    if find_spec("pkcs11") is None:
        do_without("no python-pkcs11: install the extra pkcs11", REQUIRED)
    folder = tmp_path / "tokens"
    folder.mkdir()
    (tmp_path / "softhsm2.conf").write_text(f"directories.tokendir = {folder}\nlog.level = ERROR\n")
    (tmp_path / "pin").touch(0o600)
    (tmp_path / "pin").write_text("5678\n")
    monkeypatch.setenv("SOFTHSM2_CONF", str(tmp_path / "softhsm2.conf"))
    monkeypatch.setenv(MODULE_VARIABLE, module)
    monkeypatch.setenv(PIN_VARIABLE, str(tmp_path / "pin"))
    initialise = "softhsm2-util --init-token --free --label lark --so-pin 1234 --pin 5678"
    subprocess.run(initialise.split(), check=True, capture_output=True)
    make = (
        "import pkcs11, sys; A = pkcs11.Attribute;"
        "token = pkcs11.lib(sys.argv[1]).get_token(token_label='lark');"
        "session = token.open(rw=True, user_pin='5678');"
        "session.generate_key(pkcs11.KeyType.AES, 256, label='kek', store=True,"
        " template={A.EXTRACTABLE: False, A.SENSITIVE: True})"
    )
    subprocess.run([sys.executable, "-c", make, module], check=True, capture_output=True)
    return folder


def secret(tmp_path: Path, content: bytes = b"a very secret secret") -> Path:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_bytes(content)
    return path


IN_A_PROCESS_OF_ITS_OWN: Final = """
import sys
from pathlib import Path
from maskedlark.runtime.key_envelope import read_secret, wrap_file
path = Path(sys.argv[1])
wrap_file(path, sys.argv[2])
assert b"very secret" not in path.read_bytes()
sys.stdout.buffer.write(read_secret(path))
"""
READ: Final = """
import sys
from pathlib import Path
from maskedlark.runtime.key_envelope import read_secret
read_secret(Path(sys.argv[1]))
"""


def test_a_token_wraps_and_unwraps(tmp_path: Path, token: Path) -> None:
    """SoftHSM reads its configuration once a process, so each use has one."""
    path = secret(tmp_path)
    command = [sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN, str(path), TOKEN]
    assert subprocess.run(command, check=True, capture_output=True).stdout == b"a very secret secret"
    assert keeper_of(path) == TOKEN
    assert path.stat().st_mode & 0o077 == 0
    assert not any(b"very secret" in one.read_bytes() for one in token.rglob("*") if one.is_file())
    (tmp_path / "wrong").touch(0o600)
    (tmp_path / "wrong").write_text("0000")
    for change in ({PIN_VARIABLE: str(tmp_path / "wrong")}, {}):
        if not change:
            shutil.rmtree(token)  # the token is gone
        failed = subprocess.run(
            [sys.executable, "-c", READ, str(path)],
            env={**os.environ, **change},
            check=False,
            capture_output=True,
            text=True,
        )
        assert "InvalidSetting" in failed.stderr
        assert "0000" not in failed.stderr


def test_a_program_wraps_and_unwraps_once_a_process(tmp_path: Path, kms: Path) -> None:
    path = secret(tmp_path)
    wrap_file(path, "command")
    assert (keeper_of(path), b"very secret" in path.read_bytes()) == ("command", False)
    for _ in range(3):
        assert read_secret(path) == b"a very secret secret"
    assert (kms / "calls").read_text() == "wrap unwrap "
    wrap_file(path, "file")
    assert path.read_bytes() == b"a very secret secret"


def test_a_helpers_keys_stay_wrapped_when_they_rotate(tmp_path: Path, kms: Path) -> None:
    data = tmp_path / "helper"
    HelperKeys.generate(name="A", suite=HpkeSuite.X25519_AES128GCM).write(data)
    before = HelperKeys.read(data)
    helper_keys.wrap(data, "command")
    assert before.identity == HelperKeys.read(data).identity
    path = data / helper_keys.FILE_NAME
    ring = helper_keys.rotate(data, now=1e9, suite=HpkeSuite.X25519_AES128GCM, active_in_s=0, overlap_s=60)
    assert keeper_of(path) == "command"
    assert ring == HelperKeys.read(data).ring() == before.ring()  # also of one that serves
    assert all(key.secret.hex().encode() not in path.read_bytes() for key in ring)
    (kms / "kek").write_bytes(os.urandom(32))
    key_envelope._unwrap_once.cache_clear()
    with pytest.raises(InvalidTask):
        HelperKeys.read(data)


def test_a_tls_key_stays_wrapped_when_it_is_renewed_and_is_served_from_memory(
    tmp_path: Path, kms: Path
) -> None:
    data = tmp_path / "party"
    data.mkdir(mode=0o700)
    files = write_certificate(data, name="localhost", hosts=(), now=datetime.now(UTC))
    wrap_file(files.private_key, "command")
    made = prepare(data, now=datetime.now(UTC), days=5)
    assert keeper_of(made.private_key) == "command"
    activate(data)
    assert keeper_of(files.private_key) == "command"
    assert b"PRIVATE KEY" in files.read().private_key
    assert files.certificate.read_text().count("BEGIN") == 1
    assert speaks_tls(files)
    (kms / "program").unlink()
    with pytest.raises(InvalidTask):
        prepare(data, now=datetime.now(UTC), days=5)
    assert not (data / "renewal" / "tls.key").exists()  # no plaintext is left


def speaks_tls(files: TlsFiles) -> bool:
    server, client = socket.socketpair()
    trusting = ssl.create_default_context(cafile=str(files.certificate))
    context = server_context(files)

    def answer() -> None:
        with context.wrap_socket(server, server_side=True) as secured:
            secured.sendall(b"hello")

    thread = Thread(target=answer)
    thread.start()
    client.settimeout(HANGS_S)
    with trusting.wrap_socket(client, server_hostname="localhost") as secured:
        said = secured.recv(5)
    thread.join()
    return said == b"hello"


@pytest.mark.parametrize(
    "keeper", ["", "vault", "pkcs11:", "pkcs11:token=a", "pkcs11:token=a;object=b;c=d", "command "]
)
def test_a_keeper_that_is_none_changes_nothing(tmp_path: Path, keeper: str) -> None:
    path = secret(tmp_path)
    with pytest.raises(InvalidTask, match="expected"):
        wrap_file(path, keeper)
    assert path.read_bytes() == b"a very secret secret"


def test_a_program_that_fails_or_lies_changes_nothing(tmp_path: Path, kms: Path) -> None:
    path = secret(tmp_path)
    for body in ("exit 1", "exit 0", "echo other"):
        (kms / "program").write_text(f"#!/bin/sh\n{body}\n")
        with pytest.raises(InvalidTask):
            wrap_file(path, "command")
        assert path.read_bytes() == b"a very secret secret"


def test_a_keeper_that_is_away_is_not_asked_with_each_look(
    tmp_path: Path, kms: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(key_envelope, "monotonic", lambda: now)
    path = secret(tmp_path)
    wrap_file(path, "command")
    key_envelope._unwrap_once.cache_clear()
    whole = (kms / "program").read_text()
    (kms / "program").write_text(f"#!/bin/sh\nprintf x >> {kms}/tries\nexit 3\n")
    for _ in range(3):
        with pytest.raises(InvalidTask, match="status 3"):
            read_secret(path)
    assert (kms / "tries").read_text() == "x"
    (kms / "program").write_text(whole)
    now += 300
    assert read_secret(path) == b"a very secret secret"


def test_a_program_that_others_could_change_is_not_run(
    tmp_path: Path, kms: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, program = secret(tmp_path), kms / "program"
    for open_to_others, mode in ((program, 0o722), (kms, 0o777)):
        before = open_to_others.stat().st_mode & 0o777
        open_to_others.chmod(mode)
        with pytest.raises(InvalidTask, match="others"):
            wrap_file(path, "command")
        open_to_others.chmod(before)
    monkeypatch.chdir(kms)
    monkeypatch.setenv(COMMAND_VARIABLE, "program")
    with pytest.raises(InvalidTask, match="absolute"):
        wrap_file(path, "command")
    assert not (kms / "calls").exists()


@pytest.mark.usefixtures("kms")
@pytest.mark.parametrize("keeper", ["command", "file"])
def test_a_key_whose_form_changed_after_a_renewal_was_prepared_keeps_its_form(
    tmp_path: Path, keeper: str
) -> None:
    folder = tmp_path / "party"
    folder.mkdir(mode=0o700)
    files = write_certificate(folder, name="localhost", now=datetime.now(UTC))
    wrap_file(files.private_key, "file" if keeper == "command" else "command")
    renewed = read_secret(prepare(folder, now=datetime.now(UTC), days=2).private_key)
    wrap_file(files.private_key, keeper)
    activate(folder)
    assert keeper_of(files.private_key) == keeper
    assert read_secret(files.private_key) == renewed


@pytest.mark.usefixtures("kms")
def test_a_renewed_key_is_wrapped_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "party"
    data.mkdir(mode=0o700)
    files = write_certificate(data, name="localhost", now=datetime.now(UTC))
    wrap_file(files.private_key, "command")
    new = data / "renewal" / "tls.key"

    def sealed(keeper: str, content: bytes) -> bytes:
        assert (keeper, b"PRIVATE KEY" in content, new.exists()) == ("command", True, False)
        return b"sealed"

    monkeypatch.setattr(certificates, "seal_by", sealed)
    prepare(data, now=datetime.now(UTC), days=5)
    assert new.read_bytes() == b"sealed"


@pytest.mark.usefixtures("kms")
def test_without_its_keeper_a_secret_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = secret(tmp_path)
    wrap_file(path, "command")
    key_envelope._unwrap_once.cache_clear()
    monkeypatch.delenv(COMMAND_VARIABLE)
    plain = tmp_path / "plain"
    plain.mkdir()
    for use in (lambda: read_secret(path), lambda: wrap_file(secret(plain), "command")):
        key_envelope._refused.clear()
        with pytest.raises(InvalidTask, match=f"{COMMAND_VARIABLE} is not set.*export {COMMAND_VARIABLE}=/"):
            use()


def test_a_variable_that_names_no_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, no_program = secret(tmp_path), tmp_path / "no-program"
    no_program.touch(0o600)
    for named, expected in (
        (tmp_path / "gone", f"{COMMAND_VARIABLE} is .*gone, and no file is there"),
        (tmp_path, f"{COMMAND_VARIABLE} is .*, and no file is there"),
        (no_program, rf"cannot run .* wrap \({COMMAND_VARIABLE}\): Permission denied; expected a program"),
    ):
        monkeypatch.setenv(COMMAND_VARIABLE, str(named))
        with pytest.raises(InvalidTask, match=expected):
            wrap_file(path, "command")


@pytest.mark.parametrize("field", ["format", "keeper", "data_key", "nonce", "ciphertext"])
def test_an_envelope_that_was_changed_is_refused(tmp_path: Path, kms: Path, field: str) -> None:
    path = secret(tmp_path)
    wrap_file(path, "command")
    whole = json.loads(path.read_text())
    changes: list[object] = ["", "00", "zz", 7, None]
    if field not in ("format", "keeper"):
        flipped = bytearray.fromhex(whole[field])
        flipped[-1] ^= 1
        changes.append(flipped.hex())
    for change in changes:
        path.write_text(json.dumps(whole | {field: change}))
        key_envelope._unwrap_once.cache_clear()
        if field == "format":
            assert read_secret(path) == path.read_bytes()  # no envelope of ours: whoever reads it refuses it
        else:
            with pytest.raises(InvalidTask):
                read_secret(path)
    path.write_text(json.dumps(whole)[:-2])
    with pytest.raises(InvalidTask):
        read_secret(path)
