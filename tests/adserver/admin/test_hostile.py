"""What a stranger, a reader or another site's page may try, and that it leads nowhere."""

import re
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from threading import Event, Lock
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from adserver.admin.api import OPERATIONS
from adserver.admin.guarded_route import COMPUTING, MOST_WAITING, PREFIX, THREADS, Bounds
from adserver.budgets.reservations import Budgets
from adserver.dashboard.pages import PAGES
from adserver.ingest.body_memory import BodyRoom
from adserver.ingest.http_server import HttpServer
from adserver.records.access import GrantKind, Scope
from adserver.store.paging import PageMarker
from maskedlark.errors import InvalidTask
from tests.adserver.admin.test_api import LOOKED_AT
from tests.adserver.painted import OF
from tests.patience import HANGS_S

STRANGE = [
    "nan", "-inf", "1e400", "99999999999999999999999", "-99999999999999999999999", "1" * 5_000, "\0", "'",
    "<script>", "../..", "\u0663", "1_0", " 5 ", PageMarker(at=float("nan"), key=b"x").cursor,
    PageMarker(at=1e308, key=bytes(5_000)).cursor,
]  # fmt: skip
READING = {one.path.removeprefix(PREFIX): one for one in OPERATIONS if "GET" in one.methods}
NAMED = {
    "task": OF.of.task.task_id.hex(),
    "dataset": OF.datasets[0].dataset_id.hex(),
    "job": "04",
    "query": "a1",
    "evaluation": "a4",
}


@pytest.mark.parametrize("value", STRANGE, ids=range(len(STRANGE)))
def test_no_parameter_of_the_api_is_an_error_of_the_server(reader: httpx.Client, value: str) -> None:
    asked = [
        f"{PREFIX}{LOOKED_AT.get(path, '/jobs/02/model').split('?')[0]}?{parameter}={quote(value)}"
        for path, one in READING.items()
        for parameters in one.parameters.values()
        for parameter in parameters.model_fields
    ]
    asked += [PREFIX + re.sub("{.*?}", quote(value, safe=""), path) for path in READING if "{" in path]
    assert len(asked) > 20
    found = {path: reader.get(path).status_code for path in asked}
    assert not {path: status for path, status in found.items() if status not in (200, 404, 409, 422)}


@pytest.mark.parametrize("value", STRANGE, ids=range(len(STRANGE)))
def test_no_parameter_of_a_page_is_an_error_of_the_server(reader: httpx.Client, value: str) -> None:
    for page in PAGES:
        path = page.path.format(**NAMED)
        for name in ("after", "state", "rounds", "batch_size", "noise_multiplier"):
            rounds = {} if name == "rounds" else {"rounds": "5"}
            answer = reader.get(path, params={**rounds, name: value})
            assert answer.status_code in (200, 422), (path, name)
            assert "<script>" not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e%2fapp.py",
        "/static/..%2f..%2fadmin%2faccess.py",
        "/static/%2fetc%2fpasswd",
        "/static/README.md",
        "/static/dashboard.css%00.js",
    ],
)
def test_no_other_file_is_served(reader: httpx.Client, path: str) -> None:
    answer = reader.get(path)
    assert answer.status_code == 404
    assert "import" not in answer.text


@pytest.mark.parametrize("written", ["%3F", "%23", "%3Fafter=x"])
def test_nobody_changes_the_page_that_another_one_sees(behind: Any, written: str) -> None:
    """A path with a question mark of its own, written %3F, is another path, and kept as such."""
    with behind.client(Scope.READ) as attacker, behind.client(Scope.READ) as victim:
        for path in ("/jobs/05", f"/tasks/{NAMED['task']}"):
            assert attacker.get(f"{path}{written}").status_code == 404
            asked = path + ("?after=x" if "after" in written else "?" if written == "%3F" else "")
            assert victim.get(asked).status_code == 200


@pytest.mark.parametrize(
    "media_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json",
    ],
)
@pytest.mark.parametrize("origin", ["http://evil.example", "null", None])
def test_no_form_of_another_site_does_anything(behind: Any, media_type: str, origin: str | None) -> None:
    headers = {"content-type": media_type, **({} if origin is None else {"origin": origin})}
    before = behind.of.jobs.counts()
    with behind.client(Scope.OPERATE, GrantKind.SESSION) as client:
        for path in (f"{PREFIX}/jobs/04/cancel", "/jobs/04/cancel", f"{PREFIX}/queries"):
            answer = client.post(path, content=b"{}", headers=headers)
            assert (answer.status_code, answer.json()["reason"]) == (403, "cross_site")
    assert behind.of.jobs.counts() == before


def test_a_cookie_that_was_there_before_does_not_become_a_session(behind: Any) -> None:
    name = f"maskedlark-{behind.origin.rsplit(':', 1)[1]}"
    code = behind.of.grant(GrantKind.LOGIN, Scope.READ)
    planted = {"cookie": f"{name}=mls_planted"}
    with behind.client() as client:
        answer = client.get(f"/login?code={code}", headers=planted)
        assert "planted" not in answer.headers["set-cookie"]
        client.cookies.clear()
        assert client.get("/", headers=planted).status_code == 401


def test_each_login_is_a_session_of_its_own(behind: Any) -> None:
    with behind.client() as one, behind.client() as other:
        for client in (one, other):
            client.get(f"/login?code={behind.of.grant(GrantKind.LOGIN, Scope.READ)}")
        assert one.post("/logout", headers={"origin": behind.origin}).status_code == 303
        assert (one.get("/").status_code, other.get("/").status_code) == (401, 200)


@pytest.mark.parametrize("cookie", ["\xff", "a=b; ;;=", '"', "maskedlark-1=x", "=" * 4_000])
def test_a_strange_cookie_is_no_session(behind: Any, cookie: str) -> None:
    with behind.client() as client:
        assert client.get("/", headers={"cookie": cookie.encode("latin-1")}).status_code == 401


def test_no_header_of_an_answer_holds_what_was_asked(reader: httpx.Client) -> None:
    for path in (
        "/jobs/%0d%0aset-cookie:%20a=b",
        "/nowhere%0d%0ax:%20y",
        "/jobs/%0d%0ax/",
        "//evil.example/jobs/",
    ):
        answer = reader.get(path, headers={"x-forwarded-host": "evil.example", "x-forwarded-proto": "evil"})
        assert "set-cookie" not in answer.headers
        assert "x" not in answer.headers
        assert "evil" not in answer.headers.get("location", "")


def test_what_takes_long_keeps_nobody_else_out(behind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries wait for helpers. More of them than there are threads leave the door and the pages alone."""
    lock, go, enough = Lock(), Event(), Event()
    at_once: list[int] = [0, 0]

    def waits(*_values: str, **_named: Any) -> Any:
        with lock:
            at_once[0] += 1
            at_once[1] = max(at_once)
            if at_once[0] == THREADS:
                enough.set()
        assert go.wait(HANGS_S)
        with lock:
            at_once[0] -= 1
        raise InvalidTask("enough")

    monkeypatch.setattr(behind.of.client.server, "aggregate", waits)
    with ThreadPoolExecutor(50) as pool, behind.client(Scope.OPERATE) as client:
        asked = [pool.submit(client.post, f"{PREFIX}/queries", json={}, timeout=HANGS_S) for _ in range(50)]
        try:
            assert enough.wait(HANGS_S)
            with behind.client(Scope.READ) as reader:
                assert reader.get("/", timeout=HANGS_S).status_code == 200
        finally:
            go.set()
        assert {one.result().status_code for one in asked} == {422}
    assert at_once == [0, THREADS]


def test_budgets_are_computed_few_at_a_time_and_few_requests_wait(
    behind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, most, too_many = Event(), COMPUTING + MOST_WAITING, 5

    def wait(*_: Any) -> None:
        assert go.wait(HANGS_S)
        raise InvalidTask("enough")

    monkeypatch.setattr(Budgets, "of", wait)
    path = f"{PREFIX}/budgets/{NAMED['dataset']}"
    with ThreadPoolExecutor(most + too_many) as pool, behind.client(Scope.READ) as client:
        asked = [
            pool.submit(client.get, path, params={"rounds": 1 + at}, timeout=HANGS_S)
            for at in range(most + too_many)
        ]
        try:
            answers = (one.result() for one in as_completed(asked, timeout=HANGS_S))
            refused = list(islice(answers, too_many))
            with behind.client(Scope.READ) as reader:
                assert reader.get(f"{PREFIX}/helpers", timeout=HANGS_S).status_code == 200
        finally:
            go.set()
        assert [one.result().status_code for one in asked].count(422) == most
    assert {(one.status_code, one.headers["retry-after"]) for one in refused} == {(503, "5")}
    assert "retry in 5 s" in refused[0].json()["detail"]


@pytest.mark.parametrize(
    ("room", "limit", "told"),
    [(64, 1 << 20, (503, "helper_unavailable")), (1 << 20, 64, (422, "invalid_task"))],
    ids=["no room left", "one that is too long"],
)
def test_bodies_are_bounded_one_by_one_and_together(
    behind: Any, monkeypatch: pytest.MonkeyPatch, room: int, limit: int, told: tuple[int, str]
) -> None:
    shared = Bounds(room=BodyRoom(room))
    for one in OPERATIONS:
        monkeypatch.setattr(type(one), "most_bytes", limit)
    token = behind.of.grant(GrantKind.TOKEN, Scope.OPERATE)
    with behind.of.door() as door:
        door.app.state.bounds = shared
        server = HttpServer(door, "127.0.0.1:0", None, headers=())
        try:
            server.wait_until_started()
            url = f"http://127.0.0.1:{server.port}{PREFIX}/queries"
            headers = {"authorization": f"Bearer {token}"}
            answer = httpx.post(url, content=b" " * 1_000, headers=headers, timeout=HANGS_S)
            assert (answer.status_code, answer.json()["reason"]) == told
            assert (
                httpx.post(url, content=b"[]", headers=headers, timeout=HANGS_S).json()["reason"]
                == "invalid_task"
            )
        finally:
            server.stop()
    assert shared.room.free_bytes == room
