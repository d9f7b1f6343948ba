"""A check of the client's certificate at each call, not only at the handshake.

TLS checks a certificate once, when a connection begins, and a connection may last for months. Key usages and
path lengths cannot change in that time. This module checks what can, and what TLS does not know: the current
pins, the authorities and the names that each may certify (`maskedlark.rpc.trust`), and the time. So removing
a certificate, or its expiry, takes effect at the next call.
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
                "the client's certificate is no longer trusted, or has expired",
            )
        yield


def _chain(context: grpc.ServicerContext) -> tuple[bytes, ...]:
    """Return the client's certificate, and what it sent along."""
    auth: Any = context.auth_context()
    sent = b"".join(auth.get("x509_pem_cert_chain", ())).split(_END)[:-1]
    return (*auth.get("x509_pem_cert", ()), *(one + _END for one in sent))
