"""How a service's audit log names the caller of a gRPC call."""

from functools import lru_cache
from typing import Any, Final

import grpc
from cryptography import x509

from maskedlark.audit_log import Actor, ActorKind, clean_name
from maskedlark.rpc.peer_quota import host_of_peer
from maskedlark.rpc.transport import client_names
from maskedlark.rpc.trust import fingerprint

_REMEMBERED: Final = 1_024


def actor_of(context: grpc.ServicerContext) -> Actor:
    """Return the names and the fingerprint of a caller's certificate, and the address that it called from.

    A caller without TLS, which is on this machine, has no name.
    """
    address = clean_name(host_of_peer(context.peer()))
    names = client_names(context)
    if names is None:
        return Actor(kind=ActorKind.LOOPBACK, address=address)
    auth: Any = context.auth_context()
    certificate = b"".join(auth.get("x509_pem_cert", ()))
    return Actor(
        kind=ActorKind.CERTIFICATE,
        name=clean_name(" ".join(sorted(names))),
        identity=_fingerprint_of(certificate) if certificate else "",
        address=address,
    )


@lru_cache(_REMEMBERED)
def _fingerprint_of(certificate: bytes) -> str:
    return fingerprint(x509.load_pem_x509_certificate(certificate))
