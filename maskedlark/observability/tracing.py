"""Traces across ad server and helpers.

They show which call at which helper belongs to which round of which job, and how long each part took.

Context travels as W3C `traceparent` metadata. Uploads are not traced, because a span for each would record
when a person's browser reported.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import grpc
from opentelemetry import metrics, propagate, trace
from opentelemetry.context import attach, detach
from opentelemetry.trace import SpanKind, Status, StatusCode

from maskedlark.errors import InvalidSetting
from maskedlark.observability.rpc_attributes import SECONDS, attributes_of, end_attributes
from maskedlark.observability.traces import Traces
from maskedlark.rpc.call_details import CallInterceptor, Continue, with_metadata
from maskedlark.rpc.faults import refusal_of, status_of
from maskedlark.rpc.handlers import Handler, Interceptor, wrap

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

_TRACER: Final = trace.get_tracer("maskedlark")
_CALL_SECONDS: Final = metrics.get_meter("maskedlark").create_histogram(
    "rpc.client.call.duration",
    "s",
    "Measures the duration of an outgoing Remote Procedure Call (RPC).",
    explicit_bucket_boundaries_advisory=SECONDS,
)
_ENDS_WITHIN_S: Final = 5.0


@contextmanager
def tracing(service: str, traces: Traces) -> Iterator[None]:
    """Send this process's spans somewhere while the block runs. Entered once, by a command.

    Raises:
        InvalidSetting: OTLP without its package.
    """
    if traces is Traces.NONE:
        yield
        return
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    provider = _provider_of(service, None)
    provider.add_span_processor(
        BatchSpanProcessor(_otlp() if traces is Traces.OTLP else ConsoleSpanExporter(out=sys.stderr))
    )
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        _calls.wait_until_ended()  # spans that end after `shutdown` would be lost
        provider.shutdown()


def _provider_of(service: str, exporter: "SpanExporter | None") -> "TracerProvider":
    """Create a provider that names the service and nothing else of this machine."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    # Not `Resource.create`, which adds what environment and detectors tell.
    provider = TracerProvider(resource=Resource({"service.name": service}))
    if exporter is not None:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@contextmanager
def span(name: str, **attributes: str | int) -> Iterator[None]:
    """Trace a part of what this service does; the attributes are public."""
    # An exception's message may hold what a peer wrote: of an error a span says the type alone.
    with _TRACER.start_as_current_span(
        name, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield
        except Exception as error:
            current.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise


class ServerTracing(Interceptor):
    """A span for each call that a server answers, as a part of the caller's trace."""

    def intercept(self, handler: Handler, method: str) -> Handler:
        """Let calls through, each in a span. An unknown method, whose name a stranger chose, gets none."""
        attributes = attributes_of(method)
        return wrap(handler, lambda context: _answering(attributes, context))


@contextmanager
def _answering(attributes: dict[str, str | int], context: grpc.ServicerContext) -> Iterator[None]:
    # Text alone: binary metadata, such as receipts, holds no trace.
    carrier = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
    parent = propagate.extract(carrier)
    name = str(attributes["rpc.method"])
    answering = _TRACER.start_span(name, parent, SpanKind.SERVER, attributes, record_exception=False)
    token = attach(trace.set_span_in_context(answering, parent))
    try:
        yield
    finally:
        refusal = refusal_of(context)
        if refusal is not None:
            answering.set_attributes({"refusal.kind": refusal.kind, "refusal.reason": refusal.reason})
            answering.set_status(Status(StatusCode.ERROR))
        answering.set_attributes(end_attributes(status_of(context)))
        detach(token)
        answering.end()


class ClientTracing(CallInterceptor):
    """A span and a duration for each call that a client makes, and its context sent with the call."""

    def __init__(self, address: str) -> None:
        """Describe calls to one server; `address` is its host:port, which is configured and so public."""
        host, _, port = address.rpartition(":")
        self._server: dict[str, str | int] = {"server.address": host.strip("[]")}
        if port.isdecimal():
            self._server["server.port"] = int(port)

    def intercept(self, continuation: Continue, details: Any, request: Any) -> Any:
        """Make the call in a span, with its context in the metadata."""
        attributes = attributes_of(str(details.method)) | self._server
        began = monotonic()
        calling = _TRACER.start_span(
            str(attributes["rpc.method"]), None, SpanKind.CLIENT, attributes, record_exception=False
        )
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(calling))
        call = continuation(with_metadata(details, tuple(carrier.items())), request)
        # Counted before the callback is added, which runs at once if the call has ended.
        _calls.begin()
        call.add_done_callback(lambda done: _end(calling, done, attributes, monotonic() - began))
        return call


def _end(calling: trace.Span, call: Any, attributes: dict[str, str | int], seconds: float) -> None:
    code = call.code()
    ended = end_attributes(code)
    calling.set_attributes(ended)
    _CALL_SECONDS.record(seconds, attributes | ended)
    if code is not grpc.StatusCode.OK:
        calling.set_status(Status(StatusCode.ERROR))
    calling.end()
    _calls.end()


class _Calls:
    """The number of open spans: gRPC ends each in another thread, after the caller has its answer."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._open = 0

    def begin(self) -> None:
        """Record that a call begins."""
        with self._changed:
            self._open += 1

    def end(self) -> None:
        """Record that a call's span ended."""
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def wait_until_ended(self) -> None:
        """Wait for the span of the last call, but not for calls that were abandoned."""
        with self._changed:
            self._changed.wait_for(lambda: self._open == 0, timeout=_ENDS_WITHIN_S)


_calls: Final = _Calls()


def _otlp() -> "SpanExporter":
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise InvalidSetting(
            "traces to a collector need a package: pip install 'masked-lark[traces]'"
        ) from None
    return OTLPSpanExporter()
