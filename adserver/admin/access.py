"""Access control of the admin API and the dashboard: a grant is needed, and other sites' pages are refused.

Before a request reaches a route, in this order:

    Host is not one of ours                     400   DNS rebinding: another site's name that leads here
    unsafe method from another site's page      403   a form or a script elsewhere, with the user's cookie
    no grant                                    401
    the grant may only read, the method is not  403

Every answer, also these, carries the headers that keep a browser strict.
"""

from collections.abc import Collection, Sequence
from functools import partial
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adserver.admin.grants import Grants, actor_of_grant
from adserver.admin.problems import problem, problem_of
from adserver.admin.stranger_page import STYLE_SOURCE, stranger_page
from adserver.records.access import Grant, GrantKind
from adserver.records.access import Scope as Allowed
from adserver.store.access import SESSION_S
from adserver.store.audit_log import acting_as
from maskedlark.audit_log import Actor, ActorKind, AuditAct, clean_name
from maskedlark.errors import HelperUnavailable
from maskedlark.frozen import frozen
from maskedlark.runtime.database import database_at_hand
from maskedlark.runtime.refused_acts import RefusedActs

if TYPE_CHECKING:
    from adserver.admin.sign_in import SignIn

API: Final = "/api/"
LOGIN_PATH: Final = "/login"
LOGOUT_PATH: Final = "/logout"
LOGGED_OUT_PATH: Final = f"{LOGIN_PATH}?out"
"""The page that says so."""
LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "::1")
ALL_INTERFACES: Final = ("", "0.0.0.0", "::")  # noqa: S104  compared with, never bound
_TELLS_STRANGERS: Final = (
    "no valid token: send `Authorization: Bearer TOKEN`, with a token from `adserver token create`"
)
_NO_GRANT: Final = "no_grant"
_READ_ONLY: Final = "read_only"
_SAFE: Final = ("GET", "HEAD", "OPTIONS")
# What browsers send with a request from our own page, and with an address that was typed or bookmarked
_OURS: Final = ("same-origin", "none")
SECURITY_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' "
        f"{STYLE_SOURCE}; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
"""Of every answer; `cache-control` where the answer says nothing else."""
_NO_SESSION: Final = "This browser is not logged in."
# A session lasts twelve hours by a login link, and one by a provider
_ENDED: Final = (
    "The session of this browser has ended: it was logged out or revoked, or its time is over. Log in again."
)
_WRONG_LINK: Final = (
    "This login link does not work: it was used before, is older than ten minutes, or is not whole."
)
_LOGGED_OUT: Final = "You are logged out."
_HOW_TO_LOG_IN: Final = (
    "To log in, run <code>adserver dashboard login</code> on the ad server's machine, or "
    "<code>adserver quickstart up NAME --dashboard</code> for a quickstart project, and open the link that "
    "it prints. It works once, within ten minutes."
)


@frozen
class AuthMiddleware:
    """Lets requests through to an application, or answers them itself.

    Attributes:
        app: What is behind it.
        grants: The grants that give access.
        hosts: The names and addresses that this server is reached at; any port, so that it may be forwarded.
        is_tls: Whether it speaks TLS.
        refused: Logs refused acts.
        sign_in: The provider's, or None.
    """

    app: ASGIApp
    grants: Grants
    hosts: Collection[str]
    is_tls: bool
    refused: RefusedActs
    sign_in: "SignIn | None" = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return
        answer = await self._check(scope) or self.app
        await answer(scope, receive, _strictly(send))

    async def _check(self, scope: Scope) -> ASGIApp | None:
        """Return the answer that refuses a request, or None to let it through."""
        headers = Headers(scope=scope)
        host = headers.getlist("host")
        # Of two Host headers a proxy may have believed the other
        if len(host) != 1 or _name_in(host[0]) not in self.hosts:
            return problem(
                400,
                "this server does not accept that host name: use its own, or add it with --dashboard-host",
                reason="foreign_host",
            )
        if scope["method"] not in _SAFE and self._is_from_elsewhere(headers, host[0]):
            return problem(
                403,
                "the request comes from another site: send it from the dashboard, or with a token",
                reason="cross_site",
            )
        try:
            with database_at_hand("the ad server"):
                if scope["path"] == LOGIN_PATH or (
                    self.sign_in and scope["path"].startswith(f"{LOGIN_PATH}/")
                ):
                    return await self._login(scope, headers)
                grant, is_cookie = await self._grant(scope, headers)
        except HelperUnavailable as away:
            return problem_of(away)
        if grant is None:
            await self._log_stranger(scope)
            return self._reject_unknown_caller(scope["path"], self._describe_session(scope, headers))
        return await self._forbidden(scope, headers, grant, is_cookie=is_cookie)

    async def _forbidden(
        self, scope: Scope, headers: Headers, grant: Grant, *, is_cookie: bool
    ) -> ASGIApp | None:
        """Return the refusal of an act that a known caller may not do; otherwise attach its grant."""
        is_safe = scope["method"] in _SAFE
        # Browsers send Origin with every unsafe request: what comes without it, and with a cookie, is no page
        # of ours
        if is_cookie and not is_safe and "origin" not in headers:
            return problem(
                403,
                "the request has a session cookie but no Origin header: send it from a browser, or "
                "with a token",
                reason="cross_site",
            )
        # Who may only read may still log out
        if not is_safe and scope["path"] != LOGOUT_PATH and not grant.scope.allows(Allowed.OPERATE):
            actor = actor_of_grant(grant, _address(scope))
            await run_in_threadpool(self.refused.add, AuditAct.REQUEST_CHANGE, actor, _READ_ONLY)
            detail = (
                f"a change requires a token or login of scope operate or above; this one has {grant.scope}"
            )
            return problem(403, detail, reason=_READ_ONLY)
        # Asked again when the body is there, which may be minutes later
        holds = partial(self.grants.holds, grant)
        scope["state"] = {**scope.get("state", {}), "grant": grant, "holds": holds}
        return None

    def _is_from_elsewhere(self, headers: Headers, host: str) -> bool:
        origin = headers.get("origin")
        ours = f"{'https' if self.is_tls else 'http'}://{host}".lower()
        return (origin is not None and origin.lower() != ours) or (
            headers.get("sec-fetch-site", "none") not in _OURS
        )

    async def _grant(self, scope: Scope, headers: Headers) -> tuple[Grant | None, bool]:
        """Return the caller's grant, and whether a cookie carried it."""
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        is_cookie = scheme.lower() != "bearer"
        kind = GrantKind.SESSION if is_cookie else GrantKind.TOKEN
        shown = self.session_in(scope, headers) if is_cookie else secret.strip()
        if not shown:
            return None, False
        # What changes or spends asks the database: a grant that was revoked a moment ago must not do that
        grant = self.grants.at_hand(shown, kind) if scope["method"] in _SAFE else None
        return grant or await run_in_threadpool(self.grants.find, shown, kind), is_cookie

    async def _login(self, scope: Scope, headers: Headers) -> Response:
        """Log in the first visitor of a login link, or a person whom the provider signed in.

        A browser that is logged in goes on to the overview, also by a link that was used.
        """
        if self.sign_in is not None and scope["path"] != LOGIN_PATH:
            return await self._sign_in(self.sign_in, scope)
        asked = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        codes, session = asked.get("code", []), None
        if len(codes) == 1 and scope["method"] == "GET":
            with acting_as(_stranger(scope)):
                session = await run_in_threadpool(self.grants.log_in, codes[0])
        if session is None:
            grant, is_cookie = await self._grant(scope, headers)
            if grant is not None and is_cookie and scope["method"] == "GET":
                return RedirectResponse("/", 303)
            await self._log_stranger(scope)
            if codes:
                told = _WRONG_LINK
            else:
                told = _LOGGED_OUT if "out" in asked else self._describe_session(scope, headers)
            return self._reject_unknown_caller(LOGIN_PATH, told)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            self.cookie_name(scope),
            session,
            max_age=int(SESSION_S),
            path="/",
            secure=self.is_tls,
            httponly=True,
            samesite="strict",
        )
        return answer

    async def _sign_in(self, sign_in: "SignIn", scope: Scope) -> Response:
        """Answer one of the two addresses of the provider's sign-in."""
        from adserver.admin.oidc import SignInRefused
        from adserver.admin.sign_in import BEGIN_PATH, CALLBACK_PATH

        if scope["method"] != "GET" or scope["path"] not in (BEGIN_PATH, CALLBACK_PATH):
            return self._reject_unknown_caller(LOGIN_PATH, _NO_SESSION)
        cookie = self.cookie_name(scope)
        if scope["path"] == BEGIN_PATH:
            return await sign_in.begin(scope, cookie)
        try:
            return await sign_in.finish(scope, cookie, _stranger(scope))
        except SignInRefused as refused:
            await self._log_stranger(scope)
            return sign_in.refusal(refused)

    async def _log_stranger(self, scope: Scope) -> None:
        """Log that a request without a valid grant was refused."""
        await run_in_threadpool(self.refused.add, AuditAct.LOG_IN, _stranger(scope), _NO_GRANT)

    def _describe_session(self, scope: Scope, headers: Headers) -> str:
        """Say why a browser has no grant."""
        return _ENDED if self.session_in(scope, headers) else _NO_SESSION

    def _reject_unknown_caller(self, path: str, told: str) -> Response:
        if path.startswith(API):
            return problem(401, _TELLS_STRANGERS, headers={"www-authenticate": "Bearer"})
        if self.sign_in is not None:
            return self.sign_in.login_page(told)
        return HTMLResponse(stranger_page("Log in", told, _HOW_TO_LOG_IN), 401)

    def cookie_name(self, scope: Scope) -> str:
        """Return the name of this server's cookie: browsers share cookies between the ports of a host."""
        # With the prefix, browsers take the cookie over TLS only, and from no other host of the domain
        return f"{'__Host-' if self.is_tls else ''}maskedlark-{(scope.get('server') or ('', 0))[1]}"

    def session_in(self, scope: Scope, headers: Headers) -> str:
        """Return the session's secret in a request's cookies, or an empty string."""
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            return ""
        found = cookies.get(self.cookie_name(scope))
        return "" if found is None else found.value


def names_of(listen: str, named: Sequence[str]) -> frozenset[str]:
    """Return the names that reach a server: its own address, loopback's, and the operator's."""
    host = listen.rsplit(":", 1)[0].strip("[]").lower()
    # A server on all interfaces is reached over loopback, too
    of_loopback = LOOPBACK_NAMES if host in (*LOOPBACK_NAMES, *ALL_INTERFACES) else ()
    return frozenset({host, *of_loopback, *(one.lower() for one in named)}) - {""}


def _stranger(scope: Scope) -> Actor:
    """Return how the audit log names a caller without a grant: by its address."""
    return Actor(kind=ActorKind.SESSION, address=clean_name(_address(scope)))


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _name_in(host: str) -> str:
    """Return the name or address in a Host header, without its port."""
    try:
        parsed = urlsplit(f"//{host}")
        # Read for its ValueError: a port that is none makes the whole header wrong
        _ = parsed.port
    except ValueError:
        return ""
    is_plain = parsed.netloc == host and "@" not in host and not parsed.path
    return (parsed.hostname or "").lower() if is_plain else ""


def _strictly(send: Send) -> Send:
    """Wrap `send` to add the headers that every answer has."""

    async def send_strictly(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return send_strictly
