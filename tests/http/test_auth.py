"""Who may use the HTTP API, and on which addresses it may be served."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from perdure import App
from perdure.errors import ConfigurationError
from perdure.http import http_app, serve
from tests.http.conftest import LOCAL, connected

TOKEN = "a-token-of-many-characters"


def with_addresses(asgi: Any, client: Any, server: Any) -> Any:
    """Return an ASGI application whose requests arrive on a connection between these addresses."""

    async def called(scope: Any, receive: Any, send: Any) -> None:
        await asgi({**scope, "client": client, "server": server}, receive, send)

    return called


async def answered(asgi: Any, host: str = "127.0.0.1", **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(asgi), base_url=f"http://{host}") as http:
        return await http.get("/v1/runs", headers={key.replace("_", "-"): value for key, value in headers.items()})


LOOPBACK = ("127.0.0.1", 1)


@pytest.mark.parametrize(
    ("client", "server", "host", "headers"),
    [
        (("10.0.0.5", 1), LOOPBACK, "127.0.0.1", {}),
        (LOOPBACK, ("10.0.0.1", 80), "127.0.0.1", {}),
        (LOOPBACK, ("0.0.0.0", 80), "127.0.0.1", {}),
        (None, LOOPBACK, "127.0.0.1", {}),
        (LOOPBACK, None, "127.0.0.1", {}),
        (None, ("/run/app.sock", None), "127.0.0.1", {}),
        (LOOPBACK, LOOPBACK, "evil.example", {}),
        (LOOPBACK, LOOPBACK, "127.0.0.1", {"X_Forwarded_For": "127.0.0.1"}),
        (LOOPBACK, LOOPBACK, "127.0.0.1", {"Forwarded": "for=127.0.0.1"}),
        (LOOPBACK, LOOPBACK, "127.0.0.1", {"Origin": "https://evil.example"}),
        (LOOPBACK, LOOPBACK, "127.0.0.1", {"Sec_Fetch_Site": "cross-site"}),
    ],
)
async def test_request_that_may_not_be_local_is_refused_without_a_token(
    app: App, client: Any, server: Any, host: str, headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    asgi = with_addresses(http_app(app), client, server)
    with caplog.at_level(logging.WARNING, "perdure.http"):
        answer = await answered(asgi, host, **headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "http.forbidden")
    assert "http_app(token=)" in answer.json()["detail"]
    assert "GET /v1/runs was refused" in caplog.text


async def test_refused_request_cannot_write_into_the_log(app: App, caplog: pytest.LogCaptureFixture) -> None:
    async with connected(app, "http://evil.example") as http:
        for host in ("evil.example", "[", "a:b:c"):
            assert (await http.get("/v1/%1B[31m%0Aroot", headers={"Host": host})).status_code == 404
            assert (await http.get("/v1/runs/%1B[31m%0Aroot", headers={"Host": host})).status_code == 403
    assert "GET /v1/runs/%1B[31m%0Aroot was refused" in caplog.text.replace("%5B", "[")
    assert "\x1b" not in caplog.text


@pytest.mark.parametrize(
    ("address", "host"), [("127.0.0.1", "127.0.0.1:8000"), ("127.0.0.1", "localhost"), ("::1", "[::1]:8000")]
)
async def test_local_request_needs_no_token(app: App, address: str, host: str) -> None:
    answer = await answered(with_addresses(http_app(app), (address, 1), (address, 2)), host)
    assert answer.status_code == 200


async def test_token_is_needed_if_there_is_one(app: App) -> None:
    asgi = with_addresses(http_app(app, token=TOKEN), ("10.0.0.5", 1), ("10.0.0.1", 80))
    assert (await answered(asgi, "api.example", Authorization=f"Bearer {TOKEN}")).status_code == 200
    for wrong in ("", "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer \xe4"):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(asgi), base_url="http://x") as http:
            headers = {b"Authorization": wrong.encode("latin-1")} if wrong else {}
            answer = await http.get("/v1/runs", headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), wrong
        assert TOKEN not in answer.text
    async with connected(app, token=TOKEN) as http:
        assert (await http.get("/v1/openapi.json")).status_code == 401
        assert (await http.post("/v1/cloudevents")).status_code == 401
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).status_code == 200


async def test_body_of_a_refused_request_is_not_read(app: App) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b""
        raise AssertionError("the body was read")

    async with connected(app, token=TOKEN) as http:
        assert (await http.post("/v1/events", content=body())).status_code == 401


async def test_function_decides(app: App) -> None:
    seen: list[object] = []

    async def auth(request: Request) -> object:
        if "x-strange" in request.headers:
            raise HTTPException(418, "strange")
        user = request.headers.get("x-user")
        seen.append(user)
        return user

    async with connected(app, "http://example.org", auth=auth) as http:
        assert (await http.get("/v1/runs", headers={"X-User": "ann"})).status_code == 200
        assert (await http.get("/v1/runs")).status_code == 403
        strange = await http.get("/v1/runs", headers={"X-Strange": "1"})
        assert (strange.status_code, strange.json()["detail"]) == (418, "strange")
    assert seen == ["ann", None]
    async with connected(app, "http://example.org", auth=lambda request: True) as http:
        assert (await http.get("/v1/runs")).status_code == 200


async def test_error_of_the_function_is_logged_and_not_shown(app: App, caplog: pytest.LogCaptureFixture) -> None:
    def auth(request: Request) -> object:
        raise ZeroDivisionError("secret")

    async with connected(app, auth=auth) as http:
        answer = await http.get("/v1/runs")
    assert (answer.status_code, answer.json()["code"]) == (500, "http.internal")
    assert "secret" not in answer.text
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"token": ""}, "at least 16"),
        ({"token": "short"}, "at least 16"),
        ({"token": "ä" * 20}, "ASCII"),
        ({"token": f" {TOKEN}"}, "white space"),
        ({"token": TOKEN, "auth": lambda request: True}, "not both"),
        ({"auth": True}, "must be a function"),
        ({"webhook_keys": "secret"}, "whsec_"),
        ({"webhook_keys": ["whsec_c2hvcnQ="]}, "24 to 64"),
        ({"webhook_keys": None}, "a key or a list of keys"),
        ({"max_body": 0}, "max_body"),
        ({"max_body": True}, "max_body"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        http_app(App("sqlite:///:memory:"), **settings)
    assert TOKEN not in str(refused.value)


def test_only_an_app_or_client_can_be_served() -> None:
    with pytest.raises(TypeError, match="takes an App or a Client"):
        http_app("sqlite:///x.db")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_wait"):
        http_app(App("sqlite:///:memory:"), max_wait=0)


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "192.168.0.1", "example.org"])
async def test_server_refuses_other_addresses_without_a_token(host: str) -> None:
    with pytest.raises(ConfigurationError, match="pass token= or auth="):
        await serve(App("sqlite:///:memory:"), host=host)


async def test_responses_have_security_headers_and_allow_no_other_origins(app: App) -> None:
    async with connected(app, LOCAL) as http:
        for path in ("/v1/runs", "/v1/nothing", "/healthz"):
            answer = await http.get(path)
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
            assert answer.headers["cache-control"] == "no-store"
            assert not [name for name in answer.headers if name.startswith("access-control")]
        preflight = await http.options("/v1/runs", headers={"Origin": "https://evil.example"})
        assert preflight.status_code == 405
