"""The start and the end of a gRPC server.

Before it is ready and while it drains, new calls are refused with a request to retry; calls in progress are
finished. Health is answered throughout. gRPC's own `stop` closes the port at once, so a load balancer could
not see that the server drains: hence this interceptor.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Any, Final

import grpc

from maskedlark.rpc.handlers import wrap

_HEALTH: Final = "/grpc.health."
_STARTING: Final = "the server is starting: retry later"
_ENDING: Final = "the server is shutting down: retry later"


class DrainInterceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]  # grpc-stubs make it generic, grpc does not
    """Knows how many calls are under way, and lets none in before `open` or once the server drains.

    But for health, which may always be asked.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._under_way = 0
        self._refusal: str | None = _STARTING

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Let the call through, and count it."""
        handler = continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(_HEALTH):
            return handler
        return wrap(handler, self._count)

    def open(self) -> None:
        """Let calls in from now on."""
        with self._changed:
            self._refusal = None

    def drain(self, timeout_s: float) -> None:
        """Refuse new calls from now on; return when those under way have ended, or after the timeout."""
        with self._changed:
            self._refusal = _ENDING
            self._changed.wait_for(lambda: self._under_way == 0, timeout_s)

    @contextmanager
    def _count(self, context: grpc.ServicerContext) -> Iterator[None]:
        with self._changed:
            refusal = self._refusal
            self._under_way += refusal is None
        if refusal is not None:
            context.abort(grpc.StatusCode.UNAVAILABLE, refusal)
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()
