"""Servers that browsers and devices ask: no answer is waited for, or unpacked, without end."""

import gzip
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Final

import pytest

from browser_sim import time_limits
from browser_sim.delivery import _HttpSender
from browser_sim.devices.http_client import HttpClient
from browser_sim.download import IdxFile, download
from browser_sim.endpoint import Protection
from browser_sim.sealed_batch import SealedBatch
from browser_sim.source import InvalidSource
from browser_sim.task_host import load_bundle
from browser_sim.time_limits import time_limit
from maskedlark.errors import HelperUnavailable
from tests.patience import HANGS_S

INSECURE: Final = Protection(insecure=True)
SOON_S: Final = 0.4
HEAD: Final = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def saying(first: bytes, again: bytes) -> Iterator[str]:
    """The URL of a server that answers each connection with `first`, and then drips `again` until it ends."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer(connection: socket.socket) -> None:
            with suppress(OSError), connection:
                connection.settimeout(SOON_S / 8)
                connection.recv(65_536)
                connection.sendall(first)
                for _ in range(int(8 * HANGS_S / SOON_S)):
                    with suppress(TimeoutError):
                        if not connection.recv(65_536):
                            return
                    connection.sendall(again)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    Thread(target=answer, args=[listening.accept()[0]], daemon=True).start()

        Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


def load(url: str, _folder: Path) -> None:
    load_bundle(f"{url}/t", INSECURE, now=0.0)


def fetch(url: str, _folder: Path) -> None:
    with INSECURE.http_client(url) as client:
        HttpClient(client, url, lambda _seconds: None).fetch("/round", limit=100)


def send(url: str, _folder: Path) -> None:
    with INSECURE.http_client(url) as client:
        HttpClient(client, url, lambda _seconds: None).send("/updates", b"", "a/b")


def upload(url: str, _folder: Path) -> None:
    with _HttpSender(url, INSECURE) as sender:
        sender.send(SealedBatch(messages=(b"",), reports=1))


def mirror(url: str, folder: Path) -> None:
    download(folder, mirrors=[url], files=[IdxFile(name="some-ubyte", digest="")])


CLIENTS: Final = (load, fetch, send, upload, mirror)


@pytest.mark.parametrize("ask", CLIENTS)
@pytest.mark.parametrize(
    ("first", "again"), [(HEAD, b"x: y\r\n"), (HEAD + b"x: y\r\ncontent-length: 90\r\n\r\n", b"z")],
    ids=["head", "body"],
)  # fmt: skip
def test_an_answer_that_comes_a_byte_at_a_time_is_given_up(
    ask: Callable[[str, Path], None],
    first: bytes,
    again: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time_limits, "ANSWER_S", SOON_S)
    with saying(first, again) as url, pytest.raises((HelperUnavailable, InvalidSource)):
        ask(url, tmp_path)


@pytest.mark.parametrize("ask", CLIENTS[1:])  # urllib unpacks nothing
def test_nothing_is_unpacked_that_comes_packed(ask: Callable[[str, Path], None], tmp_path: Path) -> None:
    packed = gzip.compress(gzip.compress(bytes(64 << 20)))
    told = f"content-encoding: gzip, gzip\r\ncontent-length: {len(packed)}\r\n\r\n".encode()
    with saying(HEAD + told + packed, b"") as url, pytest.raises((HelperUnavailable, InvalidSource)):
        ask(url, tmp_path)


def test_a_connection_within_its_time_goes_on() -> None:
    mine, other = socket.socketpair()
    with mine, other:
        with time_limit(HANGS_S) as watch:
            watch(mine)
        other.sendall(b"x")
        assert mine.recv(1) == b"x"
