"""The secrets of one helper's Ray cluster, and a certificate for each machine of it.

    write_cluster_secrets(folder, now=now)                                         # once, at a safe place
    write_machine_certificate(folder, machine, hosts=("10.0.0.7",), now=now)       # for each machine
    worker_tls(machine / WORKERS)                                                  # what head and workers use

Machines reach each other by address, so each certificate names its machine's own address, and an authority
that signs nothing else vouches for it. Ray's daemons have certificates of one authority, and the helper and
its workers have those of another, so what is in Ray's memory opens no way to a worker. The authorities' keys
are needed to take a machine in, and nowhere while it works.
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

from maskedlark.errors import InvalidSetting
from maskedlark.rpc.certificates import as_pem, begin_certificate, for_handshakes
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.runtime.ownership import check_own, check_secret_file

RAY_FILE: Final = "ray-token"
AUTHORITY: Final = "ca.crt"
AUTHORITY_KEY: Final = "ca.key"
CERTIFICATE: Final = "tls.crt"
PRIVATE_KEY: Final = "tls.key"
WORKERS: Final = "workers"
LONGEST_DAYS: Final = 3_650
# How the files of each begin: of authorities in their folder, and of certificates in a machine's.
_AUTHORITIES: Final = {"": "", f"{WORKERS}-": f"{WORKERS}/"}
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
# As DNS has it: labels of up to 63 characters, names of up to 253.
_LABEL: Final = "[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_HOST: Final = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")
# Ray's daemons of one machine reach some of each other so.
_OWN_MACHINE: Final = ("localhost", "127.0.0.1")


def write_cluster_secrets(folder: Path, *, now: datetime, days: int = LONGEST_DAYS) -> None:
    """Make Ray's token and two authorities with their keys: for Ray, and for workers.

    Called by `lark-helper cluster init`. Its operator brings the token to every machine.

    Args:
        folder: Gets ray-token, ca.crt, ca.key, workers-ca.crt and workers-ca.key; only the owner may read
            them, except for the certificates.
        now: The start of the authorities' lives.
        days: How long the authorities live.

    Raises:
        InvalidSetting: one of the files is there already, or the folder cannot be written.
    """
    contents = {RAY_FILE: secrets.token_hex(_TOKEN_BYTES).encode()}
    for prefix in _AUTHORITIES:
        key = ec.generate_private_key(ec.SECP256R1())
        name = f"{prefix or 'Ray'} of one helper's cluster"
        authority = (
            begin_certificate(name, key.public_key(), now=now, days=days)
            # It signs certificates of machines, and no further authority.
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_SIGNS_CERTIFICATES_ONLY, critical=True)
            .sign(key, hashes.SHA256())
        )
        contents[prefix + AUTHORITY_KEY] = as_pem(key)
        contents[prefix + AUTHORITY] = authority.public_bytes(Encoding.PEM)
    _write_all(folder, contents)


def write_machine_certificate(
    authority: Path, folder: Path, *, hosts: tuple[str, ...], now: datetime, days: int = LONGEST_DAYS
) -> None:
    """Make the keys and certificates of one machine, for both directions of mutual TLS.

    Called by `lark-helper cluster certificate`.

    Args:
        authority: The folder of `write_cluster_secrets`.
        folder: Gets tls.key (readable by its owner only), tls.crt and ca.crt for Ray, and in its folder
            `workers` the same for the helper and its workers.
        hosts: The address that Ray knows the machine by, and names that others call it. Loopback is added.
        now: The start of the certificate's life.
        days: How long it lives.

    Raises:
        InvalidSetting: the authority cannot be read or has expired, others may read its key, a host is not an
            address or a name, or a file exists already.
    """
    for host in hosts:
        _check_host(host)
    contents: dict[str, bytes] = {}
    for prefix, place in _AUTHORITIES.items():
        authority_key, authority_certificate = _authority(authority, prefix)
        if authority_certificate.not_valid_after_utc <= now:
            expired = authority / (prefix + AUTHORITY)
            raise InvalidSetting(f"{expired} has expired: create new secrets with `lark-helper cluster init`")
        key = ec.generate_private_key(ec.SECP256R1())
        unsigned = begin_certificate(
            "machine of a helper's cluster",
            key.public_key(),
            now=now,
            days=days,
            issuer=authority_certificate.subject,
        )
        certificate = for_handshakes(unsigned, (*hosts, *_OWN_MACHINE)).sign(authority_key, hashes.SHA256())
        contents |= {
            place + PRIVATE_KEY: as_pem(key),
            place + CERTIFICATE: certificate.public_bytes(Encoding.PEM),
            place + AUTHORITY: authority_certificate.public_bytes(Encoding.PEM),
        }
    _write_all(folder, contents)


def worker_tls(folder: Path) -> TlsFiles:
    """Return the files of a machine's folder `workers`, which the head and its workers use."""
    return TlsFiles(
        certificate=folder / CERTIFICATE,
        private_key=folder / PRIVATE_KEY,
        trusted_authorities=folder / AUTHORITY,
    )


def _authority(folder: Path, prefix: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Read the key and the certificate of an authority in a folder."""
    key_file, certificate_file = folder / (prefix + AUTHORITY_KEY), folder / (prefix + AUTHORITY)
    if not key_file.exists():
        raise InvalidSetting(
            f"{key_file} does not exist: --secrets is the folder that `lark-helper cluster init` made"
        )
    check_secret_file(key_file)
    check_own(key_file)
    try:
        key = load_pem_private_key(key_file.read_bytes(), password=None)
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    except OSError as error:
        raise InvalidSetting(f"cannot read {error.filename}: {error.strerror}") from None
    except (ValueError, TypeError):
        raise InvalidSetting(
            f"{key_file} and {certificate_file} are not an authority's key and certificate in PEM"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise InvalidSetting(f"{key_file} is not the elliptic-curve key that belongs to {certificate_file}")
    return key, certificate


def _check_host(host: str) -> None:
    """Refuse text that cannot name a machine: Ray would report the unusable certificate only later."""
    try:
        ip_address(host)
    except ValueError:
        if not _HOST.fullmatch(host):
            raise InvalidSetting(
                f"{host!r} is not valid: expected an address or a host name, without port and brackets"
            ) from None


def _make_folders(*folders: Path) -> None:
    for folder in folders:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError:
            raise InvalidSetting(f"{folder} is not a folder: choose another name") from None


def _write_all(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write new files; where one is there already, none is written."""
    for name in contents:
        # Also a link that leads nowhere yet.
        if os.path.lexists(folder / name):
            raise InvalidSetting(
                f"{folder / name} exists already and is never overwritten: choose another folder"
            )
    for name, content in contents.items():
        path = folder / name
        try:
            _make_folders(folder, path.parent)
            mode = _PUBLIC if path.suffix == ".crt" else _PRIVATE
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
                stream.write(content)
        except FileExistsError:
            raise InvalidSetting(
                f"{path} exists already and is never overwritten: choose another folder"
            ) from None
        except OSError as error:
            raise InvalidSetting(f"cannot write {path}: {error.strerror}") from None
