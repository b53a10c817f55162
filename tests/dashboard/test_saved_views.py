"""Saved views: searches with unique names, for all people, with the rights and the protection of other actions."""

import re
from typing import Any

import httpx
from starlette.requests import Request

from perdure import App
from perdure.storage import saved_views
from tests.dashboard.conftest import connected, post


async def names(http: httpx.AsyncClient) -> list[str]:
    return [each["name"] for each in (await http.get("/runs.json")).json()["views"]]


async def test_view_is_saved_listed_and_deleted(everywhere: App) -> None:
    async with connected(everywhere) as http:
        query = 'workflow:shop.order input.order_id:"A 1"'
        saved = await post(http, "/views", name="order A 1", q=query)
        assert saved.status_code == 303
        page = (await http.get(saved.headers["location"])).text
        assert "The view is saved." in page
        (link,) = re.findall(r'<a class="chip on" href="(/runs\?q=workflow[^"]+)"', page)
        assert (await http.get(f"{link.replace('/runs?', '/runs.json?')}")).json()["q"] == query
        assert (await post(http, "/views", name="order A 1", q="state:failed")).status_code == 409
        assert (await post(http, "/views/delete", name="order A 1")).status_code == 303
        assert (await post(http, "/views/delete", name="order A 1")).status_code == 404
        assert await names(http) == []


async def test_invalid_views_are_refused(app: App, http: httpx.AsyncClient, monkeypatch: Any) -> None:
    for name, query in (
        ("", "state:failed"),
        ("x", ""),
        ("x", "colour:red"),
        ("x" * 101, "state:failed"),
        ("x\ny", "a"),
    ):
        assert (await post(http, "/views", name=name, q=query)).status_code == 422, name
    monkeypatch.setattr(saved_views, "VIEWS_MAX", 1)
    assert (await post(http, "/views", name="one", q="state:failed")).status_code == 303
    assert (await post(http, "/views", name="two", q="state:failed")).status_code == 422
    assert await names(http) == ["one"]


async def test_views_need_a_right_and_a_form_of_the_dashboard(app: App) -> None:
    def access(request: Request) -> Any:
        return {"reader": "read", "keeper": {"views"}}[request.headers["x-user"]]

    async with connected(app, access=access) as http:
        http.headers["x-user"] = "keeper"
        assert (await post(http, "/views", name="mine", q="state:failed", csrf="x" * 43)).status_code == 403
        assert (await post(http, "/views", name="mine", q="state:failed")).status_code == 303
        assert "/views/delete" in (await http.get("/runs")).text
        http.headers["x-user"] = "reader"
        page = (await http.get("/runs")).text
        assert "mine" in page
        assert "/views" not in page
        assert (await post(http, "/views/delete", name="mine")).status_code == 403
        assert (await post(http, "/views", name="other", q="state:failed")).status_code == 403
        assert await names(http) == ["mine"]
