"""One operation of the admin API: of the same object its route and its part of the OpenAPI document."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Final, TypeAlias

from anyio import CapacityLimiter, to_thread
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from adserver.admin.admin_context import AdminContext
from adserver.admin.problems import problem, problem_of
from adserver.ingest.body_memory import BodyRoom, Held, NoRoom
from adserver.records.access import Scope
from maskedlark.errors import HelperUnavailable, InvalidTask, MaskedLarkError
from maskedlark.frozen import frozen
from maskedlark.runtime.database import database_at_hand

PREFIX: Final = "/api/v1"
MOST_BYTES: Final = 4 << 20
"""Of settings."""
MOST_MODEL_BYTES: Final = 256 << 20
"""Of a model and an evaluation set in base64; also of a query's domains."""
BODY_DEADLINE_S: Final = 300.0
THREADS: Final = 8
"""In which operations are done: those that take long leave the door's own threads alone."""
_INTEGERS: Final = range(-(1 << 63), 1 << 63)
"""What a database holds."""
Schema = Mapping[str, Any]
_KINDS: Final = {"integer": int, "number": float, "string": str}


@frozen
class QueryParameter:
    """One parameter of a path or a query.

    Attributes:
        name: As it is sent.
        about: For people.
        kind: JSON Schema's word: string, integer or number.
        default: Without it; None: nothing.
        low: The least number.
        high: The largest number.
    """

    name: str
    about: str
    kind: str = "string"
    default: Any = None
    low: float | None = None
    high: float | None = None

    def read(self, typed: str | None) -> Any:
        """Return the value that was sent, or the default.

        Raises:
            InvalidTask: it is of another kind, or out of its range.
        """
        if typed is None or typed == "":
            return self.default
        try:
            value = _KINDS[self.kind](typed)
        except ValueError:
            raise InvalidTask(f"`{self.name}` must be of type {self.kind}") from None
        if self.kind == "integer" and value not in _INTEGERS:
            raise InvalidTask(f"`{self.name}` must be a 64-bit integer")
        if (self.low is not None and not value >= self.low) or (
            self.high is not None and not value <= self.high
        ):
            raise InvalidTask(f"`{self.name}` must be from {self.low} to {self.high}")
        return value

    def schema(self) -> dict[str, Any]:
        """Return this parameter's OpenAPI schema."""
        found: dict[str, Any] = {"type": self.kind}
        for name, value in (("minimum", self.low), ("maximum", self.high), ("default", self.default)):
            if value is not None:
                found[name] = value
        return found


@frozen
class Bounds:
    """What all requests of one API share, so that those that ask for much keep nobody out.

    Attributes:
        room: For the bodies on their way.
        threads: For what is done.
    """

    room: BodyRoom = field(default_factory=BodyRoom)
    threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(THREADS))


@frozen
class ApiRequest:
    """What a request asks.

    Attributes:
        site: The ad server.
        named: The parameters of the path and the query, read.
        body: What was sent, checked; None where nothing is.
    """

    site: AdminContext
    named: Mapping[str, Any]
    body: Any = field(repr=False, default=None)

    def __getitem__(self, name: str) -> Any:
        return self.named[name]


Act: TypeAlias = Callable[[ApiRequest], Any]
"""What an operation does; its docstring stands in the OpenAPI document."""


@frozen
class Operation:
    """One operation.

    Attributes:
        method: GET or POST.
        path: After `PREFIX`.
        summary: One line for people.
        answers: The JSON Schema of a good answer.
        act: Does it, in a thread.
        parameters: Of the query.
        body: Of a POST.
        status: Of a good answer.
        needs: What a grant must allow.
        most_bytes: Of what is sent.
    """

    method: str
    path: str
    summary: str
    answers: Schema
    act: Act
    parameters: tuple[QueryParameter, ...] = ()
    body: type[BaseModel] | None = None
    status: int = 200
    needs: Scope = Scope.READ
    most_bytes: int = MOST_BYTES

    @property
    def path_parameters(self) -> tuple[str, ...]:
        """The names in the path."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    def route(self, site: AdminContext, bounds: Bounds) -> Route:
        """Return the route that answers it."""

        async def answer(request: Request) -> Response:
            if not request.state.grant.scope.allows(self.needs):
                return problem(
                    403, f"this operation requires a grant of scope {self.needs}", reason="wrong_scope"
                )
            try:
                with bounds.room.held() as held:
                    content = await self._body(request, held)
                    return await to_thread.run_sync(
                        self._answer, site, request, content, limiter=bounds.threads
                    )
            except MaskedLarkError as refusal:
                return problem_of(refusal)

        name = f"{self.method} {self.path}"
        return Route(f"{PREFIX}{self.path}", answer, methods=[self.method], name=name)

    def _answer(self, site: AdminContext, request: Request, content: bytes) -> Response:
        named = {one.name: one.read(request.query_params.get(one.name)) for one in self.parameters}
        unknown = request.query_params.keys() - named.keys()
        if unknown:
            raise InvalidTask(f"unknown parameter {min(unknown)!r}: remove it")
        with database_at_hand("the ad server"):
            # a body takes minutes to arrive, and a thread may be long in coming
            if self.method != "GET" and not request.state.holds():
                return problem(
                    401,
                    "this grant was revoked or expired while the request arrived",
                    headers={"www-authenticate": "Bearer"},
                )
            asked = ApiRequest(site=site, named={**request.path_params, **named}, body=self._read(content))
            return JSONResponse(self.act(asked), self.status)

    async def _body(self, request: Request, held: Held) -> bytes:
        """Read a request's body up to a limit; fail if memory is short or the client too slow."""
        if self.body is None:
            return b""
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

    def _read(self, content: bytes) -> BaseModel | None:
        if self.body is None:
            return None
        try:
            return self.body.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"])) or "the body"
            raise InvalidTask(f"{where}: {first['msg']}") from None


def get(path: str, summary: str, act: Act, answers: Schema, *parameters: QueryParameter) -> Operation:
    """Describe an operation that reads."""
    return Operation(
        method="GET", path=path, summary=summary, act=act, answers=answers, parameters=parameters
    )


def post(
    path: str,
    summary: str,
    act: Act,
    answers: Schema,
    *,
    body: type[BaseModel] | None = None,
    status: int = 200,
    needs: Scope = Scope.OPERATE,
    most_bytes: int = MOST_BYTES,
) -> Operation:
    """Describe an operation that changes something."""
    return Operation(
        method="POST",
        path=path,
        summary=summary,
        act=act,
        answers=answers,
        body=body,
        status=status,
        needs=needs,
        most_bytes=most_bytes,
    )


def not_found(request: Request) -> Response:
    """Answer a request for an unknown path of the API."""
    return problem(
        404, f"there is no operation at {request.url.path}: see {PREFIX}/openapi.json for the operations"
    )


def encode_json(value: Any) -> str:
    """Encode JSON in one canonical spelling."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
