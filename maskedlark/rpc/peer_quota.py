"""A quota of a server's threads for each peer, so that silent streams starve only their own peer.

A call holds a thread from the wait for its first message until its last reply. A peer is identified by the
certificate that TLS checked, before any of its data is read; without certificates, by its address. A call
beyond the peer's share is refused at once, which takes a thread only for that moment. Status and health use
separate threads.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import grpc

from maskedlark.rpc.callers import NO_PROXIES, peers_of
from maskedlark.rpc.fair_quota import FairQuota
from maskedlark.rpc.faults import answering
from maskedlark.rpc.handlers import Handler, Interceptor, wrap
from maskedlark.rpc.sites import TrustedProxies

LIGHT_THREADS: Final = 8
REFUSING_THREADS: Final = 2
"""Threads in addition to the shared ones, which refuse calls while all shared threads are taken."""
_LIGHT: Final = ("/GetStatus", "/grpc.health.v1.Health/Check")
_FULL: Final = "this client has reached its limit of open calls"


class PeerQuota(Interceptor):
    """Refuses calls of a peer that holds its share of the threads already."""

    def __init__(self, threads: int, proxies: TrustedProxies = NO_PROXIES) -> None:
        """Share so many threads; those of status and health come on top.

        `proxies` are believed when they name the address of a caller without a certificate.
        """
        self._proxies = proxies
        self._room = FairQuota(threads, _FULL)
        self._light_room = FairQuota(LIGHT_THREADS, _FULL)

    def intercept(self, handler: Handler, method: str) -> Handler:
        """Let calls through as long as there is room for their peer."""
        room = self._light_room if _is_light(method) else self._room
        return wrap(handler, lambda context: _hold(room, context, self._proxies))


class LightThreads(Interceptor):
    """Answers status and health on separate threads.

    It must be the first interceptor: gRPC looks at the outermost handler.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LIGHT_THREADS + REFUSING_THREADS, thread_name_prefix="light-call")

    def intercept(self, handler: Handler, method: str) -> Handler:
        """Let calls through, on threads of the right kind."""
        if _is_light(method):
            behaviours: tuple[Any, Any] = (handler.unary_unary, handler.stream_unary)
            for behaviour in behaviours:
                if behaviour is not None:
                    behaviour.experimental_thread_pool = self._threads  # what grpcio-health-checking uses too
        return handler


def _is_light(method: str) -> bool:
    """Return whether a method takes no time, and must always be answered."""
    return method.endswith(_LIGHT)


@contextmanager
def _hold(room: FairQuota, context: grpc.ServicerContext, proxies: TrustedProxies) -> Iterator[None]:
    with ExitStack() as place:
        # Around the refusal alone: the body's errors become statuses in the body.
        with answering(context):
            place.enter_context(room.enter(*peers_of(context, proxies)))
        yield
