"""The secrets of one helper's Ray cluster, and a certificate for each machine of it.

    write_cluster_secrets(folder, now=now)                                         # once, at a safe place
    write_machine_certificate(folder, machine, hosts=("10.0.0.7",), now=now)       # for each machine

Ray's daemons reach each other by address, so each machine's certificate names its own address, and an
authority that signs nothing else vouches for it. The authority's key is needed to take a machine in, and
nowhere while it works.
"""

import os
import re
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from maskedlark.errors import InvalidTask
from maskedlark.rpc.certificates import MAY_SIGN_HANDSHAKES_ONLY, alternative_names
from maskedlark.runtime.ownership import check_own, check_secret_file

JOIN_TOKEN: Final = "join-token"  # noqa: S105 # a file's name
RAY_TOKEN: Final = "ray-token"  # noqa: S105 # a file's name
AUTHORITY: Final = "ca.crt"
AUTHORITY_KEY: Final = "ca.key"
CERTIFICATE: Final = "tls.crt"
PRIVATE_KEY: Final = "tls.key"
LONGEST_DAYS: Final = 3_650
_TOKEN_BYTES: Final = 32
_SKEW: Final = timedelta(minutes=5)
_PRIVATE: Final = 0o600
_PUBLIC: Final = 0o644
_SIGNS_CERTIFICATES_ONLY: Final = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)
_LABEL: Final = "[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_HOST: Final = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")
_OWN_MACHINE: Final = ("localhost", "127.0.0.1")
"""Ray's daemons of one machine reach some of each other so."""


def write_cluster_secrets(folder: Path, *, now: datetime, days: int = LONGEST_DAYS) -> None:
    """Make the join token, Ray's token and an authority with its key.

    Called by `helper cluster init`. Its operator brings both tokens to every machine.

    Args:
        folder: Gets join-token, ray-token, ca.crt and ca.key; only the owner may read them, but for ca.crt.
        now: The start of the authority's life.
        days: How long the authority lives.

    Raises:
        InvalidTask: one of the files is there already, or the folder cannot be written.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = _named("Ray cluster of one helper")
    authority = (
        _begun(name, name, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_SIGNS_CERTIFICATES_ONLY, critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_all(
        folder,
        {
            JOIN_TOKEN: secrets.token_hex(_TOKEN_BYTES).encode(),
            RAY_TOKEN: secrets.token_hex(_TOKEN_BYTES).encode(),
            AUTHORITY_KEY: _pem(key),
            AUTHORITY: authority.public_bytes(Encoding.PEM),
        },
    )


def write_machine_certificate(
    authority: Path, folder: Path, *, hosts: tuple[str, ...], now: datetime, days: int = LONGEST_DAYS
) -> None:
    """Make the key and the certificate of one machine, for both directions of mutual TLS.

    Called by `helper cluster certificate`.

    Args:
        authority: The folder of ca.crt and ca.key.
        folder: Gets tls.key (readable by its owner only), tls.crt and ca.crt.
        hosts: The address that Ray knows the machine by, and names that others call it. Loopback is added.
        now: The start of the certificate's life.
        days: How long it lives.

    Raises:
        InvalidTask: the authority cannot be read or has expired, others may read its key, a host is neither
            an address nor a name, or a file is there already.
    """
    for host in hosts:
        _check_host(host)
    authority_key, authority_certificate = _authority(authority)
    if authority_certificate.not_valid_after_utc <= now:
        raise InvalidTask(f"{authority / AUTHORITY} has expired: make new secrets with `helper cluster init`")
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _begun(_named("machine of a Ray cluster"), authority_certificate.subject, key.public_key(), now, days)
        .add_extension(
            x509.SubjectAlternativeName(alternative_names(hosts[0], (*hosts, *_OWN_MACHINE))), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(MAY_SIGN_HANDSHAKES_ONLY, critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    _write_all(
        folder,
        {
            PRIVATE_KEY: _pem(key),
            CERTIFICATE: certificate.public_bytes(Encoding.PEM),
            AUTHORITY: authority_certificate.public_bytes(Encoding.PEM),
        },
    )


def _authority(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """The key and the certificate of the authority in a folder."""
    key_file, certificate_file = folder / AUTHORITY_KEY, folder / AUTHORITY
    check_secret_file(key_file)
    check_own(key_file)
    try:
        key = load_pem_private_key(key_file.read_bytes(), password=None)
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    except OSError as error:
        raise InvalidTask(f"cannot read {error.filename}: {error.strerror}") from None
    except (ValueError, TypeError):
        raise InvalidTask(f"{key_file} and {certificate_file} are no authority in PEM") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise InvalidTask(f"{key_file} is not the elliptic-curve key of {certificate_file}")
    return key, certificate


def _check_host(host: str) -> None:
    """Refuse what no machine is called: its certificate would name nobody, and Ray would tell so late."""
    try:
        ip_address(host)
    except ValueError:
        if not _HOST.fullmatch(host):
            raise InvalidTask(
                f"{host!r} is neither an address nor a name: give it without port and brackets"
            ) from None


def _begun(
    holder: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(holder)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write_all(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write new files; where one is there already, none is written."""
    for name in contents:
        if os.path.lexists(folder / name):
            raise InvalidTask(f"{folder / name} exists already: it is never overwritten")
    for name, content in contents.items():
        path = folder / name
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = _PUBLIC if name in {CERTIFICATE, AUTHORITY} else _PRIVATE
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
                stream.write(content)
        except FileExistsError:
            raise InvalidTask(f"{path} exists already: it is never overwritten") from None
        except OSError as error:
            raise InvalidTask(f"cannot write {path}: {error.strerror}") from None
