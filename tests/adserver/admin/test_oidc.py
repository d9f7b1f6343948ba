"""Sign-in by an OpenID Connect provider: a real one in a process of its own, and hostile ones."""

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from adserver.admin.access import SECURITY_HEADERS
from adserver.admin.oidc import Flow, OidcProvider, SignInRefused
from adserver.cli.oidc import oidc_of
from adserver.dashboard.app import dashboard
from adserver.ingest.http_server import HttpServer
from adserver.records.access import GrantKind, Scope
from adserver.records.server_settings import OidcSettings
from adserver.store.audit_log import LOG
from maskedlark.audit_log import AuditAct
from maskedlark.errors import HelperUnavailable, InvalidTask
from tests.adserver.painted import Painted, painted
from tests.patience import HANGS_S

PEOPLE = {
    "ann": ["ml-operators", "everybody"],
    "bob": ["everybody"],
    "eve": ["ml-readers"],
}
SETTINGS = OidcSettings(
    issuer="https://id.example",
    client_id="lark",
    scopes={"ml-readers": Scope.READ, "ml-operators": Scope.TASKS},
    audience="lark-api",
)
REDIRECT = "https://ads.example/login/oidc/callback"


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """A provider of its own making (Authlib's), with three people."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    claims = [
        f'--user-claims={{"sub": "{name}", "groups": {str(of).replace(chr(39), chr(34))}}}'
        for name, of in PEOPLE.items()
    ]
    command = [
        str(Path(sys.executable).with_name("oidc-provider-mock")),
        "--port",
        str(port),
        "--require-nonce",
        "true",
        *claims,
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            until = time.monotonic() + HANGS_S
            while True:
                try:
                    httpx.get(f"{url}/.well-known/openid-configuration", timeout=HANGS_S)
                    break
                except httpx.HTTPError:
                    assert time.monotonic() < until
                    time.sleep(0.05)
            yield url
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Painted]:
    made = painted(Path(tmp_path_factory.mktemp("painted")) / "adserver")
    yield made
    made.close()


@pytest.fixture(scope="module")
def origin(of: Painted, issuer: str) -> Iterator[str]:
    """A dashboard whose people sign in there."""
    secret = of.folder / "client-secret"
    secret.touch(0o600)
    secret.write_text("a secret")
    settings = replace(SETTINGS, issuer=issuer, audience=None, secret_file=secret)
    with (
        OidcProvider(settings, time.time) as provider,
        dashboard(of.site, hosts=["127.0.0.1"], is_tls=False, provider=provider) as door,
    ):
        server = HttpServer(door, "127.0.0.1:0", None, headers=())
        try:
            server.wait_until_started()
            yield f"http://127.0.0.1:{server.port}"
        finally:
            server.stop()


def sign_in(origin: str, name: str, browser: httpx.Client) -> httpx.Response:
    """Go to the provider, be `name` there, and come back; what the callback answers."""
    sent = browser.get(f"{origin}/login/oidc")
    assert sent.status_code == 303
    came_back = browser.post(sent.headers["location"], data={"sub": name})
    assert came_back.status_code in (302, 303), came_back.text
    return browser.get(came_back.headers["location"])


def test_somebody_signs_in_at_a_real_provider_and_has_the_scope_of_their_groups(
    of: Painted, origin: str
) -> None:
    with httpx.Client(timeout=HANGS_S) as browser:
        refused = browser.get(f"{origin}/")
        assert (refused.status_code, "/login/oidc" in refused.text) == (401, True)
        told = sign_in(origin, "ann", browser)
        assert told.status_code == 200
        assert SECURITY_HEADERS.items() <= dict(told.headers).items()
        [strict] = [one for one in told.headers.get_list("set-cookie") if "mls_" in one]
        assert "HttpOnly" in strict
        assert "SameSite=strict" in strict
        assert browser.get(f"{origin}/").status_code == 200
        same_site = {"origin": origin}
        assert browser.post(f"{origin}/jobs/00/cancel", headers=same_site).status_code != 403
    log_in = [entry for entry in LOG.page(of.engine, after=0, most=10_000) if entry.act is AuditAct.LOG_IN][
        -1
    ]
    assert (log_in.subject["name"], log_in.subject["scope"]) == ("oidc:ann", "tasks")


def test_a_reader_may_not_operate_and_a_stranger_is_told_so(origin: str) -> None:
    with httpx.Client(timeout=HANGS_S) as browser:
        assert sign_in(origin, "eve", browser).status_code == 200
        assert browser.post(f"{origin}/jobs/00/cancel", headers={"origin": origin}).status_code == 403
    with httpx.Client(timeout=HANGS_S) as browser:
        told = sign_in(origin, "bob", browser)
        assert (told.status_code, "none of your groups" in told.text) == (403, True)
        assert browser.get(f"{origin}/").status_code == 401


def test_an_answer_is_good_once_and_in_the_browser_that_began(origin: str) -> None:
    with httpx.Client(timeout=HANGS_S) as victim, httpx.Client(timeout=HANGS_S) as attacker:
        sent = attacker.get(f"{origin}/login/oidc")
        link = attacker.post(sent.headers["location"], data={"sub": "eve"}).headers["location"]
        assert victim.get(link).status_code == 403  # who has begun nothing
        victim.get(f"{origin}/login/oidc")
        assert victim.get(link).status_code == 403  # who has begun another one
        assert attacker.get(link).status_code == 200
        assert attacker.get(link).status_code == 403  # again
        assert victim.get(f"{origin}/").status_code == 401


@pytest.mark.parametrize(("method", "path"), [("POST", "oidc"), ("POST", "oidc/callback"), ("GET", "oidc/x")])
def test_a_sign_in_is_asked_for_in_one_way(origin: str, method: str, path: str) -> None:
    with httpx.Client(timeout=HANGS_S) as browser:
        answer = browser.request(method, f"{origin}/login/{path}")
        assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)


def test_a_sign_in_needs_its_verifier(issuer: str) -> None:
    with OidcProvider(replace(SETTINGS, issuer=issuer), time.time) as provider:
        asked = parse_qs(urlsplit(provider.authorization_url(Flow.begin(), REDIRECT)).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert re.fullmatch(r"[\w-]{43}", asked["code_challenge"][0])


RSA = rsa.generate_private_key(65537, 2048)
OTHER = rsa.generate_private_key(65537, 2048)
CURVE = ec.generate_private_key(ec.SECP256R1())


class Scripted:
    """A provider that answers what a test says."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.issuer = SETTINGS.issuer
        self.id_token = ""
        self.is_away = False
        self.tried = 0
        self.changes: dict[str, Any] = {}
        self.more_keys: list[Any] = []
        self.asked = list[str]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.tried += 1
        if self.is_away:
            raise httpx.ConnectError("refused")
        self.asked.append(request.url.path)
        match request.url.path:
            case "/.well-known/openid-configuration":
                ends = {f"{one}_endpoint": f"https://id.example/{one}" for one in ("authorization", "token")}
                said = {"issuer": self.issuer, "jwks_uri": "https://id.example/keys", **ends, **self.changes}
                return httpx.Response(200, json=said)
            case "/keys":
                keys = [
                    dict(
                        jwt.algorithms.RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True),
                        kid="rsa",
                        alg="RS256",
                    ),
                    dict(
                        jwt.algorithms.ECAlgorithm.to_jwk(CURVE.public_key(), as_dict=True),
                        kid="curve",
                        alg="ES256",
                    ),
                ]
                return httpx.Response(200, json={"keys": self.more_keys + keys})
            case _:
                return httpx.Response(200, json={"id_token": self.id_token})

    def token(self, *, key: Any = RSA, kid: str = "rsa", algorithm: str = "RS256", **changes: Any) -> str:
        claims = {
            "iss": SETTINGS.issuer, "aud": "lark", "sub": "ann", "iat": self.now, "exp": self.now + 300,
            "nonce": FLOW.nonce, "groups": ["ml-operators"],
        } | changes  # fmt: skip
        kept = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(kept, key, algorithm, headers={"kid": kid})


FLOW = Flow.begin()


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


@pytest.fixture
def provider(scripted: Scripted) -> Iterator[OidcProvider]:
    with OidcProvider(SETTINGS, lambda: scripted.now, transport=httpx.MockTransport(scripted)) as opened:
        yield opened


def finish(provider: OidcProvider, **answer: str) -> Scope:
    return provider.finish(FLOW, {"state": FLOW.state, "code": "c"} | answer, REDIRECT).scope


def test_tokens_of_both_kinds_of_keys_hold(provider: OidcProvider, scripted: Scripted) -> None:
    scripted.id_token = scripted.token()
    assert finish(provider) is Scope.TASKS
    scripted.id_token = scripted.token(key=CURVE, kid="curve", algorithm="ES256", groups=["ml-readers"])
    assert finish(provider) is Scope.READ


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://other.example"},
        {"aud": "another"},
        {"aud": None},
        {"azp": "another"},
        {"nonce": "another"},
        {"nonce": None},
        {"exp": 999_999.0},
        {"exp": None},
        {"exp": True},
        {"exp": 10**400},
        {"iat": 1_000_100.0},
        {"nbf": 1_000_100.0},
        {"nbf": "now"},
        {"groups": []},
        {"groups": "ml-operators"},
        {"groups": {"ml-operators": True}},
        {"groups": [["ml-operators"]]},
        {"groups": None},
        {"key": OTHER},
        {"kid": "unknown"},
        {"key": "x" * 32, "algorithm": "HS256"},
        {"key": None, "algorithm": "none"},
        {"key": CURVE, "algorithm": "ES256"},
    ],
    ids=lambda one: re.sub(" object at 0x[0-9a-f]+", "", str(one))[:80],
)
def test_a_token_that_does_not_hold_signs_nobody_in(
    provider: OidcProvider, scripted: Scripted, changes: Mapping[str, Any]
) -> None:
    scripted.id_token = scripted.token(**changes)
    with pytest.raises(SignInRefused) as refused:
        finish(provider)
    assert scripted.id_token not in str(refused.value)


@pytest.mark.parametrize(
    "answer",
    [{"state": "another"}, {"state": ""}, {"iss": "https://other.example"}, {"id_token": "x.y.z"}],
    ids=str,
)
def test_an_answer_of_another_sign_in_is_refused(
    provider: OidcProvider, scripted: Scripted, answer: dict[str, str]
) -> None:
    scripted.id_token = answer.pop("id_token", scripted.token())
    with pytest.raises(SignInRefused):
        finish(provider, **answer)


def test_a_provider_that_is_away_or_another_one_signs_nobody_in(
    provider: OidcProvider, scripted: Scripted
) -> None:
    scripted.id_token = scripted.token()
    scripted.is_away = True
    with pytest.raises(HelperUnavailable):
        finish(provider)
    scripted.is_away = False
    with pytest.raises(HelperUnavailable, match="a moment ago"):
        finish(provider)
    scripted.now += 10
    scripted.issuer = "https://other.example"
    with pytest.raises(SignInRefused):
        finish(provider)
    scripted.now += 10
    scripted.issuer = SETTINGS.issuer
    assert finish(provider) is Scope.TASKS


def test_programs_show_an_access_token_for_this_api_until_it_ends(
    provider: OidcProvider, scripted: Scripted
) -> None:
    token = scripted.token(aud="lark-api", groups=["ml-readers", "ml-operators"])
    grant = provider.grant_of(token)
    assert grant is not None
    assert (grant.kind, grant.scope, grant.name) == (GrantKind.OIDC, Scope.TASKS, "oidc:ann")
    assert token not in repr(grant)
    assert provider.holds(grant)
    scripted.now += 301
    assert not provider.holds(grant)
    assert provider.grant_of(token) is None
    scripted.now -= 301
    assert provider.grant_of(scripted.token()) is None  # an identity token is none
    assert provider.grant_of("mlt_unknown") is None


def test_unknown_keys_do_not_make_this_server_ask_each_time(
    provider: OidcProvider, scripted: Scripted
) -> None:
    for number in range(5):
        assert provider.grant_of(scripted.token(aud="lark-api", kid=f"unknown-{number}")) is None
    assert scripted.asked.count("/keys") == 1


def test_strangers_do_not_make_this_server_ask_a_provider_that_is_away_each_time(
    provider: OidcProvider, scripted: Scripted
) -> None:
    scripted.is_away = True
    tokens = [scripted.token(aud="lark-api", kid=f"unknown-{number}") for number in range(5)]
    for token in tokens:
        with pytest.raises(HelperUnavailable):
            provider.grant_of(token)
        with pytest.raises(HelperUnavailable):
            provider.authorization_url(FLOW, REDIRECT)
    assert scripted.tried == 1
    scripted.is_away = False
    scripted.now += 10
    assert provider.grant_of(scripted.token(aud="lark-api")) is not None
    scripted.is_away = True
    scripted.now += 3_600  # old keys are not believed
    with pytest.raises(HelperUnavailable):
        provider.grant_of(scripted.token(aud="lark-api"))


def test_few_wait_for_a_provider_that_hangs_and_who_need_not_ask_it_goes_on(
    provider: OidcProvider, scripted: Scripted
) -> None:
    token = scripted.token(aud="lark-api")
    with ExitStack() as waiting:
        while provider._waiting.try_enter(waiting):
            pass
        for ask in (
            lambda: provider.authorization_url(FLOW, REDIRECT),
            lambda: finish(provider),
            lambda: provider.grant_of(token),
        ):
            with pytest.raises(HelperUnavailable, match="limit"):
                ask()
        assert scripted.tried == 0
    assert provider.grant_of(token) is not None
    with ExitStack() as waiting:
        while provider._waiting.try_enter(waiting):
            pass
        assert provider.grant_of(token) is not None
        assert provider.authorization_url(FLOW, REDIRECT)


def test_a_stranger_with_many_answers_or_tokens_leaves_others_room_to_sign_in(
    provider: OidcProvider, scripted: Scripted
) -> None:
    scripted.id_token = scripted.token()
    assert finish(provider) is Scope.TASKS  # the documents are kept now
    with ExitStack() as waiting:
        for taker in ("192.0.2.7", provider._documents):
            while provider._waiting.try_enter(waiting, taker):
                pass
            with pytest.raises(HelperUnavailable, match="limit"):
                provider.finish(FLOW, {"state": FLOW.state, "code": "c"}, REDIRECT, "192.0.2.7")
            person = provider.finish(FLOW, {"state": FLOW.state, "code": "c"}, REDIRECT, "192.0.2.8")
            assert person.scope is Scope.TASKS


@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint", "jwks_uri"])
@pytest.mark.parametrize(
    "address",
    ["", 7, None, "http://id.example/x", "http://127.0.0.1/x", "https://", "file:///etc/passwd",
     "https://id.example\n/x"],
    ids=str,
)  # fmt: skip
def test_a_document_whose_addresses_are_not_safe_signs_nobody_in(
    provider: OidcProvider, scripted: Scripted, name: str, address: Any
) -> None:
    scripted.id_token = scripted.token()
    scripted.changes = {name: address}

    def sign_in() -> None:
        provider.authorization_url(FLOW, REDIRECT)
        finish(provider)

    with pytest.raises(SignInRefused):
        sign_in()


def test_an_address_keeps_the_query_that_it_has(provider: OidcProvider, scripted: Scripted) -> None:
    scripted.changes = {"authorization_endpoint": "https://id.example/authorize?p=b2c_1_in"}
    url = urlsplit(provider.authorization_url(FLOW, REDIRECT))
    asked = parse_qs(url.query)
    assert (url.path, asked["p"], asked["state"]) == ("/authorize", ["b2c_1_in"], [FLOW.state])
    assert asked["redirect_uri"] == [REDIRECT]


@pytest.mark.parametrize(
    "answer",
    [
        b"[" * 500_000,
        b'{"keys": [' + b" " * (1 << 20) + b"]}",
        b"\xff",
        b"[]",
        b'{"keys": 7}',
        b'{"keys": [7]}',
    ],
    ids=["deep", "long", "not text", "a list", "no keys", "no key"],
)
def test_an_answer_of_any_kind_is_refused_and_bounded(scripted: Scripted, answer: bytes) -> None:
    def answering(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=answer) if request.url.path == "/keys" else scripted(request)

    scripted.id_token = scripted.token()
    with (
        OidcProvider(SETTINGS, lambda: scripted.now, transport=httpx.MockTransport(answering)) as provider,
        pytest.raises(SignInRefused),
    ):
        finish(provider)


def test_keys_that_sign_no_tokens_are_passed_over(provider: OidcProvider, scripted: Scripted) -> None:
    mac = {"kty": "oct", "kid": "mac", "alg": "HS256", "k": "eA" * 22}
    sealing = jwt.algorithms.RSAAlgorithm.to_jwk(OTHER.public_key(), as_dict=True) | {
        "kid": "enc",
        "use": "enc",
    }
    scripted.more_keys = [7, None, {"kty": ["RSA"]}, {"kty": "RSA", "alg": ["a"]}, mac, sealing]
    scripted.id_token = scripted.token()
    assert finish(provider) is Scope.TASKS
    scripted.id_token = scripted.token(key=OTHER, kid="enc")
    with pytest.raises(SignInRefused):
        finish(provider)


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"email": "ann@example"}, "oidc:bob (ann@example)"),
        ({"email": ["ann"], "preferred_username": "Ann"}, "oidc:bob (Ann)"),
        ({}, "oidc:bob"),
    ],
)
def test_the_log_names_a_subject_whatever_email_somebody_chose(
    provider: OidcProvider, scripted: Scripted, claims: Mapping[str, Any], name: str
) -> None:
    grant = provider.grant_of(scripted.token(aud="lark-api", sub="bob", **claims))
    assert grant is not None
    assert grant.name == name


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": "http://id.example"},
        {"scopes": {}},
        {"audience": "lark"},
        {"secret_file": Path("/nowhere")},
    ],
    ids=str,
)
def test_settings_that_let_too_many_in_are_refused(changes: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidTask):
        OidcProvider(replace(SETTINGS, **changes), time.time)


def test_a_secret_that_others_may_read_is_refused_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("very secret\n")
    path.chmod(0o644)
    with pytest.raises(InvalidTask):
        OidcProvider(replace(SETTINGS, secret_file=path), time.time)
    path.chmod(0o600)
    with OidcProvider(replace(SETTINGS, secret_file=path), time.time) as provider:
        assert "very secret" not in repr(provider) + repr(replace(SETTINGS, secret_file=path))


@pytest.mark.parametrize(
    ("issuer", "client", "groups", "said"),
    [
        (None, "lark", [], "--oidc-issuer"),
        ("https://id.example", None, [], "--oidc-client-id"),
        ("https://id.example", "lark", ["everybody"], "GROUP=SCOPE"),
        ("https://id.example", "lark", ["everybody=all"], "GROUP=SCOPE"),
    ],
)
def test_options_that_do_not_fit_are_named(
    issuer: str | None, client: str | None, groups: list[str], said: str
) -> None:
    with pytest.raises(Exception, match=said):
        oidc_of(
            issuer=issuer,
            client_id=client,
            secret_file=None,
            groups=groups,
            groups_claim="groups",
            audience=None,
        )


def test_a_groups_name_may_hold_an_equals_sign() -> None:
    made = oidc_of(
        issuer="https://id.example",
        client_id="lark",
        secret_file=None,
        groups=["cn=ml=read"],
        groups_claim="g",
        audience=None,
    )
    assert made is not None
    assert made.scopes == {"cn=ml": Scope.READ}
