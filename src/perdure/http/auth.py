"""Who may use the API: requests with a token, requests that a function of the user accepts, or local ones.

Without a token or a function, only a program on the same machine may use the API. An ASGI application does not know to
which address its server is bound, so each request is examined: both ends of the connection must be loopback addresses,
a proxy must not have forwarded it, and it must not come from a web page, which a browser on this machine may show.
"""

import hmac
import inspect
import ipaddress
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request

from perdure.database.secret import SecretBytes
from perdure.errors import ConfigurationError
from perdure.http.problems import Problem, asked_path

log = logging.getLogger("perdure.http")

TOKEN_MIN = 16  # characters

FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")

Authenticate = Callable[[Request], object | Awaitable[object]]
"""A function of `http_app(auth=)`, async or not: it returns who sent a request, or a false value to refuse it."""


class Guard:
    """Decides which requests may use the API."""

    def __init__(self, token: str | None, authenticate: Authenticate | None) -> None:
        if token is not None and authenticate is not None:
            raise ConfigurationError("http_app() takes token= or auth=, not both: a function can check tokens as well")
        if authenticate is not None and not callable(authenticate):
            raise ConfigurationError(
                "http_app(auth=) must be a function that takes the request and returns who sent it"
            )
        self._token = None if token is None else checked_token(token, "http_app(token=)")
        self._authenticate = authenticate

    @property
    def is_open(self) -> bool:
        """Return whether requests need no authentication, so that only local ones are accepted."""
        return self._token is None and self._authenticate is None

    @property
    def has_token(self) -> bool:
        """Return whether requests need a token."""
        return self._token is not None

    async def check(self, request: Request) -> object:
        """Return who sent the request; raise `Problem` if the request may not use the API."""
        if self._token is not None:
            self._check_token(request)
            return True
        if self._authenticate is not None:
            return await self._ask(self._authenticate, request)
        if (reason := not_local(request)) is not None:
            path = asked_path(request)
            log.warning(
                "%s %s was refused, because the HTTP API has no token and %s",
                request.method,
                path,
                reason,
                extra={"method": request.method, "path": path, "reason": reason},
            )
            raise Problem(
                403,
                f"without a token the API serves only programs on the same machine, and {reason}: set http_app(token=) "
                "or http_app(auth=) on the server",
            )
        return True

    def _check_token(self, request: Request) -> None:
        if not has_bearer(request, self._token or b""):
            raise Problem(
                401,
                "the request has no valid token: send the header `Authorization: Bearer <token>`",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _ask(self, authenticate: Authenticate, request: Request) -> object:
        answer: Any = authenticate(request)
        if inspect.isawaitable(answer):
            answer = await answer
        if not answer:
            raise Problem(403, "the request is not allowed: the server does not accept its sender")
        return answer


def has_bearer(request: Request, token: bytes) -> bool:
    """Return whether a request has the header `Authorization: Bearer <token>`; compared in constant time."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    right = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), token)
    return scheme.lower() == "bearer" and right


def checked_token(token: object, setting: str) -> SecretBytes:
    """Return the token of a setting; raise `ConfigurationError` if it is too weak or cannot be sent in a header."""
    if not isinstance(token, str) or len(token) < TOKEN_MIN or not token.isascii() or not token.isprintable():
        raise ConfigurationError(
            f"{setting} must have at least {TOKEN_MIN} printable ASCII characters: make one with "
            "secrets.token_urlsafe(), and keep it out of the code"
        )
    if token != token.strip():
        raise ConfigurationError(f"{setting} has outer white space: remove it")
    return SecretBytes(token.encode())


def not_local(request: Request) -> str | None:
    """Return why a request may come from another machine or from a web page; None if it comes from a local program."""
    for end in ("client", "server"):
        address = request.scope.get(end)
        if not address or not is_loopback(str(address[0])):
            return (
                f"the {end} address of the connection is {address[0] if address else 'unknown'}, not a loopback address"
            )
    if not is_loopback(_host_of(request.headers.get("host", ""))):
        return "the header Host names another machine"
    for name in FORWARDED:
        if name in request.headers:
            return f"a proxy forwarded the request (header {name})"
    if "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none":
        return "it comes from a web page"
    return None


def is_loopback(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback address."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(header: str) -> str:
    """Return the host in a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if ":" in header else header
