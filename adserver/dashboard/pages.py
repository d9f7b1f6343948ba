"""The pages: a path, a template, and the values it shows. An unchanged page is answered 304.

One lookup tells for all pages whether anything has changed (`adserver.store.change_token`), and only a page
whose values have changed is rendered: an unchanged page costs a grant's lookup and a comparison.
"""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from functools import partial
from hashlib import sha256
from typing import Any, Final, TypeAlias, TypeVar

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from adserver.admin.problems import status_of
from adserver.dashboard.page_data import Figures, Mark, Values
from adserver.dashboard.plan_page import PlanForm
from adserver.dashboard.rendering import draw
from adserver.dashboard.ttl_cache import TtlCache
from adserver.records.access import Scope
from maskedlark.errors import HelperUnavailable, MaskedLarkError
from maskedlark.frozen import frozen
from maskedlark.runtime.database import database_at_hand

YOUNG_S: Final = 0.7
"""For how long nothing is asked again whether anything has changed."""
DRAWERS: Final = 2
"""Threads that draw pages."""
# Each takes up to some 0.2 s, and a reader may ask for any number of distinct ones
_MOST_DRAWN: Final = 32
_UNCHANGED: Final = 304
_T = TypeVar("_T")


Show: TypeAlias = Callable[[Figures, Request], Values]
Stamp: TypeAlias = Callable[[Mark], Hashable]


def _store_part(mark: Mark) -> Hashable:
    return mark.store


@frozen
class Page:
    """One page.

    Attributes:
        path: Its route.
        template: In the folder of templates.
        place: The part of the navigation that it belongs to.
        values: What it shows.
        stamp: The part of the mark that it depends on.
    """

    path: str
    template: str
    place: str
    values: Show
    stamp: Stamp = _store_part


def _with_reports(mark: Mark) -> Hashable:
    return mark.store, mark.intake


def _with_budgets(mark: Mark) -> Hashable:
    return mark.store, mark.budgets


def _after(request: Request) -> str:
    return request.query_params.get("after", "")


def _many(place: str, values: Show, stamp: Stamp = _store_part) -> Page:
    """Create the list page of a part of the navigation, whose template has the same name."""
    return Page(path=f"/{place}", template=f"{place}.html", place=place, values=values, stamp=stamp)


def _one(place: str, name: str, values: Show, stamp: Stamp = _store_part) -> Page:
    """Create the page of one item, with the parameter and template of this name."""
    return Page(path=f"/{place}/{{{name}}}", template=f"{name}.html", place=place, values=values, stamp=stamp)


PAGES: Final = (
    Page(
        path="/",
        template="overview.html",
        place="overview",
        values=lambda at, _: at.overview(),
        stamp=lambda mark: (mark.store, mark.intake, mark.trouble),
    ),
    _many("intake", lambda at, _: at.intake(), _with_reports),
    _many("tasks", lambda at, r: at.tasks(_after(r)), _with_reports),
    _one("tasks", "task", lambda at, r: at.task(r.path_params["task"]), _with_reports),
    _many("datasets", lambda at, r: at.datasets(_after(r))),
    _one("datasets", "dataset", lambda at, r: at.dataset(r.path_params["dataset"])),
    _many("jobs", lambda at, r: at.jobs(_after(r), r.query_params.get("state", ""))),
    _one("jobs", "job", lambda at, r: at.job(r.path_params["job"])),
    _many("budgets", lambda at, r: at.budgets(_after(r)), _with_budgets),
    Page(
        path="/budgets/{dataset}",
        template="budget.html",
        place="budgets",
        values=lambda at, r: at.budget(r.path_params["dataset"], r.query_params),
        stamp=_with_budgets,
    ),
    _many("plan", lambda at, r: at.plan(PlanForm.read(r.query_params)), _with_budgets),
    _many("queries", lambda at, r: at.queries(_after(r))),
    _one("queries", "query", lambda at, r: at.query(r.path_params["query"])),
    _many("helpers", lambda at, _: at.helpers(), lambda mark: (mark.store, mark.helpers)),
)
"""Every page."""
NAVIGATION: Final = tuple((one.path, one.place) for one in PAGES if "{" not in one.path)


@frozen
class _RenderedPage:
    """A page as it is sent."""

    content: bytes
    status: int

    @property
    def tag(self) -> str:
        """The version that a browser says it has."""
        return f'"{sha256(self.content).hexdigest()[:24]}"'


class Pages:
    """Draws pages, and keeps them until what they show has changed."""

    def __init__(self, figures: Figures, environment: Environment) -> None:
        """Create the pages that show these figures."""
        self._figures = figures
        self._environment = environment
        self._marks: TtlCache[Mark] = TtlCache(lasts_s=YOUNG_S, threads=1)
        # No page is fresh by its age: its stamp decides
        self._drawn: TtlCache[_RenderedPage] = TtlCache(lasts_s=0.0, threads=DRAWERS, most_making=_MOST_DRAWN)

    def close(self) -> None:
        """Draw nothing more."""
        self._marks.close()
        self._drawn.close()

    def routes(self) -> list[Route]:
        """Return the routes of all pages."""
        return [self._route(page) for page in PAGES]

    def _route(self, page: Page) -> Route:
        async def show(request: Request) -> Response:
            # Not the URL, in which a path's own %3F or %23 would look like what follows it
            asked = request.scope
            # With the scope: an operator's page has buttons
            key = (asked["path"], asked["query_string"], request.state.grant.scope)
            stamp = await self._stamp(page)
            try:
                drawn = await _of(self._drawn.refresh(key, partial(self._draw, page, request), stamp))
            # Not kept: no mark changes when the database is back, or there is room
            except HelperUnavailable as away:
                drawn = self._render_refusal(page, request, away)
            headers = {"etag": drawn.tag}
            # The header may list several tags
            if drawn.tag in request.headers.get("if-none-match", ""):
                return Response(status_code=_UNCHANGED, headers=headers)
            return HTMLResponse(drawn.content, drawn.status, headers)

        return Route(page.path, show, methods=["GET"], name=page.path)

    async def _stamp(self, page: Page) -> Hashable:
        """Return what a page depends on; None, which equals nothing, while the database does not answer."""
        try:
            return page.stamp(await _of(self._marks.refresh("now", self._figures.mark)))
        except HelperUnavailable:
            return None

    def _draw(self, page: Page, request: Request) -> _RenderedPage:
        """Render a page, or the reason for its absence; HelperUnavailable while the database is away."""
        try:
            with database_at_hand("the ad server"):
                values = page.values(self._figures, request)
        except HelperUnavailable:
            raise
        except MaskedLarkError as refusal:
            return self._render_refusal(page, request, refusal)
        return _RenderedPage(content=self.draw(page.template, page.place, request, values), status=200)

    def _render_refusal(self, page: Page, request: Request, refusal: MaskedLarkError) -> _RenderedPage:
        """Render the reason for a refusal in a page's place."""
        values = {"detail": str(refusal)}
        return _RenderedPage(
            content=self.draw("refused.html", page.place, request, values), status=status_of(refusal)
        )

    def draw(self, template: str, place: str, request: Request, values: dict[str, Any]) -> bytes:
        """Render a page's HTML."""
        around = {
            "navigation": NAVIGATION,
            "place": place,
            "may_operate": request.state.grant.scope.allows(Scope.OPERATE),
        }
        return draw(self._environment, template, {**around, **values}).encode()


async def _of(future: "Future[_T]") -> _T:
    """Wait for a future's value; a caller that stops waiting does not cancel it for the others."""
    if future.done():
        return future.result()
    return await asyncio.shield(asyncio.wrap_future(future))
