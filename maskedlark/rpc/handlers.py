"""Something around the body of every call of a server, whichever of gRPC's four shapes it has."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

import grpc
from google.protobuf.message import DecodeError


class Streams(Protocol):
    """What is done with the messages of one call as they pass."""

    def incoming(self, messages: Iterator[Any]) -> Iterator[Any]:
        """The requests, as the body shall see them."""

    def outgoing(self, messages: Iterator[Any]) -> Iterator[Any]:
        """The replies, as the client shall see them."""


Around: TypeAlias = Callable[[grpc.ServicerContext], AbstractContextManager[Streams | None]]
"""Given a call's context, what to enter before its body and to leave after it; what it yields sees the call's streams."""


def wrapped(
    handler: "grpc.RpcMethodHandler[Any, Any]", around: Around, on_malformed: Callable[[], None] = lambda: None
) -> "grpc.RpcMethodHandler[Any, Any]":
    """The same handler with `around` around its body, which holds a thread until its last reply.

    `on_malformed` is called for each message that does not parse; gRPC ends such a call by itself.
    """
    parse: Any = handler.request_deserializer

    def parsed(encoded: bytes) -> Any:
        try:
            return parse(encoded)
        except DecodeError:
            on_malformed()
            raise

    def single(request: Any, context: grpc.ServicerContext) -> Any:
        with around(context) as streams:
            return behaviour(streams.incoming(request) if streams and handler.request_streaming else request, context)

    def streaming(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        with around(context) as streams:
            replies = behaviour(streams.incoming(request) if streams and handler.request_streaming else request, context)
            yield from streams.outgoing(replies) if streams else replies

    behaviour: Any
    make: Any
    match handler.request_streaming, handler.response_streaming:
        case False, False:
            behaviour, make = handler.unary_unary, grpc.unary_unary_rpc_method_handler
        case False, True:
            behaviour, make = handler.unary_stream, grpc.unary_stream_rpc_method_handler
        case True, False:
            behaviour, make = handler.stream_unary, grpc.stream_unary_rpc_method_handler
        case _:
            behaviour, make = handler.stream_stream, grpc.stream_stream_rpc_method_handler
    made: grpc.RpcMethodHandler[Any, Any] = make(
        streaming if handler.response_streaming else single,
        request_deserializer=parsed,
        response_serializer=handler.response_serializer,
    )
    return made
