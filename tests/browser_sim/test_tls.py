"""Uploads and bundles over TLS, with certificates made here."""

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from browser_sim.delivery import connect
from browser_sim.endpoint import Protection
from browser_sim.sealed_batch import SealedBatch
from browser_sim.task_host import load_bundle
from maskedlark import canonical
from maskedlark.errors import HelperUnavailable, InvalidSetting, InvalidTask
from maskedlark.rpc.tls_files import TlsFiles
from tests.browser_sim.sinks import Intake, grpc_sink, http_sink
from tests.builders import NOW, examples, reports, world


def self_signed(folder: Path, name: str, authorities: str | None = None) -> TlsFiles:
    """A self-signed certificate for 127.0.0.1; peers are trusted by another's certificate if one is named."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, SHA256())
    )
    (folder / f"{name}.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    (folder / f"{name}.key").touch(mode=0o600)
    (folder / f"{name}.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return TlsFiles(
        certificate=folder / f"{name}.pem",
        private_key=folder / f"{name}.key",
        trusted_authorities=folder / f"{authorities or name}.pem",
    )


@pytest.fixture
def server_tls(tmp_path: Path) -> TlsFiles:
    return self_signed(tmp_path, "server", "browser")


@pytest.fixture
def browser(tmp_path: Path) -> Protection:
    return Protection(tls=self_signed(tmp_path, "browser", "server"))


def server_context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.trusted_authorities)
    context.load_cert_chain(files.certificate, files.private_key)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_reports_and_bundles_travel_over_tls(browser: Protection, server_tls: TlsFiles) -> None:
    ours = world()
    some = SealedBatch.of(reports(ours, examples(ours.task, 3)))
    with grpc_sink(Intake(), tls=server_tls) as address, connect(address, browser) as sender:
        assert sender.send(some).accepted == 3
    with http_sink(Intake(), {"/task": canonical.encode(ours.bundle)}, tls=server_context(server_tls)) as url:
        assert url.startswith("https://")
        assert load_bundle(f"{url}/task", browser, now=NOW) == ours.bundle
        with connect(url, browser) as sender:
            assert sender.send(some).accepted == 3


@pytest.mark.usefixtures("server_tls")  # the certificate that the browser trusts
def test_a_server_of_an_unknown_authority_gets_nothing(tmp_path: Path, browser: Protection) -> None:
    stranger = self_signed(tmp_path, "stranger", "browser")
    ours = world()
    some = SealedBatch.of(reports(ours, examples(ours.task, 1)))
    intake = Intake()
    with (
        grpc_sink(intake, tls=stranger) as address,
        connect(address, browser) as sender,
        pytest.raises(HelperUnavailable),
    ):
        sender.send(some)
    with (
        http_sink(intake, tls=server_context(stranger)) as url,
        connect(url, browser) as sender,
        pytest.raises(InvalidSetting, match="none of those"),
    ):
        sender.send(some)
    assert not intake.order


def test_a_tls_file_that_is_not_pem_is_refused(tmp_path: Path) -> None:
    files = self_signed(tmp_path, "browser")
    files.private_key.write_text("not PEM")
    with pytest.raises(InvalidTask, match="PEM"):
        connect("https://127.0.0.1:1", Protection(tls=files))


def test_without_files_https_trusts_the_systems_authorities_only(
    browser: Protection, server_tls: TlsFiles
) -> None:
    with (
        http_sink(files={"/task": b"{}"}, tls=server_context(server_tls)) as url,
        pytest.raises(InvalidSetting, match="none of those"),
    ):
        load_bundle(f"{url}/task", Protection(), now=NOW)
    assert browser.tls is not None
