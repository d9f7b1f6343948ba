"""A page is drawn when something that it shows has changed, and not because somebody looks."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from starlette.requests import Request

from adserver.dashboard import pages as dashboard_pages
from adserver.dashboard.page_data import BUDGETS_S, Figures, Mark
from adserver.dashboard.pages import PAGES, Page, Pages, _RenderedPage
from adserver.ingest.http_server import HttpServer
from adserver.records.access import GrantKind, Scope
from adserver.records.round_figures import RoundFigures
from adserver.store.jobs import JobStore
from maskedlark.errors import HelperUnavailable
from tests.adserver.job_world import SetClock
from tests.adserver.painted import OF, Painted, painted
from tests.patience import HANGS_S

FIRST = Mark(store=0, intake=0, helpers=0, trouble=0, budgets=0)
NAMED = {
    "task": OF.of.task.task_id.hex(),
    "dataset": OF.datasets[0].dataset_id.hex(),
    "job": "04",
    "query": "a1",
}
WITH_REPORTS = {"/", "/intake", "/tasks", "/tasks/{task}"}


class Looked:
    """What one test lets the mark be, and how often each page was drawn."""

    def __init__(self, of: Painted) -> None:
        self.of = of
        self.mark: Mark | None = FIRST
        self.drawn: Counter[str] = Counter()

    def look(self, client: httpx.Client, page: Page, tag: str = "", **query: str) -> tuple[int, str]:
        answer = client.get(page.path.format(**NAMED), headers={"if-none-match": tag}, params=query)
        return answer.status_code, answer.headers.get("etag", "")


@pytest.fixture(scope="module")
def of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Painted]:
    made = painted(Path(tmp_path_factory.mktemp("painted")) / "adserver")
    yield made
    made.close()


@pytest.fixture
def looked(of: Painted, monkeypatch: pytest.MonkeyPatch) -> Looked:
    made = Looked(of)

    def mark(_figures: Figures) -> Mark:
        if made.mark is None:
            raise HelperUnavailable("the ad server's database does not answer; ask again")
        return made.mark

    drawing = Pages._draw

    def counted(self: Pages, page: Page, request: Request) -> _RenderedPage:
        made.drawn[page.path] += 1
        return drawing(self, page, request)

    monkeypatch.setattr(Figures, "mark", mark)
    monkeypatch.setattr(Pages, "_draw", counted)
    monkeypatch.setattr(dashboard_pages, "YOUNG_S", 0.0)  # each look asks for the mark
    return made


@contextmanager
def clients(looked: Looked) -> Iterator[dict[Scope | None, httpx.Client]]:
    """A client of each scope, and one without a grant, of a server that runs."""
    with ExitStack() as stack:
        server = HttpServer(stack.enter_context(looked.of.door()), "127.0.0.1:0", None, headers=())
        stack.callback(server.stop)
        server.wait_until_started()
        made = {}
        for scope in (None, Scope.READ, Scope.OPERATE):
            token = "none" if scope is None else looked.of.grant(GrantKind.TOKEN, scope)
            headers = {"authorization": f"Bearer {token}"}
            url = f"http://127.0.0.1:{server.port}"
            made[scope] = stack.enter_context(httpx.Client(base_url=url, headers=headers, timeout=HANGS_S))
        yield made


def test_a_jobs_page_has_its_auc_with_the_interval(looked: Looked) -> None:
    with clients(looked) as by:
        page = by[Scope.READ].get("/jobs/04").text
    assert re.search(r"AUC 0\.\d+ \(99 %: 0\.\d+ to 0\.\d+\)", page)


@pytest.mark.parametrize("is_learned", [False, True])
def test_an_evaluations_page_says_whether_a_job_learned_from_the_reports(
    looked: Looked, monkeypatch: pytest.MonkeyPatch, *, is_learned: bool
) -> None:
    monkeypatch.setattr(JobStore, "has_trained", lambda *_: is_learned)
    with clients(looked) as by:
        page = by[Scope.READ].get("/queries/a4").text
    assert ("reports that a job learned from" in page) is is_learned


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_a_page_is_drawn_anew_only_when_its_part_of_the_mark_changes(looked: Looked, page: Page) -> None:
    with clients(looked) as by:
        client = by[Scope.READ]
        _, tag = looked.look(client, page)
        assert {looked.look(client, page, tag) for _ in range(5)} == {(304, tag)}
        assert looked.drawn[page.path] == 1
        expected = {
            "store": True,
            "intake": page.path in WITH_REPORTS,
            "helpers": page.path == "/helpers",
            "trouble": page.path == "/",
            "budgets": page.place in ("budgets", "plan"),
        }
        for name, is_drawn in expected.items():
            before = looked.drawn[page.path]
            looked.mark = replace(FIRST, **{name: name})
            looked.look(client, page, tag)
            assert looked.drawn[page.path] - before == is_drawn, name
            looked.mark = FIRST
            looked.look(client, page, tag)


def test_figures_of_jobs_that_stand_still_are_read_once(
    looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, read = JobStore.best_evaluated, Counter[bytes]()

    def counted(self: JobStore, job_id: bytes) -> RoundFigures | None:
        read[job_id] += 1
        return reading(self, job_id)

    monkeypatch.setattr(JobStore, "best_evaluated", counted)
    page = next(one for one in PAGES if one.path == "/jobs")
    with clients(looked) as by:
        for store in range(3):
            looked.mark = replace(FIRST, store=store)
            looked.look(by[Scope.READ], page)
    assert looked.drawn[page.path] == 3
    assert {count for job_id, count in read.items() if looked.of.jobs.get(job_id).rounds_done} == {1}


def test_what_readers_and_operators_see_is_kept_apart(looked: Looked) -> None:
    page = next(one for one in PAGES if one.path == "/jobs/{job}")
    with clients(looked) as by:
        reader, operator = by[Scope.READ], by[Scope.OPERATE]
        _, tag = looked.look(reader, page)
        status, other = looked.look(operator, page, tag)
        assert (status, other != tag, looked.drawn[page.path]) == (200, True, 2)
        assert "Resume" in operator.get("/jobs/04").text
        assert "<button>Resume" not in reader.get("/jobs/04").text


def test_a_tag_is_worth_nothing_without_a_grant(looked: Looked) -> None:
    page = next(one for one in PAGES if one.path == "/jobs")
    with clients(looked) as by:
        _, tag = looked.look(by[Scope.READ], page)
        status, shown = looked.look(by[None], page, tag)
        assert (status, shown) == (401, "")


def test_while_the_database_is_away_a_page_is_drawn_each_time(looked: Looked) -> None:
    page = next(one for one in PAGES if one.path == "/jobs")
    with clients(looked) as by:
        client = by[Scope.READ]
        looked.mark = None
        for _ in range(3):
            looked.look(client, page)
        assert looked.drawn[page.path] == 3


def test_a_page_that_the_database_did_not_give_is_drawn_at_the_next_look(
    looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = next(one for one in PAGES if one.path == "/jobs")

    def away(*_: object) -> None:
        raise HelperUnavailable("the ad server's database does not answer; ask again")

    with clients(looked) as by:
        client = by[Scope.READ]
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(Figures, "jobs", away)
            assert looked.look(client, page)[0] == 503
        assert looked.look(client, page)[0] == 200


def test_a_budget_too_young_to_be_computed_anew_is_looked_at_again(
    of: Painted, monkeypatch: pytest.MonkeyPatch
) -> None:
    elapsed, figures = SetClock(0.0), Figures(of.site)
    monkeypatch.setattr("adserver.dashboard.page_data.time", SimpleNamespace(monotonic=elapsed))
    before = figures.mark()
    elapsed.now_s += BUDGETS_S
    after = figures.mark()
    figures.close()
    changed = {page.place for page in PAGES if page.stamp(before) != page.stamp(after)}
    assert changed == {"budgets", "plan"}
