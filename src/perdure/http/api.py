"""What the endpoints share: the client whose runs they handle, the settings, and how a request becomes a response."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import unquote

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from perdure.engine.api import current
from perdure.engine.api.client import Client, storage_of
from perdure.engine.starting import not_found
from perdure.errors import ClosedError, EngineError, LimitError
from perdure.http.auth import Guard
from perdure.http.problems import Problem, problem_for
from perdure.http.signatures import Signatures
from perdure.http.waiting import Waits
from perdure.model import limits


@dataclass(frozen=True, slots=True)
class API:
    """The client and the settings of an HTTP API."""

    client: Client
    guard: Guard
    signatures: Signatures
    max_body: int
    max_wait: float
    metrics: "Render | None" = None
    waits: Waits = field(default_factory=lambda: Waits(WAITS_MAX))


WAITS_MAX = 10_000

_SLASH = re.compile("/|%2[Ff]")

Endpoint = Callable[[API, Request], Awaitable[Response]]
Render = Callable[[], tuple[bytes, str]]  # a page of metrics, and its content type


def route(api: API, method: str, path: str, endpoint: Endpoint, *, public: bool = False, signed: bool = False) -> Route:
    """Return the route of an endpoint, behind the guard unless it is public.

    With `signed`, signatures take the place of the guard if there are keys; the endpoint verifies them.
    """

    async def respond(request: Request) -> Response:
        try:
            if not public and not (signed and api.signatures):
                request.state.identity = await api.guard.check(request)
            return await _answer(api, request, endpoint)
        except ClientDisconnect:
            return Response(status_code=400)  # it reaches no one
        except Exception as error:
            return problem_for(request, error).response()

    return Route(path, respond, methods=[method], name=endpoint.__name__)


async def _answer(api: API, request: Request, endpoint: Endpoint) -> Response:
    if not api.client.is_open:
        raise ClosedError(
            f"the {type(api.client).__name__} of the HTTP API is not open: open it in the lifespan of the application "
            "that the HTTP API is mounted into"
        )
    try:
        storage_of(api.client)
    except EngineError as error:  # it was opened on another event loop, or in another process
        raise Problem(503, str(error), code=error.code) from None
    with current.using(api.client):
        return await endpoint(api, request)


def answer(document: object, status: int = 200, **headers: str) -> Response:
    """Return a JSON response."""
    return Response(msgspec.json.encode(document), status, headers or None, "application/json")


def path_of(request: Request, name: str) -> str:
    """Return a parameter of the path, such as a run id, which may contain an encoded slash."""
    return unquote(request.path_params[name])


def run_id_of(request: Request) -> str:
    """Return the run id in the path; raise `RunNotFoundError` if it is one that no run can have."""
    id = path_of(request, "id")
    try:
        return limits.name(id, "run id")
    except LimitError:
        raise not_found(id) from None


def exact(scope: Scope) -> Scope:
    """Return a scope whose path has encoded slashes kept apart from others, for `path_of` to decode.

    A server decodes the path, so the id `a/b` of a child could not be told from two parts of a path. The raw path says
    which slashes were encoded. An application that this one is mounted into may have removed its prefix from the path
    and added a slash, as Litestar does, or has named the prefix as the root path, as Starlette does.
    """
    path, raw = str(scope["path"]), scope.get("raw_path") or b""
    text = raw.partition(b"?")[0].decode("latin-1")
    start = _start_of(path.rstrip("/"), text)
    if start is None:
        return {**scope, "path": path.replace("%", "%25")}
    whole = unquote(text.replace("%25", "%2525").replace("%2F", "%252F").replace("%2f", "%252F"))
    return {**scope, "path": whole, "root_path": unquote(text[:start]) if start else scope.get("root_path", "")}


def _start_of(path: str, raw: str) -> int | None:
    """Return where a decoded path begins in a raw one, which may have more slashes at its end; None if it does not.

    The number of slashes says where to look: anyone may send a path with thousands of them.
    """
    slashes, end = [found.span() for found in _SLASH.finditer(raw)], len(raw)
    while slashes and slashes[-1][1] == end:
        end = slashes.pop()[0]
    count = path.count("/")
    if count > len(slashes):
        return None
    start = slashes[-count][0] if count else end
    return start if raw[start : start + 1] == "/" and unquote(raw[start:end]) == path else None
