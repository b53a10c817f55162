"""Who may see the dashboard: local browsers, people with the token, and whom a function accepts."""

from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from perdure import App
from perdure.dashboard import dashboard_app, serve_dashboard
from perdure.errors import ConfigurationError
from tests.dashboard import shop
from tests.dashboard.conftest import connected, post

TOKEN = "correct-horse-battery"


async def test_other_machines_need_a_token(app: App) -> None:
    transport = httpx.ASGITransport(dashboard_app(app), client=("10.0.0.7", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        assert (await http.get("/")).status_code == 403
    async with connected(app, "http://dashboard.example") as http:  # a name that points to this machine
        assert (await http.get("/")).status_code == 403
    async with connected(app) as http:
        assert (await http.get("/", headers={"Host": "rebound.example"})).status_code == 403
    with pytest.raises(ConfigurationError, match="no token"):
        await serve_dashboard(app, host="0.0.0.0")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X-Forwarded-For": "10.0.0.7"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
async def test_pages_of_other_sites_read_nothing(http: httpx.AsyncClient, headers: Any, status: int) -> None:
    assert (await http.get("/runs.json", headers=headers)).status_code == status


async def test_person_enters_the_token_once(app: App) -> None:
    async with connected(app, "https://perdure.example", token=TOKEN) as http:
        refused = await http.get("/runs?q=state:failed")
        assert (refused.status_code, refused.headers["location"]) == (303, "/login?next=%2Fruns%3Fq%3Dstate%3Afailed")
        assert (await http.get("/runs.json")).status_code == 401
        login = await http.get("/login")
        assert ".json" not in login.text
        csrf = login.cookies["perdure_csrf"]
        same = {"Sec-Fetch-Site": "same-origin"}
        wrong = await http.post("/login", data={"token": "x" * 20, "csrf": csrf}, headers=same)
        assert wrong.status_code == 403
        form = {"token": TOKEN, "csrf": csrf, "next": "//evil.example"}
        entered = await http.post("/login", data=form, headers=same)
        assert entered.headers["location"] == "/"
        cookie = entered.headers["set-cookie"]
        assert all(each in cookie for each in ("HttpOnly", "SameSite=lax", "Secure", "Max-Age=43200"))
        assert TOKEN not in cookie
        assert (await http.get("/")).status_code == 200
    async with connected(app, "https://perdure.example", token=TOKEN) as http:
        assert (await http.get("/runs.json", headers={"Authorization": f"Bearer {TOKEN}"})).status_code == 200
        http.cookies.set("perdure_session", "99999999999." + "0" * 64)  # forged
        assert (await http.get("/runs.json")).status_code == 401


async def test_access_function_decides_what_a_person_may_do(app: App) -> None:
    async def access(request: Request) -> Any:
        return {"reader": "read", "chief": "all", "helper": {"cancel"}}.get(request.headers.get("x-user", ""))

    await shop.approval.options(id="a-1").start("A-1")
    async with connected(app, access=access) as http:
        assert (await http.get("/")).status_code == 403
        http.headers["x-user"] = "reader"
        page = await http.get("/runs/a-1")
        assert page.status_code == 200
        assert "/cancel" not in page.text
        assert (await post(http, "/runs/a-1/cancel", reason="x")).status_code == 403
        http.headers["x-user"] = "helper"
        page = await http.get("/runs/a-1")
        assert "/cancel" in page.text
        assert "/send" not in page.text
        assert (await post(http, "/runs/a-1/send", reason="x", type="y")).status_code == 403
        assert (await post(http, "/runs/a-1/cancel", reason="x")).status_code == 303


async def test_unknown_answer_of_the_access_function_is_an_error(app: App) -> None:
    async with connected(app, access=lambda request: "everything") as http:
        response = await http.get("/")
    assert response.status_code == 500


async def test_dashboard_is_mounted_below_a_path(app: App) -> None:
    outer = Starlette(routes=[Mount("/ops", dashboard_app(app))])
    await shop.approval.options(id="a/1").start("A-1")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(outer), base_url="http://127.0.0.1", headers={"Accept": "text/html"}
    ) as http:
        page = await http.get("/ops/runs")
        assert 'href="/ops/runs/a%2F1"' in page.text
        run = await http.get("/ops/runs/a%2F1")
        assert run.status_code == 200
        assert 'action="/ops/runs/a%2F1/cancel"' in run.text
        assert 'href="/ops/runs/a%2F1.json"' in run.text
        assert (await http.get("/ops/runs/a%2F1.json")).json()["run"]["id"] == "a/1"
        form = {"csrf": http.cookies["perdure_csrf"], "reason": "test"}
        answer = await http.post("/ops/runs/a%2F1/cancel", data=form, headers={"Sec-Fetch-Site": "same-origin"})
        assert answer.headers["location"] == "/ops/runs/a%2F1?note=cancelled"


@pytest.mark.parametrize(
    "settings",
    [
        {"token": "short"},
        {"token": TOKEN, "access": lambda request: "all"},
        {"access": "all"},
        {"redact": "card"},
        {"audit": "log"},
    ],
)
def test_invalid_settings_are_refused(settings: Any) -> None:
    with pytest.raises(ConfigurationError):
        dashboard_app(App("sqlite:///:memory:"), **settings)
