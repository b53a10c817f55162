"""The ASGI application of the dashboard."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import timedelta
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from perdure.dashboard import (
    actions,
    assets,
    audit_page,
    bulk,
    channels,
    locks,
    others,
    outbox,
    overview,
    run,
    runs,
    saved_views,
    workers,
)
from perdure.dashboard.access import SESSION, SESSION_SEC, Access, Doors, check_csrf
from perdure.dashboard.audit import Audit
from perdure.dashboard.pages import (
    THEMES,
    Dashboard,
    Page,
    action_of,
    compile_templates,
    guarded,
    html,
    read_form,
    refusal,
    routes_of,
)
from perdure.dashboard.values import Redact, Redactor
from perdure.engine.api.client import Client
from perdure.errors import ConfigurationError
from perdure.http.api import exact
from perdure.http.app import opened, with_headers
from perdure.http.problems import of_http

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: dict[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
YEAR_SEC = 365 * 24 * 3600
AUDIT_RETENTION = timedelta(days=365)


class DashboardApp(Starlette):
    """The dashboard as an ASGI application; made by `dashboard_app()`.

    Served alone, its lifespan opens and closes the App or Client. A mounted application gets no lifespan events, so
    there the other application opens it.
    """

    def __init__(self, dashboard: Dashboard) -> None:
        async def refuse(request: Request, error: Exception) -> Response:
            assert isinstance(error, HTTPException), "registered for this class only"
            return refusal(dashboard, request, of_http(request, error, "/"), as_json=False)

        super().__init__(
            routes=_routes(dashboard),
            exception_handlers={HTTPException: refuse},
            lifespan=lambda _: _opened(dashboard),
        )
        self.router.redirect_slashes = False
        self._dashboard = dashboard
        compile_templates()

    @property
    def needs_local_clients(self) -> bool:
        """Return whether the dashboard has neither a token nor a function that decides about access."""
        return self._dashboard.doors.is_open

    async def close(self) -> None:
        """Stop executing actions on many runs; other workers resume them."""
        await self._dashboard.actions.close()

    def stop_waiting(self) -> None:
        """End all streams now; call it when the server begins to stop."""
        self._dashboard.live.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request: with exact paths, and with security headers on the response."""
        if scope["type"] == "http":
            scope, send = exact(scope), with_headers(send, HEADERS)
        await super().__call__(scope, receive, send)


@asynccontextmanager
async def _opened(dashboard: Dashboard) -> AsyncIterator[None]:
    async with opened(dashboard.client):
        try:
            yield
        finally:
            await dashboard.actions.close()


def dashboard_app(
    client: Client,
    *,
    token: str | None = None,
    access: Access | None = None,
    redact: Redact | Collection[str] | None = None,
    audit: Audit | None = None,
    audit_retention: timedelta | None = AUDIT_RETENTION,
    title: str = "perdure",
) -> DashboardApp:
    """Return the dashboard of an App or Client as an ASGI application, to be served alone or mounted into another one.

    - `client`: an App or Client. If it is not open, the lifespan of the application opens and closes it.
    - `token`: people enter it once; programs send the header `Authorization: Bearer <token>` (default: None).
    - `access`: a function, async or not, that takes the `starlette.requests.Request` and returns `"all"`, `"read"`, a
      set of actions (`cancel`, `retry`, `delete`, `send`, `requeue`, `views`), or None to refuse it; instead of
      `token`. It may set `request.state.identity` to the name that the audit shows.
    - `redact`: names of keys whose values are not shown, or a function that takes a value and what it is (`"input"`,
      `"result"`, `"error"` …) and returns what is shown of it. It gets numbers as text (default: None, all is shown).
    - `audit`: a function, async or not, that takes an `AuditEntry` before and after each action (default: None;
      actions are stored in the database and logged by `perdure.audit` in any case).
    - `audit_retention`: how long the database keeps actions (default: 365 days; None keeps them forever).
    - `title`: the name in the corner of each page (default: "perdure").

    Without `token` and `access`, only browsers on the same machine are served. Raises `TypeError` or
    `ConfigurationError` for an invalid setting.
    """
    if not isinstance(client, Client):
        raise TypeError(f"dashboard_app() takes an App or a Client, not {client!r}")
    if audit is not None and not callable(audit):
        raise ConfigurationError("dashboard_app(audit=) must be a function that takes an AuditEntry")
    if audit_retention is not None and not (isinstance(audit_retention, timedelta) and audit_retention > timedelta(0)):
        raise ConfigurationError("dashboard_app(audit_retention=) must be a timedelta greater than zero, or None")
    doors, redactor = Doors(token, access), Redactor(redact)
    return DashboardApp(Dashboard(client, doors, redactor, audit, str(title), audit_retention))


def _routes(dashboard: Dashboard) -> list[BaseRoute]:
    pages = (
        ("/", overview.overview),
        ("/runs", runs.runs),
        ("/runs/{id}/history", run.history),
        ("/runs/{id}", run.run),
        ("/bulk", bulk.bulk),
        ("/failures/{fingerprint}", others.failure),
        ("/waits", others.waits),
        ("/channels", channels.channels),
        ("/workers", workers.workers),
        ("/locks", locks.locks),
        ("/schedules", others.schedules),
        ("/outbox", outbox.outbox),
        ("/audit", audit_page.audit),
    )
    forms = (
        ("/runs/{id}/cancel", actions.cancel_run),
        ("/runs/{id}/retry", actions.retry_run),
        ("/runs/{id}/delete", actions.delete_run),
        ("/runs/{id}/send", actions.send_event),
        ("/bulk", bulk.change_many),
        ("/outbox/requeue", outbox.requeue_event),
        ("/views", saved_views.save_view),
        ("/views/delete", saved_views.delete_view),
    )
    return [
        Route("/static/{digest}/{name}", assets.static, methods=["GET"]),
        *_login_routes(dashboard),
        *(action_of(dashboard, path, act) for path, act in forms),
        *(route for path, view in pages for route in routes_of(dashboard, path, view)),
    ]


def _login_routes(dashboard: Dashboard) -> list[BaseRoute]:
    async def ask(request: Request) -> Response:
        shown = {"next": _local(request.query_params.get("next", "/")), "wrong": False}
        return html(dashboard, request, Page("login.html", "Sign in", {}, shown), None)

    async def enter(request: Request) -> Response:
        async def handle() -> Response:
            form = await read_form(request)
            check_csrf(request, form.get("csrf", ""))
            following, root = _local(form.get("next", "/")), quote(request.scope.get("root_path", ""))
            session = dashboard.doors.session_for(form.get("token", ""))
            if session is None:
                shown = {"next": following, "wrong": True}
                return html(dashboard, request, Page("login.html", "Sign in", {}, shown, status=403), None)
            response = RedirectResponse(f"{root}{following}", 303)
            secure, longest = request.url.scheme == "https", int(SESSION_SEC)
            response.set_cookie(
                SESSION, session, longest, path=root or "/", httponly=True, samesite="lax", secure=secure
            )
            return response

        return await guarded(dashboard, request, handle, as_json=False)

    async def theme(request: Request) -> Response:
        """Keep the choice of a theme, for browsers without JavaScript."""

        async def handle() -> Response:
            form = await read_form(request)
            check_csrf(request, form.get("csrf", ""))
            chosen, root = form.get("theme", ""), quote(request.scope.get("root_path", ""))
            response = RedirectResponse(f"{root}{_local(form.get('next', '/'))}", 303)
            if chosen in THEMES:
                response.set_cookie("perdure_theme", chosen, YEAR_SEC, path=root or "/", samesite="lax")
            else:
                response.delete_cookie("perdure_theme", path=root or "/")
            return response

        return await guarded(dashboard, request, handle, as_json=False)

    return [
        Route("/login", ask, methods=["GET"]),
        Route("/login", enter, methods=["POST"]),
        Route("/theme", theme, methods=["POST"]),
    ]


def _local(path: str) -> str:
    """Return a path of the dashboard, whatever a link asked for: never another site."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() else "/"
