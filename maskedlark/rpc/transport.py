"""gRPC servers and channels with the limits and the TLS that every party uses.

Messages stay within gRPC's default 4 MiB: long content streams in chunks. Plaintext is for loopback demos only, and only when
asked for by name.
"""

import ipaddress
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from maskedlark.errors import InvalidTask

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files of one party: its certificate chain, its private key, and the authorities that it trusts peers by."""

    certificate: Path
    private_key: Path
    trusted_authorities: Path


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def make_server(address: str, tls: TlsFiles | None, *, threads: int) -> tuple[grpc.Server, int]:
    """A server that listens on `address` (host:port, port 0 for any) once started, and the port it got.

    With `tls` every client must show a certificate of the trusted authorities. Without, the address must be loopback.

    Raises:
        InvalidTask: no TLS on an address that others can reach, or the address is taken.
    """
    server = grpc.server(ThreadPoolExecutor(threads), options=_OPTIONS)
    if tls is None:
        if not is_loopback(address.rsplit(":", 1)[0]):
            raise InvalidTask(f"without TLS a server listens on loopback only, not on {address}")
        port = _bind(server, address, None)
    else:
        credentials = grpc.ssl_server_credentials(
            [(tls.private_key.read_bytes(), tls.certificate.read_bytes())],
            root_certificates=tls.trusted_authorities.read_bytes(),
            require_client_auth=True,
        )
        port = _bind(server, address, credentials)
    return server, port


def make_channel(address: str, tls: TlsFiles | None) -> grpc.Channel:
    """A channel to a peer; without `tls` the peer must be on loopback.

    Raises:
        InvalidTask: no TLS to an address that is not loopback.
    """
    if tls is None:
        if not is_loopback(address.rsplit(":", 1)[0]):
            raise InvalidTask(f"without TLS only loopback peers are called, not {address}")
        return grpc.insecure_channel(address, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=tls.trusted_authorities.read_bytes(),
        private_key=tls.private_key.read_bytes(),
        certificate_chain=tls.certificate.read_bytes(),
    )
    return grpc.secure_channel(address, credentials, options=_OPTIONS)


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
