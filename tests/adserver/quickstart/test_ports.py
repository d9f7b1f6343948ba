"""Ports that are written down once and listened on at each start: nobody else may get them in between."""

import socket
from typing import Final

import pytest

from adserver.quickstart import ports as module
from adserver.quickstart.ports import free_ports
from maskedlark.errors import InvalidTask

FIRST_GIVEN_OUT: Final = 32_768
"""By Linux, unless it is told otherwise; other kernels begin at 49,152."""


def test_they_differ_and_the_kernel_gives_none_of_them_to_anyone() -> None:
    found = free_ports(20)
    assert len(set(found)) == 20
    assert max(found) < FIRST_GIVEN_OUT


@pytest.mark.parametrize("holds", ["a server", "a connection"])
def test_one_that_is_taken_is_not_among_them(monkeypatch: pytest.MonkeyPatch, holds: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
    ):
        taken = {"a server": server, "a connection": connection}[holds].getsockname()[1]
        [free] = free_ports(1)
        monkeypatch.setattr(module, "_PORTS", (taken, free))
        monkeypatch.setattr(module, "_TRIES", 1)
        assert free_ports(1) == [free]
        monkeypatch.setattr(module, "_TRIES", 0)
        with pytest.raises(InvalidTask, match="too few free ports"):
            free_ports(2)
