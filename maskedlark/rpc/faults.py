"""Domain errors across gRPC: `answering` turns them into a status on the server, `calling` back into the same error at the client.

The kind and reason travel as trailing metadata, so the client raises exactly what the server refused with. Anything that is not a
`MaskedLarkError` is a bug: logged in full at the server, answered with INTERNAL and no detail.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import grpc

from maskedlark.errors import (
    HelperUnavailable,
    InvalidModel,
    InvalidTask,
    JobReason,
    JobRefused,
    MaskedLarkError,
    ModelReason,
    ReportReason,
    ReportRejected,
)

_LOG = logging.getLogger(__name__)
_KIND: Final = "maskedlark-kind"
_REASON: Final = "maskedlark-reason"
_REFUSALS: Final[dict[str, Callable[[str, str], MaskedLarkError]]] = {
    "InvalidTask": lambda _, message: InvalidTask(message),
    "InvalidModel": lambda reason, message: InvalidModel(ModelReason(reason), message),
    "ReportRejected": lambda reason, message: ReportRejected(ReportReason(reason), message),
    "JobRefused": lambda reason, message: JobRefused(JobReason(reason), message),
}
_STATUS: Final = {
    "InvalidTask": grpc.StatusCode.INVALID_ARGUMENT,
    "InvalidModel": grpc.StatusCode.INVALID_ARGUMENT,
    "ReportRejected": grpc.StatusCode.INVALID_ARGUMENT,
    "JobRefused": grpc.StatusCode.FAILED_PRECONDITION,
    "HelperUnavailable": grpc.StatusCode.UNAVAILABLE,
}


@contextmanager
def answering(context: grpc.ServicerContext) -> Iterator[None]:
    """Run a servicer's body; a domain error aborts the call with its kind, reason and message."""
    try:
        yield
    except MaskedLarkError as error:
        kind = type(error).__name__
        reason = getattr(error, "reason", None)
        context.set_trailing_metadata(((_KIND, kind), (_REASON, str(reason.value) if reason else "")))
        context.abort(_STATUS[kind], str(error))
    except grpc.RpcError:
        raise
    except Exception as error:
        if type(error) is Exception:  # context.abort has already ended this call
            raise
        _LOG.exception("a bug ended a call")
        _abort_internal(context)


@contextmanager
def calling(peer: str) -> Iterator[None]:
    """Run a client's call; a failed one raises the domain error that the server answered with.

    Raises:
        HelperUnavailable: the peer is down, too slow or overloaded; the call may be repeated.
        MaskedLarkError: what the peer refused with.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise _domain_error(error, peer) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What a call was refused with: codes, no message."""

    kind: str
    reason: str


def refusal_of(context: Any) -> Refusal | None:
    """What `answering` refused a call with, or None. Called by the server, after the call's body."""
    trailing = dict(context.trailing_metadata() or ())
    kind = trailing.get(_KIND)
    return None if kind is None else Refusal(kind=str(kind), reason=str(trailing.get(_REASON, "")))


def _domain_error(error: grpc.RpcError, peer: str) -> MaskedLarkError:
    code, details = error.code(), error.details() or ""
    trailing = {item.key: str(item.value) for item in error.trailing_metadata() or ()}
    refusal = _REFUSALS.get(trailing.get(_KIND, ""))
    if refusal is not None:
        try:
            return refusal(trailing.get(_REASON, ""), details)
        except ValueError:
            return JobRefused(JobReason.MALFORMED, f"{peer} refused for a reason unknown to this version: {trailing.get(_REASON)}")
    if code is grpc.StatusCode.CANCELLED:
        return JobRefused(JobReason.CANCELLED, f"{peer}: the call was cancelled")
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return JobRefused(JobReason.UNAUTHORIZED, f"{peer}: {details}")
    return HelperUnavailable(f"{peer}: {code.name.lower()}: {details}")


def _abort_internal(context: grpc.ServicerContext) -> NoReturn:
    context.abort(grpc.StatusCode.INTERNAL, "internal error")
    raise AssertionError("context.abort returned")
