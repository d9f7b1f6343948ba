"""Domain errors across gRPC.

`answering` turns them into a status on the server, `calling` back into the same error at the client.

The kind and reason travel as trailing metadata, so the client raises what the server refused with, and names
the server. Anything that is not a `MaskedLarkError` is a bug: logged in full at the server, answered with
INTERNAL and no detail, and raised at the client as JobRefused(PEER_FAILED), for asking again would run into
it again. What the transport itself reports is worth asking again.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn
from urllib.parse import unquote

import grpc

from maskedlark.errors import REFUSALS, HelperUnavailable, JobReason, JobRefused, MaskedLarkError
from maskedlark.frozen import frozen
from maskedlark.rpc.certificate_faults import EXPIRED, NOT_FOR_HOST, NOT_TRUSTED

_LOG = logging.getLogger(__name__)
_KIND: Final = "maskedlark-kind"
_REASON: Final = "maskedlark-reason"
_RETRY_AFTER: Final = "maskedlark-retry-after-s"
# What gRPC itself says when a server has `maximum_concurrent_rpcs` at work
_GRPC_IS_FULL: Final = "Concurrent RPC limit exceeded"
# What gRPC itself says of an answer over the limit: the request was acted on
_ANSWER_TOO_LARGE: Final = re.compile(r"(SERVER: Sent|CLIENT: Received) message larger than max")
# What gRPC itself says of a connection that never carried a call, and what it means; the first that matches
_NO_TALK: Final = (
    ("certificate has expired", EXPIRED),
    ("Hostname Verification Check failed", NOT_FOR_HOST),
    (
        "WRONG_VERSION_NUMBER",
        "what answers there does not use TLS: check the port, and that both sides use TLS or neither",
    ),
    ("Failed parsing HTTP/2", "what answers there is no gRPC server: check the port"),
    ("errors resolving|Domain name not found", "its host name has no address: check its spelling, and DNS"),
    ("Deadline Exceeded", "no answer within the deadline"),
)
_VERIFY_FAILED: Final = "CERTIFICATE_VERIFY_FAILED"
# Also all that a client sees whose certificate the server does not trust
_CLOSED: Final = re.compile("Socket closed|[Hh]andshake|SSL|Connection reset")
# What our own servers say before a call's body runs: as they start or end, and of a certificate
_OUR_WORDS: Final = re.compile("the (server is|client's certificate is) ")
_GRPC_PREFIX: Final = "failed to connect to all addresses; last error: "
_NOBODY_LISTENS: Final = re.compile(r"(?:ipv[46]:(\S+): .*)?Connection refused")
_FULL_RETRY_AFTER_S: Final = 1.0
_LONGEST_HINT_S: Final = 600.0  # else a hostile peer could have its callers wait for days
# INTERNAL without a kind is the transport's (a broken stream), not the server's body, unless it says
# `_DOES_NOT_PARSE`. UNAUTHENTICATED is the transport's, too, before any body ran: a certificate that is not
# trusted for a while, as one that a new connection would be closed for; a caller who may not do something is
# refused with a kind
_WORTH_ANOTHER_TRY: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)
# What gRPC itself says of a message that is none of the protocol: the same one would not parse again
_DOES_NOT_PARSE: Final = re.compile(r"^Exception deserializing (request|response)!$")
_FINAL: Final = {
    grpc.StatusCode.CANCELLED: JobReason.CANCELLED,
    grpc.StatusCode.PERMISSION_DENIED: JobReason.UNAUTHORIZED,
}
_STATUS: Final = {
    "InvalidTask": grpc.StatusCode.INVALID_ARGUMENT,
    "InvalidSetting": grpc.StatusCode.INVALID_ARGUMENT,
    "UnsupportedVersion": grpc.StatusCode.INVALID_ARGUMENT,
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
        _abort(context, error)
    except grpc.RpcError:  # of a body that reads from a client which has gone
        raise
    except Exception as error:
        if type(error) is Exception:  # context.abort has already ended this call
            raise
        _LOG.exception("a bug ended a call")
        _abort_internal(context)


@contextmanager
def calling(peer: str, trust_advice: str = "") -> Iterator[None]:
    """Run a client's call; a failed one raises the domain error that the server answered with.

    Args:
        peer: Names the server in the error, by the address that is called if it is known.
        trust_advice: What the error adds where one of the two may not trust the other's certificate.

    Raises:
        HelperUnavailable: the peer is down, too slow or overloaded; the call may be repeated.
        MaskedLarkError: what the peer refused with.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise _domain_error(error, peer, trust_advice) from None


@frozen
class _Refusal:
    """What a call was refused with: codes, no message."""

    kind: str
    reason: str


def refusal_of(context: Any) -> _Refusal | None:
    """Return the refusal with which `answering` ended a call, or None. Called after the call's body."""
    trailing = dict(context.trailing_metadata() or ())
    kind = trailing.get(_KIND)
    return None if kind is None else _Refusal(kind=str(kind), reason=str(trailing.get(_REASON, "")))


def status_of(context: Any) -> grpc.StatusCode:
    """Return the status with which a server's call ends. Called after the call's body."""
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return code
    return grpc.StatusCode.OK if context.is_active() else grpc.StatusCode.CANCELLED


def retry_hint_s(told: str) -> float | None:
    """Return when a full peer asks to be called again, in seconds from now.

    None for what is no number, or longer than ten minutes.
    """
    try:
        seconds = float(told)
    except ValueError:
        return None
    return seconds if 0 <= seconds <= _LONGEST_HINT_S else None


def _domain_error(error: grpc.RpcError, peer: str, trust_advice: str) -> MaskedLarkError:
    code, details = error.code(), error.details() or ""
    trailing = {item.key: str(item.value) for item in error.trailing_metadata() or ()}
    refusal = REFUSALS.get(trailing.get(_KIND, ""))
    if refusal is not None:
        try:
            return refusal(trailing.get(_REASON, ""), f"{peer}: {details}")
        except ValueError:
            return JobRefused(
                JobReason.BAD_ANSWER,
                f"{peer} refused for a reason unknown to this version: {trailing.get(_REASON)}",
            )
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return _read_exhaustion(peer, details, trailing.get(_RETRY_AFTER))
    what = f"{peer}: {_explain(peer, code, details, trust_advice)}"
    is_worth_another_try = code in _WORTH_ANOTHER_TRY and not _DOES_NOT_PARSE.match(details)
    return (
        HelperUnavailable(what)
        if is_worth_another_try
        else JobRefused(_FINAL.get(code, JobReason.PEER_FAILED), what)
    )


def _explain(peer: str, code: grpc.StatusCode, details: str, trust_advice: str) -> str:
    """Say what the transport's own words mean; those come last, and only where they add something."""
    if refused := _NOBODY_LISTENS.search(details):
        # Of a name's addresses gRPC reports only the last that it tried, which the server may not have
        last = unquote(refused[1] or "")
        return (
            "no server is listening there"
            if last in peer
            else f"no server is listening at {last}, the last of its addresses that was tried; any other one "
            "failed too: check that the server is running, and what its log says"
        )
    for pattern, meaning in _NO_TALK:
        if re.search(pattern, details):
            return meaning
    if _VERIFY_FAILED in details:
        return NOT_TRUSTED + trust_advice
    raw = details.removeprefix(_GRPC_PREFIX)
    if _CLOSED.search(details):
        return (
            "the connection was closed: check that the server is running, that both sides use TLS or "
            "neither, that neither's certificate has expired, and that each trusts the other's"
            f"{trust_advice} (gRPC: {raw})"
        )
    return raw if _OUR_WORDS.match(raw) else f"{raw or 'no answer'} (gRPC: {code.name.lower()})"


def _read_exhaustion(peer: str, details: str, retry_after: str | None) -> MaskedLarkError:
    """Build the error of a full server, with its retry delay.

    Without that, gRPC found a message over its size limit.
    """
    if _ANSWER_TOO_LARGE.search(details):
        return JobRefused(JobReason.BAD_ANSWER, f"{peer}: {details}")
    if retry_after is None and not details.startswith(_GRPC_IS_FULL):
        return JobRefused(JobReason.TOO_LARGE, f"{peer}: {details}")
    return HelperUnavailable(
        f"{peer} is busy: {details}", retry_after_s=retry_hint_s(retry_after or "") or _FULL_RETRY_AFTER_S
    )


def _abort(context: grpc.ServicerContext, error: MaskedLarkError) -> NoReturn:
    """End a call with an error's kind, reason and message."""
    kind, reason = type(error).__name__, getattr(error, "reason", None)
    status = _STATUS[kind]
    trailing = [(_KIND, kind), (_REASON, str(reason.value) if reason else "")]
    if isinstance(error, HelperUnavailable) and error.retry_after_s is not None:
        status = grpc.StatusCode.RESOURCE_EXHAUSTED
        trailing.append((_RETRY_AFTER, f"{error.retry_after_s:g}"))
    context.set_trailing_metadata(tuple(trailing))
    context.abort(status, str(error))
    raise AssertionError("context.abort returned")


def _abort_internal(context: grpc.ServicerContext) -> NoReturn:
    context.set_trailing_metadata(((_KIND, JobRefused.__name__), (_REASON, JobReason.PEER_FAILED.value)))
    context.abort(grpc.StatusCode.INTERNAL, "internal error")
    raise AssertionError("context.abort returned")
