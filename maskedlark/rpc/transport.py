"""gRPC servers and channels with the limits and the TLS that every party uses.

Messages stay within gRPC's default 4 MiB: long content streams in chunks. Plaintext is for loopback demos only, and only when
asked for by name.
"""

import ipaddress
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final

import grpc

from maskedlark.errors import InvalidTask
from maskedlark.rpc.tls_files import Reloaded, TlsContents, TlsFiles

MAX_MESSAGE_BYTES: Final = 4 << 20
MAX_METADATA_BYTES: Final = 16 << 10
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.http2.max_pings_without_data", 2),
    ("grpc.max_reconnect_backoff_ms", 5_000),  # gRPC's own 120 s would outlast a helper's restart by far
)


_CALLS_A_THREAD: Final = 8
"""How many calls may wait for each thread; gRPC answers more with RESOURCE_EXHAUSTED, which `faults.calling` knows."""

_SERVER_OPTIONS: Final = (
    *_OPTIONS,
    ("grpc.server_handshake_timeout_ms", 10_000),  # who does not finish TLS and the HTTP/2 preface by then is gone
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.max_concurrent_streams", 128),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustOnly:
    """The authorities that a client without a certificate of its own, a browser, trusts the server by."""

    trusted_authorities: Path


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only be reached from this machine."""
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
    on_handshake: Callable[[], None] = lambda: None,
) -> tuple[grpc.Server, int]:
    """A server that listens on `address` (host:port, port 0 for any) once started, and the port it got.

    With `tls` every client must show a certificate of the trusted authorities, unless the server `is_open` to browsers, which have
    none. The files are read again when they change. Without `tls` the address must be loopback. `on_handshake` is called as a client
    begins TLS, whether it will be let in or not.

    Raises:
        InvalidTask: no TLS on an address that others can reach, TLS files that do not fit together, or the address is taken.
    """
    server = grpc.server(
        ThreadPoolExecutor(threads),
        maximum_concurrent_rpcs=_CALLS_A_THREAD * threads,
        options=_SERVER_OPTIONS,
        interceptors=list(interceptors),
    )
    if tls is None:
        if not is_loopback(address.rsplit(":", 1)[0]):
            raise InvalidTask(f"without TLS a server listens on loopback only, not on {address}")
        return server, _bind(server, address, None)
    configuration = Reloaded(tls, _open_configuration if is_open else _closed_configuration)

    def at_handshake() -> Any:
        on_handshake()
        return configuration.changed()

    credentials = grpc.dynamic_ssl_server_credentials(
        configuration.current(),
        at_handshake,
        require_client_authentication=not is_open,
    )
    return server, _bind(server, address, credentials)


def make_channel(address: str, tls: TlsFiles | TrustOnly | None) -> grpc.Channel:
    """A channel to a peer; without `tls` the peer must be on loopback.

    Raises:
        InvalidTask: no TLS to an address that is not loopback, or TLS files that cannot be used.
    """
    if isinstance(tls, TlsFiles):
        return _secure_channel(address, tls.read())
    if tls is None:
        if not is_loopback(address.rsplit(":", 1)[0]):
            raise InvalidTask(f"without TLS only loopback peers are called, not {address}")
        return grpc.insecure_channel(address, options=_OPTIONS)
    try:
        trusted = tls.trusted_authorities.read_bytes()
    except OSError as error:
        raise InvalidTask(f"cannot read {tls.trusted_authorities}: {error.strerror}") from None
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(root_certificates=trusted), options=_OPTIONS)


class RenewedChannel:
    """A channel to one peer, made anew when this party's TLS files change. Safe to share between threads; close it."""

    def __init__(self, address: str, tls: TlsFiles | None, interceptors: Sequence[Any] = ()) -> None:
        """Connect lazily, with gRPC client interceptors around each call; raises as `make_channel` does."""
        self._newest = Reloaded(tls, lambda contents: _secure_channel(address, contents)) if tls else None
        self._interceptors = tuple(interceptors)
        self._lock = Lock()
        self._opened: list[grpc.Channel] = [self._newest.current() if self._newest else make_channel(address, tls)]

    def current(self) -> grpc.Channel:
        """The channel for the next call. Calls under way keep the one that they have."""
        newest = self._newest.current() if self._newest else self._opened[0]
        with self._lock:
            if newest is not self._opened[-1]:
                self._opened.append(newest)
        return grpc.intercept_channel(newest, *self._interceptors)

    def close(self) -> None:
        """End every call and connection."""
        for channel in self._opened:
            channel.close()


def _secure_channel(address: str, contents: TlsContents) -> grpc.Channel:
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_trusted(contents), private_key=contents.private_key, certificate_chain=contents.certificate
    )
    return grpc.secure_channel(address, credentials, options=_OPTIONS)


def _closed_configuration(contents: TlsContents) -> Any:
    """For clients with a certificate."""
    pair = (contents.private_key, contents.certificate)
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=_trusted(contents))


def _open_configuration(contents: TlsContents) -> Any:
    """For clients without one."""
    return grpc.ssl_server_certificate_configuration([(contents.private_key, contents.certificate)])


def _trusted(contents: TlsContents) -> bytes:
    """The authorities, of which there must be one: without any, TLS libraries would fall back to everybody's."""
    if not contents.trusted_authorities.strip():
        raise InvalidTask("the file of trusted authorities is empty: add the peers' certificates to it")
    return contents.trusted_authorities


def client_names(context: grpc.ServicerContext) -> frozenset[str] | None:
    """The names in the client's certificate, or None on a plaintext (loopback) connection."""
    auth = context.auth_context()
    if b"ssl" not in auth.get("transport_security_type", ()):
        return None
    names = [*auth.get("x509_subject_alternative_name", []), *auth.get("x509_common_name", [])]
    return frozenset(name.decode("utf-8", "replace") for name in names)


def _bind(server: grpc.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    try:
        port = server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
    except RuntimeError:
        raise InvalidTask(f"cannot listen on {address}: is the port taken?") from None
    return int(port)
