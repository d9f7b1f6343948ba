"""How long a server waits for its clients: a stream that stops, or drips, would otherwise hold a thread for as long as it likes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic
from typing import Any, Final

import grpc

from maskedlark.rpc.handlers import wrapped

_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """What one call may cost a thread in waiting.

    Attributes:
        idle_s: The longest wait for one message to come, or to be taken.
        total_s: The longest that all waits of a call may take together.
    """

    idle_s: float = 60.0
    total_s: float = 3_600.0


WITH_KNOWN_CLIENTS: Final = Patience()
"""For clients that showed who they are."""


class _Waiting:
    """How long one call has waited for its client, measured on its streams."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._since: float | None = None
        self._before_s = 0.0

    def incoming(self, messages: Iterator[Any]) -> Iterator[Any]:
        """The requests; waiting for each is counted."""
        while True:
            with self._counted():
                message = next(messages, None)
            if message is None:
                return
            yield message

    def outgoing(self, messages: Iterator[Any]) -> Iterator[Any]:
        """The replies; waiting until each is taken is counted."""
        for message in messages:
            with self._counted():
                yield message

    def is_too_long(self) -> bool:
        """Whether patience is at its end."""
        since = self._since
        waited = 0.0 if since is None else monotonic() - since
        return waited > self._patience.idle_s or self._before_s + waited > self._patience.total_s

    @contextmanager
    def _counted(self) -> Iterator[None]:
        since = self._since = monotonic()
        try:
            yield
        finally:
            self._since = None
            self._before_s += monotonic() - since


class PatienceInterceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]  # grpc-stubs make it generic, grpc does not
    """Ends streaming calls whose client keeps the server waiting."""

    def __init__(self, patience: Patience, on_slow: Callable[[], None] = lambda: None) -> None:
        self._patience = patience
        self._on_slow = on_slow

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Let the call through, and watch its streams."""
        handler = continuation(handler_call_details)
        is_stream = handler is not None and (handler.request_streaming or handler.response_streaming)
        return wrapped(handler, self._watched) if is_stream else handler

    @contextmanager
    def _watched(self, context: grpc.ServicerContext) -> Iterator[_Waiting]:
        waiting = _Waiting(self._patience)
        is_over = Event()

        def watch() -> None:
            while not is_over.wait(min(_POLL_S, self._patience.idle_s / 4)):
                if waiting.is_too_long():
                    self._on_slow()
                    context.cancel()  # type: ignore[no-untyped-call]  # grpc-stubs
                    return

        watcher = Thread(target=watch, name="patience", daemon=True)
        watcher.start()
        try:
            yield waiting
        finally:
            is_over.set()
            watcher.join()
