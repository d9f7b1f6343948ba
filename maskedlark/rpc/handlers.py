"""Something around the body of every call of a server, whichever of gRPC's four shapes it has."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeAlias

import grpc
from google.protobuf.message import DecodeError


class _Streams(Protocol):
    """What is done with the messages of one call as they pass."""

    def incoming(self, messages: Iterator[Any]) -> Iterator[Any]:
        """Return the requests as the body should see them."""

    def outgoing(self, messages: Iterator[Any]) -> Iterator[Any]:
        """Return the replies as the client should see them."""


# What stands for a message that does not parse, until the call is refused for it
_MALFORMED: Final = object()

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
"""What answers the calls of one method."""

Around: TypeAlias = Callable[[grpc.ServicerContext], AbstractContextManager[_Streams | None]]
"""Given a call's context, what to enter before its body and to leave after it.

What it yields sees the call's streams.
"""


class Interceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]  # grpc-stubs make it generic, grpc does not
    """What changes how a server answers the calls of the methods that it has."""

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Return what answers a call; None for a method that the server does not have. Called by gRPC."""
        handler = continuation(handler_call_details)
        return None if handler is None else self.intercept(handler, handler_call_details.method)

    @abstractmethod
    def intercept(self, handler: Handler, method: str) -> Handler:
        """Return what answers a method's calls (/package.Service/Method) in place of its handler."""


def wrap(handler: Handler, around: Around, on_malformed: Callable[[], None] = lambda: None) -> Handler:
    """Return a handler that runs `around` around this one's body, which holds a thread to its last reply.

    A message that does not parse ends the call with INVALID_ARGUMENT, after `on_malformed`. gRPC by itself
    would end it while its body runs, which ends it once more; the server then keeps the call, and waits for
    it when it ends.
    """
    parse: Any = handler.request_deserializer

    def parse_request(encoded: bytes) -> Any:
        try:
            message = parse(encoded) if parse else encoded
        except DecodeError:
            message = _MALFORMED
        if message is _MALFORMED:
            on_malformed()
        return message

    def check_messages(requests: Any, context: grpc.ServicerContext, streams: _Streams | None) -> Any:
        if not handler.request_streaming:
            return _well_formed(requests, context)
        messages = (_well_formed(one, context) for one in requests)
        return streams.incoming(messages) if streams else messages

    def single(requests: Any, context: grpc.ServicerContext) -> Any:
        with around(context) as streams:
            return behaviour(check_messages(requests, context, streams), context)

    def streaming(requests: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        with around(context) as streams:
            replies = behaviour(check_messages(requests, context, streams), context)
            yield from streams.outgoing(replies) if streams else replies

    behaviour, make = _shape_of(handler)
    made: grpc.RpcMethodHandler[Any, Any] = make(
        streaming if handler.response_streaming else single,
        request_deserializer=parse_request,
        response_serializer=handler.response_serializer,
    )
    return made


def _shape_of(handler: Handler) -> tuple[Any, Any]:
    """Return the function that answers, and the constructor of a handler of the same shape."""
    match handler.request_streaming, handler.response_streaming:
        case False, False:
            return handler.unary_unary, grpc.unary_unary_rpc_method_handler
        case False, True:
            return handler.unary_stream, grpc.unary_stream_rpc_method_handler
        case True, False:
            return handler.stream_unary, grpc.stream_unary_rpc_method_handler
        case _:
            return handler.stream_stream, grpc.stream_stream_rpc_method_handler


def _well_formed(message: Any, context: grpc.ServicerContext) -> Any:
    """Return a message that did parse; abort the call otherwise."""
    if message is _MALFORMED:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a message cannot be parsed")
    return message
