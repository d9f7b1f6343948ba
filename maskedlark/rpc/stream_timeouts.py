"""How long a server waits for its clients.

A call that stops, or drips, would otherwise hold a thread for as long as it likes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final

import grpc

from maskedlark.frozen import frozen
from maskedlark.rpc.handlers import Handler, Interceptor, wrap
from maskedlark.runtime.periodic import SharedWatch

_POLL_S: Final = 0.5
_BODIES: Final = SharedWatch(name="bodies", every_s=_POLL_S)


@frozen
class Patience:
    """What one call may cost a thread in waiting.

    Attributes:
        first_s: The longest wait for the first message, which a client has when it calls.
        idle_s: The longest wait for another message to come, or for a reply to be taken.
        total_s: The longest that all waits of a call may take together.
    """

    first_s: float = 10.0
    idle_s: float = 60.0
    total_s: float = 3_600.0


WITH_KNOWN_CLIENTS: Final = Patience()
"""For clients with a certificate."""


class _Waits:
    """How long a call has waited for its client in one direction. One thread waits, others look."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._before_s = 0.0

    @contextmanager
    def count_wait(self) -> Iterator[None]:
        """Wait in this block."""
        since = self._since = monotonic()
        try:
            yield
        finally:
            # In this order, and read in the other one: a wait that ends meanwhile is missed once, never
            # counted twice.
            self._since = None
            self._before_s += monotonic() - since

    def so_far(self) -> tuple[float, float]:
        """Return the seconds of the current wait, if any, and of all waits."""
        before_s, since = self._before_s, self._since
        now_s = 0.0 if since is None else monotonic() - since
        return now_s, before_s + now_s


class _Waiting:
    """How long one call has waited for its client, measured on its streams.

    Each has its own thread: a body may read ahead while it replies (`maskedlark.runtime.prefetch`).
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._messages, self._replies = _Waits(), _Waits()
        self._has_begun = False

    def incoming(self, messages: Iterator[Any]) -> Iterator[Any]:
        """Yield the requests, counting the wait for each."""
        while True:
            with self._messages.count_wait():
                message = next(messages, None)
            if message is None:
                return
            self._has_begun = True
            yield message

    def outgoing(self, messages: Iterator[Any]) -> Iterator[Any]:
        """Yield the replies, counting the wait until each is taken."""
        for message in messages:
            with self._replies.count_wait():
                yield message

    def is_too_long(self) -> bool:
        """Return whether the client has exceeded its time."""
        (message_s, messages_s), (reply_s, replies_s) = self._messages.so_far(), self._replies.so_far()
        longest = self._patience.idle_s if self._has_begun else self._patience.first_s
        return max(message_s, reply_s) > longest or messages_s + replies_s > self._patience.total_s


class PatienceInterceptor(Interceptor):
    """Ends calls whose client keeps the server waiting.

    Also for the one message of a call that is no stream.
    """

    def __init__(self, patience: Patience, on_slow: Callable[[], None] = lambda: None) -> None:
        self._patience = patience
        self._on_slow = on_slow
        # A quarter of each wait: a client exceeds its time by no more.
        every_s = min(_POLL_S, patience.idle_s / 4, patience.first_s / 4)
        self._watch = SharedWatch(name="patience", every_s=every_s)

    def intercept(self, handler: Handler, method: str) -> Handler:
        """Let calls through, and watch their streams."""
        return wrap(_reading_its_message(handler), self._watch_call)

    @contextmanager
    def _watch_call(self, context: grpc.ServicerContext) -> Iterator[_Waiting]:
        waiting = _Waiting(self._patience)

        def look() -> bool:
            is_slow = waiting.is_too_long()
            if is_slow:
                self._on_slow()
                # `abort` would raise here, in the watch's thread; the body ends when its streams do.
                context.cancel()  # type: ignore[no-untyped-call]  # grpc-stubs
            return is_slow

        with self._watch.looking(look):
            yield waiting


@contextmanager
def within(seconds: float, context: grpc.ServicerContext) -> Iterator[None]:
    """End the call if the block takes longer, within half a second.

    Around reading what a client sends at once, whose size is bounded.
    """
    until = monotonic() + seconds

    def look() -> bool:
        is_late = monotonic() > until
        if is_late:
            context.cancel()  # type: ignore[no-untyped-call]  # grpc-stubs
        return is_late

    with _BODIES.looking(look):
        yield


def _reading_its_message(handler: Handler) -> Handler:
    """Return the same handler, with its one message read as a stream.

    GRPC itself would wait for a single message without end, on a thread.
    """
    if handler.request_streaming:
        return handler
    behaviour: Any = handler.unary_stream if handler.response_streaming else handler.unary_unary

    def of_first(messages: Iterator[Any], context: grpc.ServicerContext) -> Any:
        for message in messages:
            return behaviour(message, context)
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "the call holds no message")
        raise AssertionError("context.abort returned")

    make: Any = (
        grpc.stream_stream_rpc_method_handler
        if handler.response_streaming
        else grpc.stream_unary_rpc_method_handler
    )
    made: grpc.RpcMethodHandler[Any, Any] = make(
        of_first,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
    return made
