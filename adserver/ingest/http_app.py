"""The intake and the task host over HTTP: what a browser talks to.

    POST /v1/reports         one binary Report: 201 accepted, 200 a duplicate, 4xx rejected
    POST /v1/reports/batch   a binary ReportBatch: 200 with counts
    GET  /v1/tasks           ids, names and origins, the newest first, in pages: `next` of one page, if it is
                             not null, is `after` of the next one; up to a second old
    GET  /v1/tasks/{id}      the TaskBundle's canonical bytes, with an ETag; 304 to a client that has them
    GET  /v1/tasks/{id}/encoder
                             the canonical bytes of the encoder that the task names; 404 if it names none
    GET  /v1/tasks/{id}/round
                             the federated round that devices are to answer now: its length, UpdateRound,
                             then weights and terms; 204 if no round is open
    /v1/local ...            jobs without helpers: `adserver.ingest.local_app`
    GET  /v1/counts          what became of all reports since the start
    GET  /healthz            200 when the database answers

While the database does not answer, whatever needs it is answered 503 with Retry-After.

What errors look like: `adserver.ingest.json_error`.

A duplicate is answered with success: the browser's report is stored, and a retry after a lost answer must not
look like a failure.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Final, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adserver.ingest.batch import reports_in
from adserver.ingest.body_memory import BodyRoom, Held, NoRoom
from adserver.ingest.intake import Intake, IntakeCounts
from adserver.ingest.json_error import INTERNAL, json_error, refusal
from adserver.ingest.local_app import LocalIntake
from adserver.ingest.task_pages import TaskPages
from adserver.store.paging import PageMarker
from adserver.store.rounds import RoundStore
from adserver.store.tasks import TaskStore
from maskedlark.canonical import digest, encode
from maskedlark.errors import HelperUnavailable, InvalidTask, ReportReason, ReportRejected
from maskedlark.frozen import frozen
from maskedlark.rpc.wire import MAX_REPORT_BYTES, decode_report
from maskedlark.runtime.database import database_at_hand

MAX_BATCH_BYTES: Final = 8 << 20
BODY_DEADLINE_S: Final = 30.0

_LOG = logging.getLogger(__name__)
_STATUS: Final = {
    ReportReason.MALFORMED: HTTPStatus.BAD_REQUEST,
    ReportReason.WRONG_TASK: HTTPStatus.NOT_FOUND,
}
_T = TypeVar("_T")


class _TooLarge(ReportRejected):
    """The body passes the limit; it was not read to its end."""

    def __init__(self, limit: int) -> None:
        super().__init__(ReportReason.WRONG_LENGTH, f"the body is over the limit of {limit} bytes")


@frozen
class _Endpoints:
    """What answers each path; see `http_app`."""

    intake: Intake
    tasks: TaskStore
    pages: TaskPages
    room: BodyRoom
    check_well: Callable[[], object]
    rounds: RoundStore | None
    storing: CapacityLimiter | None

    async def post_report(self, request: Request) -> Response:
        with self.room.hold() as held:
            try:
                report = decode_report(await _body(request, MAX_REPORT_BYTES, held))
            except ReportRejected as rejection:
                self.intake.count_rejection(rejection)
                raise
            is_new = await _in_thread(partial(self.intake.take, report), self.storing)
        return JSONResponse({"result": "accepted" if is_new else "duplicate"}, 201 if is_new else 200)

    async def post_batch(self, request: Request) -> Response:
        with self.room.hold() as held:
            body = await _body(request, MAX_BATCH_BYTES, held)
            counts = await _in_thread(lambda: self.intake.take_all(reports_in(body)))
        return _counts(counts)

    async def read_update(self, request: Request, limit: int) -> bytes:
        with self.room.hold() as held:
            return await _body(request, limit, held)

    async def get_task(self, request: Request) -> Response:
        encoded = await _in_thread(partial(self.tasks.get_encoded, _task_id(request)))
        if encoded is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "no such task")
        headers = {"etag": f'"{digest("etag", encoded).hex()}"', "cache-control": "no-cache"}
        # The header may list several tags
        if headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(encoded, headers=headers, media_type="application/json")

    async def get_encoder(self, request: Request) -> Response:
        encoder = await _in_thread(partial(self.tasks.encoder, _task_id(request)))
        if encoder is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "no such task, or it names no encoder")
        return Response(encode(encoder), media_type="application/json")

    async def get_round(self, request: Request) -> Response:
        open_one = (
            None
            if self.rounds is None
            else await _in_thread(partial(self.rounds.newest_open, _task_id(request)))
        )
        if open_one is None:
            return Response(status_code=HTTPStatus.NO_CONTENT)
        encoded = encode(open_one.round)
        body = len(encoded).to_bytes(4, "little") + encoded + open_one.content
        return Response(body, media_type="application/octet-stream")

    async def list_tasks(self, request: Request) -> Response:
        try:
            before = PageMarker.read(request.query_params.get("after", ""))
        except InvalidTask as invalid:
            raise HTTPException(HTTPStatus.BAD_REQUEST, str(invalid)) from None
        page = self.pages.find_fresh(before)
        if page is None:
            page = await _in_thread(partial(self.pages.read, before))
            self.pages.keep(before, page)
        return Response(page, media_type="application/json")

    async def get_counts(self, _request: Request) -> Response:
        return _counts(self.intake.counts)

    async def get_health(self, _request: Request) -> Response:
        await _in_thread(self.check_well)
        return JSONResponse({"status": "ok"})


def http_app(
    intake: Intake,
    tasks: TaskStore,
    room: BodyRoom | None = None,
    *,
    check_well: Callable[[], object] | None = None,
    rounds: RoundStore | None = None,
    local: LocalIntake | None = None,
    storing_threads: int | None = None,
) -> Starlette:
    """Create the application, for any ASGI server.

    Args:
        intake: Takes the reports.
        tasks: What browsers are served.
        room: Shared by all bodies under way.
        check_well: Returns if the server is well, and raises HelperUnavailable if not; by default one look
            into the database.
        rounds: The federated rounds that devices are served; None for none.
        local: The jobs without helpers; None for none.
        storing_threads: How many reports that come one by one may wait at once to be stored; None: as many as
            the threads that everything shares, 40.
    """
    at = _Endpoints(
        intake=intake,
        tasks=tasks,
        pages=TaskPages(tasks),
        room=room or BodyRoom(),
        check_well=check_well or (lambda: tasks.get(b"")),
        rounds=rounds,
        storing=None if storing_threads is None else CapacityLimiter(storing_threads),
    )
    local_ones = [] if local is None else local.routes(at.read_update)
    return Starlette(
        routes=[
            *local_ones,
            Route("/v1/reports", at.post_report, methods=["POST"]),
            Route("/v1/reports/batch", at.post_batch, methods=["POST"]),
            Route("/v1/tasks", at.list_tasks),
            Route("/v1/tasks/{task_id}", at.get_task),
            Route("/v1/tasks/{task_id}/encoder", at.get_encoder),
            Route("/v1/tasks/{task_id}/round", at.get_round),
            Route("/v1/counts", at.get_counts),
            Route("/healthz", at.get_health),
        ],
        exception_handlers={
            ReportRejected: _answer_rejection,
            HTTPException: _answer_refusal,
            HelperUnavailable: _away,
            ClientDisconnect: _answer_disconnect,
            Exception: _answer_bug,
        },
    )


def counting_answers(app: ASGIApp, count: Callable[[int], None]) -> ASGIApp:
    """Return the same application, counting the status of each answer."""

    async def count_answers(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
            await send(message)

        await app(scope, receive, send_counted)

    return count_answers


async def _in_thread(look_up: Callable[[], _T], limiter: CapacityLimiter | None = None) -> _T:
    """Run a slow lookup in a thread; HelperUnavailable while the database is away."""
    with database_at_hand("the ad server"):
        return await to_thread.run_sync(look_up, limiter=limiter)


async def _body(request: Request, limit: int, held: Held) -> bytes:
    """Read the body.

    It is refused as soon as it is known to pass the limit or to find no room, and given up when it comes too
    slowly.
    """
    # Without a declared length the pieces are counted as they come
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > limit:
        raise _TooLarge(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_DEADLINE_S):
            async for piece in request.stream():
                if len(body) + len(piece) > limit:
                    raise _TooLarge(limit)
                # Before it is kept: the room is of all requests, and refuses what would not fit
                held.take(len(piece))
                body += piece
    except NoRoom:
        raise HTTPException(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "the memory for bodies in flight is full; send the request again later",
        ) from None
    except TimeoutError:
        late = f"the body did not arrive within {BODY_DEADLINE_S:.0f} s"
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, late) from None
    return bytes(body)


def _counts(counts: IntakeCounts) -> Response:
    return JSONResponse(
        {"accepted": counts.accepted, "duplicates": counts.duplicates, "rejected": counts.by_reason()}
    )


def _task_id(request: Request) -> bytes:
    try:
        return bytes.fromhex(request.path_params["task_id"])
    except ValueError:
        raise HTTPException(HTTPStatus.NOT_FOUND, "the task id must be hexadecimal") from None


# Starlette's handlers take any exception; each of these is registered for one class
async def _answer_rejection(_request: Request, error: Exception) -> Response:
    if not isinstance(error, ReportRejected):
        raise error
    if isinstance(error, _TooLarge):
        status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    else:
        status = _STATUS.get(error.reason, HTTPStatus.UNPROCESSABLE_ENTITY)
    return json_error("ReportRejected", error.reason.value, str(error), status)


async def _answer_refusal(_request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    return refusal(error.status_code, error.detail)


async def _away(_request: Request, error: Exception) -> Response:
    return refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(error))


async def _answer_disconnect(_request: Request, _error: Exception) -> Response:
    """Answer a client that has disconnected; the answer is not read."""
    return Response(status_code=HTTPStatus.BAD_REQUEST)


async def _answer_bug(_request: Request, error: Exception) -> Response:
    """Answer after a bug, without its details."""
    _LOG.error("a bug ended a request", exc_info=error)
    return json_error("Internal", INTERNAL, "internal error", HTTPStatus.INTERNAL_SERVER_ERROR)
