"""An ad server with painted figures whose helpers really answer, and charge each id once; behind its door."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Event
from typing import Any, Final

import httpx
import numpy as np

from adserver.admin.guarded_route import PREFIX
from adserver.client import Client
from adserver.client.local import LocalAdServer
from adserver.ingest.http_server import HttpServer
from adserver.peers.replies import HelperStatus, QueryAnswer
from adserver.peers.retrying import ONCE, Backoff
from adserver.records.access import GrantKind, Scope
from maskedlark.errors import HelperUnavailable, JobReason, JobRefused
from maskedlark.randomness import seeded
from maskedlark.releases.counting import measurement_of
from maskedlark.releases.evaluation import EvaluationSpec
from maskedlark.releases.kinds import AnyQuery
from tests.adserver.evaluation_helper import MemoryEvaluationHelper, status_with
from tests.adserver.painted import OF, SHOP_OF, SHOP_REPORTS, Painted, painted
from tests.measured import MemoryQueryHelper, columns_of, opened
from tests.patience import HANGS_S

CLICKS: Final = np.arange(SHOP_REPORTS) % 4 == 0
AT_ONCE: Final = Backoff(first_s=0.0, longest_s=0.0, give_up_after_s=HANGS_S)


class Helper:
    """One honest helper of both datasets."""

    def __init__(self, role: int, shares: Any) -> None:
        self.asked: list[AnyQuery] = []
        self._sums = MemoryQueryHelper(SHOP_OF, role, shares, seed=role)
        self._scores = MemoryEvaluationHelper(OF.of, role, OF.datasets[role].shares, seed=role)

    def status(self) -> HelperStatus:
        return status_with()

    def run_query(
        self, query: AnyQuery, beside: bytes, length: int, *, cancelled: Event | None = None
    ) -> QueryAnswer:
        self.asked.append(query)
        by = self._scores if isinstance(query, EvaluationSpec) else self._sums
        return by.run_query(query, beside, length, cancelled=cancelled)


@dataclass
class Ledgered:
    """A helper that answers an id once, as a real one's ledger has it: the same bytes ever after.

    Attributes:
        lost: Kinds of queries whose next answer is charged, and does not arrive.
        refuses: What it says of a new query.
        waits: What a new query waits for before it is answered.
        away: Raised instead of its status.
        not_well: Why its status says that it refuses all calls.
    """

    helper: Helper
    charged: dict[bytes, tuple[AnyQuery, QueryAnswer]] = field(default_factory=dict)
    lost: list[type] = field(default_factory=list)
    refuses: Exception | None = None
    waits: Event | None = None
    away: HelperUnavailable | None = None
    not_well: str = ""
    calls: int = 0

    def status(self) -> HelperStatus:
        if self.away is not None:
            raise self.away
        return status_with(self.not_well)

    def run_query(
        self, query: AnyQuery, beside: bytes, length: int, *, cancelled: Event | None = None
    ) -> QueryAnswer:
        self.calls += 1
        if query.query_id not in self.charged:
            if self.refuses is not None:
                raise self.refuses
            if self.waits is not None:
                assert self.waits.wait(HANGS_S)
            self.charged[query.query_id] = query, self.helper.run_query(query, beside, length)
        stored, answer = self.charged[query.query_id]
        if stored != query:
            raise JobRefused(JobReason.QUERY_CHANGED, "the id is of another query")
        if type(query) in self.lost:
            self.lost.remove(type(query))
            raise HelperUnavailable("the answer was lost on its way")
        return answer


@dataclass(frozen=True, kw_only=True)
class There:
    """An ad server, its helpers, and how it is reached."""

    of: Painted
    helpers: tuple[Ledgered, Ledgered]
    url: str

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        token = self.of.grant(GrantKind.TOKEN, Scope.OPERATE)
        shown = {"authorization": f"Bearer {token}"}
        return httpx.post(f"{self.url}{PREFIX}{path}", json=body, headers=shown, timeout=HANGS_S)

    def client(self, backoff: Backoff = AT_ONCE) -> Client:
        token = self.of.grant(GrantKind.TOKEN, Scope.OPERATE)
        return Client(url=self.url, token=token, backoff=backoff)

    @contextmanager
    def charging(self, queries: int) -> Iterator[None]:
        """Both helpers charge so many queries within."""
        before = [len(one.charged) for one in self.helpers]
        yield
        assert [len(one.charged) - had for one, had in zip(self.helpers, before, strict=True)] == [
            queries
        ] * 2


def both_helpers() -> tuple[Helper, Helper]:
    """Both helpers of the painted datasets."""
    measurement = measurement_of(SHOP_OF.task)
    keys = np.zeros((SHOP_REPORTS, len(measurement.keys)), np.uint32)
    values = np.stack([CLICKS, np.zeros(SHOP_REPORTS)], axis=1).astype(np.int64)
    shares = opened(SHOP_OF, keys, columns_of(measurement, values), seeded(1))
    return Helper(0, shares[0]), Helper(1, shares[1])


@contextmanager
def asked_site(folder: Path) -> Iterator[There]:
    """The ad server, served over HTTP on loopback."""
    first, second = both_helpers()
    helpers = Ledgered(first), Ledgered(second)
    with ExitStack() as stack:
        of = painted(folder / "adserver")
        stack.callback(of.close)
        pair: Any = helpers
        of.client = Client.of(LocalAdServer.over(of.engine, pair, data=of.folder, backoff=ONCE))
        server = HttpServer(stack.enter_context(of.door()), "127.0.0.1:0", None, headers=())
        stack.callback(server.stop)
        server.wait_until_started()
        yield There(of=of, helpers=helpers, url=f"http://127.0.0.1:{server.port}")


def losing_answers(paths: list[str]) -> type[HTTPConnection]:
    """Connections that lose the next answer of each of these paths of the API, after it was made."""

    class Losing(HTTPConnection):
        def request(self, method: str, url: str, *body: Any, **named: Any) -> None:
            self.path = url.removeprefix(PREFIX)
            super().request(method, url, *body, **named)

        def getresponse(self) -> HTTPResponse:
            answer = super().getresponse()
            if self.path in paths:
                answer.read()
                paths.remove(self.path)
                raise ConnectionResetError("the connection was reset")
            return answer

    return Losing
