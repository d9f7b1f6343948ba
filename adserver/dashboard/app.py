"""The dashboard's application: pages, files, buttons and the admin API, behind one door."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from adserver.admin.access import API, LOGGED_OUT_PATH, LOGIN_PATH, LOGOUT_PATH, AuthMiddleware
from adserver.admin.admin_context import AdminContext
from adserver.admin.api import AdminApi, explain_unknown
from adserver.admin.grants import Grants
from adserver.admin.guarded_route import actor_of
from adserver.admin.problems import problem, status_of
from adserver.dashboard.assets import ASSETS
from adserver.dashboard.page_data import Figures
from adserver.dashboard.pages import Pages
from adserver.dashboard.rendering import environment
from adserver.records.exported_model import InputForm, ModelWeights
from adserver.store.access import AccessStore
from adserver.store.audit_log import acting_as
from maskedlark.audit_log import AuditAct
from maskedlark.errors import MaskedLarkError

if TYPE_CHECKING:
    from adserver.admin.oidc import OidcProvider
    from adserver.admin.sign_in import SignIn


@contextmanager
def dashboard(
    site: AdminContext, *, hosts: Collection[str], is_tls: bool, provider: "OidcProvider | None" = None
) -> Iterator[AuthMiddleware]:
    """Serve the application of a running ad server until the block ends.

    Args:
        site: The ad server.
        hosts: The names that it is reached at; see `adserver.admin.access.names_of`.
        is_tls: Whether it is served over TLS.
        provider: Where people sign in, or None.
    """
    grants, figures = Grants(AccessStore(site.engine, site.clock), provider), Figures(site)
    pages = Pages(figures, environment())
    app = _app(site, grants, pages, figures)
    try:
        yield AuthMiddleware(
            app=app,
            grants=grants,
            hosts=frozenset(hosts),
            is_tls=is_tls,
            refused=site.refused,
            sign_in=None if provider is None else _sign_in(provider, grants, is_tls=is_tls),
        )
    finally:
        pages.close()
        figures.close()


def _sign_in(provider: "OidcProvider", grants: Grants, *, is_tls: bool) -> "SignIn":
    from adserver.admin.sign_in import SignIn

    return SignIn(provider=provider, grants=grants, is_tls=is_tls)


def _app(site: AdminContext, grants: Grants, pages: Pages, figures: Figures) -> ASGIApp:
    async def change(request: Request) -> Response:
        """Handle a button of a job's page, then redirect back to the page."""
        name, act = request.path_params["job"], request.path_params["act"]
        acts = {"cancel": site.jobs.cancel, "resume": site.jobs.resume}
        if act not in acts:
            raise HTTPException(404)
        try:
            found = await run_in_threadpool(site.jobs.find, name)
            with acting_as(actor_of(request, request.state.grant)):
                await run_in_threadpool(acts[act], found.job_id)
        # In the audit log, too, as the same act over the API is
        except MaskedLarkError as refusal:
            tried = AuditAct.CANCEL_JOB if act == "cancel" else AuditAct.RESUME_JOB
            who = actor_of(request, request.state.grant)
            await run_in_threadpool(site.refused.add, tried, who, refusal)
            content = pages.draw("refused.html", "jobs", request, {"detail": str(refusal)})
            return HTMLResponse(content, 409)
        # 303: reloading the page repeats the look and not the act
        return RedirectResponse(f"/jobs/{found.job_id.hex()}", 303)

    async def download(request: Request) -> Response:
        """Send a job's latest or best model as an ONNX file; its graph takes columns if that is asked for."""
        try:
            found = await run_in_threadpool(site.jobs.find, request.path_params["job"])
            # An unknown form or choice of weights is a ValueError, answered below
            takes = InputForm(request.query_params.get("takes", InputForm.SCALED.value))
            weights = ModelWeights(request.query_params.get("weights", ModelWeights.LATEST.value))
            made = await run_in_threadpool(site.server.export, found.job_id, takes, weights)
        except ValueError:
            raise HTTPException(422) from None
        except MaskedLarkError as refusal:
            content = pages.draw("refused.html", "jobs", request, {"detail": str(refusal)})
            return HTMLResponse(content, 409)
        after = f"{found.updates}-updates" if found.rounds is None else f"round-{made.rounds_done}"
        of_columns = "-of-columns" if takes is InputForm.COLUMNS else ""
        # Of our digits and words alone: a name that people chose could end the header
        name = f"{found.job_id.hex()[:12]}-{after}{of_columns}.onnx"
        headers = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
        return Response(made.encoded, headers=headers, media_type="application/octet-stream")

    async def send_groups(request: Request) -> Response:
        """Send the groups of a query as a .csv file."""
        try:
            query_id, made = await run_in_threadpool(figures.groups_csv, request.path_params["query"])
        except MaskedLarkError as refusal:
            content = pages.draw("refused.html", "queries", request, {"detail": str(refusal)})
            return HTMLResponse(content, status_of(refusal))
        headers = {"content-disposition": f'attachment; filename="query-{query_id[:12]}.csv"'}
        return Response(made, headers=headers, media_type="text/csv")

    async def log_out(request: Request) -> Response:
        with acting_as(actor_of(request, request.state.grant)):
            await run_in_threadpool(grants.end, request.state.grant)
        return RedirectResponse(LOGGED_OUT_PATH, 303)

    async def log_in(_request: Request) -> Response:
        raise AssertionError("the door answers this")

    async def refuse(request: Request, error: Exception) -> Response:
        """Answer a request for an unknown path or with a wrong method."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        if request.url.path.startswith(API):
            return explain_unknown(request) if status == HTTPStatus.NOT_FOUND else problem(status, str(error))
        phrase = HTTPStatus(status).phrase
        return HTMLResponse(pages.draw("refused.html", "", request, {"detail": phrase}), status)

    async def fail(_request: Request, _error: Exception) -> Response:
        """Answer after a bug: Starlette raises it after this answer, and the server's log has it."""
        return problem(500, "internal error in the ad server: see its log", error="Internal")

    return AdminApi(
        site,
        routes=[
            *pages.routes(),
            # Before {act}, which would match it
            Route("/jobs/{job}/model.onnx", download, methods=["GET"], name="a job's model"),
            Route("/jobs/{job}/{act}", change, methods=["POST"], name="change a job"),
            Route("/queries/{query}/groups.csv", send_groups, methods=["GET"], name="a query's groups"),
            Route(LOGIN_PATH, log_in, methods=["GET"], name="log in"),
            Route(LOGOUT_PATH, log_out, methods=["POST"], name="log out"),
            Route("/static/{name}", ASSETS.serve, methods=["GET"], name="files"),
        ],
        handlers={HTTPException: refuse, Exception: fail},
    )
