"""The ad server's HTTP address, as devices reach it; they ask again while it is away."""

import json
from collections.abc import Callable
from typing import Final

import httpx

from browser_sim.endpoint import TRUST_ADVICE, read_limited
from maskedlark.errors import HelperUnavailable, JobReason, ReportReason
from maskedlark.frozen import frozen
from maskedlark.rpc.certificate_faults import raise_if_rejected

_ATTEMPTS: Final = 8
# Twice as long after each attempt: an ad server may be away for 25 seconds.
_FIRST_PAUSE_S: Final = 0.1
_MOST_REPLY_BYTES: Final = 64 << 10
_DUPLICATE: Final = 200
_TAKEN: Final = 201
_NOTHING: Final = 204
_REASONS: Final = frozenset(reason.value for kind in (ReportReason, JobReason) for reason in kind)


@frozen
class _Reply:
    """What the ad server answered to an upload.

    Attributes:
        is_taken: It has the upload.
        is_duplicate: It had it before.
        reason: Why it did not take it, by `ReportReason` or `JobReason`; `other` for any other answer.
    """

    is_taken: bool
    is_duplicate: bool
    reason: str


class HttpClient:
    """One ad server. A request that gets no answer, or an answer of 500 or above, is sent again.

    Raises:
        HelperUnavailable: by each method, after eight attempts.
        InvalidSetting: by each method, at once, if the ad server's certificate is not accepted.
    """

    def __init__(self, client: httpx.Client, address: str, pause: Callable[[float], None]) -> None:
        self._client = client
        self._address = address
        self._pause = pause

    def fetch(self, path: str, *, limit: int) -> bytes | None:
        """Download what devices should do now; None if there is nothing, or over `limit` bytes.

        Raises:
            HelperUnavailable: also, and at once, where the ad server refuses.
        """
        said = ""
        for attempt in range(_ATTEMPTS):
            try:
                with self._client.stream("GET", self._address + path) as response:
                    if response.status_code == _NOTHING:
                        return None
                    if response.status_code == 200:
                        return read_limited(response, limit)
                    said = f"answered {response.status_code}"
                    # What is refused is refused again: only an error of the server's own may pass.
                    if response.status_code < 500:
                        break
            except httpx.HTTPError as error:
                raise_if_rejected(error, "the ad server", TRUST_ADVICE)
                said = f"does not answer: {type(error).__name__}"
            self._pause(_FIRST_PAUSE_S * 2**attempt)
        raise HelperUnavailable(f"the ad server {said}")

    def send(self, path: str, body: bytes, media_type: str) -> _Reply:
        """Send stored bytes, and again if no answer comes: the ad server stores an id once."""
        for attempt in range(_ATTEMPTS):
            try:
                url, headers = self._address + path, {"content-type": media_type}
                with self._client.stream("POST", url, content=body, headers=headers) as response:
                    if response.status_code < 500:
                        return _reply(response.status_code, read_limited(response, _MOST_REPLY_BYTES))
            except httpx.HTTPError as error:
                raise_if_rejected(error, "the ad server", TRUST_ADVICE)
            self._pause(_FIRST_PAUSE_S * 2**attempt)
        raise HelperUnavailable("the ad server rejected an upload")


def _reply(status: int, body: bytes | None) -> _Reply:
    try:
        found = json.loads(body or b"")["reason"]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    return _Reply(
        is_taken=status in (_TAKEN, _DUPLICATE),
        is_duplicate=status == _DUPLICATE,
        # Reasons are printed and counted: an ad server's own words are neither.
        reason=found if isinstance(found, str) and found in _REASONS else "other",
    )
