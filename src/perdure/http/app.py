"""The ASGI application of the HTTP API."""

from collections.abc import AsyncIterator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from perdure.engine.api.client import Client
from perdure.errors import ConfigurationError
from perdure.http import health, messages, openapi, runs
from perdure.http.api import API, Render, exact
from perdure.http.auth import Authenticate, Guard
from perdure.http.problems import Problem, refuse
from perdure.http.signatures import Signatures
from perdure.model.durations import Duration, seconds
from perdure.model.limits import PAYLOAD_MAX

MAX_BODY = 1024 * 1024
MAX_WAIT = 60.0

HEADERS: dict[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class HTTPApp(Starlette):
    """The HTTP API as an ASGI application; made by `http_app()`.

    Served alone, its lifespan opens and closes the App or Client. A mounted application gets no lifespan events, so
    there the other application opens it.
    """

    def __init__(self, api: API) -> None:
        super().__init__(
            routes=_routes(api),
            exception_handlers={HTTPException: refuse, Problem: refuse},
            lifespan=lambda _: opened(api.client),
        )
        self.router.redirect_slashes = False
        self._api = api

    @property
    def needs_local_clients(self) -> bool:
        """Return whether the API has neither a token nor a function for authentication."""
        return self._api.guard.is_open

    def stop_waiting(self) -> None:
        """Answer all requests that wait for runs now; call it when the server begins to stop."""
        self._api.waits.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request: with exact paths, and with security headers on the response."""
        if scope["type"] == "http":
            scope, send = exact(scope), with_headers(send, HEADERS)
        await super().__call__(scope, receive, send)


def http_app(
    client: Client,
    *,
    token: str | None = None,
    auth: Authenticate | None = None,
    webhook_keys: str | Sequence[str] = (),
    max_body: int = MAX_BODY,
    max_wait: Duration = MAX_WAIT,
    metrics: Render | None = None,
) -> HTTPApp:
    """Return the HTTP API of an App or Client as an ASGI application, to be served alone or mounted into another one.

    - `client`: an App or Client. If it is not open, the lifespan of the application opens and closes it.
    - `token`: requests need the header `Authorization: Bearer <token>` (default: None).
    - `auth`: a function, async or not, that takes the `starlette.requests.Request` and returns who sent it, or a false
      value to refuse it; instead of `token`. The answer is `request.state.identity`.
    - `webhook_keys`: keys (`whsec_…`) of Standard Webhooks; several while they are rotated. With a key, requests that
      send events need a signature instead of a token (default: none).
    - `max_body`: maximum size of a request's body in bytes (default: 1 MiB).
    - `max_wait`: maximum of `?wait=` and maximum duration of a stream, in seconds or as a timedelta (default: 60).
    - `metrics`: a function that returns a page of metrics and its content type, for `GET /metrics`, such as
      `Prometheus().render` (default: None, there is no such page).

    Without `token` and `auth`, only requests of programs on the same machine are accepted. Raises `TypeError` or
    `ConfigurationError` for an invalid setting.
    """
    if not isinstance(client, Client):
        raise TypeError(f"http_app() takes an App or a Client, not {client!r}")
    if not isinstance(max_body, int) or isinstance(max_body, bool) or not 1 <= max_body <= 2 * PAYLOAD_MAX:
        raise ConfigurationError(f"http_app(max_body=) must be 1 to {2 * PAYLOAD_MAX} bytes, not {max_body!r}")
    longest = seconds(max_wait, "http_app(max_wait=)", positive=True)
    if metrics is not None and not callable(metrics):
        raise TypeError(f"http_app(metrics=) must be a function, such as Prometheus().render, not {metrics!r}")
    return HTTPApp(API(client, Guard(token, auth), Signatures(webhook_keys), max_body, longest, metrics))


def _routes(api: API) -> list[BaseRoute]:
    """Return all routes. Another part of the API adds its own here."""
    parts = (runs, messages, openapi, health)
    return [each for part in parts for each in part.routes(api)]


@asynccontextmanager
async def opened(client: Client) -> AsyncIterator[None]:
    """Open a client for the time of the block, unless it is open."""
    if client.is_open:
        yield
    else:
        async with client:
            yield


def with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    """Return a function that sends a response with these headers, except those that it has already."""
    added = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def send_with_headers(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message["headers"]}
            message = {**message, "headers": [*message["headers"], *(each for each in added if each[0] not in given)]}
        await send(message)

    return send_with_headers
