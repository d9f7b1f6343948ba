"""The caller of a gRPC call: the names in its certificate, what its quota is counted by, its audit name."""

from collections.abc import Hashable
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

import grpc
from cryptography import x509

from maskedlark.audit_log import Actor, ActorKind, clean_name
from maskedlark.reports.origin import split_origin
from maskedlark.rpc.sites import FORWARDED_FOR, TrustedProxies
from maskedlark.rpc.trust import sha256_of

NO_PROXIES: Final = TrustedProxies()
_REMEMBERED: Final = 1_024


def client_names(context: grpc.ServicerContext) -> frozenset[str] | None:
    """Return the subject alternative names in the client's certificate.

    None on a plaintext (loopback) connection.

    The common name does not count: it is a label of 64 characters that no party checks.
    """
    auth: Any = context.auth_context()
    if b"ssl" not in auth.get("transport_security_type", ()):
        return None
    return frozenset(
        name.decode("utf-8", "replace") for name in auth.get("x509_subject_alternative_name", ())
    )


def peers_of(context: Any, proxies: TrustedProxies = NO_PROXIES) -> frozenset[Hashable]:
    """Return what a call counts for: the hosts that its caller's certificate names, or else its address.

    Nothing stands for a plaintext connection, which only this machine can make. An address is that of a site
    (`maskedlark.rpc.sites`), which a trusted proxy names in the call's metadata.
    """
    auth: Any = context.auth_context()
    if b"ssl" not in auth.get("transport_security_type", ()):
        return frozenset()
    certificate = tuple(auth.get("x509_pem_cert", ()))
    if not certificate:
        host = _host_of(context.peer())
        return frozenset({proxies.site(host, _read_forwarded(context) if proxies.trust(host) else ())})
    found = auth.get("x509_subject_alternative_name", ())
    names = [name.decode("utf-8", "replace") for name in found]
    # Hosts and not the set of names: else the holder of an authority for n names of one host could show up as
    # 2^n peers, each with another choice of them. Of a certificate that names origins only their hosts count:
    # its other names are where a server is reached, and `localhost` may be in every tenant's.
    hosts = filter(None, map(split_origin, names))
    return frozenset(hosts) or frozenset(names) or frozenset({certificate})


def _read_forwarded(context: Any) -> list[str]:
    """Return the forwarding addresses that proxies added to a call."""
    return [value for key, value in context.invocation_metadata() if key == FORWARDED_FOR]


def _host_of(peer: str) -> str:
    """Return the address in gRPC's `ipv4:1.2.3.4:567` or `ipv6:[2001:db8::1]:567`."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")


def actor_of(context: grpc.ServicerContext) -> Actor:
    """Return the names and the SHA-256 of a caller's certificate, and the address that it called from.

    A caller without TLS, which is on this machine, has no name.
    """
    address = clean_name(_host_of(context.peer()))
    names = client_names(context)
    if names is None:
        return Actor(kind=ActorKind.LOOPBACK, address=address)
    auth: Any = context.auth_context()
    certificate = b"".join(auth.get("x509_pem_cert", ()))
    return Actor(
        kind=ActorKind.CERTIFICATE,
        name=clean_name(" ".join(sorted(names))),
        identity=_sha256_of(certificate) if certificate else "",
        address=address,
    )


@lru_cache(_REMEMBERED)
def _sha256_of(certificate: bytes) -> str:
    return sha256_of(x509.load_pem_x509_certificate(certificate))
