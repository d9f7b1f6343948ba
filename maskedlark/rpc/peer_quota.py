"""A quota of a server's threads for each peer, so that silent streams starve only their own peer.

A call holds a thread from the wait for its first message until its last reply. A peer is identified by the
certificate that TLS checked, before any of its data is read; without certificates, by its address. A call
beyond the peer's share is refused at once, which takes a thread only for that moment. Status and health use
separate threads.
"""

from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from urllib.parse import unquote

import grpc

from maskedlark.reports.origin import split_origin
from maskedlark.rpc.fair_quota import FairQuota
from maskedlark.rpc.faults import answering
from maskedlark.rpc.handlers import wrap
from maskedlark.rpc.sites import FORWARDED_FOR, TrustedProxies

LIGHT_THREADS: Final = 8
REFUSING_THREADS: Final = 2
"""Threads in addition to the shared ones, which refuse calls while all shared threads are taken."""
_LIGHT: Final = ("/GetStatus", "/grpc.health.v1.Health/Check")
_NO_PROXIES: Final = TrustedProxies()
_FULL: Final = "this client has reached its limit of open calls"


class PeerQuota(grpc.ServerInterceptor):  # type: ignore[type-arg]  # grpc-stubs make it generic, grpc does not
    """Refuses calls of a peer that holds its share of the threads already."""

    def __init__(self, threads: int, proxies: TrustedProxies = _NO_PROXIES) -> None:
        """Share so many threads; those of status and health come on top.

        `proxies` are believed when they name the address of a caller without a certificate.
        """
        self._proxies = proxies
        self._room = FairQuota(threads, _FULL)
        self._light_room = FairQuota(LIGHT_THREADS, _FULL)

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Let the call through as long as there is room for its peer."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        room = self._light_room if _is_light(handler_call_details.method) else self._room
        return wrap(handler, lambda context: _hold(room, context, self._proxies))


class LightThreads(grpc.ServerInterceptor):  # type: ignore[type-arg]  # grpc-stubs make it generic, grpc does not
    """Answers status and health on separate threads.

    It must be the first interceptor: gRPC looks at the outermost handler.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LIGHT_THREADS + REFUSING_THREADS, thread_name_prefix="light-call")

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Let the call through, on a thread of the right kind."""
        handler = continuation(handler_call_details)
        if handler is not None and _is_light(handler_call_details.method):
            for behaviour in (handler.unary_unary, handler.stream_unary):
                if behaviour is not None:
                    behaviour.experimental_thread_pool = self._threads  # what grpcio-health-checking uses too
        return handler


def _is_light(method: str) -> bool:
    """Return whether a method takes no time, and must always be answered."""
    return method.endswith(_LIGHT)


def peers_of(context: Any, proxies: TrustedProxies = _NO_PROXIES) -> frozenset[Hashable]:
    """Return what a call counts for: the hosts that its caller's certificate names, or else its address.

    Hosts and not the set of names: else the holder of an authority for n names of one host could show up as
    2^n peers, each with another choice of them. If the certificate names origins, only their hosts count: its
    other names are where a server is reached, and `localhost` may be in every tenant's.

    Nothing stands for a plaintext connection, which only this machine can make. An address is that of a site
    (`maskedlark.rpc.sites`), which a trusted proxy names in the call's metadata.
    """
    auth: Any = context.auth_context()
    if b"ssl" not in auth.get("transport_security_type", ()):
        return frozenset()
    certificate = tuple(auth.get("x509_pem_cert", ()))
    if not certificate:
        host = host_of_peer(context.peer())
        return frozenset({proxies.site(host, _read_forwarded(context) if proxies.trust(host) else ())})
    found = auth.get("x509_subject_alternative_name", ())
    names = [name.decode("utf-8", "replace") for name in found]
    hosts = filter(None, map(split_origin, names))
    return frozenset(hosts) or frozenset(names) or frozenset({certificate})


def _read_forwarded(context: Any) -> list[str]:
    """Return the forwarding addresses that proxies added to a call."""
    return [value for key, value in context.invocation_metadata() if key == FORWARDED_FOR]


def host_of_peer(peer: str) -> str:
    """Return the address in gRPC's `ipv4:1.2.3.4:567` or `ipv6:[2001:db8::1]:567`."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")


@contextmanager
def _hold(room: FairQuota, context: grpc.ServicerContext, proxies: TrustedProxies) -> Iterator[None]:
    with ExitStack() as place:
        with answering(context):
            place.enter_context(room.enter(*peers_of(context, proxies)))
        yield
