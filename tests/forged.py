"""Certificates as peers may bring them, good and bad.

Authorities, the old forms without constraints, and what these can sign.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from maskedlark.rpc.tls_files import TlsFiles


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def fingerprint(self) -> str:
        return self.certificate.fingerprint(hashes.SHA256()).hex()

    def files(self, folder: Path, *, trusted: bytes, chain: bytes = b"") -> TlsFiles:
        """The three files of a party, with others' certificates sent along."""
        folder.mkdir(parents=True, exist_ok=True)
        files = TlsFiles.in_folder(folder)
        files.certificate.write_bytes(self.pem + chain)
        files.private_key.touch(mode=0o600)
        files.private_key.write_bytes(
            self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        files.trusted_authorities.write_bytes(trusted)
        return files


def holder(
    *names: str,
    common_name: str = "somebody",
    is_authority: bool | None = False,
    issuer: Holder | None = None,
    days: float = 1.0,
) -> Holder:
    """A new certificate, self-signed unless there is an issuer.

    `is_authority` None leaves BasicConstraints out.
    """
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + timedelta(days=days))
    )
    if names:
        general = [
            x509.UniformResourceIdentifier(one) if "://" in one else x509.DNSName(one) for one in names
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(general), critical=False)
    if is_authority is not None:
        builder = builder.add_extension(
            x509.BasicConstraints(ca=is_authority, path_length=None), critical=True
        )
    signing = issuer.key if issuer else key
    return Holder(certificate=builder.sign(signing, hashes.SHA256()), key=key)
