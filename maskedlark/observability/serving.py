"""A gRPC server that its operator can watch.

Counted, traced, patient within bounds, and answering the gRPC health protocol.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from time import monotonic
from typing import Any, Final, NoReturn

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from maskedlark.frozen import frozen
from maskedlark.observability.call_metrics import CallMetrics
from maskedlark.observability.certificate_expiry import CertificateExpiry
from maskedlark.observability.health_cache import Wellness
from maskedlark.observability.tracing import ServerTracing
from maskedlark.rpc.handlers import Handler, Interceptor, wrap
from maskedlark.rpc.peer_quota import REFUSING_THREADS, LightThreads, PeerQuota
from maskedlark.rpc.sites import TrustedProxies
from maskedlark.rpc.stream_timeouts import WITH_KNOWN_CLIENTS, Patience, PatienceInterceptor
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import make_server

_LOG: Final = logging.getLogger(__name__)
_WHOLE_SERVER: Final = ""
_HEALTH: Final = "/grpc.health."
_STARTING: Final = "the server is starting: retry later"
_ENDING: Final = "the server is shutting down: retry later"
_AFTER_GRACE_S: Final = 2.0


@frozen
class ServerSettings:
    """How a gRPC server runs.

    Attributes:
        listen: host:port, port 0 for any.
        tls: Its files, or None for plaintext on loopback.
        threads: Calls answered at once, shared by the peers as `PeerQuota` says; status and health use
            separate threads.
        is_open: Whether clients without a certificate may call. Their calls are not traced.
        patience: What a slow client may cost.
        proxies: Proxies that are believed when they name the address of a client without a certificate.
    """

    listen: str
    tls: TlsFiles | None
    threads: int
    is_open: bool = False
    patience: Patience = WITH_KNOWN_CLIENTS
    proxies: TrustedProxies = TrustedProxies()


class _Probed(health.HealthServicer):
    """The health protocol's `Check`, which probes use.

    `Watch` is not offered: on a server without client certificates, anyone could keep such streams open.
    """

    def __init__(self, wellness: Wellness) -> None:
        super().__init__()
        self._wellness = wellness

    def Check(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 (gRPC's name)
        """Report the server's health: serving if it is ready, not draining, and healthy."""
        told = super().Check(request, context)
        if told.status == health_pb2.HealthCheckResponse.SERVING and not self._wellness.is_well:
            return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)
        return told

    def Watch(  # noqa: N802 (gRPC's name)
        self, request: Any, context: grpc.ServicerContext, send_response_callback: Any = None
    ) -> NoReturn:
        """Refuse; gRPC clients that watch by themselves take this answer for healthy."""
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "Watch is not supported: poll Check")
        raise AssertionError("context.abort returned")


class _Draining(Interceptor):
    """Knows how many calls are under way, and lets none in before `open` or once the server drains.

    Those are refused with a request to retry. Health may always be asked. gRPC's own `stop` closes the port
    at once, so that a load balancer could not see that the server drains.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._under_way = 0
        self._refusal: str | None = _STARTING

    def intercept(self, handler: Handler, method: str) -> Handler:
        """Let calls through, and count those that are not of health."""
        return handler if method.startswith(_HEALTH) else wrap(handler, self._count)

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
        # Under one lock: a call that is let in is counted before `drain` looks.
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


class WatchedServer:
    """A gRPC server; add servicers to `server`, then `start`, and `drain` at the end.

    One that is not ready at once calls `listen` before, and so tells that it is starting.
    """

    def __init__(
        self,
        settings: ServerSettings,
        registry: CollectorRegistry,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        """Bind it; raises as `make_server` does.

        Args:
            settings: How it runs.
            registry: Where its calls are counted.
            check: Returns if the service is well, and raises if not; asked when health is asked for, at most
                once a second.
        """
        metrics = CallMetrics(registry)
        if settings.tls is not None:
            registry.register(CertificateExpiry(settings.tls))
        self._is_listening = False
        self._draining = _Draining()
        self.server, self.port = make_server(
            settings.listen,
            settings.tls,
            threads=settings.threads + REFUSING_THREADS,
            is_open=settings.is_open,
            # From the outside in: threads first, as `LightThreads` needs; then what counts others' refusals.
            # Only calls that are let in and still trusted take a part of their peer's quota.
            interceptors=[
                LightThreads(),
                metrics,
                # Of an open server nothing is traced: a span would record when a person's browser reported.
                *([] if settings.is_open else [ServerTracing()]),
                self._draining,
            ],
            inside=[
                PeerQuota(settings.threads, settings.proxies),
                PatienceInterceptor(settings.patience, metrics.count_slow_client),
            ],
            on_handshake=metrics.count_handshake,
        )
        self._health = _Probed(Wellness(check))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        self._health.set(_WHOLE_SERVER, health_pb2.HealthCheckResponse.NOT_SERVING)

    def listen(self) -> None:
        """Listen, and answer health with NOT_SERVING.

        Other calls are refused with a request to retry.
        """
        if not self._is_listening:
            self._is_listening = True
            self.server.start()

    def start(self) -> None:
        """Answer calls, and health with SERVING."""
        self.listen()
        # Before SERVING is told: a caller that waits for that calls at once, and must be let in.
        self._draining.open()
        self._health.set(_WHOLE_SERVER, health_pb2.HealthCheckResponse.SERVING)

    def drain(self, grace_s: float) -> None:
        """Answer health with NOT_SERVING, refuse new calls, and finish those in progress.

        Return soon after `grace_s` at the latest.
        """
        until = monotonic() + grace_s
        # First of all, so that a load balancer sends new calls elsewhere.
        self._health.enter_graceful_shutdown()
        self._draining.drain(grace_s)
        grace_s = max(0.0, until - monotonic())
        # gRPC waits without end for a client that keeps its connection after a message that was refused as
        # too large
        if not self.server.stop(grace_s).wait(grace_s + _AFTER_GRACE_S):
            _LOG.warning("a connection did not end in time: closing it")
