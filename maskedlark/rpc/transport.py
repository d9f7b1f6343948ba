"""gRPC servers and channels with the limits and the TLS that every party uses.

Messages stay within gRPC's default 4 MiB: long content streams in chunks. Plaintext is for loopback demos
only, and only when asked for by name.
"""

import ipaddress
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, Final

import grpc

from maskedlark.errors import InvalidSetting
from maskedlark.frozen import frozen
from maskedlark.rpc.handlers import Handler, Interceptor, wrap
from maskedlark.rpc.keepalive import Keepalive
from maskedlark.rpc.tls_files import Reloaded, TlsContents, TlsFiles, nobody_trusted
from maskedlark.rpc.trust import Trust
from maskedlark.rpc.wire import MAX_REPORT_BYTES
from maskedlark.runtime.binding import why_not_bound

_LOG: Final = logging.getLogger(__name__)
MAX_MESSAGE_BYTES: Final = 4 << 20
MAX_METADATA_BYTES: Final = 16 << 10
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    # Two servers on one port would each get a part of the calls; a second one is to fail instead.
    ("grpc.so_reuseport", 0),
)
_CALLS_A_THREAD: Final = 256
# How many calls may wait for each thread, for a moment: `PeerQuota` refuses those beyond a peer's share.
# gRPC answers more, whoever's, with RESOURCE_EXHAUSTED, which `faults.calling` knows.
_OPEN_CALLS_A_THREAD: Final = 32

_SERVER_OPTIONS: Final = (
    *_OPTIONS,
    # A client that is dead holds a connection no longer than this and the next.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
    # A client that has not finished TLS and the HTTP/2 preface by then is disconnected.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.max_concurrent_streams", 128),
)
MOST_CONNECTIONS: Final = 4_096
"""Of one server; more are closed. A stranger's connection takes a file and some 50 KB, also before TLS."""
_FRAMES_BYTES: Final = 64  # of the messages around a report
# Where anybody may call: these bound what all the calls that there is room for can make the server hold
_OPEN_SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_REPORT_BYTES + _FRAMES_BYTES),
    ("grpc.http2.lookahead_bytes", 64 << 10),  # of each call, ahead of what is read
    ("grpc.http2.bdp_probe", 0),  # which would let that grow to 4 MiB, also of calls that wait for a thread
)
_KEEPALIVE: Final = Keepalive()
_PEM_END: Final = b"-----END CERTIFICATE-----"


@frozen
class TrustOnly:
    """The authorities by which a client without a certificate, such as a browser, trusts the server."""

    trusted_authorities: Path


def is_loopback(host: str) -> bool:
    """Return whether a host name or address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def make_server(
    address: str,
    tls: TlsFiles | None,
    *,
    threads: int,
    is_open: bool = False,
    interceptors: "Sequence[grpc.ServerInterceptor[Any, Any]]" = (),
    inside: "Sequence[grpc.ServerInterceptor[Any, Any]]" = (),
    on_handshake: Callable[[], None] = lambda: None,
    keepalive: Keepalive = _KEEPALIVE,
) -> tuple[grpc.Server, int]:
    """Create a server on `address` (host:port, port 0 for any), and return it with the port it got.

    With `tls` every client must show a certificate that is trusted (`maskedlark.rpc.trust`), and is held to
    it again at each call, unless the server `is_open` to browsers, which have none. The files are read again
    when they change. Without `tls` the address must be loopback. `interceptors` see every call, and those
    `inside` only the calls of clients that are still trusted. `on_handshake` is called as a client begins
    TLS, whether it will be let in or not. `keepalive` is that of the clients.

    Raises:
        InvalidSetting: no TLS on an address that others can reach, TLS files that do not fit together, or the
            address is taken.
    """
    server = grpc.server(
        ThreadPoolExecutor(threads),
        maximum_concurrent_rpcs=(_OPEN_CALLS_A_THREAD if is_open else _CALLS_A_THREAD) * threads,
        # A dict: what is set later replaces the general setting of the same name.
        options=tuple(
            dict(
                [
                    *_SERVER_OPTIONS,
                    ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
                    *keepalive.of_server(),
                    *(_OPEN_SERVER_OPTIONS if is_open else ()),
                ]
            ).items()
        ),
        interceptors=[
            *interceptors,
            *([_StillTrusted(tls)] if tls is not None and not is_open else []),
            *inside,
        ],
    )
    if tls is None:
        if not is_loopback(address.rsplit(":", 1)[0]):
            raise InvalidSetting(
                f"the server's address {address} is not on loopback: without TLS, only loopback is allowed"
            )
        return server, _bind(server, address, None)
    configuration = Reloaded(tls, _open_configuration if is_open else _mutual_configuration)

    def at_handshake() -> Any:
        on_handshake()
        return configuration.poll()

    credentials = grpc.dynamic_ssl_server_credentials(
        configuration.current(),
        at_handshake,
        require_client_authentication=not is_open,
    )
    return server, _bind(server, address, credentials)


def make_channel(
    address: str, tls: TlsFiles | TrustOnly | None, *, keepalive: Keepalive = _KEEPALIVE
) -> grpc.Channel:
    """Open a channel to a peer; without `tls` the peer must be on loopback.

    Authorities among the trusted certificates are believed for any host, as within one cluster. To another
    party `RenewedChannel` believes them for the names in `trusted.names` only.

    Raises:
        InvalidSetting: no TLS to an address that is not loopback, or TLS files that cannot be used.
    """
    if isinstance(tls, TlsFiles):
        contents = tls.read()
        contents.warn_of_end()
        return _secure_channel(address, contents, keepalive)
    if tls is None:
        if not is_loopback(address.rsplit(":", 1)[0]):
            raise InvalidSetting(
                f"the peer's address {address} is not on loopback: without TLS, only loopback is allowed"
            )
        return grpc.insecure_channel(address, options=_client_options(keepalive))
    try:
        trusted = tls.trusted_authorities.read_bytes()
    except OSError as error:
        raise InvalidSetting(f"cannot read {tls.trusted_authorities}: {error.strerror}") from None
    return grpc.secure_channel(
        address, grpc.ssl_channel_credentials(root_certificates=trusted), options=_client_options(keepalive)
    )


class RenewedChannel:
    """A channel to one peer, made anew when this party's TLS files change.

    Safe to share between threads; close it.
    """

    def __init__(
        self,
        address: str,
        tls: TlsFiles | None,
        interceptors: Sequence[Any] = (),
        *,
        keepalive: Keepalive = _KEEPALIVE,
    ) -> None:
        """Connect lazily, with gRPC client interceptors around each call; raises as `make_channel` does."""
        self._newest = (
            Reloaded(tls, lambda contents: _open_pinned_channel(address, contents, keepalive))
            if tls
            else None
        )
        self._interceptors = tuple(interceptors)
        self._lock = Lock()
        self._opened: list[grpc.Channel] = [
            self._newest.current() if self._newest else make_channel(address, tls, keepalive=keepalive)
        ]

    def current(self) -> grpc.Channel:
        """Return the channel for the next call. Calls under way keep the one that they have."""
        newest = self._newest.current() if self._newest else self._opened[0]
        with self._lock:
            # The ones before stay open, because calls under way end on them.
            if newest is not self._opened[-1]:
                self._opened.append(newest)
        return grpc.intercept_channel(newest, *self._interceptors)

    def close(self) -> None:
        """End every call and connection."""
        for channel in self._opened:
            channel.close()


def _client_options(keepalive: Keepalive) -> tuple[tuple[str, int], ...]:
    # gRPC's own longest wait before it connects again, 120 s, would outlast a helper's restart by far
    return (*_OPTIONS, *keepalive.of_client(), ("grpc.max_reconnect_backoff_ms", 5_000))


def _secure_channel(address: str, contents: TlsContents, keepalive: Keepalive) -> grpc.Channel:
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_read_authorities(contents),
        private_key=contents.private_key,
        certificate_chain=contents.certificate,
    )
    return grpc.secure_channel(address, credentials, options=_client_options(keepalive))


def _open_pinned_channel(address: str, contents: TlsContents, keepalive: Keepalive) -> grpc.Channel:
    """Open a channel to a peer that is known by its own certificate, or by an authority for its host."""
    host = address.rsplit(":", 1)[0].strip("[]")
    return _secure_channel(
        address, replace(contents, trusted_authorities=Trust.read(contents).roots(host)), keepalive
    )


def _mutual_configuration(contents: TlsContents) -> Any:
    """Return the configuration for clients with a certificate."""
    pair = (contents.private_key, contents.certificate)
    trust = _read_trust(contents)
    # Without roots, TLS would trust the system's authorities: our own certificate, which no peer has, is one
    # that lets nobody in
    roots = contents.certificate if trust.is_empty else trust.roots()
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=roots)


def _read_trust(contents: TlsContents) -> Trust:
    """Read whom a server trusts; log a warning if that is nobody."""
    trust = Trust.read(contents)
    if trust.is_empty:
        _LOG.warning(
            "%s is empty: no peer is trusted, and every call is refused, until it has a certificate",
            contents.trusted_file,
        )
    return trust


def _open_configuration(contents: TlsContents) -> Any:
    """Return the configuration for clients without a certificate."""
    return grpc.ssl_server_certificate_configuration([(contents.private_key, contents.certificate)])


def _read_authorities(contents: TlsContents) -> bytes:
    """Return the authorities, of which there must be one."""
    # Without any, TLS libraries would fall back to the system's authorities, which certify anybody.
    if not contents.trusted_authorities.strip():
        raise nobody_trusted(contents.trusted_file)
    return contents.trusted_authorities


class _StillTrusted(Interceptor):
    """Refuses calls on connections whose client would not be let in any more.

    For servers whose clients all have certificates. TLS checks a certificate once, when a connection begins,
    and a connection may last for months. Key usages and path lengths cannot change in that time. This checks
    what can, and what TLS does not know: the current pins, the authorities and the names that each may
    certify (`maskedlark.rpc.trust`), and the time. So removing a certificate, or its expiry, takes effect at
    the next call.
    """

    def __init__(self, files: TlsFiles) -> None:
        """Read the files; raises as `Reloaded` does, and if they trust nobody."""
        # Emptied later it takes the trust in all away; a server does not begin so, which is a mistake
        if Trust.read(files.read()).is_empty:
            raise nobody_trusted(files.trusted_authorities)
        self._trust = Reloaded(files, _read_trust)

    def intercept(self, handler: Handler, method: str) -> Handler:
        """Look at the client's certificate, then let the call through."""
        return wrap(handler, self._check)

    @contextmanager
    def _check(self, context: grpc.ServicerContext) -> Iterator[None]:
        if not self._trust.current().vouches_for(_chain(context), datetime.now(UTC)):
            context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                "the client's certificate is no longer trusted, or has expired: calls go on once the server "
                "trusts it again (trusted.crt), or the client has renewed it",
            )
        yield


def _chain(context: grpc.ServicerContext) -> tuple[bytes, ...]:
    """Return the client's certificate, and what it sent along."""
    auth: Any = context.auth_context()
    sent = b"".join(auth.get("x509_pem_cert_chain", ())).split(_PEM_END)[:-1]
    return (*auth.get("x509_pem_cert", ()), *(one + _PEM_END for one in sent))


def _bind(server: grpc.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    try:
        port = (
            server.add_insecure_port(address)
            if credentials is None
            else server.add_secure_port(address, credentials)
        )
    except RuntimeError:
        raise InvalidSetting(f"cannot listen on {address}: {why_not_bound(address)}") from None
    return int(port)
