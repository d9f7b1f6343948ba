import socket
from contextlib import closing

import pytest

from maskedlark.runtime.binding import why_not_bound


@pytest.mark.parametrize(
    ("address", "why"),
    [
        # Of TEST-NET-3, which no machine has
        ("203.0.113.9:7100", "this machine has no such address"),
        ("nothing.invalid:7100", "'nothing.invalid' is neither an address nor a name"),
        ("127.0.0.1", "expected host:port"),
        ("127.0.0.1:-1", "expected host:port"),
        ("127.0.0.1:65536", "expected host:port"),
        (f"{'x' * 70}.example:1", "expected host:port"),
        ("127.0.0.1:0", "try again"),
    ],
)
def test_an_address_that_cannot_be_bound_says_why(address: str, why: str) -> None:
    assert why in why_not_bound(address)


def test_a_port_that_another_uses_is_named_as_such() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        assert "another program uses the port" in why_not_bound(f"127.0.0.1:{taken.getsockname()[1]}")
