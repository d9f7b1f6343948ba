"""The certificates that a party trusts.

Each is pinned exactly; authorities are trusted only for the names that the operator wrote down.

The holder of a certificate that can sign others could certify a new key under any name, and TLS would accept
it. So `trusted.crt` may hold such a certificate only if `trusted.names` in the same folder says which names
it may certify, one line a certificate:

    # SHA-256 of the certificate (openssl x509 -fingerprint -sha256), then origins or host names
    3F:A1:...:9C https://ads.example ads.example

The names are in a separate file because the text of `trusted.crt` comes from the peers: a comment in it could
be an attacker's.
"""

import string
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Final, Self, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from maskedlark.errors import InvalidSetting
from maskedlark.frozen import frozen
from maskedlark.reports.origin import split_origin
from maskedlark.rpc.tls_files import TlsContents, nobody_trusted

Names: TypeAlias = frozenset[str]
"""Origins, host names and addresses, as a certificate's subject alternative names hold them."""

_REMEMBERED: Final = 1_024
_SHA256_DIGITS: Final = 64
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


@frozen
class _Authority:
    """A certificate that may sign others, and the names that those may hold."""

    certificate: x509.Certificate
    names: Names

    def may_certify(self, names: Names) -> bool:
        """Return whether a certificate of these names is within what the operator wrote down.

        One without names never is.
        """
        allowed = self.names | {host_of(name) for name in self.names}
        return bool(names) and names <= allowed


class Trust:
    """The trusted certificates and names, from one reading of the TLS files.

    Immutable, and safe to share between threads.
    """

    def __init__(
        self, pinned: frozenset[x509.Certificate], authorities: tuple[_Authority, ...], file: Path
    ) -> None:
        self._pinned = pinned
        self._authorities = authorities
        self._file = file
        # Signatures are checked once a chain, not at each call: only the time passes while this trust stands.
        self._until: Callable[[tuple[bytes, ...]], datetime] = lru_cache(_REMEMBERED)(self._trust_end)

    @classmethod
    def read(cls, contents: TlsContents) -> Self:
        """Read the trusted certificates and names. Raises as `parse`."""
        return cls.parse(contents.trusted_authorities, contents.authority_names, contents.trusted_file)

    @classmethod
    def parse(cls, trusted: bytes, authority_names: bytes, file: Path) -> Self:
        """Read the trusted certificates and names from the contents of `trusted.crt` and `trusted.names`.

        Args:
            trusted: The certificates in PEM; may be empty.
            authority_names: What `trusted.names` says; empty if there is none.
            file: Of the certificates, for messages.

        Raises:
            InvalidSetting: a certificate can sign others and no names are written down for it, or the names
                cannot be read.
        """
        found = x509.load_pem_x509_certificates(trusted) if trusted.strip() else []
        named = _parse_names(authority_names)
        authorities = []
        for certificate in filter(_can_sign, found):
            names = named.get(sha256_of(certificate))
            if names is None:
                raise InvalidSetting(
                    f"the trusted certificate {sha256_of(certificate)} can sign others, so its "
                    "key could be used to claim any name: get a certificate with CA:FALSE from its "
                    "owner, or, if it is an authority, write its SHA-256 and the names that it "
                    "may certify into trusted.names"
                )
            authorities.append(_Authority(certificate=certificate, names=names))
        pinned = frozenset(found) - {one.certificate for one in authorities}
        return cls(pinned, tuple(authorities), file)

    @property
    def is_empty(self) -> bool:
        """Whether nobody is trusted."""
        return not self._pinned and not self._authorities

    def vouches_for(self, chain: tuple[bytes, ...], now: datetime) -> bool:
        """Return whether a peer's certificate (PEM), with those sent along, is trusted at `now`."""
        return now <= self._until(chain)

    def roots(self, host: str | None = None) -> bytes:
        """Return the certificates that TLS should trust, as PEM.

        Of the authorities, if `host` is given, those that may certify it.

        Raises:
            InvalidSetting: no certificate is left: TLS libraries would fall back to the system's authorities.
        """
        authorities = [
            one.certificate for one in self._authorities if host is None or one.may_certify(frozenset({host}))
        ]
        roots = [one.public_bytes(Encoding.PEM) for one in (*self._pinned, *authorities)]
        if not roots and host is not None and self._authorities:
            raise InvalidSetting(
                f"no certificate in {self._file} is for {host}: add that peer's certificate, or {host} to "
                "the names of its authority in trusted.names"
            )
        if not roots:
            raise nobody_trusted(self._file)
        return b"".join(roots)

    def _trust_end(self, chain: tuple[bytes, ...]) -> datetime:
        """Return the end of the trust in a chain, or the beginning of time if the chain is not trusted."""
        try:
            leaf, *others = [x509.load_pem_x509_certificate(one) for one in chain]
        except ValueError:
            return _NEVER
        if leaf in self._pinned:
            return leaf.not_valid_after_utc
        # From the leaf up, through certificates sent in any order; none is visited twice, so a loop ends. An
        # authority has to allow the leaf's names, however far above the leaf it stands.
        names = names_in(leaf)
        reached, best = {leaf: leaf.not_valid_after_utc}, _NEVER
        waiting = [leaf]
        while waiting:
            certificate = waiting.pop()
            until = reached[certificate]
            for authority in self._authorities:
                is_reached = certificate == authority.certificate or _is_issuer_of(
                    authority.certificate, certificate
                )
                if is_reached and authority.may_certify(names):
                    best = max(best, min(until, authority.certificate.not_valid_after_utc))
            for other in others:
                if other not in reached and _is_issuer_of(other, certificate):
                    reached[other] = min(until, other.not_valid_after_utc)
                    waiting.append(other)
        return best


def _can_sign(certificate: x509.Certificate) -> bool:
    """Return whether TLS might take a certificate for an issuer.

    Whatever does not say CA:FALSE, also the old forms that say nothing.
    """
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return True


def names_in(certificate: x509.Certificate) -> Names:
    """Return the origins, host names and addresses that a certificate is for.

    The common name does not count, because no party checks it.
    """
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return frozenset()
    return frozenset(str(name.value) for name in found)


def sha256_of(certificate: x509.Certificate) -> str:
    """Return the SHA-256 of a certificate, in hexadecimal."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def host_of(name: str) -> str:
    """Return the host of an origin; any other name, which no task's origin has, is its own host."""
    return split_origin(name) or name


def _parse_names(encoded: bytes) -> dict[str, Names]:
    """Parse the names that each certificate, by its SHA-256, may certify from `trusted.names`."""
    named: dict[str, Names] = {}
    for line in encoded.decode("utf-8", "replace").splitlines():
        shown, *names = line.partition("#")[0].split() or [""]
        digits = shown.replace(":", "").lower()
        if not shown:
            continue
        if len(digits) != _SHA256_DIGITS or not set(digits) <= set(string.hexdigits) or not names:
            raise InvalidSetting(
                "a line of trusted.names is not valid: expected a certificate's SHA-256 followed by "
                f"names, not {line[:120]!r}"
            )
        named[digits] = named.get(digits, frozenset()) | frozenset(names)
    return named


def _is_issuer_of(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    """Return whether one certificate, of an issuer of certificates, signed the other."""
    if not _can_sign(issuer):
        return False
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
