"""Sites: whose share of a server's room a caller without a certificate takes.

    proxies = TrustedProxies.of(["10.0.0.0/8"])
    proxies.site("192.0.2.7", [])                          # "192.0.2.7"
    proxies.site("10.0.0.1", ["198.51.100.4, 192.0.2.7"])  # "192.0.2.7", which the proxy itself has seen

A site is an IPv4 address, or an IPv6 network of 64 bits: one subscriber has all addresses of the latter.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from maskedlark.errors import InvalidSetting
from maskedlark.frozen import frozen

FORWARDED_FOR: Final = "x-forwarded-for"
"""The header to which each proxy appends the address of its caller."""
_IPV6_OF_ONE_SITE: Final = 64
# Entries of the header that are read; more proxies in a row are not trusted ones
_MOST_NAMED: Final = 32


@frozen
class TrustedProxies:
    """The proxies that this server believes when they name their caller.

    Attributes:
        networks: Their addresses.
    """

    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, networks: Sequence[str]) -> "TrustedProxies":
        """Read networks in CIDR form, or single addresses.

        Raises:
            InvalidSetting: one is neither.
        """
        try:
            return cls(networks=tuple(ip_network(one) for one in networks))
        except ValueError as error:
            raise InvalidSetting(
                f"trusted_proxy is not valid: expected an address or a network such as 10.0.0.0/8: {error}"
            ) from None

    def trust(self, peer: str) -> bool:
        """Return whether a peer's address is that of a trusted proxy."""
        address = _address(peer)
        return address is not None and any(address in one for one in self.networks)

    def site(self, peer: str, forwarded: Sequence[str]) -> str | None:
        """Return the site of a caller.

        Args:
            peer: The address at the other end of the connection.
            forwarded: The values of `FORWARDED_FOR`, in the order in which they came. Only those of a trusted
                proxy count, and of these only the part from the last address that is not a trusted proxy's:
                the caller may have invented the rest.

        Returns:
            None for a trusted proxy that names no caller: it calls by itself, or forwards connections without
            reading them.
        """
        if not self.trust(peer):
            return _site_of(peer)
        named = [entry.strip() for value in forwarded for entry in value.split(",")]
        for entry in reversed(named[-_MOST_NAMED:]):
            if entry and not self.trust(entry):
                return _site_of(entry)
        return None


def _site_of(host: str) -> str:
    """Return the site of an address; other text is a site by itself."""
    address = _address(host)
    if address is None:
        return host
    if isinstance(address, IPv4Address):
        return str(address)
    return str(ip_network((address, _IPV6_OF_ONE_SITE), strict=False))


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """Read an address, also one with a zone or, as some proxies write it, with a port."""
    bare = host[1:].partition("]")[0] if host.startswith("[") else host.partition("%")[0]
    if bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        address = ip_address(bare)
    except ValueError:
        return None
    # A socket of both families shows IPv4 callers as ::ffff:a.b.c.d: the same site as over IPv4.
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
