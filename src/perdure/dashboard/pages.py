"""What every page is made of: a view computes it, and a request gets it as HTML, as JSON or as a stream of changes."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from perdure.bulk import Background
from perdure.dashboard import charts, icons
from perdure.dashboard.access import CSRF, Doors, check_csrf, csrf_of
from perdure.dashboard.assets import asset_url
from perdure.dashboard.audit import Audit
from perdure.dashboard.live import Live, marker_of
from perdure.dashboard.values import SHOWN_IN_LIST_MAX, Redactor, plain, pretty
from perdure.engine.api import current
from perdure.engine.api.client import Client, storage_of
from perdure.errors import ClosedError, LimitError, PerdureError
from perdure.http.bodies import media_type, read_body
from perdure.http.problems import Problem, of_http, problem_of, unexpected
from perdure.model import limits
from perdure.model.limits import NAME_MAX
from perdure.storage.administration import Administration, administration_of
from perdure.storage.contract import Storage
from perdure.views.durations import short
from perdure.views.search import searched

SSE = "text/event-stream"
THEMES = ("light", "dark")
DIGITS_MAX = 19  # of a number in a query parameter


@dataclass(frozen=True, slots=True)
class Dashboard:
    """The client and the settings of a dashboard."""

    client: Client
    doors: Doors
    redact: Redactor
    audit: Audit | None
    title: str
    audit_retention: timedelta | None = None
    live: Live = field(default_factory=Live)
    actions: Background = field(default_factory=Background)  # on many runs, which this process executes itself
    retrying: asyncio.Lock = field(default_factory=asyncio.Lock)  # one retry at a time

    @property
    def storage(self) -> Storage:
        """Return the storage of the client."""
        return storage_of(self.client)

    @property
    def administration(self) -> Administration | None:
        """Return what the storage has for operators; None if it was written by another author."""
        return administration_of(self.storage, self.client.pipeline)

    def administered(self, what: str) -> Administration:
        """Return the same; raise `Problem` if there is none."""
        found = self.administration
        if found is None:
            raise Problem(501, f"the storage of this dashboard has no {what}: it is not one of perdure")
        return found


@dataclass(frozen=True, slots=True)
class Page:
    """A computed page.

    - `document`: its JSON.
    - `shown`: what only the template needs.
    - `marker`: what a stream compares, if not the document: something without times that count on.
    - `status`: of the response.
    """

    template: str
    title: str
    document: Mapping[str, Any]
    shown: Mapping[str, Any] = field(default_factory=dict)
    marker: object = None
    status: int = 200


@dataclass(frozen=True, slots=True)
class Visit:
    """A request to a page: who asks, and when by the clock of the database."""

    request: Request
    now: datetime
    may: frozenset[str]

    def value(self, name: str, default: str = "") -> str:
        """Return a query parameter."""
        return self.request.query_params.get(name, default)

    def number(self, name: str, most: int = 10**9) -> int:
        """Return a query parameter that is a whole number (default: 0)."""
        text = self.value(name, "0")
        if not text.isascii() or not text.isdigit() or len(text) > DIGITS_MAX or int(text) > most:
            raise Problem(422, f"{name}={text[:40]} is not a whole number up to {most}", parameter=name)
        return int(text)


View = Callable[[Dashboard, Visit], Awaitable[Page | Response]]
Act = Callable[[Dashboard, Visit, Mapping[str, str]], Awaitable[Response]]

ENVIRONMENT = Environment(
    loader=PackageLoader("perdure.dashboard"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)
ENVIRONMENT.lstrip_blocks = True
ENVIRONMENT.filters.update(
    short=short,
    pretty=pretty,
    pretty_in_list=lambda value: pretty(value, SHOWN_IN_LIST_MAX),
    quoted=lambda text: quote(str(text), safe=""),
    searched=lambda text: quote(searched(str(text)), safe=""),
    count=lambda number: f"{number:,}",
)
ENVIRONMENT.globals.update(asset=asset_url, icon=icons.icon, label=icons.label, charts=charts)


def compile_templates() -> None:
    """Compile all templates that are not yet, so that no request waits for it."""
    for name in ENVIRONMENT.list_templates():
        ENVIRONMENT.get_template(name)


def routes_of(dashboard: Dashboard, path: str, view: View) -> list[Route]:
    """Return the routes of a page: its own, and that of its JSON."""
    twin = "/index.json" if path == "/" else f"{path}.json"

    def respond(as_json: bool) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            return await _answer(dashboard, request, view, as_json, has_run_id=path.endswith("/{id}"))

        return respond

    return [
        Route(twin, respond(True), methods=["GET"], name=f"{view.__name__}_json"),
        Route(path, respond(False), methods=["GET"], name=view.__name__),
    ]


def action_of(dashboard: Dashboard, path: str, act: Act) -> Route:
    """Return the route of a form."""

    async def respond(request: Request) -> Response:
        async def handle() -> Response:
            visit = await visit_of(dashboard, request)
            form = await read_form(request)
            check_csrf(request, form.get("csrf", ""))
            with current.using(dashboard.client):
                return await act(dashboard, visit, form)

        return await guarded(dashboard, request, handle, as_json=False)

    return Route(path, respond, methods=["POST"], name=act.__name__)


FORM_MAX = 1024 * 1024


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; raise `Problem` if it is none, or too long."""
    if media_type(request) != "application/x-www-form-urlencoded":
        raise Problem(415, "send the form as application/x-www-form-urlencoded")
    body = await read_body(request, FORM_MAX)
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=100))
    except ValueError as error:
        raise Problem(400, f"the form cannot be read: {error}") from None


async def visit_of(dashboard: Dashboard, request: Request) -> Visit:
    """Return who asks, and when; raise `Problem` if the request may not see the dashboard."""
    may = await dashboard.doors.allowed(request)
    request.state.may = may
    if not dashboard.client.is_open:
        raise ClosedError(
            f"the {type(dashboard.client).__name__} of the dashboard is not open: open it in the lifespan of the "
            "application that the dashboard is mounted into"
        )
    return Visit(request, await dashboard.storage.now(), may)


async def _answer(dashboard: Dashboard, request: Request, view: View, as_json: bool, *, has_run_id: bool) -> Response:
    async def handle() -> Response:
        visit = await visit_of(dashboard, request)
        is_twin = as_json and not (has_run_id and await _is_page_of_run(dashboard, request))
        if SSE in request.headers.get("accept", "") and not is_twin:
            return _stream(dashboard, request, visit, view)
        with current.using(dashboard.client):
            page = await view(dashboard, visit)
        if isinstance(page, Response):
            return page
        if is_twin:
            return Response(msgspec.json.encode(plain(page.document)), page.status, None, "application/json")
        return html(dashboard, request, page, visit)

    return await guarded(dashboard, request, handle, as_json)


async def _is_page_of_run(dashboard: Dashboard, request: Request) -> bool:
    """Return whether a browser asks for the page of a run whose id ends in `.json`, and not for the JSON of another.

    The parameter of the path is then the whole id.
    """
    accepted, id = request.headers.get("accept", ""), f"{request.path_params['id']}.json"
    if "text/html" not in accepted and SSE not in accepted:
        return False
    try:
        (row,) = await dashboard.storage.get_instances([limits.name(unquote(id))])
    except LimitError:
        return False
    if row is not None:
        request.path_params["id"] = id
    return row is not None


async def guarded(
    dashboard: Dashboard, request: Request, handle: Callable[[], Awaitable[Response]], as_json: bool
) -> Response:
    """Return a response, or the page that says why there is none."""
    try:
        return await handle()
    except Problem as error:
        problem = error
    except PerdureError as error:
        problem = problem_of(error)
    except HTTPException as error:
        problem = of_http(request, error, "/")
    except TimeoutError as error:
        problem = Problem(504, f"the request took too long: {error}")
    except ClientDisconnect:
        return Response(status_code=400)  # it reaches no one
    except Exception as error:
        problem = unexpected(request, error)
    return refusal(dashboard, request, problem, as_json)


def refusal(dashboard: Dashboard, request: Request, problem: Problem, as_json: bool) -> Response:
    """Return the page or the JSON of a problem; a person without a session is asked for the token."""
    wants_html = "text/html" in request.headers.get("accept", "") and not as_json
    if not wants_html:
        return problem.response()
    if problem.status == 401 and dashboard.doors.has_token:
        back = urlencode({"next": _page_of(request)})
        return RedirectResponse(f"{request.scope.get('root_path', '')}/login?{back}", 303)
    shown = {"problem": problem, "document": problem.document()}
    page = Page("problem.html", problem.document().title, {}, shown, status=problem.status)
    return html(dashboard, request, page, None)


def _path_of(request: Request) -> str:
    """Return the path below the root, encoded: `exact()` has left slashes and percent signs of ids encoded."""
    return quote(request.scope["path"].removeprefix(request.scope.get("root_path", "")), safe="/%") or "/"


def _page_of(request: Request) -> str:
    """Return the page that a request belongs to, with its query: of a form, the one that has it."""
    if request.method in ("GET", "HEAD"):
        path = _path_of(request)
        return f"{path}?{request.url.query}" if request.url.query else path
    came, root = urlsplit(request.headers.get("referer", "")), quote(request.scope.get("root_path", ""))
    if came.netloc != request.url.netloc or not came.path.startswith(f"{root}/"):
        return "/"
    path = came.path.removeprefix(root)
    return f"{path}?{came.query}" if came.query else path


def html(dashboard: Dashboard, request: Request, page: Page, visit: Visit | None) -> Response:
    """Return a page as HTML."""
    root = quote(request.scope.get("root_path", ""))
    theme, csrf = request.cookies.get("perdure_theme", ""), csrf_of(request)
    text = ENVIRONMENT.get_template(page.template).render(
        **page.document,
        **page.shown,
        page=page,
        root=root,
        brand=dashboard.title,
        theme=theme if theme in THEMES else "",
        csrf=csrf,
        may=visit.may if visit is not None else frozenset(),
        now=visit.now if visit is not None else None,
        ago=_ago(visit.now) if visit is not None else None,
        age=_age(visit.now) if visit is not None else None,
        here=_path_of(request),
        back=_page_of(request),
        twin=_twin(request),
        search=request.query_params.get("q", ""),
        marker=marker_of(_compared(page)) if visit is not None else "",
    )
    response = Response(text, page.status, {"Vary": "Accept, Cookie"}, "text/html")
    if request.cookies.get(CSRF) != csrf:
        secure = request.url.scheme == "https"
        response.set_cookie(CSRF, csrf, path=root or "/", httponly=True, samesite="lax", secure=secure)
    return response


def _twin(request: Request) -> str:
    path, query = _path_of(request).rstrip("/"), f"?{request.url.query}" if request.url.query else ""
    return f"{quote(request.scope.get('root_path', ''))}{path or '/index'}.json{query}"


def _ago(now: datetime) -> Callable[[datetime | None], Markup]:
    """Return how a template shows a time: how long ago, with the exact time as a tooltip."""

    def ago(moment: datetime | None) -> Markup:
        if moment is None:
            return Markup("–")
        seconds = (now - moment).total_seconds()
        text = f"{short(seconds)} ago" if seconds >= 0 else f"in {short(-seconds)}"
        return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
            moment.isoformat(), f"{moment:%Y-%m-%d %H:%M:%S}", text
        )

    return ago


def _age(now: datetime) -> Callable[[datetime], Markup]:
    """Return how a template shows for how long something has lasted, which the page counts on."""

    def age(since: datetime) -> Markup:
        return Markup('<time data-age datetime="{}">{}</time>').format(since.isoformat(), short(now - since))

    return age


def _compared(page: Page) -> object:
    """Return what decides whether a page has changed."""
    return page.marker if page.marker is not None else plain(page.document)


def _stream(dashboard: Dashboard, request: Request, visit: Visit, view: View) -> Response:
    async def compute() -> object:
        with current.using(dashboard.client):
            now = await dashboard.storage.now()
            page = await view(dashboard, Visit(request, now, visit.may))
        return page.status_code if isinstance(page, Response) else _compared(page)

    key = f"{request.url.path}?{request.url.query} {sorted(visit.may)}"
    events = dashboard.live.events(request, key, compute)
    return StreamingResponse(events, media_type=SSE, headers={"X-Accel-Buffering": "no"})


def token_of(at: datetime | None, id: str) -> str:
    """Return the position of the last row of a page, for the link to the next page; `place_of` reads it."""
    assert at is not None, "every stored row has its time"
    return f"{at.isoformat()}|{id}"


def place_of(visit: Visit) -> tuple[datetime, str] | None:
    """Return the position after which a page begins; None for the first page."""
    token = visit.value("after")
    if not token:
        return None
    text, mark, id = token.partition("|")
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None or not mark or len(id) > NAME_MAX:
        raise Problem(422, "the link to this page is damaged: begin again with the first page", parameter="after")
    return at, id


def redirect(visit: Visit, path: str, **query: str | int) -> Response:
    """Return the response that leads a browser to another page of the dashboard."""
    text = urlencode({key: value for key, value in query.items() if value != ""})
    root = quote(visit.request.scope.get("root_path", ""))
    return RedirectResponse(f"{root}{path}{'?' + text if text else ''}", 303)
