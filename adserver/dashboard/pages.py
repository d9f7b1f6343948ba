"""The pages: a path, a template, and what it shows. Each is answered 304 while nothing on it has changed."""

from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

from jinja2 import Environment
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from adserver.dashboard.figures import Figures, Values
from adserver.dashboard.kept import Kept
from adserver.dashboard.rendering import draw
from maskedlark.errors import HelperUnavailable, InvalidTask, JobRefused, MaskedLarkError
from maskedlark.frozen import frozen
from maskedlark.releases.budget import PlannedJob
from maskedlark.runtime.database import database_at_hand

YOUNG_S: Final = 0.7
"""How long a page that was drawn for one browser is good for all."""
_UNCHANGED: Final = 304


@frozen
class Page:
    """One page.

    Attributes:
        path: Its route.
        template: In the folder of templates.
        place: The part of the navigation that it belongs to.
        values: What it shows.
    """

    path: str
    template: str
    place: str
    values: Callable[[Figures, Request], Values]


def _after(request: Request) -> str:
    return request.query_params.get("after", "")


def _planned(request: Request) -> PlannedJob | None:
    """The job that the form of a budget's page asks about; None while it is empty."""
    typed = request.query_params
    if not typed.get("rounds"):
        return None
    try:
        return PlannedJob(
            rounds=int(typed["rounds"]),
            batch_size=float(typed["batch_size"]) if typed.get("batch_size") else None,
            noise_multiplier=float(typed.get("noise_multiplier") or 1.0),
            is_allocated=True,
        )
    except ValueError:
        raise InvalidTask("rounds, batch and noise of a planned job are numbers") from None


PAGES: Final = (
    Page(path="/", template="overview.html", place="overview", values=lambda at, _: at.overview()),
    Page(path="/intake", template="intake.html", place="intake", values=lambda at, _: at.intake()),
    Page(path="/tasks", template="tasks.html", place="tasks", values=lambda at, r: at.tasks(_after(r))),
    Page(
        path="/tasks/{task}",
        template="task.html",
        place="tasks",
        values=lambda at, r: at.task(r.path_params["task"]),
    ),
    Page(
        path="/datasets",
        template="datasets.html",
        place="datasets",
        values=lambda at, r: at.datasets(_after(r)),
    ),
    Page(
        path="/datasets/{dataset}",
        template="dataset.html",
        place="datasets",
        values=lambda at, r: at.dataset(r.path_params["dataset"]),
    ),
    Page(
        path="/jobs",
        template="jobs.html",
        place="jobs",
        values=lambda at, r: at.jobs(_after(r), r.query_params.get("state", "")),
    ),
    Page(
        path="/jobs/{job}",
        template="job.html",
        place="jobs",
        values=lambda at, r: at.job(r.path_params["job"]),
    ),
    Page(
        path="/budgets", template="budgets.html", place="budgets", values=lambda at, r: at.budgets(_after(r))
    ),
    Page(
        path="/budgets/{dataset}",
        template="budget.html",
        place="budgets",
        values=lambda at, r: at.budget(r.path_params["dataset"], _planned(r)),
    ),
    Page(
        path="/queries", template="queries.html", place="queries", values=lambda at, r: at.queries(_after(r))
    ),
    Page(
        path="/queries/{query}",
        template="query.html",
        place="queries",
        values=lambda at, r: at.query(r.path_params["query"]),
    ),
    Page(path="/helpers", template="helpers.html", place="helpers", values=lambda at, _: at.helpers()),
)
"""Every page."""
NAVIGATION: Final = tuple((one.path, one.place) for one in PAGES if "{" not in one.path)


@frozen
class Drawn:
    """A page as it is sent."""

    content: bytes
    status: int

    @property
    def tag(self) -> str:
        """What a browser says that it has."""
        return f'"{sha256(self.content).hexdigest()[:24]}"'


class Pages:
    """Draws pages, and keeps them for a moment."""

    def __init__(self, figures: Figures, environment: Environment, kept: Kept[Drawn]) -> None:
        """Pages of these figures."""
        self._figures = figures
        self._environment = environment
        self._kept = kept

    def routes(self) -> list[Route]:
        """The routes of all pages."""
        return [self._route(page) for page in PAGES]

    def _route(self, page: Page) -> Route:
        async def show(request: Request) -> Response:
            key = (request.url.path, request.url.query, request.state.grant.scope)
            drawn = await run_in_threadpool(self._kept.get, key, lambda: self._draw(page, request))
            headers = {"etag": drawn.tag}
            if drawn.tag in request.headers.get("if-none-match", ""):
                return Response(status_code=_UNCHANGED, headers=headers)
            return HTMLResponse(drawn.content, drawn.status, headers)

        return Route(page.path, show, methods=["GET"], name=page.path)

    def _draw(self, page: Page, request: Request) -> Drawn:
        status = 200
        try:
            with database_at_hand("the ad server"):
                values, template = page.values(self._figures, request), page.template
        except MaskedLarkError as refusal:
            values, template, status = {"detail": str(refusal)}, "refused.html", _status(refusal)
        return Drawn(content=self.draw(template, page.place, request, values), status=status)

    def draw(self, template: str, place: str, request: Request, values: dict[str, Any]) -> bytes:
        """A page's HTML."""
        around = {
            "navigation": NAVIGATION,
            "place": place,
            "may_operate": request.state.grant.scope == "operate",
        }
        return draw(self._environment, template, {**around, **values}).encode()


def _status(refusal: MaskedLarkError) -> int:
    if isinstance(refusal, HelperUnavailable):
        return 503
    is_unknown = isinstance(refusal, JobRefused) and refusal.reason.value.startswith("unknown_")
    return 404 if is_unknown else 422
