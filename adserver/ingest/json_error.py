"""The one shape of every error over HTTP.

JSON, {"error": kind, "reason": one word, "message": for people}.
"""

from http import HTTPStatus
from typing import Final

from starlette.responses import JSONResponse, Response

RETRY_AFTER_S: Final = 2
INTERNAL: Final = "internal"
"""The reason of a bug."""
_UNREAD: Final = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.SERVICE_UNAVAILABLE,
)


def json_error(kind: str, reason: str, message: str, status: int) -> Response:
    """Build an error; the unread rest of a body is not waited for.

    Callers that exceed a quota receive a retry delay.
    """
    headers = {"connection": "close"} if status in _UNREAD else {}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["retry-after"] = str(RETRY_AFTER_S)
    return JSONResponse({"error": kind, "reason": reason, "message": message}, status, headers)


def refusal(status: int, message: str) -> Response:
    """Refuse a request whatever it holds; the reason is the status's name."""
    return json_error("RequestRefused", HTTPStatus(status).name.lower(), message, status)
