import hmac
import os
import stat
from hashlib import sha256
from pathlib import Path

import pytest

from helper.datasets.storage_quota import StorageQuota
from helper.datasets.vault import Vault
from helper.ledger.witness import Witness
from helper.trust.keys import FILE_NAME, HelperKeys
from maskedlark.errors import InvalidTask
from maskedlark.randomness import derive_key
from maskedlark.reports.hpke_suite import HpkeSuite
from maskedlark.reports.sealing import verify
from maskedlark.rpc.receipts import Receipt
from tests.builders import NOW
from tests.helper.parties import Party, make_task
from tests.helper.stored import vault_in
from tests.stores import InMemory


def secrets_of(folder: Path) -> list[bytes]:
    """Every secret in a key file, as the hex that it is written in."""
    parts = (folder / FILE_NAME).read_text().split('"')
    return [part.encode() for part in parts if len(part) >= 64]


@pytest.mark.parametrize("suite", list(HpkeSuite))
def test_keys_read_back_are_the_keys_written(tmp_path: Path, suite: HpkeSuite) -> None:
    written = HelperKeys.generate(name="north", suite=suite)
    written.write(tmp_path)
    read = HelperKeys.read(tmp_path)
    assert read.identity == written.identity
    assert read.key_list(NOW).key_list == written.key_list(NOW).key_list
    assert read.vault_key(b"c") == written.vault_key(b"c")
    assert read.opening_keys(NOW)[0].public() == written.opening_keys(NOW)[0].public()


def test_the_key_list_and_tasks_are_signed_by_the_long_term_key(tmp_path: Path) -> None:
    parties = (Party(data=tmp_path / "a"), Party(data=tmp_path / "b"))
    keys, task = parties[0].keys, make_task(parties)
    keys.key_list(NOW).verify(keys.identity.verify_key)
    verify(keys.identity.verify_key, task.signing_bytes(), keys.sign_task(task))


def test_both_helpers_of_a_task_agree_on_one_pair_key(tmp_path: Path) -> None:
    parties = (Party(data=tmp_path / "a"), Party(data=tmp_path / "b"))
    task = make_task(parties)
    tags = {party.keys.pair(task, role).view_key.tag(b"id", b"view") for role, party in enumerate(parties)}
    assert len(tags) == 1


def test_only_the_owner_can_read_the_keys(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    path = HelperKeys.generate(name="north", suite=HpkeSuite.X25519_AES128GCM).write(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_new_keys_are_on_the_disk_before_anything_is_sealed_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, flushed = os.fsync, list[tuple[int, int]]()

    def seen(descriptor: int) -> None:
        flush(descriptor)
        flushed.append((os.fstat(descriptor).st_ino, os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", seen)
    path = HelperKeys.generate(name="north", suite=HpkeSuite.X25519_AES128GCM).write(tmp_path / "keys")
    assert (path.stat().st_ino, path.stat().st_size) in flushed


def test_existing_keys_are_never_overwritten(tmp_path: Path) -> None:
    path = HelperKeys.generate(name="north", suite=HpkeSuite.X25519_AES128GCM).write(tmp_path)
    before = path.read_bytes()
    with pytest.raises(InvalidTask, match="never overwritten"):
        HelperKeys.generate(name="north", suite=HpkeSuite.X25519_AES128GCM).write(tmp_path)
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidTask, match="cannot make the folder"):
        HelperKeys.generate(name="north", suite=HpkeSuite.X25519_AES128GCM).write(tmp_path / "file" / "keys")


def test_a_helper_without_a_name_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidTask, match="name"):
        HelperKeys.generate(name="", suite=HpkeSuite.X25519_AES128GCM).write(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_keys_that_others_may_read_are_refused(tmp_path: Path) -> None:
    path = HelperKeys.generate(name="north", suite=HpkeSuite.X25519_AES128GCM).write(tmp_path)
    path.chmod(0o644)
    with pytest.raises(InvalidTask, match="chmod 600"):
        HelperKeys.read(tmp_path)


def test_a_missing_key_file_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidTask, match="lark-helper keygen"):
        HelperKeys.read(tmp_path)


def test_a_damaged_key_file_is_a_typed_error_that_shows_no_secret(tmp_path: Path) -> None:
    path = HelperKeys.generate(name="north", suite=HpkeSuite.X25519_AES128GCM).write(tmp_path)
    secrets = secrets_of(tmp_path)
    assert len(secrets) == 4
    whole = path.read_bytes()
    for damaged in (whole.replace(b'"version":1', b'"version":2'), whole[:-9], b"", b"\xff" + whole):
        path.write_bytes(damaged)
        with pytest.raises(InvalidTask, match=r"keys\.json is damaged: restore it from the backup") as caught:
            HelperKeys.read(tmp_path)
        assert not any(secret.decode() in str(caught.value) for secret in secrets)


def test_a_secret_of_the_wrong_length_is_found_when_the_file_is_read(tmp_path: Path) -> None:
    path = HelperKeys.generate(name="north", suite=HpkeSuite.X25519_AES128GCM).write(tmp_path)
    secret = HelperKeys.read(tmp_path).ring()[0].secret.hex().encode()
    path.write_bytes(path.read_bytes().replace(secret, secret[:-2]))
    with pytest.raises(InvalidTask, match="HPKE key 1 does not fit its suite"):
        HelperKeys.read(tmp_path)


def test_no_repr_shows_a_secret(tmp_path: Path) -> None:
    keys = HelperKeys.generate(name="north", suite=HpkeSuite.X25519_AES128GCM)
    keys.write(tmp_path)
    shown = f"{keys!r} {keys._as_file()!r} {keys.opening_keys(NOW)!r} {keys.ring()!r} {vars(type(keys))!r}"
    assert "north" in shown
    for secret in secrets_of(tmp_path):
        assert secret.decode() not in shown
        assert repr(bytes.fromhex(secret.decode())) not in shown


def test_each_purpose_has_its_own_key_of_the_storage_key(tmp_path: Path) -> None:
    """What lies at rest opens only as long as these stay what they are."""
    keys = HelperKeys.generate(name="north", suite=HpkeSuite.X25519_AES128GCM)
    secret = keys._storage_key
    assert keys.vault_key(b"context") == derive_key(secret, b"dataset at rest", b"context")
    assert keys.noise_key(b"digest") == derive_key(secret, b"correlated noise", b"digest")
    assert keys.witness_key() == derive_key(secret, b"ledger receipt", b"")
    vault = vault_in(tmp_path, keys.vault_key)
    folder = keys.vault_key(b"folder on disk" + vault._ledger.manifests.ledger_id())[:8].hex()
    assert vault._folder == folder
    bucket = Vault(tmp_path / "datasets", vault._ledger, keys.vault_key, bucket=InMemory())
    folder = keys.vault_key(b"folder in object storage" + vault._ledger.manifests.ledger_id())[:8].hex()
    assert bucket._folder == folder
    quota = StorageQuota(9, keys.vault_key)
    assert quota.tag("ads.example") == keys.vault_key(b"ad server of stored bytes" + b"ads.example")[:16]
    witness = Witness(ledger=vault._ledger, folder=tmp_path, key=keys.witness_key())
    position, receipt = vault._ledger.position(), Receipt.decode(witness.receipt())
    assert receipt is not None
    assert receipt.helper_id == sha256(b"maskedlark/v1 witness\0" + keys.witness_key()).digest()[:16]
    told = b"maskedlark/v1 receipt\0" + position.sequence.to_bytes(8, "big") + position.head
    assert receipt.tag == hmac.digest(keys.witness_key(), told, "sha256")
