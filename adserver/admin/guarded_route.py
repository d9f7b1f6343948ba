"""Routes of the admin API: each requires a scope, and reads nothing of a request that lacks it.

operating = guarded_router(Scope.OPERATE)

@operating.post("/datasets", summary="Seal a dataset", status_code=201)
def _seal(context: Context, body: SealDataset) -> DatasetItem: ...

FastAPI finds the routes and describes them; what it would do on the event loop (reading, checking and writing
JSON) is done here, in one of a few threads, after the grant was checked again.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar, Final, get_type_hints

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from adserver.admin.admin_context import AdminContext
from adserver.admin.grants import actor_of_grant
from adserver.admin.problems import MEDIA_TYPE, problem, problem_of
from adserver.ingest.body_memory import BodyRoom, Held, NoRoom
from adserver.messages.base import Message, RequestBody, first_fault
from adserver.records.access import Grant, Scope
from adserver.store.audit_log import acting_as
from maskedlark.audit_log import Actor, AuditAct
from maskedlark.errors import HelperUnavailable, InvalidTask, MaskedLarkError
from maskedlark.frozen import frozen
from maskedlark.runtime.database import database_at_hand

PREFIX: Final = "/api/v1"
MOST_BYTES: Final = 4 << 20
"""The limit of a request's body that has settings alone."""
MOST_MODEL_BYTES: Final = 256 << 20
"""The limit with a model and an evaluation set in base64; also of a query's domains."""
BODY_DEADLINE_S: Final = 300.0
THREADS: Final = 8
"""Threads of operations: those that take long leave the threads of authorization and pages alone."""
COMPUTING: Final = 2
"""Threads of reads that compute for seconds."""
MOST_WAITING: Final = 8
"""The most of these reads that wait for a thread."""
_BUSY_RETRY_AFTER_S: Final = 5.0
WRONG_SCOPE: Final = "wrong_scope"
ACTS: Final[Mapping[str, AuditAct]] = {
    "create_task": AuditAct.CREATE_TASK,
    "seal": AuditAct.SEAL_DATASET,
    "abandon": AuditAct.ABANDON_DATASET,
    "submit": AuditAct.SUBMIT_JOB,
    "submit_federated": AuditAct.SUBMIT_JOB,
    "cancel": AuditAct.CANCEL_JOB,
    "close_lost_job": AuditAct.CANCEL_JOB,
    "resume": AuditAct.RESUME_JOB,
    "ask_query": AuditAct.ASK_QUERY,
    "ask_evaluation": AuditAct.ASK_QUERY,
    "create_token": AuditAct.CREATE_TOKEN,
    "revoke_token": AuditAct.REVOKE_TOKEN,
}
"""The acts of operations whose refusals are logged, by their endpoints' names."""
_REFUSED: Final = {
    "description": "Problem details (RFC 9457); `error` and `reason` are those of docs/reference/errors.md",
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


class _Computations:
    """A few threads, and a queue of bounded length; used on the event loop alone."""

    def __init__(self) -> None:
        self._threads = CapacityLimiter(COMPUTING)
        self._admitted = 0

    async def run(self, act: Callable[[Request, bytes], Response], request: Request) -> Response:
        """Answer a request in one of the threads.

        Raises:
            HelperUnavailable: too many wait already.
        """
        if self._admitted >= COMPUTING + MOST_WAITING:
            raise HelperUnavailable(
                f"the ad server is computing other budgets: retry in {_BUSY_RETRY_AFTER_S:.0f} s",
                retry_after_s=_BUSY_RETRY_AFTER_S,
            )
        self._admitted += 1
        try:
            return await to_thread.run_sync(act, request, b"", limiter=self._threads)
        finally:
            self._admitted -= 1


@frozen
class Bounds:
    """The limits that all requests of one API share, so that large ones do not keep others out.

    Attributes:
        room: The memory for bodies that arrive.
        threads: The threads of operations.
        computing: The reads that compute for up to seconds what any reader may ask for.
    """

    room: BodyRoom = field(default_factory=BodyRoom)
    threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(THREADS))
    computing: _Computations = field(default_factory=_Computations)


class Parameters(BaseModel):
    """The parameters in a request's URL; an empty one has its default."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, sent: Any) -> Any:
        return {name: value for name, value in sent.items() if value != ""}


def actor_of(request: Request, grant: Grant) -> Actor:
    """Return how the audit log names the holder of a grant."""
    return actor_of_grant(grant, request.client.host if request.client else "")


def _from_request(request: Request) -> AdminContext:
    context: AdminContext = request.app.state.context
    return context


def _grant_of(request: Request) -> Grant:
    grant: Grant = request.state.grant
    return grant


Context = Annotated[AdminContext, Depends(_from_request)]
"""The running ad server."""
Caller = Annotated[Grant, Depends(_grant_of)]
"""The grant of the caller."""
_INJECTED: Final[Mapping[type, Callable[[Request], Any]]] = {AdminContext: _from_request, Grant: _grant_of}


class GuardedRoute(APIRoute):
    """A route that requires a scope; `guarded_router` makes its subclasses.

    Attributes:
        needs: The scope that a grant must include.
        most_bytes: The limit of a request's body.
        computes: Whether its operation, which has no body, may compute for seconds.
        parameters: The models of its URL's parameters, by the endpoint's names for them.
        bodies: The models of its body, likewise: one, or none.
    """

    needs: ClassVar[Scope]
    most_bytes: ClassVar[int]
    computes: ClassVar[bool]

    def __init__(self, path: str, endpoint: Callable[..., Message], **settings: Any) -> None:
        """Describe the route; the types that its endpoint takes, its docstring and its name are published."""
        kinds = get_type_hints(endpoint)
        kinds.pop("return")
        self.parameters = {name: one for name, one in kinds.items() if issubclass(one, Parameters)}
        self.bodies = {name: one for name, one in kinds.items() if issubclass(one, RequestBody)}
        self._injected = {name: _INJECTED[one] for name, one in kinds.items() if one in _INJECTED}
        settings["openapi_extra"] = {"security": [{"token": [self.needs.value]}]}
        # The operation's id in the OpenAPI document, which clients are generated from
        settings["name"] = endpoint.__name__.removeprefix("_")
        super().__init__(path, endpoint, **settings)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request, in place of FastAPI's own."""
        return self._respond

    async def _respond(self, request: Request) -> Response:
        bounds: Bounds = request.app.state.bounds
        # Before the body is read: who may not act here costs no memory
        scope = request.state.grant.scope
        if not scope.allows(self.needs):
            await to_thread.run_sync(self._log_refusal, request, WRONG_SCOPE, limiter=bounds.threads)
            detail = (
                f"this operation requires a token or login of scope {self.needs}, but this one has {scope}"
            )
            return problem(403, detail, reason=WRONG_SCOPE)
        try:
            if self.computes:
                return await bounds.computing.run(self._act, request)
            with bounds.room.hold() as held:
                content = await self._read_body(request, held) if self.bodies else b""
                return await to_thread.run_sync(self._act, request, content, limiter=bounds.threads)
        except MaskedLarkError as refusal:
            await to_thread.run_sync(self._log_refusal, request, refusal, limiter=bounds.threads)
            return problem_of(refusal)

    def _log_refusal(self, request: Request, refusal: MaskedLarkError | str) -> None:
        act = ACTS.get(self.name)
        if act is not None:
            actor = actor_of(request, request.state.grant)
            _from_request(request).refused.add(act, actor, refusal)

    def _act(self, request: Request, content: bytes) -> Response:
        read: dict[str, Any] = dict(request.path_params)
        for name, kind in self.parameters.items():
            read[name] = _read_parameters(kind, request)
        # Refuses what is misspelt, where an operation has no parameters either
        if not self.parameters:
            _read_parameters(Parameters, request)
        with database_at_hand("the ad server"):
            # a body takes minutes to arrive, and a thread may be long in coming
            if request.method != "GET" and not request.state.holds():
                return problem(
                    401,
                    "this grant was revoked or expired while the request arrived",
                    headers={"www-authenticate": "Bearer"},
                )
            for name, find in self._injected.items():
                read[name] = find(request)
            for name, body in self.bodies.items():
                read[name] = body.read(content)
            with acting_as(actor_of(request, request.state.grant)):
                found: Message = self.endpoint(**read)
            return Response(found.model_dump_json(), self.status_code or 200, media_type="application/json")

    async def _read_body(self, request: Request, held: Held) -> bytes:
        """Read a request's body up to a limit; fail if memory is short or the client too slow."""
        content = bytearray()
        try:
            async with asyncio.timeout(BODY_DEADLINE_S):
                async for piece in request.stream():
                    if len(content) + len(piece) > self.most_bytes:
                        raise InvalidTask(
                            f"the request's body is over the limit of {self.most_bytes} bytes for this "
                            "operation"
                        )
                    held.take(len(piece))
                    content += piece
        except NoRoom:
            raise HelperUnavailable("the ad server's memory for requests is full; retry later") from None
        except TimeoutError:
            raise InvalidTask(f"the request did not arrive within {BODY_DEADLINE_S:.0f} s") from None
        return bytes(content)


def guarded_router(needs: Scope, *, most_bytes: int = MOST_BYTES, computes: bool = False) -> APIRouter:
    """Return a router whose operations all require a scope.

    Args:
        needs: The scope.
        most_bytes: The limit of a request's body.
        computes: Whether they may compute for seconds: then few run at a time, and few wait.
    """
    # FastAPI makes routes of a class and passes nothing of ours on: the scope is the class's
    kind = type(
        "GuardedRoute", (GuardedRoute,), {"needs": needs, "most_bytes": most_bytes, "computes": computes}
    )
    return APIRouter(
        prefix=PREFIX,
        route_class=kind,
        responses={"default": _REFUSED},
        generate_unique_id_function=lambda route: route.name,
    )


def _read_parameters(kind: type[Parameters], request: Request) -> Parameters:
    """Parse the parameters of a URL.

    Raises:
        InvalidTask: one is unknown, of another type, or out of range.
    """
    try:
        return kind.model_validate_strings(dict(request.query_params))
    except ValidationError as error:
        raise InvalidTask(first_fault(error)) from None
