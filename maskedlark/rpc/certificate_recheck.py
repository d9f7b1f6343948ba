"""Whom a server let in is asked again at each call.

An authority that was removed, or a certificate that expired, ends what it may do.

TLS looks at a certificate once, as a connection begins, and a connection may last for months. What TLS
checked besides (uses, path lengths) cannot have changed since; what is looked at here is what can have, and
what TLS does not know: today's pins, authorities and the names that each may certify
(`maskedlark.rpc.trust`), and the time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import grpc

from maskedlark.rpc.handlers import wrap
from maskedlark.rpc.tls_files import Reloaded, TlsFiles
from maskedlark.rpc.trust import Trust

_END: Final = b"-----END CERTIFICATE-----"


class StillTrusted(grpc.ServerInterceptor):  # type: ignore[type-arg]  # grpc-stubs make it generic, grpc does not
    """Refuses calls on connections whose client would not be let in any more.

    For servers whose clients all have certificates.
    """

    def __init__(self, files: TlsFiles, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Read the files; raises as `Reloaded` does."""
        self._trust = Reloaded(files, Trust.read)
        self._now = now

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Look at the client's certificate, then let the call through."""
        handler = continuation(handler_call_details)
        return None if handler is None else wrap(handler, self._check)

    @contextmanager
    def _check(self, context: grpc.ServicerContext) -> Iterator[None]:
        if not self._trust.current().vouches_for(_chain(context), self._now()):
            context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                "the client's certificate is not trusted any more, or has expired",
            )
        yield


def _chain(context: grpc.ServicerContext) -> tuple[bytes, ...]:
    """Return the client's certificate, and what it sent along."""
    auth: Any = context.auth_context()
    sent = b"".join(auth.get("x509_pem_cert_chain", ())).split(_END)[:-1]
    return (*auth.get("x509_pem_cert", ()), *(one + _END for one in sent))
