"""Step 0 for the browser.

Get the task's bundle from a file or a task host, and believe nothing in it that is not signed.
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from http.client import (
    BadStatusLine,
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
)
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote_to_bytes, urlsplit
from urllib.request import (
    BaseHandler,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    ProxyHandler,
    Request,
    build_opener,
)

from browser_sim import time_limits
from browser_sim.endpoint import REQUEST_TIMEOUT_S, TRUST_ADVICE, Protection, is_url
from maskedlark import canonical
from maskedlark.errors import HelperUnavailable, InvalidTask
from maskedlark.reports.task import Task, TaskBundle
from maskedlark.rpc.certificate_faults import raise_if_rejected

if TYPE_CHECKING:
    from maskedlark.encoding.encoder import Encoder


def load_bundle(
    location: str, protection: Protection, trusted_helpers: Sequence[bytes] = (), *, now: float
) -> TaskBundle:
    """Load the verified bundle. Called by the browser before it seals anything.

    Args:
        location: A file, or an http(s) URL.
        protection: How a URL is fetched.
        trusted_helpers: The Ed25519 keys of helpers that this browser trusts; if given, the task must name
            two of them. A real browser ships with such a list; without it the signatures only prove that the
            bundle is consistent.
        now: Unix seconds on this machine's clock; not the simulated one.

    Raises:
        InvalidTask: not a bundle, a signature is wrong, a key list is over, a helper is not trusted, or the
            task host's certificate is not accepted.
        HelperUnavailable: the task host does not answer.
    """
    encoded = (
        _fetch(location, protection, remedy="a task is at /v1/tasks/ID, with its id in full")
        if is_url(location)
        else _read(location)
    )
    bundle = canonical.decode(TaskBundle, encoded)
    bundle.verify()
    bundle.check_fresh(now)
    for helper in bundle.task.helpers:
        if trusted_helpers and helper.verify_key not in trusted_helpers:
            raise InvalidTask(
                f"the task's helper {helper.name!r} is not trusted: give its key with --trust-helper, "
                "or use another task"
            )
    return bundle


def _read(location: str) -> bytes:
    try:
        with Path(location).expanduser().open("rb") as file:
            # One byte more than `decode` takes: it refuses a longer file, which is not read to its end.
            return file.read(canonical.MAX_BYTES + 1).rstrip(b"\n")
    except OSError as error:
        raise InvalidTask(f"cannot read the task bundle {location}: {error.strerror}") from None


def _load_encoder_of(location: str, protection: Protection) -> "Encoder":
    """Load the encoder that a task host serves; the caller compares its digest with the task's.

    Raises:
        InvalidTask: the task is a file, or the host serves no encoder.
        HelperUnavailable: the task host does not answer.
    """
    from maskedlark.encoding.encoder import MAX_ENCODER_BYTES, read_encoder

    if not is_url(location):
        raise InvalidTask(
            "the task requires an encoder: give its file with --encoder, or give the task as a URL"
        )
    return read_encoder(
        _fetch(
            f"{location.rstrip('/')}/encoder",
            protection,
            remedy="give its file with --encoder",
            limit=MAX_ENCODER_BYTES,
        )
    )


def encoder_for(
    task: Task, given: "Encoder | None", location: str, protection: Protection
) -> "Encoder | None":
    """Return the encoder that makes a task's features: the given one, or the one that its host serves.

    Args:
        task: The task, verified.
        given: The user's choice; the only one if the task names none.
        location: Where the task was loaded from.
        protection: How a URL is fetched.

    Raises:
        InvalidTask: another encoder was given, or the task host has none of this digest.
        HelperUnavailable: the task host does not answer.
    """
    if task.encoder is None:
        return given
    # The digest decides either way: a host cannot serve an encoder of its own choice.
    encoder = given or _load_encoder_of(location, protection)
    if encoder.digest != task.encoder:
        raise InvalidTask(
            f"the encoder has the digest {encoder.digest.hex()}, but the task requires "
            f"{task.encoder.hex()}: give the task's encoder"
        )
    return encoder


class _NoRedirects(HTTPRedirectHandler):
    """A bundle comes from where it was said to be: a redirect is an answer like any other status."""

    def redirect_request(self, *_: object) -> None:
        """Follow none."""


def _with_watch(kind: type[HTTPConnection], watch: Callable[[socket], None]) -> type[HTTPConnection]:
    """Return a kind of connection that shows its socket once it is connected."""

    class Watched(kind):  # type: ignore[valid-type,misc]  # one of two
        def connect(self) -> None:
            super().connect()
            watch(self.sock)

    return Watched


class _HttpHandler(HTTPHandler):
    """Opens watched connections."""

    def __init__(self, watch: Callable[[socket], None]) -> None:
        super().__init__()
        self._kind = _with_watch(HTTPConnection, watch)

    def http_open(self, req: Request) -> HTTPResponse:
        """Send a request, and return the answer."""
        return self.do_open(self._kind, req)


class _HttpsHandler(HTTPSHandler):
    """Opens watched connections."""

    def __init__(self, watch: Callable[[socket], None], context: Any) -> None:
        super().__init__()
        self._kind, self._own = _with_watch(HTTPSConnection, watch), context

    def https_open(self, req: Request) -> HTTPResponse:
        """Send a request, and return the answer."""
        return self.do_open(self._kind, req, context=self._own)


def _fetch(url: str, protection: Protection, *, remedy: str, limit: int = canonical.MAX_BYTES) -> bytes:
    """Download the body at a URL by Python's own client, which loads fastest."""
    protection.check(url)
    request = _request(url)
    handlers: list[BaseHandler] = [_NoRedirects()]
    try:
        with time_limits.time_limit(time_limits.ANSWER_S) as watch:
            if url.startswith("https://"):
                handlers.append(_HttpsHandler(watch, protection.tls_context()))
            else:
                handlers += [_HttpHandler(watch), ProxyHandler({})]  # plaintext stays on this machine
            with build_opener(*handlers).open(request, timeout=REQUEST_TIMEOUT_S) as response:
                status, body = response.status, _read_limited(response, limit)
                # `read1` ends without an error where a connection does: only the announced length tells.
                if len(body) <= limit and response.length:
                    raise IncompleteRead(body, response.length)
    except HTTPError as error:
        # An error's body is not read: its words are the host's, and would be printed.
        status, body = error.code, b""
        error.close()
    except (OSError, HTTPException, ValueError) as error:  # the last of an answer that makes no sense
        raise_if_rejected(error, "the task host", TRUST_ADVICE)
        raise HelperUnavailable(f"the task host does not answer: {_cause(error, url)}") from None
    if status >= 500:
        raise HelperUnavailable(f"the task host answered {status}")
    if status == 404:
        raise InvalidTask(f"the task host answered 404, not found, for {request.full_url}: {remedy}")
    if status != 200:
        raise InvalidTask(f"the task host answered {status} for {request.full_url}")
    if len(body) > limit:
        raise InvalidTask(f"the task host sent more than {limit} bytes, the limit, for {request.full_url}")
    return bytes(body)


def _read_limited(response: HTTPResponse, limit: int) -> bytes:
    """Return the body, or its first bytes once they are more than `limit`."""
    body = bytearray()
    while len(body) <= limit and (piece := response.read1(limit + 1 - len(body))):
        body += piece
    return bytes(body)


def _request(url: str) -> Request:
    """Build the request for a URL. Python takes a name and password for the host's: move them."""
    authority = urlsplit(url).netloc
    credentials, _, host = authority.rpartition("@")
    shown = url.replace(authority, host, 1)
    if " " in shown or not (shown.isascii() and shown.isprintable()):
        raise InvalidTask(f"the URL {shown!r} is not valid: expected http(s)://HOST/PATH")
    request = Request(shown)  # noqa: S310  the caller has seen that it is http or https
    if credentials:
        # Basic authentication wants the colon also where there is no password.
        encoded = b64encode(unquote_to_bytes(credentials if ":" in credentials else f"{credentials}:"))
        request.add_header("Authorization", f"Basic {encoded.decode()}")
    return request


def _cause(error: Exception, url: str) -> str:
    """Describe why a task host does not answer, without its words."""
    cause = error.reason if isinstance(error, URLError) else error
    name = type(cause).__name__
    # A server with TLS hangs up on a request without
    if url.startswith("http:") and isinstance(cause, ConnectionResetError | BadStatusLine):
        return f"{name} (if it speaks TLS, as one off loopback does, its URL begins with https://)"
    return name
