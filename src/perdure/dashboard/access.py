"""Who may see the dashboard, and who may act: a token, a function of the user, or only browsers on this machine.

A browser cannot send a header by itself, so a person enters the token once, and a cookie keeps what is derived from it.
Every action needs three things that a page of another site cannot have: the header `Sec-Fetch-Site: same-origin`, a
cookie that browsers do not send with forms of other sites, and the value of that cookie in the form. Links of other
sites send the cookies (`SameSite=Lax`), so that a link in a chat leads a person with a session to its page.
"""

import hashlib
import hmac
import inspect
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Literal, get_args

from starlette.requests import Request

from perdure.errors import ConfigurationError
from perdure.http.auth import FORWARDED, checked_token, has_bearer, is_loopback
from perdure.http.problems import Problem, asked_path

log = logging.getLogger("perdure.dashboard")

Action = Literal["cancel", "retry", "delete", "send", "requeue", "views"]
"""What a person can do in the dashboard, besides looking."""

ACTIONS: frozenset[str] = frozenset(get_args(Action))
Grant = Literal["all", "read"] | Collection[Action] | None
"""What a request may do: everything, only look, look and take these actions, or nothing (None)."""

Access = Callable[[Request], Grant | Awaitable[Grant]]
"""A function of `dashboard_app(access=)`, async or not, that decides what a request may do."""

SESSION, CSRF = "perdure_session", "perdure_csrf"
SESSION_SEC = 12 * 3600.0


class Doors:
    """Decides what a request may do."""

    def __init__(self, token: str | None, access: Access | None) -> None:
        if token is not None and access is not None:
            raise ConfigurationError("dashboard_app() takes token= or access=, not both: a function can check tokens")
        if access is not None and not callable(access):
            raise ConfigurationError(
                'dashboard_app(access=) must be a function that takes the request and returns "all", "read", a set of '
                "actions, or None"
            )
        self._token = None if token is None else checked_token(token, "dashboard_app(token=)")
        self._access = access

    @property
    def is_open(self) -> bool:
        """Return whether there is neither a token nor a function, so that only local requests are accepted."""
        return self._token is None and self._access is None

    @property
    def has_token(self) -> bool:
        """Return whether people have to enter a token."""
        return self._token is not None

    async def allowed(self, request: Request) -> frozenset[str]:
        """Return the actions that a request may take; raise `Problem` if it may not even read."""
        if self._token is not None:
            if not (self._has_session(request) or has_bearer(request, self._token)):
                raise Problem(401, "enter the token of the dashboard", headers={"WWW-Authenticate": "Bearer"})
            return ACTIONS
        if self._access is not None:
            return await _ask(self._access, request)
        if (reason := not_local(request)) is not None:
            path = asked_path(request)
            log.warning(
                "%s %s was refused, because the dashboard has no token and %s",
                request.method,
                path,
                reason,
                extra={"method": request.method, "path": path, "reason": reason},
            )
            raise Problem(
                403,
                f"without a token the dashboard serves only browsers on the same machine, and {reason}: set "
                "dashboard_app(token=) or dashboard_app(access=) on the server",
            )
        return ACTIONS

    def session_for(self, token: str) -> str | None:
        """Return the value of the cookie for a person who entered this token; None if it is wrong."""
        expected = self._token or b""
        if not expected or not hmac.compare_digest(token.strip().encode("utf-8", "surrogateescape"), expected):
            return None
        until = str(int(time.time() + SESSION_SEC))
        return f"{until}.{self._seal(until)}"

    def _seal(self, until: str) -> str:
        return hmac.new(self._token or b"", f"perdure dashboard {until}".encode(), hashlib.sha256).hexdigest()

    def _has_session(self, request: Request) -> bool:
        until, _, seal = request.cookies.get(SESSION, "").partition(".")
        fresh = until.isascii() and until.isdigit() and len(until) < 12 and int(until) > time.time()
        return fresh and hmac.compare_digest(seal.encode("utf-8", "surrogateescape"), self._seal(until).encode())


async def _ask(access: Access, request: Request) -> frozenset[str]:
    answer: Any = access(request)
    if inspect.isawaitable(answer):
        answer = await answer
    if answer is None:
        raise Problem(403, "you are not allowed to see the dashboard")
    if answer == "all":
        return ACTIONS
    if answer == "read":
        return frozenset()
    if isinstance(answer, str) or not isinstance(answer, Collection) or not set(answer) <= ACTIONS:
        known = ", ".join(sorted(ACTIONS))
        raise ConfigurationError(
            f'dashboard_app(access=) returned {answer!r}: return "all", "read", None, or a set of {known}'
        )
    return frozenset(answer)


def not_local(request: Request) -> str | None:
    """Return why a request may come from another machine or for a page of another site; None if it is local."""
    for end in ("client", "server"):
        address = request.scope.get(end)
        if not address or not is_loopback(str(address[0])):
            return (
                f"the {end} address of the connection is {address[0] if address else 'unknown'}, not a loopback address"
            )
    if not is_loopback(request.url.hostname or ""):  # a name of another site that points to this machine
        return "the header Host names another machine"
    for name in FORWARDED:
        if name in request.headers:
            return f"a proxy forwarded the request (header {name})"
    site = request.headers.get("sec-fetch-site", "none")
    if site not in ("none", "same-origin") and request.headers.get("sec-fetch-mode") != "navigate":
        return "a page of another site sent it"
    return None


def csrf_of(request: Request) -> str:
    """Return the value that forms of this browser need; a new one if it has none."""
    known = request.cookies.get(CSRF, "")
    return known if len(known) == 43 and known.isascii() else secrets.token_urlsafe(32)


def check_csrf(request: Request, given: str) -> None:
    """Raise `Problem` unless a form was sent by a page of the dashboard, in this browser."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        raise Problem(403, "actions must be sent by a page of the dashboard, and this request comes from elsewhere")
    origin = request.headers.get("origin")
    if site is None and origin is not None and origin != f"{request.url.scheme}://{request.url.netloc}":
        raise Problem(403, "actions must be sent by a page of the dashboard, and this request comes from elsewhere")
    cookie = request.cookies.get(CSRF, "")
    if not cookie or not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), cookie.encode()):
        raise Problem(403, "the form is out of date: load the page again, then repeat the action")
