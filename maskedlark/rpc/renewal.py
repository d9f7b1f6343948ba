"""A party's certificate over time: its expiry, and its renewal.

Peers pin certificates exactly, so a renewal takes two steps, between which every peer learns the new one.

    made = prepare(folder, now=..., days=825)     # a new key and certificate, not in use yet
    ...                                           # every peer adds made.certificate to its trusted.crt
    activate(folder)                              # they replace those in use; servers read them at once
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509

from maskedlark.errors import InvalidSetting
from maskedlark.rpc.certificates import write_certificate
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.trust import names_in
from maskedlark.runtime.key_envelope import PLAIN, keeper_of, wrap_file
from maskedlark.runtime.ownership import check_is_folder, keep_owner

RENEWAL_FOLDER: Final = "renewal"


def prepare(folder: Path, *, now: datetime, days: int, names: Iterable[str] = ()) -> TlsFiles:
    """Make a new key and certificate of the same names in `folder`/renewal; what is in use stays.

    The key or the certificate in use may be lost. What wrapped a lost key is not known: the new one is plain.

    Args:
        folder: The party's data folder.
        now: The start of the new certificate's life.
        days: How long it lives.
        names: Those of the new certificate if the one in use is lost, and only then.

    Raises:
        InvalidSetting: there is no such folder, or it is empty; the certificate in use names no party, or is
            lost and no names are given; a renewal waits already, or what wraps the key in use is away.
    """
    check_is_folder(folder)
    if not any(folder.iterdir()):  # a name that was mistyped, in which a key would lie that nobody uses
        raise InvalidSetting(
            f"{folder} is empty: --data is the folder in which `keygen` made this party's keys"
        )
    in_use, new_folder = TlsFiles.in_folder(folder), folder / RENEWAL_FOLDER
    # An origin first: the first name is the one that the certificate is labelled with, as by `keygen`.
    names = sorted(
        _names_to_renew(in_use.certificate, frozenset(names)), key=lambda it: ("://" not in it, it)
    )
    has_key = in_use.private_key.exists()
    new_folder.mkdir(mode=0o700, exist_ok=True)
    if TlsFiles.in_folder(new_folder).certificate.exists():
        raise InvalidSetting(f"{new_folder} already contains a renewal: activate it, or remove the folder")
    TlsFiles.in_folder(new_folder).private_key.unlink(missing_ok=True)  # of an attempt that was cut short
    made = write_certificate(
        new_folder,
        name=names[0],
        hosts=tuple(names[1:]),
        now=now,
        days=days,
        keeper=keeper_of(in_use.private_key) if has_key else PLAIN,
    )
    made.trusted_authorities.unlink()  # a renewal changes nothing about whom this party trusts
    like = in_use.private_key if has_key else folder
    for path in (made.private_key, made.certificate, new_folder):
        descriptor = os.open(path, os.O_RDONLY)
        keep_owner(descriptor, like)
        os.close(descriptor)
    return made


def _names_to_renew(certificate: Path, given: frozenset[str]) -> frozenset[str]:
    """Return the names of the certificate in use, or those that are given for a lost one."""
    if not certificate.exists():
        if not given:
            raise InvalidSetting(f"{certificate} does not exist: name with --host whom it was for")
        return given
    names = names_in(certificates_in(certificate)[0])
    if given:
        raise InvalidSetting(f"{certificate} says whom the new certificate is for: leave out --host")
    if not names:
        raise InvalidSetting(f"{certificate} names no party: make another certificate")
    return names


def activate(folder: Path) -> TlsFiles:
    """Put a prepared key and certificate in the place of those in use; may be repeated after a crash.

    A key that was wrapped after the renewal was prepared stays wrapped.

    A server that reads between the two moves finds a certificate of another key, and goes on with what it
    has.

    Raises:
        InvalidSetting: there is no such folder, none is prepared, or what wraps the key in use is away.
    """
    check_is_folder(folder)
    in_use, new = TlsFiles.in_folder(folder), TlsFiles.in_folder(folder / RENEWAL_FOLDER)
    if not new.certificate.exists():
        raise InvalidSetting(f"{folder} contains no renewal: prepare one with `certificate renew`")
    # The key first: after a crash in between only the certificate is left to move, and this can be repeated.
    if new.private_key.exists():
        if in_use.private_key.exists():
            _keep_form(new.private_key, in_use.private_key)
        new.private_key.replace(in_use.private_key)
    new.certificate.replace(in_use.certificate)
    with suppress(OSError):
        (folder / RENEWAL_FOLDER).rmdir()
    in_use.read()  # refuses now what would keep the server from starting
    return in_use


def _keep_form(key: Path, like: Path) -> None:
    """Wrap a key as another one is."""
    keeper = keeper_of(like)
    if keeper_of(key) != keeper:
        wrap_file(key, keeper)


def certificates_in(path: Path) -> list[x509.Certificate]:
    """Read the certificates of a PEM file, at least one.

    Raises:
        InvalidSetting: the file contains none.
    """
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise InvalidSetting(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise InvalidSetting(f"{path} is not valid: expected certificates in PEM") from None
