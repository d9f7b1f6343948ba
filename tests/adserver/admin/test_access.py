"""Nobody passes without a grant, from another site's page, or under a name that is not the server's.

Every route is taken from the application itself, so that a new one is tested too.
"""

import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy.exc import OperationalError
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import Message, Receive

from adserver.admin.access import SECURITY_HEADERS, AuthMiddleware, names_of
from adserver.admin.api import OPENAPI_PATH, OPERATIONS
from adserver.admin.guarded_route import GuardedRoute
from adserver.client.local import LocalAdServer
from adserver.records.access import GrantKind, Scope
from adserver.store.access import SESSION_S
from adserver.store.audit_log import LOG
from maskedlark.audit_log import Actor, ActorKind, AuditAct
from maskedlark.errors import InvalidTask
from tests.apart import run_apart

EVIL = "http://evil.example"


def routes(behind: Any) -> Iterator[tuple[str, str]]:
    """Every method and path of the application, with something in the place of each parameter."""
    assert isinstance(behind.door.app, Starlette)
    for route in behind.door.app.routes:
        assert isinstance(route, Route)
        for method in sorted(route.methods or ()):
            yield method, route.path.replace("{", "").replace("}", "")


def test_there_are_as_many_routes_as_the_house_has(behind: Any) -> None:
    found = list(routes(behind))
    assert len(found) >= 50
    assert {"/", "/jobs/job", "/api/v1/jobs", "/api/v1/openapi.json", "/login", "/static/name"} <= {
        path for _, path in found
    }


def test_every_operation_of_the_api_requires_a_scope_and_changes_nothing_with_the_least(behind: Any) -> None:
    found = [
        one for one in behind.door.app.routes if one.path.startswith("/api/") and one.path != OPENAPI_PATH
    ]
    assert found == list(OPERATIONS)
    for one in found:
        assert isinstance(one, GuardedRoute)
        assert isinstance(one.needs, Scope)
        assert one.methods == {"GET"} or one.needs is not Scope.READ


@pytest.mark.parametrize("scope", [Scope.READ, Scope.OPERATE, Scope.TASKS])
def test_no_byte_of_a_body_is_read_without_the_scope_of_the_operation(behind: Any, scope: Scope) -> None:
    token = behind.of.grant(GrantKind.TOKEN, scope).encode()
    headers = [(b"host", b"localhost"), (b"authorization", b"Bearer " + token)]

    async def receive() -> Message:
        raise AssertionError("a body was read")

    refused = [one for one in OPERATIONS if not scope.allows(one.needs)]
    assert refused
    for one in refused:
        asked = {"method": min(one.methods), "path": one.path, "headers": headers}
        assert asked_of_the_door(behind.door, receive, **asked)[0]["status"] == 403


def test_without_a_login_every_route_is_401(behind: Any) -> None:
    with behind.client() as client:
        answers = [client.request(method, path) for method, path in routes(behind)]
    assert {answer.status_code for answer in answers} == {401}
    assert all(
        answer.headers["www-authenticate"] == "Bearer" for answer in answers if "/api/" in str(answer.url)
    )


def test_a_path_that_is_not_there_tells_a_stranger_nothing(behind: Any) -> None:
    with behind.client() as client:
        assert client.get("/nowhere").status_code == 401
        assert client.get("/api/v1/nowhere").status_code == 401


@pytest.mark.parametrize("host", ["127.0.0.1.evil.example", "", "localhost@evil.example", "x y", "::1"])
def test_a_host_that_is_none_of_ours_is_400(behind: Any, host: str) -> None:
    with behind.client(Scope.OPERATE) as client:
        assert client.get("/", headers={"host": host}).status_code == 400


async def empty() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def asked_of_the_door(door: AuthMiddleware, receive: Receive = empty, **changes: Any) -> list[Message]:
    """What the door sends for a request of an ASGI server that checks less than ours does."""
    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": "/api/v1/jobs",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        **changes,
    }
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    run_apart(door(scope, receive, send))
    return sent


@pytest.mark.parametrize(
    "hosts", [[], [b"localhost", b"localhost"], [b"localhost", b"evil.example"], [b"evil.example"]]
)
def test_a_request_with_no_host_or_two_is_400_whatever_they_are(behind: Any, hosts: list[bytes]) -> None:
    answer = asked_of_the_door(behind.door, headers=[(b"host", host) for host in hosts])[0]
    assert (answer["type"], answer["status"]) == ("http.response.start", 400)


def test_with_one_host_of_ours_the_door_asks_for_a_grant(behind: Any) -> None:
    assert asked_of_the_door(behind.door)[0]["status"] == 401


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
def test_what_is_no_http_request_gets_no_answer(behind: Any, kind: str) -> None:
    assert asked_of_the_door(behind.door, type=kind, headers=[(b"host", b"localhost")]) == []


def test_under_a_foreign_host_every_route_is_400(behind: Any) -> None:
    headers = {"host": "evil.example"}
    with behind.client(Scope.OPERATE) as client:
        answers = [client.request(method, path, headers=headers) for method, path in routes(behind)]
    assert {answer.status_code for answer in answers} == {400}


def test_a_forwarded_port_of_our_own_host_is_ours(behind: Any) -> None:
    with behind.client(Scope.READ) as client:
        for host in ("localhost:9999", "127.0.0.1", "[::1]:80", "LOCALHOST"):
            assert client.get("/api/v1/jobs", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": EVIL},
        {"origin": "null"},
        {"origin": "https://127.0.0.1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=str,
)
def test_what_another_site_sends_is_403_whatever_the_grant(behind: Any, headers: dict[str, str]) -> None:
    for kind in (GrantKind.SESSION, GrantKind.TOKEN):
        with behind.client(Scope.OPERATE, kind) as client:
            for method in ("POST", "PUT", "PATCH", "DELETE"):
                assert client.request(method, "/jobs/01/cancel", headers=headers).status_code == 403


def test_from_another_site_every_route_is_403(behind: Any) -> None:
    with behind.client(Scope.OPERATE, GrantKind.SESSION) as client:
        paths = {path for _, path in routes(behind)}
        answers = [client.post(path, headers={"origin": EVIL}) for path in paths]
    assert {answer.status_code for answer in answers} == {403}


def test_a_cookie_without_an_origin_changes_nothing(behind: Any) -> None:
    with behind.client(Scope.OPERATE, GrantKind.SESSION) as client:
        assert client.post("/jobs/01/cancel").status_code == 403
        assert client.get("/jobs/01").status_code == 200


def test_who_may_only_read_changes_nothing(behind: Any) -> None:
    origin = {"origin": behind.origin}
    for kind in (GrantKind.SESSION, GrantKind.TOKEN):
        with behind.client(Scope.READ, kind) as client:
            for path in ("/jobs/01/cancel", "/api/v1/jobs/01/cancel", "/api/v1/jobs", "/api/v1/queries"):
                answer = client.post(path, headers=origin, json={})
                assert (answer.status_code, answer.json()["reason"]) == (403, "read_only")


def test_a_login_link_opens_the_dashboard_once(behind: Any) -> None:
    code = behind.of.grant(GrantKind.LOGIN, Scope.READ)
    with behind.client() as client:
        answer = client.get(f"/login?code={code}")
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"]
        assert client.get("/").status_code == 200
    assert all(
        word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/", f"Max-Age={SESSION_S:.0f}")
    )
    assert "Secure" not in cookie
    with behind.client() as another:
        assert another.get(f"/login?code={code}").status_code == 401


def test_a_login_code_is_neither_a_session_nor_a_token(behind: Any) -> None:
    code, token = behind.of.grant(GrantKind.LOGIN), behind.of.grant(GrantKind.TOKEN)
    name = f"maskedlark-{behind.origin.rsplit(':', 1)[1]}"
    with behind.client() as client:
        assert client.get("/", headers={"authorization": f"Bearer {code}"}).status_code == 401
        assert client.get("/", headers={"cookie": f"{name}={code}"}).status_code == 401
        assert client.get("/", headers={"cookie": f"{name}={token}"}).status_code == 401
        assert client.get(f"/login?code={token}").status_code == 401
        assert client.head(f"/login?code={code}").status_code == 401
        assert client.get(f"/login?code={code}").status_code == 303


def test_who_logs_out_is_out(behind: Any) -> None:
    with behind.client(Scope.READ, GrantKind.SESSION) as client:
        assert client.get("/").status_code == 200
        assert client.post("/logout", headers={"origin": behind.origin}).status_code == 303
        assert client.get("/").status_code == 401


def test_a_revoked_token_does_nothing_at_once(behind: Any) -> None:
    secret = behind.of.grant(GrantKind.TOKEN, Scope.READ)
    grant = behind.of.access.find(secret, [GrantKind.TOKEN])
    with behind.client() as client:
        shown = {"authorization": f"Bearer {secret}"}
        assert client.get("/api/v1/jobs", headers=shown).status_code == 200
        behind.of.access.revoke(grant.grant_id, [GrantKind.TOKEN])
        assert client.post("/api/v1/jobs", headers=shown).status_code == 401
        assert client.get("/api/v1/jobs", headers=shown).status_code == 401


def test_the_audit_log_names_who_came_and_who_was_turned_away(
    behind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[tuple[AuditAct, Actor, str]] = []
    monkeypatch.setattr(type(behind.door.refused), "add", lambda _, *told: refused.append(told))
    stranger = Actor(kind=ActorKind.SESSION, address="127.0.0.1")
    with behind.client() as client:
        client.get("/")
        client.get("/login?code=mll_wrong")
    assert refused == [(AuditAct.LOG_IN, stranger, "no_grant")] * 2
    refused.clear()
    origin = {"origin": behind.origin}
    for kind, named in ((GrantKind.TOKEN, ActorKind.TOKEN), (GrantKind.SESSION, ActorKind.SESSION)):
        with behind.client(Scope.READ, kind) as client:
            client.post("/api/v1/queries", headers=origin, json={})
        ((act, actor, why),) = refused
        assert (act, actor.kind, actor.address, why) == (
            AuditAct.REQUEST_CHANGE, named, "127.0.0.1", "read_only",
        )  # fmt: skip
        assert actor.identity
        refused.clear()
    with behind.client() as client:
        assert client.get(f"/login?code={behind.of.grant(GrantKind.LOGIN)}").status_code == 303
    (*_, last) = LOG.page(behind.of.engine, after=0, most=1_000)
    assert (last.act, last.actor) == (AuditAct.LOG_IN, stranger)
    assert refused == []


def test_where_the_database_is_away_the_door_says_so(behind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise OperationalError("", {}, Exception("away"), connection_invalidated=True)

    for name, path in (("find", "/api/v1/jobs"), ("log_in", "/login?code=mll_code")):
        monkeypatch.setattr(type(behind.of.access), name, away)
        with behind.client() as client:
            answer = client.get(path, headers={"authorization": "Bearer mlt_unknown"})
        assert answer.status_code == 503
        assert "the ad server" in answer.json()["detail"]


def test_every_answer_is_strict(behind: Any) -> None:
    with behind.client(Scope.READ) as client, behind.client() as stranger:
        answers = [
            client.get("/"),
            client.get("/api/v1/jobs"),
            client.get("/nowhere"),
            client.get("/", headers={"host": "evil.example"}),
            client.post("/", headers={"origin": EVIL}),
            stranger.get("/"),
        ]
    for answer in answers:
        for name, value in SECURITY_HEADERS.items():
            assert answer.headers[name] == value
        assert "access-control-allow-origin" not in answer.headers
    policy = SECURITY_HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


def test_no_log_line_holds_a_secret(behind: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    code, token = behind.of.grant(GrantKind.LOGIN), behind.of.grant(GrantKind.TOKEN)
    httpx_log = logging.getLogger("httpx")
    level = httpx_log.level
    httpx_log.setLevel(logging.CRITICAL)  # this test's own client logs the addresses that it asks
    try:
        with behind.client() as client:
            client.get(f"/login?code={code}")
            client.get("/api/v1/jobs", headers={"authorization": f"Bearer {token}"})
            client.get("/nowhere?code=" + code)
    finally:
        httpx_log.setLevel(level)
    ours = [
        line
        for line in caplog.messages
        if not line.startswith(("connect", "send", "receive", "response", "close"))
    ]
    assert not any(secret in line for line in ours for secret in (code, token))


@pytest.mark.parametrize(
    ("listen", "named", "expected"),
    [
        ("127.0.0.1:8008", [], {"127.0.0.1", "localhost", "::1"}),
        ("[::1]:0", [], {"127.0.0.1", "localhost", "::1"}),
        (":8008", [""], {"127.0.0.1", "localhost", "::1"}),
        ("ads.example:443", [], {"ads.example"}),
        ("[::]:443", ["Ads.Example"], {"::", "ads.example", "127.0.0.1", "localhost", "::1"}),
    ],
)
def test_a_server_is_reached_where_it_listens_and_as_it_is_named(
    listen: str, named: list[str], expected: set[str]
) -> None:
    assert names_of(listen, named) == expected


def test_the_client_of_these_tests_follows_nothing() -> None:
    assert not httpx.Client().follow_redirects


def test_what_is_revoked_while_a_request_arrives_changes_nothing(
    behind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, sent = behind.of.grant(GrantKind.TOKEN, Scope.OPERATE), list[Any]()

    def seal(*_: object, **__: object) -> None:
        raise InvalidTask("it was sealed")

    monkeypatch.setattr(LocalAdServer, "seal", seal)

    async def receive() -> dict[str, Any]:
        found = behind.of.access.find(secret, [GrantKind.TOKEN])
        assert found is not None  # the door has let the request in
        behind.of.access.end(found)
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/v1/datasets",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"authorization", f"Bearer {secret}".encode())],
    }
    run_apart(behind.door(scope, receive, send))
    assert sent[0]["status"] == 401
