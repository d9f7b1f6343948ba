import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskedlark.errors import InvalidTask
from maskedlark.rpc.callers import peers_of
from maskedlark.rpc.sites import TrustedProxies, _site_of

PROXIES = TrustedProxies.of(["10.0.0.0/8", "2001:db8:5::/48"])


@pytest.mark.parametrize(
    ("host", "site"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("192.0.2.7:4711", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::9]:443", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
        ("unknown", "unknown"),
    ],
)
def test_a_site_is_an_ipv4_address_or_an_ipv6_network_of_one_subscriber(host: str, site: str) -> None:
    assert _site_of(host) == site


@pytest.mark.parametrize(
    ("peer", "forwarded", "site"),
    [
        ("192.0.2.7", ["198.51.100.4"], "192.0.2.7"),  # anybody can write a header
        ("10.0.0.1", ["198.51.100.4"], "198.51.100.4"),
        ("10.0.0.1", ["203.0.113.1, 198.51.100.4"], "198.51.100.4"),  # the first is the caller's invention
        ("10.0.0.1", ["203.0.113.1", "198.51.100.4"], "198.51.100.4"),
        ("10.0.0.1", ["198.51.100.4, 10.2.3.4"], "198.51.100.4"),  # two proxies in a row
        ("2001:db8:5::1", ["2001:db8:9:9::7, 10.2.3.4"], "2001:db8:9:9::/64"),
        ("::ffff:10.0.0.1", ["198.51.100.4"], "198.51.100.4"),
        ("10.0.0.1", [], None),
        ("10.0.0.1", ["", " , "], None),
        ("10.0.0.1", ["10.2.3.4"], None),
        ("10.0.0.1", ["198.51.100.4, not an address"], "not an address"),
    ],
)
def test_only_a_trusted_proxy_names_its_caller(peer: str, forwarded: list[str], site: str | None) -> None:
    assert PROXIES.site(peer, forwarded) == site


@given(st.lists(st.text(max_size=50), max_size=40))
def test_whatever_a_header_holds_it_names_a_site_or_none(forwarded: list[str]) -> None:
    found = PROXIES.site("10.0.0.1", forwarded)
    assert found is None or isinstance(found, str)


@pytest.mark.parametrize("network", ["proxy.example", "10.0.0.0/33", "10.0.0.1/8", ""])
def test_a_proxy_that_is_no_network_is_refused_by_the_options_name(network: str) -> None:
    with pytest.raises(InvalidTask, match="trusted_proxy"):
        TrustedProxies.of([network])


class Forwarded:
    """A call that came over TLS without a certificate."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def auth_context(self) -> dict[str, tuple[bytes, ...]]:
        return {"transport_security_type": (b"ssl",)}

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("x-forwarded-for", "203.0.113.1, 198.51.100.4"), ("user-agent", "x"))


@pytest.mark.parametrize(
    ("peer", "expected"),
    [("ipv4:10.0.0.1:4711", "198.51.100.4"), ("ipv4:192.0.2.7:4711", "192.0.2.7")],
)
def test_over_grpc_the_metadata_of_a_trusted_proxy_names_the_caller(peer: str, expected: str) -> None:
    assert peers_of(Forwarded(peer), PROXIES) == frozenset({expected})
