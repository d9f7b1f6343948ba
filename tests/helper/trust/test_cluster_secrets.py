import os
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from typer.testing import CliRunner

from helper.cli.main import app
from helper.trust.cluster_secrets import (
    WORKERS,
    worker_tls,
    write_cluster_secrets,
    write_machine_certificate,
)
from maskedlark.errors import InvalidTask
from maskedlark.rpc.certificates import as_pem, begin_certificate
from maskedlark.rpc.trust import names_in

NOW = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    write_cluster_secrets(tmp_path / "secrets", now=NOW)
    return tmp_path / "secrets"


def modes(folder: Path) -> dict[str, int]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in found}


def handshake(server: Path, client: Path, asked_for: str) -> str:
    """Whom the server's certificate names, once both sides have accepted each other's."""
    serves = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(server / "ca.crt"))
    serves.verify_mode = ssl.CERT_REQUIRED
    serves.load_cert_chain(server / "tls.crt", server / "tls.key")
    asks = ssl.create_default_context(cafile=str(client / "ca.crt"))
    asks.load_cert_chain(client / "tls.crt", client / "tls.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        asks.wrap_bio(to_client, to_server, server_hostname=asked_for),
        serves.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return str(sides[0].getpeercert() and sides[1].getpeercert())


def made(authority: Path, folder: Path, *hosts: str, now: datetime | None = None) -> Path:
    write_machine_certificate(authority, folder, hosts=hosts, now=now or datetime.now(UTC))
    return folder


def test_only_the_authoritys_certificate_may_be_read_by_others(authority: Path) -> None:
    private, public = ("ray-token", "ca.key", "workers-ca.key"), ("ca.crt", "workers-ca.crt")
    assert modes(authority) == dict.fromkeys(private, 0o600) | dict.fromkeys(public, 0o644)


def test_no_two_clusters_and_no_two_purposes_have_one_secret(authority: Path, tmp_path: Path) -> None:
    write_cluster_secrets(tmp_path / "other", now=NOW)
    found = [path.read_bytes() for folder in (authority, tmp_path / "other") for path in folder.iterdir()]
    assert len(set(found)) == len(found) == 10
    assert len(bytes.fromhex((authority / "ray-token").read_text())) == 32


def test_secrets_that_are_there_are_never_overwritten(authority: Path) -> None:
    before = {path.name: path.read_bytes() for path in authority.iterdir()}
    with pytest.raises(InvalidTask, match="never overwritten"):
        write_cluster_secrets(authority, now=NOW)
    assert {path.name: path.read_bytes() for path in authority.iterdir()} == before


@pytest.mark.parametrize("there", ["tls.key", "tls.crt", "ca.crt", "workers/tls.key"])
def test_where_one_file_is_there_none_is_written(authority: Path, tmp_path: Path, there: str) -> None:
    (tmp_path / "machine" / there).parent.mkdir(parents=True)
    (tmp_path / "machine" / there).write_text("before")
    with pytest.raises(InvalidTask, match=f"{there} exists already"):
        made(authority, tmp_path / "machine", "10.0.0.2", now=NOW)
    assert list(modes(tmp_path / "machine")) == [there]
    assert (tmp_path / "machine" / there).read_text() == "before"


def test_a_file_that_appears_while_others_are_written_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "lexists", lambda _: False)
    (tmp_path / "ca.key").write_text("before")
    with pytest.raises(InvalidTask, match=r"ca\.key exists already and is never overwritten"):
        write_cluster_secrets(tmp_path, now=NOW)
    assert (tmp_path / "ca.key").read_text() == "before"


def test_a_wrong_folder_is_told_of_in_plain_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidTask, match="file is not a folder: choose another name"):
        write_cluster_secrets(tmp_path / "file", now=NOW)
    with pytest.raises(InvalidTask, match=r"missing/ca\.key does not exist: --secrets is the folder"):
        write_machine_certificate(tmp_path / "missing", tmp_path / "out", hosts=("a",), now=NOW)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidTask, match=r"cannot write .*a/.*: File name too long"):
        write_cluster_secrets(tmp_path / ("a" * 300), now=NOW)


@pytest.mark.parametrize(
    "host",
    ["", "a b", "10.0.0.7:6379", "[::1]", "10.0.0.0/8", "https://x", "*.lark", "ü.example", "a..b", "-a"],
)
def test_a_host_that_no_machine_is_called_is_refused_and_nothing_made(
    authority: Path, tmp_path: Path, host: str
) -> None:
    with pytest.raises(InvalidTask, match="expected an address or a host name"):
        made(authority, tmp_path / "machine", "10.0.0.2", host, now=NOW)
    assert not (tmp_path / "machine").exists()


def test_an_authority_that_has_expired_certifies_nobody(authority: Path, tmp_path: Path) -> None:
    made(authority, tmp_path / "machine", "10.0.0.2", "fe80::1", now=NOW + timedelta(days=3_649))
    with pytest.raises(InvalidTask, match="has expired"):
        made(authority, tmp_path / "next", "10.0.0.2", now=NOW + timedelta(days=3_650))


def test_two_machines_of_one_authority_accept_each_other_by_address(authority: Path, tmp_path: Path) -> None:
    write_cluster_secrets(tmp_path / "fresh", now=datetime.now(UTC))
    head = made(tmp_path / "fresh", tmp_path / "head", "10.0.0.1", "helper-ray")
    worker = made(tmp_path / "fresh", tmp_path / "worker", "10.0.0.2")
    for name in ("10.0.0.1", "helper-ray", "127.0.0.1", "localhost"):
        for folder in ("", WORKERS):
            assert "machine of a helper" in handshake(head / folder, worker / folder, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(head, worker / WORKERS, "10.0.0.1")
    with pytest.raises(ssl.SSLError):
        handshake(head / WORKERS, worker, "10.0.0.1")


def test_a_machine_of_another_authority_or_address_is_not_accepted(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        write_cluster_secrets(tmp_path / name, now=datetime.now(UTC))
    head = made(tmp_path / "ours", tmp_path / "head", "10.0.0.1")
    worker = made(tmp_path / "ours", tmp_path / "worker", "10.0.0.2")
    stranger = made(tmp_path / "theirs", tmp_path / "stranger", "10.0.0.2")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(stranger, worker, "10.0.0.2")
    with pytest.raises(ssl.SSLError):
        handshake(head, stranger, "10.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        handshake(head, worker, "10.0.0.2")


def test_a_machine_can_certify_nobody(authority: Path, tmp_path: Path) -> None:
    machine = made(authority, tmp_path / "machine", "10.0.0.2", now=NOW)
    (machine / "ca.key").write_bytes((machine / "tls.key").read_bytes())
    (machine / "ca.key").chmod(0o600)
    with pytest.raises(InvalidTask, match="is not the elliptic-curve key"):
        made(machine, tmp_path / "next", "10.0.0.3")
    certificate = x509.load_pem_x509_certificate((machine / "tls.crt").read_bytes())
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert names_in(certificate) == {"10.0.0.2", "localhost", "127.0.0.1"}


def test_a_name_longer_than_a_common_name_is_certified(authority: Path, tmp_path: Path) -> None:
    host = f"{'h' * 60}.lark.svc.cluster.local"
    machine = made(authority, tmp_path / "machine", host, now=NOW)
    certificate = x509.load_pem_x509_certificate((machine / "tls.crt").read_bytes())
    assert host in names_in(certificate)
    assert certificate.not_valid_after_utc - NOW == timedelta(days=3_650)


def test_an_authoritys_key_that_belongs_to_somebody_else_is_not_used(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = (authority / "ca.key").stat().st_uid
    monkeypatch.setattr("maskedlark.runtime.ownership._ROOT", -1)
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    with pytest.raises(InvalidTask, match=f"ca.key belongs to user {owner}"):
        write_machine_certificate(authority, tmp_path / "machine", hosts=("127.0.0.1",), now=NOW)


def test_an_authority_of_another_kind_of_key_is_not_used(authority: Path, tmp_path: Path) -> None:
    """Its key and its certificate belong together, but no machine is certified with it."""
    key: Any = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    certificate = begin_certificate("another", key.public_key(), now=NOW, days=9).sign(key, hashes.SHA256())
    (authority / "ca.key").write_bytes(as_pem(key))
    (authority / "ca.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    with pytest.raises(InvalidTask, match="not the elliptic-curve key"):
        write_machine_certificate(authority, tmp_path / "machine", hosts=("10.0.0.7",), now=NOW)


def test_head_and_workers_use_the_files_of_a_machine(tmp_path: Path) -> None:
    found = worker_tls(tmp_path)
    assert (found.certificate, found.private_key, found.trusted_authorities) == (
        tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "ca.crt",
    )  # fmt: skip


def test_an_authoritys_key_that_others_may_read_is_not_used(authority: Path, tmp_path: Path) -> None:
    (authority / "ca.key").chmod(0o640)
    with pytest.raises(InvalidTask, match="may be read by others"):
        made(authority, tmp_path / "machine", "10.0.0.2")


@pytest.mark.parametrize("broken", ["ca.key", "ca.crt"])
def test_an_authority_that_cannot_be_read_is_refused_without_its_bytes(
    authority: Path, tmp_path: Path, broken: str
) -> None:
    (authority / broken).write_text("-----BEGIN CANARY-----")
    with pytest.raises(InvalidTask, match="not an authority's key and certificate in PEM") as refused:
        made(authority, tmp_path / "machine", "10.0.0.2")
    assert "CANARY" not in str(refused.value)
    (authority / broken).unlink()
    with pytest.raises(InvalidTask, match=r"cannot read|does not exist"):
        made(authority, tmp_path / "machine", "10.0.0.2")


def test_the_commands_make_what_a_cluster_needs_and_print_no_secret(tmp_path: Path) -> None:
    secrets, machine = tmp_path / "secrets", tmp_path / "machine"
    shown = [
        CliRunner().invoke(app, ["cluster", *words])
        for words in (
            ["init", "--secrets", str(secrets)],
            ["certificate", "--secrets", str(secrets), "--host", "10.0.0.7", "--out", str(machine)],
        )
    ]
    assert [one.exit_code for one in shown] == [0, 0]
    expected = {"tls.key": 0o600, "tls.crt": 0o644, "ca.crt": 0o644}
    assert modes(machine) == expected | {f"{WORKERS}/{name}": mode for name, mode in expected.items()}
    for path in filter(Path.is_file, (*secrets.iterdir(), *machine.rglob("*"))):
        assert path.read_text() not in "".join(one.output for one in shown)
