"""One party's TLS files, read again when they change: a certificate is renewed without a restart.

Files are replaced one after the other, so a reader may find a new certificate and the old key. Until the
files fit together again, the previous contents stay in use. An emptied file of trusted certificates fits: it
takes the trust in every peer away, and a server then lets nobody in.
"""

import logging
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Final, Generic, Self, TypeAlias, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from maskedlark.errors import InvalidSetting
from maskedlark.frozen import frozen
from maskedlark.runtime.key_envelope import PLAIN, keeper_of, read_secret
from maskedlark.runtime.ownership import check_not_writable, check_own, check_secret_file
from maskedlark.utc import format_utc

_LOG: Final = logging.getLogger(__name__)
_Made = TypeVar("_Made")
_Stamp: TypeAlias = tuple[tuple[int, int, int], ...]
# How long before its end a certificate is warned of; as the alert CertificateEnds has it
_SOON: Final = timedelta(days=14)


@frozen
class TlsContents:
    """What the files hold, in PEM; the certificate belongs to the key.

    Attributes:
        certificate: This party's chain.
        private_key: Its key.
        trusted_authorities: The certificates that it trusts peers by.
        trusted_file: The file of those certificates, for messages.
        authority_names: What `trusted.names` says of those that can sign others (`maskedlark.rpc.trust`);
            empty if the file does not exist.
    """

    certificate: bytes
    private_key: bytes = field(repr=False)
    trusted_authorities: bytes
    trusted_file: Path
    authority_names: bytes = b""

    def warn_of_end(self) -> None:
        """Log a warning if this party's own certificate has expired or will within two weeks."""
        own = x509.load_pem_x509_certificates(self.certificate)[0]
        if own.not_valid_after_utc - datetime.now(UTC) < _SOON:
            _LOG.warning(
                "this party's TLS certificate ends %s (%s), then peers refuse it: `certificate renew`",
                format_utc(own.not_valid_after_utc.timestamp()),
                time_left(own),
            )


@frozen
class TlsFiles:
    """PEM files of one party.

    Its certificate chain, its private key, and the authorities that it trusts peers by.
    """

    certificate: Path
    private_key: Path
    trusted_authorities: Path

    @classmethod
    def in_folder(cls, folder: Path) -> Self:
        """Return the files where `lark-helper keygen` and `adserver keygen` put them."""
        return cls(
            certificate=folder / "tls.crt",
            private_key=folder / "tls.key",
            trusted_authorities=folder / "trusted.crt",
        )

    @classmethod
    def without_peers(cls, certificate: Path, private_key: Path) -> Self:
        """Return the files of a server that only browsers call, which show no certificate."""
        return cls(certificate=certificate, private_key=private_key, trusted_authorities=Path(os.devnull))

    @property
    def authority_names(self) -> Path:
        """The optional file in which the operator names what a trusted authority may certify."""
        return self.trusted_authorities.with_suffix(".names")

    @property
    def missing(self) -> Path | None:
        """The first of the three that is no file."""
        return next(
            (
                path
                for path in (self.certificate, self.private_key, self.trusted_authorities)
                if not path.is_file()
            ),
            None,
        )

    def check_own(self) -> None:
        """Return if every file is this user's or root's. Called by servers.

        Raises:
            InvalidSetting: another user owns a file, and could change the trusted certificates.
        """
        for path in self._there():
            check_own(path)

    def _there(self) -> Iterator[Path]:
        """Yield the files that are read."""
        yield from (self.certificate, self.private_key, self.trusted_authorities)
        if self.authority_names.exists():
            yield self.authority_names

    def read(self) -> TlsContents:
        """Read the contents.

        Raises:
            InvalidSetting: a file cannot be read, others may read the key or write another file, a file is
                not PEM, or the certificate is of another key.
        """
        gone = next((path for path in self._there() if not path.exists()), None)
        if gone is not None:
            raise InvalidSetting(
                f"{gone} does not exist: "
                + (
                    "write the certificates of this party's peers to it"
                    if gone == self.trusted_authorities
                    else "restore it, or make another key and certificate with `certificate renew`"
                )
            )
        check_secret_file(self.private_key)
        for path in self._there():
            check_not_writable(path)
        try:
            contents = TlsContents(
                certificate=self.certificate.read_bytes(),
                private_key=read_secret(self.private_key),
                trusted_authorities=self.trusted_authorities.read_bytes(),
                trusted_file=self.trusted_authorities,
                authority_names=self.authority_names.read_bytes() if self.authority_names.exists() else b"",
            )
        except OSError as error:
            raise InvalidSetting(f"cannot read {error.filename}: {error.strerror}") from None
        with _naming(self.certificate, "this party's certificate in PEM"):
            own = x509.load_pem_x509_certificates(contents.certificate)[0].public_key()
        with _naming(self.private_key, "the certificate's private key in PEM, without a password"):
            held = load_pem_private_key(contents.private_key, None).public_key()
        if contents.trusted_authorities.strip():
            with _naming(self.trusted_authorities, "the peers' certificates in PEM"):
                x509.load_pem_x509_certificates(contents.trusted_authorities)
        if own != held:
            raise InvalidSetting(f"{self.certificate} does not belong to the private key {self.private_key}")
        return contents

    def stamp(self) -> _Stamp:
        """Return a value that changes when a file is replaced or written."""
        stats = [path.stat() for path in self._there()]
        return tuple((stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in stats)


# Each server and channel of a process reads the files for itself; the log says each thing once of each change
_LOGGED: Final[dict[tuple[TlsFiles, str], _Stamp]] = {}
_LOGGED_LOCK: Final = Lock()
_END: Final = "end"
_RELOADED: Final = "reloaded"


class Reloaded(Generic[_Made]):
    """Something made of TLS files, made anew when they change. Safe to share between threads."""

    def __init__(self, files: TlsFiles, make: Callable[[TlsContents], _Made]) -> None:
        """Make it once.

        Args:
            files: What it is made of.
            make: Makes it.

        Raises:
            InvalidSetting: the files do not fit together.
        """
        self._files = files
        self._make = make
        self._lock = Lock()
        self._stamp: _Stamp = ()
        with suppress(OSError):  # then `read` says which file
            # Before the contents: files that are replaced in between have another stamp, and are read again.
            self._stamp = files.stamp()
        contents = files.read()
        self._made = make(contents)
        if _is_news(files, _END, self._stamp):
            contents.warn_of_end()

    def current(self) -> _Made:
        """Return the newest usable value."""
        with self._lock:
            self._look()
            return self._made

    def poll(self) -> _Made | None:
        """Return the newest value if the files changed since the last call, or None."""
        with self._lock:
            return self._made if self._look() else None

    def _look(self) -> bool:
        try:
            stamp = self._files.stamp()
            if stamp == self._stamp:
                return False
            contents = self._files.read()
            self._made = self._make(contents)
        except (OSError, InvalidSetting) as error:
            _LOG.warning("cannot use the new TLS files; the previous ones stay in use: %s", error)
            return False
        self._stamp = stamp
        if _is_news(self._files, _RELOADED, stamp):
            _LOG.info("reloaded the TLS files")
        if _is_news(self._files, _END, stamp):
            contents.warn_of_end()
        return True


def _is_news(files: TlsFiles, what: str, stamp: _Stamp) -> bool:
    """Return whether the log has not said `what` of these contents yet; from now on it has."""
    with _LOGGED_LOCK:
        is_news = _LOGGED.get((files, what)) != stamp
        _LOGGED[files, what] = stamp
        return is_news


def nobody_trusted(file: Path) -> InvalidSetting:
    """Return the error of a file of trusted certificates that has none."""
    return InvalidSetting(
        f"{file} is empty, so no peer is trusted: add the peers' certificates to it (or name another file "
        "with --tls-ca)"
    )


@contextmanager
def _naming(path: Path, expected: str) -> Iterator[None]:
    """Refuse a file whose content is not what it is for; the error has nothing of it."""
    try:
        yield
    except (ValueError, TypeError):
        raise InvalidSetting(f"{path} is not valid: expected {expected}") from None


def time_left(certificate: x509.Certificate) -> str:
    """Say how long a certificate is valid from now on: "in 824 days", "in 3 hours", "expired"."""
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    if left <= timedelta(0):
        return "expired"
    return f"in {left.days} days" if left.days > 1 else f"in {left // timedelta(hours=1)} hours"


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Build an HTTP server's TLS context; its clients show no certificate.

    Renewed files are used from the next connection on.

    Raises:
        InvalidSetting: the files do not fit together.
    """
    newest = Reloaded(files, lambda contents: _plain_context(files, contents))

    def choose(
        connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext
    ) -> None:
        connection.context = newest.current()

    # OpenSSL calls it at each handshake, also for clients that name no server: a context cannot change its
    # own certificate, but a connection can be given another context.
    first = newest.current()
    first.sni_callback = choose
    return first


def _plain_context(files: TlsFiles, contents: TlsContents) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if keeper_of(files.private_key) == PLAIN:
            context.load_cert_chain(files.certificate, files.private_key)
            return context
        # ssl reads files alone: this one is in memory, on Linux, so that no plaintext key reaches a disk.
        with os.fdopen(os.memfd_create("tls", os.MFD_CLOEXEC), "wb") as both:
            both.write(contents.private_key + b"\n" + contents.certificate)
            both.flush()
            context.load_cert_chain(f"/proc/self/fd/{both.fileno()}")
    except (OSError, ssl.SSLError):
        raise InvalidSetting("the TLS certificate and its key cannot be loaded") from None
    return context
