"""The routes of the admin API, and the OpenAPI document that is made of the same operations."""

from collections.abc import Sequence
from typing import Any, Final

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from adserver.admin.admin_context import AdminContext
from adserver.admin.jobs import JOBS
from adserver.admin.operation import PREFIX, Bounds, Operation
from adserver.admin.problems import MEDIA_TYPE
from adserver.admin.products import PRODUCTS
from adserver.admin.queries import QUERIES
from adserver.admin.read_endpoints import LOOKS
from adserver.admin.schemas import OBJECT, record

OPERATIONS: Final[tuple[Operation, ...]] = (*LOOKS, *JOBS, *QUERIES, *PRODUCTS)
"""Every operation; what is fixed in a path stands before what is a parameter there."""
OPENAPI_PATH: Final = f"{PREFIX}/openapi.json"
_PROBLEM: Final = record(
    type="string", title="string", status="integer", detail="string", error="string", reason="string"
)
_REFUSED: Final = {
    "description": "Problem details (RFC 9457); `error` and `reason` are those of docs/reference/errors.md",
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


def api_routes(site: AdminContext) -> list[Route]:
    """Return every route of the API, and its description."""
    document = openapi(OPERATIONS)

    async def describe(_request: Request) -> Response:
        return JSONResponse(document)

    bounds = Bounds()
    ours = [one.route(site, bounds) for one in OPERATIONS]
    return [Route(OPENAPI_PATH, describe, methods=["GET"], name="openapi"), *ours]


def openapi(operations: Sequence[Operation]) -> dict[str, Any]:
    """Build the OpenAPI 3.1 document of operations."""
    schemas: dict[str, Any] = {"Problem": _PROBLEM}
    paths: dict[str, Any] = {
        OPENAPI_PATH: {
            "get": {
                "operationId": "openapi",
                "summary": "This document",
                "responses": {"200": _answer(OBJECT), "default": _REFUSED},
            }
        }
    }
    for one in operations:
        paths.setdefault(f"{PREFIX}{one.path}", {})[one.method.lower()] = _describe(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Masked LARk ad server: admin API",
            "version": "1",
            "description": (
                "A token of scope read can view everything; one of scope operate can also submit, "
                "cancel and resume jobs, and run queries and evaluations, which spend budget; one of "
                "scope tasks can also create tasks."
            ),
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _describe(one: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in one.path_parameters
    ] + [
        {"name": named.name, "in": "query", "description": named.about, "schema": named.schema()}
        for named in one.parameters
    ]
    found: dict[str, Any] = {
        "operationId": one.act.__name__,
        "summary": one.summary,
        "description": (one.act.__doc__ or "").strip(),
        "parameters": parameters,
        "security": [{"token": [one.needs.value]}],
        "responses": {str(one.status): _answer(one.answers), "default": _REFUSED},
    }
    if one.body is not None:
        schema = TypeAdapter(one.body).json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[one.body.__name__] = schema
        reference = {"$ref": f"#/components/schemas/{one.body.__name__}"}
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": reference}}}
    return found


def _answer(schema: Any) -> dict[str, Any]:
    return {"description": "Done", "content": {"application/json": {"schema": schema}}}
