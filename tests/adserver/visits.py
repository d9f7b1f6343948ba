"""The dashboard of a painted ad server, as a browser visits it."""

from dataclasses import dataclass, field
from typing import Any, Final

from playwright.sync_api import Browser, BrowserContext, Page, Request

from adserver.ingest.http_server import HttpServer
from adserver.records.access import GrantKind, Scope
from tests.adserver.painted import OF, SHOP_DATASET, SHOP_OF, Painted
from tests.patience import HANGS_S

DATASET: Final = OF.datasets[0].dataset_id.hex()
PATHS: Final = {
    "overview": "/",
    "intake": "/intake",
    "tasks": "/tasks",
    "task": f"/tasks/{OF.of.task.task_id.hex()}",
    "task that measures": f"/tasks/{SHOP_OF.task.task_id.hex()}",
    "datasets": "/datasets",
    "dataset": f"/datasets/{DATASET}",
    "jobs": "/jobs",
    "jobs that failed": "/jobs?state=refused",
    "job": f"/jobs/{'02' * 16}",
    "job that was refused": f"/jobs/{'04' * 16}",
    "job that waits": f"/jobs/{'01' * 16}",
    "budgets": "/budgets",
    "budget": f"/budgets/{DATASET}?rounds=20&batch_size=&noise_multiplier=30",
    "budget of the shop": f"/budgets/{SHOP_DATASET.hex()}",
    "plan": f"/plan?task={OF.of.task.task_id.hex()}&jobs=2&tests=3&reports=200&weights=40",
    "plan that does not fit": f"/plan?task={OF.of.task.task_id.hex()}&jobs=2&reports=10",
    "queries": "/queries",
    "query": f"/queries/{'a1' * 16}",
    "query without an answer": f"/queries/{'a2' * 16}",
    "evaluation": f"/queries/{'a4' * 16}",
    "helpers": "/helpers",
    "what is not there": "/jobs/ff",
}
"""Every page, in the states that look differently."""


@dataclass(kw_only=True)
class Visit:
    """A browser's look at the dashboard, and all that it did there.

    Attributes:
        requests: What the page asked for.
        complaints: What its console said: violations of the policy, errors.
    """

    page: Page
    of: Painted
    origin: str
    requests: list[Request] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> Any:
        return self.page.goto(f"{self.origin}{path}")

    def polls(self) -> int:
        """How often the page has asked for itself since it was loaded."""
        return sum(one.resource_type == "fetch" for one in self.requests)

    def wait_for_polls(self, count: int) -> None:
        """Wait until the page has asked for itself so often, and has been answered."""
        for _ in range(count):
            with self.page.expect_response(lambda answer: answer.request.resource_type == "fetch"):
                pass


@dataclass(kw_only=True)
class Shown:
    """The dashboard, served."""

    of: Painted
    browser: Browser
    server: HttpServer

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def visit(self, context: BrowserContext, scope: Scope = Scope.OPERATE) -> Visit:
        """A page of somebody who is logged in."""
        page = context.new_page()
        page.set_default_timeout(1_000 * HANGS_S)
        visit = Visit(page=page, of=self.of, origin=self.origin)
        page.on("request", lambda one: visit.requests.append(one))  # noqa: PLW0108 - playwright marks it
        page.on("console", lambda one: visit.complaints.append(one.text))
        page.on("pageerror", lambda one: visit.complaints.append(str(one)))
        code = self.of.access.make(GrantKind.LOGIN, scope, name="a browser", lasts_s=HANGS_S)
        page.goto(f"{self.origin}/login?code={code}")
        return visit
