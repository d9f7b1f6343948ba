"""A painted ad server behind its door, over HTTP."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from adserver.admin.access import AuthMiddleware
from adserver.ingest.http_server import HttpServer
from adserver.records.access import GrantKind, Scope
from tests.adserver.painted import Painted, painted
from tests.patience import HANGS_S


@dataclass(frozen=True, kw_only=True)
class Behind:
    """The ad server, and clients of it."""

    of: Painted
    door: AuthMiddleware
    origin: str

    def client(self, scope: Scope | None = None, kind: GrantKind = GrantKind.TOKEN) -> httpx.Client:
        """A client with a grant of its own, or with none."""
        if scope is None:
            return httpx.Client(base_url=self.origin, timeout=HANGS_S)
        secret = self.of.grant(kind, scope)
        if kind is GrantKind.TOKEN:
            shown = {"authorization": f"Bearer {secret}"}
            return httpx.Client(base_url=self.origin, headers=shown, timeout=HANGS_S)
        name = f"maskedlark-{self.origin.rsplit(':', 1)[1]}"
        return httpx.Client(base_url=self.origin, cookies={name: secret}, timeout=HANGS_S)


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    of = painted(Path(tmp_path_factory.mktemp("painted")) / "adserver")
    with of.door() as door:
        server = HttpServer(door, "127.0.0.1:0", None, headers=())
        try:
            server.wait_until_started()
            yield Behind(of=of, door=door, origin=f"http://127.0.0.1:{server.port}")
        finally:
            server.stop()
    of.close()


@pytest.fixture
def reader(behind: Behind) -> Iterator[httpx.Client]:
    with behind.client(Scope.READ) as client:
        yield client


@pytest.fixture
def operator(behind: Behind) -> Iterator[httpx.Client]:
    with behind.client(Scope.OPERATE) as client:
        yield client
