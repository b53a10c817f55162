"""Fixtures of the HTTP API's tests: an app on each database, and a client that sends requests to it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import pytest

from perdure import App, Client
from perdure.http import http_app
from tests.conftest import BackendDatabase
from tests.support.databases import DATABASES
from tests.support.storages import Database

LOCAL = "http://127.0.0.1"

Connect = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture(params=DATABASES)
async def database(request: pytest.FixtureRequest, backend_database: BackendDatabase) -> AsyncIterator[Database]:
    """An empty database, of each kind in turn: what is stored is tested on all of them."""
    async with backend_database(request.param) as database:
        yield database


@pytest.fixture
async def everywhere(database: Database) -> AsyncIterator[App]:
    """An open app on each database in turn."""
    async with App(database.url) as app:
        yield app


@pytest.fixture
async def app(backend_database: BackendDatabase) -> AsyncIterator[App]:
    """An open app in memory, for what does not depend on the database."""
    async with backend_database("memory") as database, App(database.url) as app:
        yield app


@asynccontextmanager
async def connected(client: Client, base_url: str = LOCAL, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Yield an HTTP client that calls the API in this process."""
    transport = httpx.ASGITransport(http_app(client, **settings))
    async with httpx.AsyncClient(transport=transport, base_url=base_url, timeout=60) as http:
        yield http


@pytest.fixture
async def http(app: App) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of the app in memory."""
    async with connected(app) as http:
        yield http
