"""Where reports go to and how the way is protected.

Addresses are parsed, and plaintext refused beyond loopback, in one place.
"""

import ssl
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from browser_sim import time_limits
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.rpc.tls_files import TlsFiles
from maskedlark.rpc.transport import TrustOnly, is_loopback

if TYPE_CHECKING:
    import httpx

REQUEST_TIMEOUT_S = 60.0
"""For each step of an answer: a connection, the next bytes."""
TRUST_ADVICE = " with --tls-ca, or the authority that signed it"
"""How a browser trusts a server's certificate, for `maskedlark.rpc.certificate_faults`."""


@frozen
class Protection:
    """How connections are protected.

    Attributes:
        tls: The authorities to trust, or also an own certificate and its key; or None: then https trusts the
            system's authorities.
        insecure: Plaintext is allowed, to loopback only.
    """

    tls: TlsFiles | TrustOnly | None = None
    insecure: bool = False

    def check(self, destination: str) -> None:
        """Refuse plaintext unless it was asked for and stays on this machine.

        Raises:
            InvalidTask: plaintext without --insecure, or to another machine; or TLS for gRPC without the
                files that it needs.
        """
        host = host_of(destination)
        # A gRPC address has no scheme: it is in plaintext where no TLS files are given.
        is_plain = not destination.startswith("https://") and (is_url(destination) or self.tls is None)
        if not is_plain:
            return
        if not self.insecure:
            protected = (
                "use https" if is_url(destination) else "name its certificate's authority with --tls-ca"
            )
            raise InvalidTask(
                f"{without_credentials(destination)} would be contacted in plaintext: {protected}, "
                "or --insecure for a loopback demo"
            )
        if not is_loopback(host):
            raise InvalidTask(
                f"{without_credentials(destination)} is not on loopback: without TLS, only loopback "
                "addresses are allowed"
            )

    def http_client(self, destination: str) -> "httpx.Client":
        """Create a client for one http or https destination.

        Redirects are not followed: a report goes where it was meant to go.
        """
        from browser_sim.bounded_client import BoundedClient  # httpx loads slowly

        self.check(destination)
        if destination.startswith("https://"):
            return BoundedClient(verify=self.tls_context(), timeout=REQUEST_TIMEOUT_S)
        # An empty context, or httpx loads the authorities of the system, for 20 ms; and no proxy of the
        # environment, so that plaintext stays on this machine.
        nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return BoundedClient(verify=nobody, timeout=REQUEST_TIMEOUT_S, trust_env=False)

    def tls_context(self) -> ssl.SSLContext:
        """Build the context of an https client: trusted certificates, and its own if it has one."""
        if self.tls is None:
            return ssl.create_default_context()
        try:
            context = ssl.create_default_context(cafile=self.tls.trusted_authorities)
            if isinstance(self.tls, TlsFiles):
                context.load_cert_chain(self.tls.certificate, self.tls.private_key)
        except (OSError, ssl.SSLError):
            raise InvalidTask(
                "the TLS files are not valid: expected a PEM certificate, its private key, and PEM "
                "authorities"
            ) from None
        return context


def is_url(location: str) -> bool:
    """Return whether a location is an http or https URL."""
    return location.startswith(("http://", "https://"))


def without_credentials(destination: str) -> str:
    """Return a destination as messages show it: without the user and password that a URL may have."""
    # Up to the last @, wherever it stands: a password that was not percent-encoded may hold slashes.
    scheme = destination.partition("://")[0] + "://" if is_url(destination) else ""
    return scheme + destination.removeprefix(scheme).rpartition("@")[2]


def host_of(destination: str) -> str:
    """Return the host of a URL or of HOST:PORT, or raise InvalidTask."""
    try:
        # Without // urlsplit reads a host as a scheme or a path; `port` raises beyond 65535.
        parts = urlsplit(destination if is_url(destination) else f"//{destination}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or (port is None and not is_url(destination)):
        shown = without_credentials(destination)
        raise InvalidTask(f"the address is {shown!r}: expected HOST:PORT or an http(s) URL")
    return host


def read_limited(response: "httpx.Response", limit: int) -> bytes | None:
    """Read the body of a streamed response; None as soon as it exceeds `limit` bytes.

    Raises:
        httpx.ReadTimeout: it takes longer than `time_limits.ANSWER_S`, however steadily its bytes come.
        httpx.DecodingError: it is compressed, though no compression was asked for.
    """
    import httpx

    if response.headers.get("content-encoding", "identity") != "identity":
        # A kilobyte may unpack to a gigabyte, and encodings can be stacked.
        raise httpx.DecodingError("an answer is compressed")
    body, until_s = bytearray(), monotonic() + time_limits.ANSWER_S
    for piece in response.iter_bytes():
        body += piece
        if len(body) > limit:
            return None
        if monotonic() > until_s:
            raise httpx.ReadTimeout(f"an answer took longer than {time_limits.ANSWER_S:g} s")
    return bytes(body)
