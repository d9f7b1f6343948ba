"""Certificates for mutual TLS between two parties that know each other.

Self-signed, pinned, made by each party's keygen.

There is no authority to run. A helper's operator hands its certificate to the ad server and gets the ad
server's; each puts what it got into its file of trusted authorities. A certificate names its holder in its
subject alternative names: a helper by host name, an ad server by its origin. Its common name is a label.
"""

from datetime import datetime, timedelta
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.runtime.key_envelope import PLAIN, seal_by

# What X.509 allows
_MAX_COMMON_NAME: Final = 64
_SKEW: Final = timedelta(minutes=5)
# Without it, TLS would let a trusted ad server certify a new key in another origin's name
_MAY_SIGN_HANDSHAKES_ONLY: Final = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)

_NOT_FOR_OTHERS_TO_WRITE: Final = 0o644


def write_certificate(
    folder: Path,
    *,
    name: str,
    hosts: tuple[str, ...] = (),
    now: datetime,
    days: int = 825,
    keeper: str = PLAIN,
) -> TlsFiles:
    """Make a P-256 key and a self-signed certificate in `folder`.

    Called by `lark-helper keygen` and `adserver keygen`.

    Args:
        folder: Gets tls.key (readable by its owner only), tls.crt, and trusted.crt, to which the operator
            adds peers' certificates.
        name: The subject of the certificate: a URI name if it is an origin, otherwise a host name or address.
        hosts: DNS names and IP addresses that the holder serves at.
        now: The start of the certificate's life.
        days: How long it lives.
        keeper: What wraps the key, before it is written; see `maskedlark.runtime.key_envelope`.

    Raises:
        InvalidSetting: the keeper is not configured, or away.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    unsigned = begin_certificate(_label(name), key.public_key(), now=now, days=days)
    certificate = for_handshakes(unsigned, (name, *hosts)).sign(key, hashes.SHA256())
    files = TlsFiles.in_folder(folder)
    # Before any file is made: a keeper that is away leaves no half of an identity behind.
    secret = seal_by(keeper, as_pem(key))
    # Private before the key is in it, and never over a key that is in use.
    files.private_key.touch(mode=0o600, exist_ok=False)
    files.private_key.write_bytes(secret)
    for path in (files.certificate, files.trusted_authorities):
        path.touch(mode=_NOT_FOR_OTHERS_TO_WRITE)  # whatever the umask
    files.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
    return files


def begin_certificate(
    holder: str,
    public_key: ec.EllipticCurvePublicKey,
    *,
    now: datetime,
    days: int,
    issuer: x509.Name | None = None,
) -> x509.CertificateBuilder:
    """Begin a certificate of a holder's key from now on, tolerating clocks that are a little behind.

    Args:
        holder: Its common name.
        public_key: Its key.
        now: The start of the certificate's life.
        days: How long it lives.
        issuer: The name of the authority that will sign; None if the holder itself does.
    """
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, holder)])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer or name)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def for_handshakes(certificate: x509.CertificateBuilder, names: tuple[str, ...]) -> x509.CertificateBuilder:
    """Build a certificate for both ends of mutual TLS, for these names; it cannot sign others."""
    return (
        certificate.add_extension(x509.SubjectAlternativeName(_alternative_names(names)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_MAY_SIGN_HANDSHAKES_ONLY, critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
    )


def as_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Encode a private key for its file, which only its owner may read."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _label(name: str) -> str:
    """Return a common name: the name itself if it fits, never a part, which might be another party's name."""
    return name if len(name) <= _MAX_COMMON_NAME else f"sha256 {sha256(name.encode()).hexdigest()[:40]}"


def _alternative_names(names: tuple[str, ...]) -> list[x509.GeneralName]:
    """Return the subject alternative names of a certificate, without repetition."""
    return list(dict.fromkeys(map(_general_name, names)))


def _general_name(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
