"""The two addresses of a sign-in: one sends a browser to the provider, to the other it comes back."""

from html import escape
from http.cookies import CookieError, SimpleCookie
from typing import Final, Literal
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Scope

from adserver.admin.grants import Grants
from adserver.admin.oidc import FLOW_S, SESSION_S, Flow, OidcProvider, SignInRefused
from adserver.admin.stranger_page import stranger_page
from adserver.store.audit_log import acting_as
from maskedlark.audit_log import Actor
from maskedlark.frozen import frozen

BEGIN_PATH: Final = "/login/oidc"
CALLBACK_PATH: Final = "/login/oidc/callback"
# A provider's answer has four or five; the query is anybody's
_MOST_FIELDS: Final = 16


@frozen
class SignIn:
    """Answers both addresses.

    Attributes:
        provider: The identity provider.
        grants: Where sessions begin.
        is_tls: Whether this server speaks TLS.
    """

    provider: OidcProvider
    grants: Grants
    is_tls: bool

    async def begin(self, scope: Scope, cookie: str) -> Response:
        """Send a browser to the provider.

        Raises:
            HelperUnavailable: the provider does not answer.
        """
        flow = Flow.begin()
        try:
            url = await run_in_threadpool(self.provider.authorization_url, flow, self._redirect_uri(scope))
        except SignInRefused as refused:
            return self.refusal(refused)
        answer = RedirectResponse(url, 303)
        # Lax: the provider's page leads back here, and a stricter cookie would stay behind.
        self._set(answer, _flow_name(cookie), flow.encode(), FLOW_S, "lax")
        return answer

    async def finish(self, scope: Scope, cookie: str, actor: Actor) -> Response:
        """Begin a session, if the provider's answer holds.

        Raises:
            SignInRefused: it does not.
            HelperUnavailable: the provider does not answer.
        """
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(Headers(scope=scope).get("cookie", ""))
            answered = dict(parse_qsl(scope["query_string"].decode("latin-1"), max_num_fields=_MOST_FIELDS))
        except (CookieError, ValueError):
            raise SignInRefused("this answer cannot be read: begin again") from None
        kept = cookies.get(_flow_name(cookie))
        flow = None if kept is None else Flow.decode(kept.value)
        if flow is None:
            raise SignInRefused("this browser has begun no sign-in, or it took too long: begin again")
        person = await run_in_threadpool(
            self.provider.finish, flow, answered, self._redirect_uri(scope), actor.address
        )
        with acting_as(actor):
            session = await run_in_threadpool(self.grants.sign_in, person, SESSION_S)
        # A page, not a redirect: that would still come from the provider, and leave a strict cookie behind.
        answer = HTMLResponse(
            stranger_page(
                "Logged in",
                "You are logged in.",
                '<a href="/">Open the dashboard</a>',
                head='<meta http-equiv="refresh" content="0;url=/">',
            )
        )
        self._set(answer, cookie, session, int(SESSION_S), "strict")
        self._set(answer, _flow_name(cookie), "", 0, "lax")
        return answer

    def refusal(self, refused: SignInRefused) -> Response:
        """Show why the sign-in failed."""
        told = escape(str(refused))
        page = stranger_page("Not logged in", told, f'<a href="{BEGIN_PATH}">Sign in</a>')
        return HTMLResponse(page, 403)

    def login_page(self, told: str) -> Response:
        """Offer the provider to a browser that is not logged in, after the reason."""
        link = f'<a href="{BEGIN_PATH}">Sign in at {escape(self.provider.host)}</a>'
        page = stranger_page("Log in", told, link)
        return HTMLResponse(page, 401)

    def _redirect_uri(self, scope: Scope) -> str:
        """Return this server's own address, under the name that the browser used and that was checked."""
        return f"{'https' if self.is_tls else 'http'}://{Headers(scope=scope)['host']}{CALLBACK_PATH}"

    def _set(
        self, answer: Response, name: str, value: str, lasts_s: int, same_site: Literal["lax", "strict"]
    ) -> None:
        answer.set_cookie(
            name,
            value,
            max_age=lasts_s,
            path="/",
            secure=self.is_tls,
            httponly=True,
            samesite=same_site,
        )


def _flow_name(cookie: str) -> str:
    return f"{cookie}-oidc"
