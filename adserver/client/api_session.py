"""Requests to the admin API of another ad server: bounded in bytes, pages and time, read without trust.

session = ApiSession(url="https://ads.example:8443", token=token)
session.get(DatasetItem, "/datasets/3f")

Every failure is one of four: `InvalidSetting` if the server's certificate is not accepted,
`HelperUnavailable` if no answer arrives, `JobRefused(BAD_ANSWER)` if it is not an answer of the API, and
otherwise the error that the ad server refused with.
"""

import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPSConnection, IncompleteRead
from pathlib import Path
from socket import SHUT_RDWR, socket
from threading import Timer
from time import monotonic
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, urlencode, urlsplit

from pydantic import ValidationError

from adserver.messages.base import MOST_INTEGER, Message, RequestBody, first_fault
from maskedlark.errors import (
    REFUSALS,
    HelperUnavailable,
    InvalidSetting,
    InvalidTask,
    JobReason,
    JobRefused,
    MaskedLarkError,
)
from maskedlark.escape import escape_values
from maskedlark.frozen import frozen
from maskedlark.rpc.certificate_faults import raise_if_rejected
from maskedlark.rpc.transport import is_loopback

_PREFIX: Final = "/api/v1"
# The kind of a refusal that no operation made.
_OF_THE_API: Final = "RequestRefused"
_REFUSED_FROM: Final = 400
# Statuses of a proxy, and of no ad server: a token is not sent on
_MOVED: Final = range(300, 400)
# Added where the request has no id of the client's choice, so that a repetition would be another request
_MAY_BE_DONE: Final = "; the request may have been carried out: check that ad server before you repeat it"
MOST_ANSWER_BYTES: Final = 96 << 20
"""The limit of one answer: the model of the most parameters that helpers take has 56 MiB in base64."""
MOST_PAGES: Final = 1_000
MOST_PAGE_BYTES: Final = 16 << 20
MOST_LIST_BYTES: Final = 256 << 20
"""The limit of all pages of one list: a million rounds have 200 MB."""
_TRUST_ADVICE: Final = " with --url-ca (`ca` of a Client), or the authority that signed it"
# Characters of a refusal's explanation that are shown
_MOST_DETAIL: Final = 4_000
# Characters of a wrong form's description: a remote server's names may be as long as its answer
_MOST_FAULT: Final = 200
# Fields whose bytes are signed or digested: names in them are escaped where they are printed
_CANONICAL: Final = frozenset({"bundle", "plan"})
_WRONG_URL: Final = (
    "the ad server's URL is not valid: expected https://HOST[:PORT], or http on loopback, and nothing else"
)
_WHICH_PORT: Final = "the URL is that of `adserver serve --dashboard-listen`"
_NO_API: Final = f"is not an ad server's admin API: check the URL ({_WHICH_PORT})"
_BY_WHICH_OPTION: Final = " as --token, or ADSERVER_TOKEN (`token` of a Client)"
_WRONG_FORMS: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_MessageT = TypeVar("_MessageT", bound=Message)


@dataclass(slots=True)
class _Bound:
    """The rest of what one answer, or all pages of a list, may take.

    Attributes:
        each: Bytes of one answer.
        left: Bytes of all.
        until_s: By `monotonic`.
    """

    each: int
    left: int
    until_s: float

    @property
    def most(self) -> int:
        """Bytes that the next answer may have."""
        return min(self.each, self.left)


@frozen
class ApiSession:
    """The admin API of another ad server.

    Attributes:
        url: Of its dashboard; https, or http on loopback.
        token: As `adserver token create` printed it.
        ca: PEM: the certificate to trust, where the system does not.
        timeout_s: For one answer, and for all pages of a list.
    """

    url: str
    token: str = field(repr=False)
    ca: Path | None = None
    timeout_s: float = 900.0

    def __post_init__(self) -> None:
        # When it is made: no token is ever sent in the clear beyond loopback
        _check_address(self.url, self.token)

    def get(self, kind: type[_MessageT], path: str, **parameters: Any) -> _MessageT:
        """Read a path. Raises as `post`.

        Args:
            kind: The message that it answers with.
            path: After `/api/v1`.
            parameters: Of the URL; None and empty ones are left out.
        """
        return self._ask(kind, "GET", _with(path, parameters), b"", self._bound())

    def post(
        self, kind: type[_MessageT], path: str, body: RequestBody | None = None, *, is_once: bool = False
    ) -> _MessageT:
        """Do something.

        Args:
            kind: The message that it answers with.
            path: After `/api/v1`.
            body: What is sent.
            is_once: Whether it is done once however often it is repeated.

        Raises:
            MaskedLarkError: what the ad server refuses with, as it would here.
            HelperUnavailable: it does not answer.
        """
        content = b"" if body is None else body.model_dump_json().encode()
        return self._ask(kind, "POST", path, content, self._bound(), is_once=is_once)

    def pages(
        self, kind: type[_MessageT], path: str, *, limit: int, cursor: str = "after", after: Any = None
    ) -> Iterator[_MessageT]:
        """Yield every page of a long list, within one bound of bytes and time.

        Args:
            kind: A page: a message with `items`, and its cursor's name after `next`.
            path: After `/api/v1`.
            limit: Items of a page.
            cursor: The parameter that says where a page begins.
            after: Where the first page begins.

        Raises:
            JobRefused(BAD_ANSWER): the list is longer than any that an ad server has.
            HelperUnavailable: it takes longer than `timeout_s`.
        """
        bound = self._bound(each=MOST_PAGE_BYTES, left=MOST_LIST_BYTES)
        following = "next" if cursor == "after" else f"next_{cursor}"
        for _ in range(MOST_PAGES):
            page: Any = self._ask(kind, "GET", _with(path, {"limit": limit, cursor: after}), b"", bound)
            if len(page.items) > limit:
                raise _bad_answer(f"a page of {len(page.items)} items, where at most {limit} were asked for")
            yield page
            after = getattr(page, following)
            if after is None:
                return
        raise _bad_answer(f"a list of more than {MOST_PAGES} pages")

    def _bound(self, *, each: int | None = None, left: int | None = None) -> _Bound:
        """Return the bound of one answer, unless other bytes are given."""
        return _Bound(
            each=MOST_ANSWER_BYTES if each is None else each,
            left=MOST_ANSWER_BYTES if left is None else left,
            until_s=monotonic() + self.timeout_s,
        )

    def _ask(
        self,
        kind: type[_MessageT],
        method: str,
        path: str,
        body: bytes,
        bound: _Bound,
        *,
        is_once: bool = True,
    ) -> _MessageT:
        status, content = self._exchange(method, path, body, bound, is_once=is_once)
        said = _parse(content)
        # Every answer of the API is an object: anything else is some proxy's or another server's
        if not isinstance(said, dict) or status in _MOVED:
            told = f"the server at {self.url} {_NO_API}"
            raise HelperUnavailable(told + ("" if is_once else _MAY_BE_DONE))
        if status >= _REFUSED_FROM and not said.get("error"):
            # Every refusal of the API names its error; an intake's answers do not
            raise HelperUnavailable(f"the server at {self.url} {_NO_API}" + ("" if is_once else _MAY_BE_DONE))
        if status >= _REFUSED_FROM:
            if status == HTTPStatus.UNAUTHORIZED and not self.token:
                raise JobRefused(
                    JobReason.UNAUTHORIZED,
                    "no token was given: make one at the ad server with `adserver token create` and give it"
                    + _BY_WHICH_OPTION,
                )
            raise _refusal(status, said)
        return _read(kind, said)

    def _exchange(
        self, method: str, path: str, body: bytes, bound: _Bound, *, is_once: bool
    ) -> tuple[int, bytes]:
        """Send a request and return the status and the content of its answer."""
        # At least a moment: a timeout of 0 would make the socket one that never waits
        most, may_be_done, left_s = bound.most, False, max(bound.until_s - monotonic(), 0.001)
        connection = _connect(self.url, ca=self.ca, timeout_s=left_s)
        try:
            # Apart from the request: only so is it known whether anything was sent
            connection.connect()
            # From here on: a request without a connection was not carried out
            may_be_done = not is_once
            headers = {"authorization": f"Bearer {self.token}"}
            with _end_after(connection, left_s):
                connection.request(method, f"{_PREFIX}{path}", None if method == "GET" else body, headers)
                with connection.getresponse() as answer:
                    # One byte more than is allowed shows that there is more
                    content, left = answer.read(most + 1), answer.length
            # http.client returns what came before a connection broke as if it were all
            if len(content) <= most and left:
                raise IncompleteRead(content, left)
        except (OSError, HTTPException) as error:
            raise_if_rejected(error, f"the ad server at {self.url}", _TRUST_ADVICE)
            told = f"the ad server at {self.url} does not answer: {_cause(error, self.url)}"
            raise HelperUnavailable(told + (_MAY_BE_DONE if may_be_done else "")) from None
        finally:
            connection.close()
        if len(content) > most:
            raise _bad_answer(f"more than {most} bytes" + (_MAY_BE_DONE if may_be_done else ""))
        bound.left -= len(content)
        return answer.status, content


def _check_address(url: str, token: str) -> None:
    """Reject an unsafe URL or a malformed token; error messages contain neither.

    Raises:
        InvalidSetting
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        HTTPConnection(host, _port(parts))  # connects to nothing; refuses what a request cannot carry
        is_name = bool(host.encode("idna"))
    except (ValueError, HTTPException):
        raise InvalidSetting(_WRONG_URL) from None
    is_plain = parts.scheme == "http" and is_loopback(host)
    # A name and password, a path or a query would be dropped in silence, and are then a mistake
    is_more = "@" in parts.netloc or parts.path not in ("", "/") or parts.query or parts.fragment
    if not is_name or is_more or not (parts.scheme == "https" or is_plain):
        raise InvalidSetting(_WRONG_URL)
    # A line break in it would be another header of the request
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise InvalidSetting(
            "the token is not valid: expected the output of `adserver token create`, without spaces or "
            "line breaks"
        )


def _connect(url: str, *, ca: Path | None, timeout_s: float) -> HTTPConnection:
    """Create a connection, not yet opened, to a URL that `_check_address` accepts.

    Raises:
        InvalidSetting: the file of the certificate to trust holds none, or cannot be read.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", _port(parts)
    if parts.scheme == "http":
        return HTTPConnection(host, port, timeout=timeout_s)
    try:
        trusting = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except OSError as error:
        # What OpenSSL says of a file without one names its own source
        why = "it holds none, expected PEM" if isinstance(error, ssl.SSLError) else error.strerror
        raise InvalidSetting(f"cannot read a certificate in {ca} (--url-ca): {why}") from None
    return HTTPSConnection(host, port, timeout=timeout_s, context=trusting)


@contextmanager
def _end_after(connection: HTTPConnection, seconds: float) -> Iterator[None]:
    """End an open connection's calls after some seconds, however steadily its bytes come."""

    def end() -> None:
        with suppress(OSError):
            socket.shutdown(connected, SHUT_RDWR)  # also of a TLS socket: the reader sees an end

    # The socket's own limit is for each read: a byte now and then would keep it from ever passing
    connected, timer = connection.sock, Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _port(parts: SplitResult) -> int:
    """Return the port, which `http.client` would otherwise look for in an IPv6 address."""
    return (80 if parts.scheme == "http" else 443) if parts.port is None else parts.port


@contextmanager
def reading_answer() -> Iterator[None]:
    """Turn what Python raises on a value that an answer cannot have into `JobRefused(BAD_ANSWER)`."""
    try:
        yield
    except _WRONG_FORMS as error:
        described = f"{type(error).__name__}: {error}"[:_MOST_FAULT]
        raise _bad_answer(f"an answer of another form: {described}") from None


def _cause(error: Exception, url: str) -> str:
    """Say why no answer came; of a wrong port or scheme, what to do."""
    # A server with TLS hangs up on a request without, and one without answers no handshake
    if url.startswith("http:") and isinstance(error, ConnectionResetError | BadStatusLine):
        # A port for gRPC answers with bytes that mean nothing to people
        said = "it does not speak HTTP" if isinstance(error, BadStatusLine) else str(error)
        return f"{said} ({_WHICH_PORT}; if it speaks TLS, as one off loopback does, its URL begins with https://)"
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return f"it does not speak TLS ({error.reason}): if it is on loopback, its URL begins with http://"
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens there: {_WHICH_PORT}"
    return str(error)


def _bad_answer(what: str) -> JobRefused:
    """Return the error of an ad server that sends what its API does not."""
    return JobRefused(JobReason.BAD_ANSWER, f"the ad server sends {what}")


def _with(path: str, parameters: Mapping[str, Any]) -> str:
    asked = {name: value for name, value in parameters.items() if value not in (None, "")}
    return f"{path}?{urlencode(asked)}" if asked else path


def _integer(digits: str) -> int:
    value = int(digits)
    if abs(value) > MOST_INTEGER:  # no database has it, and the float of a longer one may not exist
        raise ValueError("an integer of more than 64 bits")
    return value


def _parse(content: bytes) -> Any:
    """Parse a JSON document and escape its text; None if it is not JSON."""
    try:
        return escape_values(json.loads(content, parse_int=_integer), verbatim=_CANONICAL)
    except (ValueError, RecursionError):
        return None


def _read(kind: type[_MessageT], said: Mapping[str, Any]) -> _MessageT:
    try:
        # As JSON again: only there does pydantic's strict mode take text for bytes, and lists for tuples
        return kind.model_validate_json(json.dumps(said), strict=True)
    except ValidationError as error:
        raise _bad_answer(f"an answer of another form: {first_fault(error)[:_MOST_FAULT]}") from None


def _refusal(status: int, said: Mapping[str, Any]) -> MaskedLarkError:
    """Convert a problem document back to the error that it was made of."""
    kind, reason, detail = (str(said.get(name, ""))[:_MOST_DETAIL] for name in ("error", "reason", "detail"))
    if kind == HelperUnavailable.__name__:
        return HelperUnavailable(detail)
    # Nobody has such a token, or its grant allows less than the act needs: no error of an operation says so
    if status == HTTPStatus.UNAUTHORIZED and kind == _OF_THE_API:
        told = (
            "the ad server does not know the token, or it has ended: give one of its `adserver token create`"
        )
        return JobRefused(JobReason.UNAUTHORIZED, told + _BY_WHICH_OPTION)
    if status == HTTPStatus.FORBIDDEN and kind == _OF_THE_API:
        return JobRefused(JobReason.UNAUTHORIZED, f"{detail} ({reason}): give another one{_BY_WHICH_OPTION}")
    # InvalidTask has no reason: it is made below, from the whole answer
    if kind in REFUSALS and kind != InvalidTask.__name__:
        # A reason of a newer ad server's is none here: it is shown as text
        with suppress(ValueError):
            return REFUSALS[kind](reason, detail)
    return InvalidTask(f"the ad server refused the request ({status} {reason}): {detail}")
