"""The list of tasks costs one look into the database a second, however many callers there are."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine, event

from adserver.ingest import task_pages
from adserver.ingest.http_app import http_app
from adserver.ingest.http_server import HttpServer
from adserver.ingest.intake import Intake
from adserver.ingest.task_pages import MOST_KEPT, TaskPages
from adserver.store.database import create_tables, default_url
from adserver.store.paging import PageMarker
from adserver.store.reports import ReportStore
from adserver.store.tasks import TaskStore
from maskedlark.runtime.database import open_database
from tests.builders import NOW, world
from tests.patience import HANGS_S


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    opened = open_database(default_url(tmp_path))
    create_tables(opened)
    TaskStore(opened).add(world().bundle, created_at=NOW)
    yield opened
    opened.dispose()


def counted_lookups(engine: Engine) -> Callable[[], int]:
    statements: list[str] = []
    event.listen(
        engine, "before_cursor_execute", lambda _c, _x, statement, *_rest: statements.append(statement)
    )
    return lambda: len(statements)


def test_a_page_that_was_read_just_now_is_served_without_the_database(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_pages, "FRESH_S", HANGS_S)
    store = TaskStore(engine)
    server = HttpServer(http_app(Intake(store, ReportStore(engine), lambda: 0.0), store), "127.0.0.1:0", None)
    try:
        server.wait_until_started()
        url = f"http://127.0.0.1:{server.port}/v1/tasks"
        with httpx.Client(timeout=HANGS_S) as client:
            first = client.get(url)
            lookups = counted_lookups(engine)
            pages = [client.get(url).content for _ in range(5)]
    finally:
        server.stop()
    assert pages == [first.content] * 5
    assert lookups() == 0


def test_a_task_that_others_made_is_listed_once_the_page_is_old(engine: Engine) -> None:
    now_s = 0.0
    pages = TaskPages(TaskStore(engine), lambda: now_s)
    pages.keep(None, pages.read(None))
    TaskStore(engine).add(world(name="newer").bundle, created_at=NOW + 1)
    now_s = 0.99 * task_pages.FRESH_S
    assert pages.find_fresh(None) is not None
    now_s = task_pages.FRESH_S
    assert pages.find_fresh(None) is None
    assert [one["name"] for one in json.loads(pages.read(None))["tasks"]] == ["newer", "conversions"]


def test_callers_that_invent_places_make_the_server_keep_no_more_pages(engine: Engine) -> None:
    pages = TaskPages(TaskStore(engine), lambda: 0.0)
    places = [PageMarker(at=float(number), key=b"") for number in range(3 * MOST_KEPT)]
    for place in places:
        pages.keep(place, b"page")
    kept = [place for place in places if pages.find_fresh(place) is not None]
    assert kept == places[-MOST_KEPT:]
