"""Counts every gRPC call of a server by method, status and reason.

Also the TLS handshakes that never became a call.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from time import monotonic
from typing import Any, Final

import grpc
from opentelemetry import metrics
from prometheus_client import CollectorRegistry, Counter, Histogram

from maskedlark.errors import JobReason, JobRefused, ReportReason, ReportRejected
from maskedlark.observability.rpc_attributes import SECONDS, attributes_of, end_attributes
from maskedlark.rpc.faults import refusal_of, status_of
from maskedlark.rpc.handlers import Handler, Interceptor, wrap

UNKNOWN_METHOD: Final = "unknown"
_SECONDS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_MAX_CONNECTIONS: Final = 10_000
_CALL_SECONDS: Final = metrics.get_meter("maskedlark").create_histogram(
    "rpc.server.call.duration",
    "s",
    "Measures the duration of an incoming Remote Procedure Call (RPC).",
    explicit_bucket_boundaries_advisory=SECONDS,
)


class CallMetrics(Interceptor):
    """A server interceptor; one per server and registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._begun = Counter(
            "maskedlark_calls_begun",
            "Calls that arrived, also those whose message was malformed or too large and that never ended "
            "with OK.",
            ("method",),
            registry=registry,
        )
        self._malformed = Counter(
            "maskedlark_malformed_messages", "Messages that did not parse.", ("method",), registry=registry
        )
        self._calls = Counter(
            "maskedlark_calls", "gRPC calls that ended.", ("method", "code"), registry=registry
        )
        self._seconds = Histogram(
            "maskedlark_call_seconds",
            "How long calls took.",
            ("method",),
            registry=registry,
            buckets=_SECONDS,
        )
        self._refusals = Counter(
            "maskedlark_refusals", "Calls refused with a typed error.", ("kind", "reason"), registry=registry
        )
        # A rate of a series that begins at one is none: alerts need these from the start.
        for kind, reasons in ((JobRefused, JobReason), (ReportRejected, ReportReason)):
            for reason in reasons:
                self._refusals.labels(kind.__name__, reason.value)
        self._bugs = Counter(
            "maskedlark_internal_errors", "Calls that a bug ended: the log has the trace.", registry=registry
        )
        self._slow = Counter(
            "maskedlark_slow_clients",
            "Calls ended because the client kept the server waiting.",
            registry=registry,
        )
        self._handshakes = Counter(
            "maskedlark_tls_handshakes", "TLS handshakes that clients began.", registry=registry
        )
        self._used = Counter(
            "maskedlark_tls_connections",
            "Connections that carried a call; the other handshakes were refused or idle.",
            registry=registry,
        )
        self._lock = Lock()
        self._peers: dict[str, None] = {}

    def count_handshake(self) -> None:
        """Count a client that begins a TLS handshake."""
        self._handshakes.inc()

    def count_slow_client(self) -> None:
        """Count a call that was ended because its client kept the server waiting."""
        self._slow.inc()

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Count also a call of a method that the server does not have. Called by gRPC."""
        handler = super().intercept_service(continuation, handler_call_details)
        if handler is None:
            # One label for all: a stranger could otherwise make a series of every name it invents.
            unimplemented = grpc.StatusCode.UNIMPLEMENTED
            self._calls.labels(UNKNOWN_METHOD, unimplemented.name).inc()
            _CALL_SECONDS.record(0.0, attributes_of(None) | end_attributes(unimplemented))
        return handler

    def intercept(self, handler: Handler, method: str) -> Handler:
        """Let calls through, and count how they end."""
        name = method.rsplit("/", 1)[-1]
        self._begun.labels(name).inc()
        attributes = attributes_of(method)
        return wrap(
            handler,
            lambda context: self._count(name, attributes, context),
            self._malformed.labels(name).inc,
        )

    @contextmanager
    def _count(
        self, method: str, attributes: dict[str, str | int], context: grpc.ServicerContext
    ) -> Iterator[None]:
        self._count_connection(context)
        began = monotonic()
        try:
            yield
        finally:
            self._seconds.labels(method).observe(monotonic() - began)
            refusal = refusal_of(context)
            if refusal is not None:
                self._refusals.labels(refusal.kind, refusal.reason).inc()
            code = status_of(context)
            self._calls.labels(method, code.name).inc()
            if code is grpc.StatusCode.INTERNAL:
                self._bugs.inc()
            _CALL_SECONDS.record(monotonic() - began, attributes | end_attributes(code))

    def _count_connection(self, context: grpc.ServicerContext) -> None:
        # Plaintext, as on loopback, has no handshake that this could be compared with.
        if b"ssl" not in context.auth_context().get("transport_security_type", ()):
            return
        peer = context.peer()  # with its port: one for each connection
        with self._lock:
            if peer in self._peers:
                return
            self._peers[peer] = None
            # The oldest is forgotten, so that strangers cannot fill memory; at worst it is counted again.
            if len(self._peers) > _MAX_CONNECTIONS:
                self._peers.pop(next(iter(self._peers)))
        self._used.inc()
