"""Interceptors of clients, and a gRPC call with more metadata."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import grpc

Continue: TypeAlias = Callable[[Any, Any], Any]
"""Makes a call, of its details and its request or requests."""


class CallInterceptor(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg]  # grpc-stubs make them generic, grpc does not
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamStreamClientInterceptor,  # type: ignore[type-arg]
):
    """What a client does around each of its calls, whichever of gRPC's four shapes it has."""

    @abstractmethod
    def intercept(self, continuation: Continue, details: Any, request: Any) -> Any:
        """Make the call by `continuation(details, request)`, and return it."""

    def intercept_unary_unary(self, continuation: Continue, client_call_details: Any, request: Any) -> Any:
        """Call `intercept`. Called by gRPC."""
        return self.intercept(continuation, client_call_details, request)

    def intercept_unary_stream(self, continuation: Continue, client_call_details: Any, request: Any) -> Any:
        """Call `intercept`. Called by gRPC."""
        return self.intercept(continuation, client_call_details, request)

    def intercept_stream_unary(
        self, continuation: Continue, client_call_details: Any, request_iterator: Any
    ) -> Any:
        """Call `intercept`. Called by gRPC."""
        return self.intercept(continuation, client_call_details, request_iterator)

    def intercept_stream_stream(
        self, continuation: Continue, client_call_details: Any, request_iterator: Any
    ) -> Any:
        """Call `intercept`. Called by gRPC."""
        return self.intercept(continuation, client_call_details, request_iterator)


class _CallDetails(NamedTuple):
    """What gRPC lets an interceptor say of a call."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


def with_metadata(details: Any, more: Sequence[tuple[str, str | bytes]]) -> _CallDetails:
    """Return the details of a call, with more metadata after its own."""
    return _CallDetails(
        details.method,
        details.timeout,
        (*(details.metadata or ()), *more),
        details.credentials,
        details.wait_for_ready,
        details.compression,
    )
