"""Whom a server let in is asked again at each call: an authority that was removed, or a certificate that expired, ends what it may do.

TLS looks at a certificate once, as a connection begins, and a connection may last for months. What TLS checked besides (names, uses,
path lengths) cannot have changed since; what is looked at here is what can have: today's authorities, and the time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from maskedlark.rpc.handlers import wrapped
from maskedlark.rpc.tls_files import Reloaded, TlsContents, TlsFiles

_REMEMBERED: Final = 1_024
_END: Final = b"-----END CERTIFICATE-----"


class Authorities:
    """The authorities of one reading of the TLS files, and which certificates they vouch for."""

    def __init__(self, contents: TlsContents) -> None:
        trusted = contents.trusted_authorities
        self._authorities = x509.load_pem_x509_certificates(trusted) if trusted.strip() else []  # none: nobody is let in any more
        self._until = lru_cache(_REMEMBERED)(self._vouched_until)

    def vouch_for(self, chain: tuple[bytes, ...], now: datetime) -> bool:
        """Whether a client's certificate, then those that it sent along (PEM), is trusted at `now`."""
        return now <= self._until(chain)

    def _vouched_until(self, chain: tuple[bytes, ...]) -> datetime:
        """The end of the best way from the certificate to an authority, or the beginning of time if there is none."""
        never = datetime.min.replace(tzinfo=UTC)
        try:
            leaf, *others = [x509.load_pem_x509_certificate(one) for one in chain]
        except ValueError:
            return never
        reached, best = {leaf: leaf.not_valid_after_utc}, never
        waiting = [leaf]
        while waiting:
            certificate = waiting.pop()
            until = reached[certificate]
            for authority in self._authorities:
                if certificate == authority or _issued(authority, certificate):
                    best = max(best, min(until, authority.not_valid_after_utc))
            for other in others:
                if other not in reached and _issued(other, certificate):
                    reached[other] = min(until, other.not_valid_after_utc)
                    waiting.append(other)
        return best


class StillTrusted(grpc.ServerInterceptor):  # type: ignore[type-arg]  # grpc-stubs make it generic, grpc does not
    """Refuses calls on connections whose client would not be let in any more; for servers whose clients all have certificates."""

    def __init__(self, files: TlsFiles, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Raises as `Reloaded` does."""
        self._authorities = Reloaded(files, Authorities)
        self._now = now

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Look at the client's certificate, then let the call through."""
        handler = continuation(handler_call_details)
        return None if handler is None else wrapped(handler, self._checked)

    @contextmanager
    def _checked(self, context: grpc.ServicerContext) -> Iterator[None]:
        if not self._authorities.current().vouch_for(_chain(context), self._now()):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the client's certificate is not trusted any more, or has expired")
        yield


def _chain(context: grpc.ServicerContext) -> tuple[bytes, ...]:
    """The client's certificate, and what it sent along."""
    auth: Any = context.auth_context()
    sent = b"".join(auth.get("x509_pem_cert_chain", ())).split(_END)[:-1]
    return (*auth.get("x509_pem_cert", ()), *(one + _END for one in sent))


def _issued(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    """Whether one certificate, of an issuer of certificates, signed the other."""
    try:
        if not issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return False
    except x509.ExtensionNotFound:
        pass  # the old form of a root, which TLS takes too
    except ValueError:
        return False
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
