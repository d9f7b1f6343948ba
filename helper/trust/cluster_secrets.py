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
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from maskedlark.errors import InvalidTask
from maskedlark.rpc.certificates import as_pem, begun, for_handshakes, name_of
from maskedlark.runtime.ownership import check_own, check_secret_file

JOIN_FILE: Final = "join-token"
RAY_FILE: Final = "ray-token"
AUTHORITY: Final = "ca.crt"
AUTHORITY_KEY: Final = "ca.key"
CERTIFICATE: Final = "tls.crt"
PRIVATE_KEY: Final = "tls.key"
LONGEST_DAYS: Final = 3_650
_TOKEN_BYTES: Final = 32
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
    name = name_of("Ray cluster of one helper")
    authority = (
        begun(name, name, key.public_key(), now=now, days=days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_SIGNS_CERTIFICATES_ONLY, critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_all(
        folder,
        {
            JOIN_FILE: secrets.token_hex(_TOKEN_BYTES).encode(),
            RAY_FILE: secrets.token_hex(_TOKEN_BYTES).encode(),
            AUTHORITY_KEY: as_pem(key),
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
        InvalidTask: the authority cannot be read or has expired, others may read its key, a host is not an
            address or a name, or a file exists already.
    """
    for host in hosts:
        _check_host(host)
    authority_key, authority_certificate = _authority(authority)
    if authority_certificate.not_valid_after_utc <= now:
        raise InvalidTask(
            f"{authority / AUTHORITY} has expired: create new secrets with `helper cluster init`"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    machine = name_of("machine of a Ray cluster")
    unsigned = begun(machine, authority_certificate.subject, key.public_key(), now=now, days=days)
    certificate = for_handshakes(unsigned, (*hosts, *_OWN_MACHINE)).sign(authority_key, hashes.SHA256())
    _write_all(
        folder,
        {
            PRIVATE_KEY: as_pem(key),
            CERTIFICATE: certificate.public_bytes(Encoding.PEM),
            AUTHORITY: authority_certificate.public_bytes(Encoding.PEM),
        },
    )


def _authority(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Read the key and the certificate of the authority in a folder."""
    key_file, certificate_file = folder / AUTHORITY_KEY, folder / AUTHORITY
    check_secret_file(key_file)
    check_own(key_file)
    try:
        key = load_pem_private_key(key_file.read_bytes(), password=None)
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    except OSError as error:
        raise InvalidTask(f"cannot read {error.filename}: {error.strerror}") from None
    except (ValueError, TypeError):
        raise InvalidTask(
            f"{key_file} and {certificate_file} are not an authority's key and certificate in PEM"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise InvalidTask(f"{key_file} is not the elliptic-curve key that belongs to {certificate_file}")
    return key, certificate


def _check_host(host: str) -> None:
    """Refuse text that cannot name a machine: Ray would report the unusable certificate only later."""
    try:
        ip_address(host)
    except ValueError:
        if not _HOST.fullmatch(host):
            raise InvalidTask(
                f"{host!r} is not valid: expected an address or a host name, without port and brackets"
            ) from None


def _write_all(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write new files; where one is there already, none is written."""
    for name in contents:
        if os.path.lexists(folder / name):
            raise InvalidTask(
                f"{folder / name} exists already and is never overwritten: choose another folder"
            )
    for name, content in contents.items():
        path = folder / name
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = _PUBLIC if name in {CERTIFICATE, AUTHORITY} else _PRIVATE
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
                stream.write(content)
        except FileExistsError:
            raise InvalidTask(
                f"{path} exists already and is never overwritten: choose another folder"
            ) from None
        except OSError as error:
            raise InvalidTask(f"cannot write {path}: {error.strerror}") from None
