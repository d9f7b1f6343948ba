"""The admin API as a FastAPI application, and the OpenAPI document of the same routes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from starlette.routing import BaseRoute

from adserver.admin import jobs, products, queries, read_endpoints, token_endpoints
from adserver.admin.admin_context import AdminContext
from adserver.admin.guarded_route import PREFIX, Bounds
from adserver.admin.problems import problem
from adserver.messages.site import Problem

OPENAPI_PATH: Final = f"{PREFIX}/openapi.json"
_ROOMS: Final = (read_endpoints, jobs, queries, products, token_endpoints)
OPERATIONS: Final = tuple(route for room in _ROOMS for router in room.ROUTERS for route in router.routes)
"""The route of every operation."""
_SCOPES: Final = (
    "A token of scope read can view everything; one of scope operate can also submit, cancel and resume "
    "jobs, and run queries and evaluations, which spend budget; one of scope tasks "
    "can also create tasks; one of scope tokens can also manage tokens."
)
Handlers = Mapping[Any, Callable[[Request, Any], Any]]


class AdminApi(FastAPI):
    """The admin API of a running ad server, together with the dashboard's own routes."""

    def __init__(self, context: AdminContext, routes: Sequence[BaseRoute], handlers: Handlers) -> None:
        """Serve the operations and these routes; errors go to the handlers."""
        super().__init__(
            title="Masked LARk ad server: admin API",
            version="1",
            description=_SCOPES,
            openapi_url=OPENAPI_PATH,
            docs_url=None,
            redoc_url=None,
            routes=[*routes, *OPERATIONS],
            exception_handlers=dict(handlers),
            # spans and logs of FastAPI's would hold bodies and paths, which name what was asked
            telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        )
        self.state.context, self.state.bounds = context, Bounds()

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        document = super().openapi()
        document["security"] = [{"token": []}]
        # No operation returns one, so FastAPI does not describe it; all refusals refer to it
        document["components"]["schemas"]["Problem"] = Problem.model_json_schema()
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        return document


def explain_unknown(request: Request) -> Response:
    """Answer a request for an unknown path of the API."""
    return problem(404, f"there is no operation at {request.url.path}: see {OPENAPI_PATH} for the operations")
