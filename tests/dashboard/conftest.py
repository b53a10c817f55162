"""Fixtures of the dashboard's tests: an app in memory or on each database, and a client that sends requests to it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from perdure import App, Client
from perdure.dashboard import dashboard_app
from tests.conftest import BackendDatabase
from tests.dashboard import shop
from tests.support.databases import DATABASES

LOCAL = "http://127.0.0.1"


@asynccontextmanager
async def connected(client: Client, base_url: str = LOCAL, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Yield an HTTP client that asks for pages as a browser does."""
    dashboard = dashboard_app(client, **settings)
    transport = httpx.ASGITransport(dashboard)
    async with httpx.AsyncClient(
        transport=transport, base_url=base_url, timeout=60, headers={"Accept": "text/html"}
    ) as http:
        try:
            yield http
        finally:
            await dashboard.close()


@pytest.fixture
async def app(backend_database: BackendDatabase) -> AsyncIterator[App]:
    """An open app in memory."""
    async with backend_database("memory") as database, App(database.url) as app:
        yield app


@pytest.fixture(params=DATABASES)
async def everywhere(request: pytest.FixtureRequest, backend_database: BackendDatabase) -> AsyncIterator[App]:
    """An open app on each database in turn."""
    async with backend_database(request.param) as database, App(database.url) as app:
        yield app


@pytest.fixture
async def http(app: App) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of the app in memory."""
    async with connected(app) as http:
        yield http


@pytest.fixture(autouse=True)
def _fresh_shop() -> Iterator[None]:
    """No order is broken, and deliveries wait."""
    shop.broken.clear()
    shop.gate.clear()
    yield
    shop.broken.clear()


async def post(http: httpx.AsyncClient, path: str, **form: str) -> httpx.Response:
    """Send a form as a page of the dashboard would: with the token of its cookie."""
    await http.get("/workers")
    form.setdefault("csrf", http.cookies.get("perdure_csrf") or "")
    return await http.post(path, data=form, headers={"Sec-Fetch-Site": "same-origin"})
