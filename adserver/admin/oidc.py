"""Sign-in by an OpenID Connect provider, which states a person's identity and groups.

Browsers go through the authorization code flow with PKCE, state and nonce, and get a session of this server
at its end. Programs send an access token of the provider. Groups are mapped to scopes by the operator, and
whoever is in no mapped group gets nothing.

Source: OpenID Connect Core 1.0 (3.1), RFC 7636 (PKCE), RFC 9207 (issuer in the answer), RFC 9068.
"""

import json
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from hmac import compare_digest
from threading import Lock
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

import httpx
import jwt

from adserver.records.access import Grant, GrantKind, Scope, digest_of
from adserver.records.server_settings import OidcSettings
from adserver.store.database import Clock
from maskedlark.audit_log import clean_name
from maskedlark.errors import HelperUnavailable, InvalidSetting
from maskedlark.frozen import frozen
from maskedlark.rpc.certificate_faults import explain_rejection
from maskedlark.rpc.fair_quota import FairQuota
from maskedlark.rpc.transport import is_loopback
from maskedlark.runtime.ownership import check_secret_file

SESSION_S: Final = 3_600.0
"""How long a browser stays logged in: then the provider is asked again, and may have changed its mind."""
FLOW_S: Final = 600
"""How long a sign-in may take at the provider."""
# Signatures alone: a MAC would be one by whoever knows the client's secret
_ALGORITHMS: Final = ("RS256", "PS256", "ES256", "ES384", "EdDSA")
_DISCOVERY: Final = "/.well-known/openid-configuration"
_LEEWAY_S: Final = 30
# Times beyond are no numbers of seconds that a clock shows
_LATEST_S: Final = 2**53
_TIMEOUT_S: Final = 10.0
_FRESH_S: Final = 3_600.0
# Between two requests for one of the provider's documents, also in vain: strangers say when it is wanted
_REFETCH_S: Final = 10.0
# Who may wait for the provider at once: the others of the dashboard's threads go on when it is slow
_WAITING: Final = 8
_FLOW_BYTES: Final = 32
_MOST_TOKEN: Final = 16_384
_MOST_ANSWER: Final = 1 << 20


class SignInRefused(Exception):
    """What the provider answered gives no access; the text is for people and holds no secret."""


@frozen
class Flow:
    """A sign-in under way, kept by the browser in a cookie.

    Attributes:
        state: Comes back with the provider's answer, and so shows that this browser asked.
        nonce: Is in the identity token, and so shows that it was made for this sign-in.
        verifier: Redeems the code (PKCE).
    """

    state: str
    nonce: str
    verifier: str

    @classmethod
    def begin(cls) -> Self:
        """Draw three fresh secrets."""
        return cls(**{name: secrets.token_urlsafe(_FLOW_BYTES) for name in ("state", "nonce", "verifier")})

    @classmethod
    def decode(cls, cookie: str) -> Self | None:
        """Return the flow in a cookie's value, or None for anything else."""
        parts = cookie.split(".")
        return (
            cls(state=parts[0], nonce=parts[1], verifier=parts[2]) if len(parts) == 3 and all(parts) else None
        )

    def encode(self) -> str:
        """Return the cookie's value."""
        return f"{self.state}.{self.nonce}.{self.verifier}"


@frozen
class Person:
    """A person whom the provider knows and whose groups give a scope."""

    name: str
    scope: Scope


@frozen
class _Said:
    """What the provider's documents say.

    Attributes:
        of_itself: Its addresses.
        keys: Those that sign its tokens, by id.
    """

    of_itself: Mapping[str, Any]
    keys: Mapping[str, jwt.PyJWK]

    def key(self, key_id: str) -> jwt.PyJWK | None:
        """Return the key of an id; a token that names none is signed by the only one."""
        if not key_id and len(self.keys) == 1:
            return next(iter(self.keys.values()))
        return self.keys.get(key_id)


class _Documents:
    """The provider's documents, kept for an hour. Safe to share between threads."""

    def __init__(self, clock: Clock, waiting: FairQuota, ask: Callable[[], _Said]) -> None:
        self._clock = clock
        self._waiting = waiting
        self._ask = ask
        self._lock = Lock()
        self._kept: tuple[_Said, float] | None = None
        self._next_at = float("-inf")

    def read(self, is_enough: Callable[[_Said], bool] = lambda _: True) -> _Said:
        """Return what is kept, asked for anew if it is old or not enough.

        Raises:
            SignInRefused: what the provider answers cannot be used.
            HelperUnavailable: the provider does not answer, did not a moment ago, or too many wait for it.
        """
        kept = self._kept
        if kept is not None and self._clock() < kept[1] and is_enough(kept[0]):
            return kept[0]
        with self._waiting.enter(self), self._lock:  # by one name: half of the places are left to sign-ins
            now = self._clock()
            if now >= self._next_at:
                # Before the request: one that fails counts, too
                self._next_at = now + _REFETCH_S
                self._kept = self._ask(), now + _FRESH_S
            if self._kept is None or now >= self._kept[1]:
                raise HelperUnavailable(
                    f"the sign-in provider gave no answer a moment ago: retry in {_REFETCH_S:.0f} s",
                    retry_after_s=_REFETCH_S,
                )
            return self._kept[0]


class OidcProvider:
    """A client of the provider. Safe to share between threads; close it, or use it in a `with`."""

    def __init__(
        self, settings: OidcSettings, clock: Clock, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        """Take the settings; the provider is first called at a sign-in, so it may be unreachable until then.

        Raises:
            InvalidSetting: the issuer is not https beyond loopback, no group is mapped, the API's audience is
                the client itself, or others may read the file of the client's secret.
        """
        parts = urlsplit(settings.issuer)
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
            raise InvalidSetting(
                f"--oidc-issuer {settings.issuer}: expected an https URL, or http on loopback"
            )
        if not settings.scopes:
            raise InvalidSetting(
                "--oidc-issuer requires at least one --oidc-group GROUP=SCOPE: nobody could sign in"
            )
        if settings.audience == settings.client_id:
            raise InvalidSetting(
                "--oidc-audience is the client's id, so identity tokens would pass as access tokens: "
                "register the API under an audience of its own"
            )
        self._secret = _secret_in(settings)
        self._settings = settings
        self._clock = clock
        # A redirect would take the client's secret or a code to an address that the provider did not name
        self._http = httpx.Client(timeout=_TIMEOUT_S, follow_redirects=False, transport=transport)
        self._waiting = FairQuota(_WAITING, "the limit of sign-ins that wait for the provider is reached")
        self._documents = _Documents(clock, self._waiting, self._read)

    @property
    def host(self) -> str:
        """The provider's host, for people."""
        return urlsplit(self._settings.issuer).hostname or ""

    def authorization_url(self, flow: Flow, redirect_uri: str) -> str:
        """Return where to send a browser that signs in.

        Raises:
            SignInRefused: what it says of itself is of another provider, or incomplete.
            HelperUnavailable: the provider does not answer.
        """
        challenge = urlsafe_b64encode(sha256(flow.verifier.encode()).digest()).rstrip(b"=").decode()
        asked = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self._settings.request_scopes),
            "state": flow.state,
            "nonce": flow.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        # some providers' addresses have a query of their own
        return str(
            self._address(self._documents.read().of_itself, "authorization_endpoint").copy_merge_params(asked)
        )

    def finish(
        self, flow: Flow, answer: Mapping[str, str], redirect_uri: str, address: str | None = None
    ) -> Person:
        """Redeem the code that a browser brought back.

        Args:
            flow: The one that the same browser began.
            answer: The query of the provider's redirect.
            redirect_uri: As given to `authorization_url`.
            address: The browser's, of which a few wait for the provider at once: anybody can make up an
                answer that it is asked about.

        Raises:
            SignInRefused: the answer is of another sign-in, the provider refused, its token does not hold,
                or no group of the person is mapped to a scope.
            HelperUnavailable: the provider does not answer, or too many wait for it.
        """
        if not compare_digest(answer.get("state", "").encode(), flow.state.encode()):
            raise SignInRefused("this answer is of another sign-in: begin again")
        if answer.get("iss", self._settings.issuer) != self._settings.issuer:
            raise SignInRefused("this answer is of another provider: begin again")
        if "code" not in answer:
            raise SignInRefused("the provider did not sign you in")
        asked = {
            "grant_type": "authorization_code",
            "code": answer["code"],
            "redirect_uri": redirect_uri,
            "code_verifier": flow.verifier,
        }
        client = self._settings.client_id
        if self._secret is None:
            auth, asked = httpx.Auth(), asked | {"client_id": client}
        else:
            auth = httpx.BasicAuth(quote(client, safe=""), quote(self._secret, safe=""))  # RFC 6749, 2.3.1
        endpoint = self._address(self._documents.read().of_itself, "token_endpoint")
        with self._waiting.enter(address):
            redeemed = self._ask(self._http.build_request("POST", endpoint, data=asked), auth)
        claims = self._verify(str(redeemed.get("id_token", "")), self._settings.client_id)
        if not compare_digest(str(claims.get("nonce", "")).encode(errors="replace"), flow.nonce.encode()):
            raise SignInRefused("the provider's token was made for another sign-in: begin again")
        if claims.get("azp", self._settings.client_id) != self._settings.client_id:
            raise SignInRefused("the provider's token was made for another client")
        return self._person(claims)

    def grant_of(self, token: str) -> Grant | None:
        """Return what an access token allows until it ends; None if it does not hold or maps to no scope.

        Raises:
            HelperUnavailable: the provider's keys are needed, and it does not answer.
        """
        if self._settings.audience is None:
            return None
        try:
            claims = self._verify(token, self._settings.audience)
            person = self._person(claims)
        except SignInRefused:
            return None
        return Grant(
            digest=digest_of(token),
            kind=GrantKind.OIDC,
            scope=person.scope,
            name=person.name,
            created_at=float(claims["iat"]),
            expires_at=float(claims["exp"]),
        )

    def holds(self, grant: Grant) -> bool:
        """Return whether an access token's grant has not ended."""
        return self._clock() < grant.expires_at

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _person(self, claims: Mapping[str, Any]) -> Person:
        """Return the person that the claims are about, with the largest scope of their groups."""
        groups = claims.get(self._settings.groups_claim, ())
        scopes = self._settings.scopes
        of_groups = (
            [scopes[one] for one in groups if isinstance(one, str) and one in scopes]
            if isinstance(groups, list)
            else []
        )
        if not of_groups:
            raise SignInRefused("none of your groups has access: ask the operator of this ad server")
        # `Scope` lists its members from the smallest to the largest
        largest = max(of_groups, key=tuple(Scope).index)
        # The subject alone is the provider's own word; people may choose the others, also somebody else's.
        subject = str(claims["sub"])
        called = next(
            (claims[one] for one in ("email", "preferred_username") if isinstance(claims.get(one), str)),
            subject,
        )
        name = subject if called == subject else f"{subject} ({called})"
        return Person(name=clean_name(f"oidc:{name}"), scope=largest)

    def _verify(self, token: str, audience: str) -> Mapping[str, Any]:
        """Return a token's claims if its signature, issuer, audience and times hold."""
        try:
            if len(token) > _MOST_TOKEN:
                raise SignInRefused("the provider's token is too long")
            header = jwt.get_unverified_header(token)
            claims: Mapping[str, Any] = jwt.decode(
                token,
                self._key(header.get("kid", "")),
                algorithms=_ALGORITHMS,
                audience=audience,
                issuer=self._settings.issuer,
                options={
                    "require": ["exp", "iat", "iss", "aud", "sub"],
                    # Checked below, by this server's clock and with one leeway
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
        except (jwt.PyJWTError, ValueError):
            raise SignInRefused("the provider's token does not hold: begin again") from None
        now = self._clock()
        times = claims["iat"], claims.get("nbf", claims["iat"]), claims["exp"]
        if (
            not all(type(one) in (int, float) and abs(one) <= _LATEST_S for one in times)
            or not max(times[:2]) - _LEEWAY_S <= now < times[2]
        ):
            raise SignInRefused("the provider's token has ended, or its clock is wrong: begin again")
        return claims

    def _key(self, key_id: str) -> jwt.PyJWK:
        """Return one of the provider's keys; they are asked for again when a token names a new one."""
        found = self._documents.read(lambda said: said.key(key_id) is not None).key(key_id)
        if found is None:
            raise SignInRefused("the provider's token is signed by an unknown key")
        return found

    def _read(self) -> _Said:
        """Ask for the provider's documents."""
        url = self._settings.issuer.rstrip("/") + _DISCOVERY
        of_itself = self._ask(self._http.build_request("GET", url))
        if of_itself.get("issuer") != self._settings.issuer:
            raise SignInRefused("the provider calls itself by another name than --oidc-issuer")
        url_of_keys = self._address(of_itself, "jwks_uri")
        listed = self._ask(self._http.build_request("GET", url_of_keys)).get("keys")
        keys = [_usable(one) for one in listed] if isinstance(listed, list) else []
        return _Said(
            of_itself=of_itself, keys={str(one.key_id or ""): one for one in keys if one is not None}
        )

    def _address(self, of_itself: Mapping[str, Any], name: str) -> httpx.URL:
        """Return an address that the provider names, and that a secret may be sent to."""
        try:
            found = httpx.URL(str(of_itself.get(name, "")))
        except httpx.InvalidURL:
            found = httpx.URL("")
        is_near = self._settings.issuer.startswith("http://") and is_loopback(found.host)
        if not found.host or found.scheme not in (("https", "http") if is_near else ("https",)):
            raise SignInRefused(f"the provider names no {name} with an https address")
        return found

    def _ask(self, request: httpx.Request, auth: httpx.Auth | None = None) -> Mapping[str, Any]:
        """Return the JSON object that the provider answers with, of bounded length and in bounded time."""
        until = monotonic() + _TIMEOUT_S
        # A few compressed bytes could become more than the limit before they are counted
        request.headers["accept-encoding"] = "identity"
        try:
            answer = self._http.send(request, auth=auth, stream=True)
            try:
                if answer.is_server_error:
                    raise HelperUnavailable(
                        f"the sign-in provider {self.host} answers {answer.status_code}: retry later"
                    )
                content = b""
                for part in answer.iter_bytes() if answer.is_success else ():
                    content += part
                    if len(content) > _MOST_ANSWER or monotonic() > until:
                        raise SignInRefused("the provider's answer is too long, or comes too slowly")
                found = json.loads(content)
            finally:
                answer.close()
        except httpx.HTTPError as error:
            reason = explain_rejection(error, " (SSL_CERT_FILE)") or type(error).__name__
            raise HelperUnavailable(f"the sign-in provider {self.host} does not answer ({reason})") from None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise SignInRefused("the provider refused this sign-in: begin again")
        return found


def _usable(listed: Any) -> jwt.PyJWK | None:
    """Return a key that may sign tokens; None for any other, for it is the provider's and may be anything."""
    try:
        key = jwt.PyJWK(listed)
    except (jwt.PyJWTError, AttributeError, TypeError, ValueError):
        return None
    # A MAC's key in a public list would let everybody sign.
    return key if key.algorithm_name in _ALGORITHMS and key.public_key_use in (None, "sig") else None


def _secret_in(settings: OidcSettings) -> str | None:
    """Return the client's secret; None for a public client, which PKCE alone protects."""
    if settings.secret_file is None:
        return None
    try:
        check_secret_file(settings.secret_file)
        return settings.secret_file.read_text().strip()
    except OSError as error:
        raise InvalidSetting(f"cannot read {settings.secret_file}: {error.strerror}") from None
