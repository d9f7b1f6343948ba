"""Step 0 for the browser.

Get the task's bundle from a file or a task host, and believe nothing in it that is not signed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import httpx

from browser_sim.endpoint import Protection, as_path, http_client, is_url, read_limited
from maskedlark import canonical
from maskedlark.errors import HelperUnavailable, InvalidTask
from maskedlark.reports.task import TaskBundle

if TYPE_CHECKING:
    from maskedlark.encoding.encoder import Encoder


def load_bundle(
    location: str, protection: Protection, trusted_helpers: Sequence[bytes] = (), *, now: float
) -> TaskBundle:
    """The verified bundle. Called by the browser before it seals anything.

    Args:
        location: A file, or an http(s) URL.
        protection: How a URL is fetched.
        trusted_helpers: The Ed25519 keys of helpers that this browser trusts; if given, the task must name
            two of them. A real browser ships with such a list; without it the signatures only prove that the
            bundle is consistent.
        now: Unix seconds on this machine's clock; not the simulated one.

    Raises:
        InvalidTask: not a bundle, a signature is wrong, a key list is over, or a helper is not trusted.
        HelperUnavailable: the task host does not answer.
    """
    encoded = _fetch(location, protection) if is_url(location) else _read(location)
    bundle = canonical.decode(TaskBundle, encoded)
    bundle.verify()
    bundle.check_fresh(now)
    for helper in bundle.task.helpers:
        if trusted_helpers and helper.verify_key not in trusted_helpers:
            raise InvalidTask(f"helper {helper.name!r} of the task is not among the trusted ones")
    return bundle


def _read(location: str) -> bytes:
    try:
        with as_path(location).open("rb") as file:
            return file.read(canonical.MAX_BYTES + 1).rstrip(b"\n")
    except OSError as error:
        raise InvalidTask(f"cannot read the task bundle {location}: {error.strerror}") from None


def load_encoder_of(location: str, protection: Protection) -> "Encoder":
    """The encoder that a task host serves beside a task; the caller compares its digest with the task's.

    Raises:
        InvalidTask: the task is a file, or the host serves no encoder.
        HelperUnavailable: the task host does not answer.
    """
    from maskedlark.encoding.encoder import MAX_ENCODER_BYTES, read_encoder

    if not is_url(location):
        raise InvalidTask("the task names an encoder: give it by --encoder, or the task by its URL")
    return read_encoder(_fetch(f"{location.rstrip('/')}/encoder", protection, limit=MAX_ENCODER_BYTES))


def _fetch(url: str, protection: Protection, *, limit: int = canonical.MAX_BYTES) -> bytes:
    try:
        with http_client(url, protection) as client, client.stream("GET", url) as response:
            if response.status_code >= 500:
                raise HelperUnavailable(f"the task host answered {response.status_code}")
            if response.status_code != 200:
                raise InvalidTask(f"the task host answered {response.status_code} for {url}")
            body = read_limited(response, limit)
    except httpx.HTTPError as error:
        is_stranger = "CERTIFICATE_VERIFY_FAILED" in str(error)
        cause = (
            "its certificate is not trusted: name who vouches for it (--tls-ca)"
            if is_stranger
            else type(error).__name__
        )
        raise HelperUnavailable(f"the task host does not answer: {cause}") from None
    if body is None:
        raise InvalidTask(f"the task host sent more than {limit} bytes for {url}")
    return body
