"""The HTTP API inside other ASGI applications, whose lifespan opens the app."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import django
import httpx
import pytest
import uvicorn
from django.conf import settings as django_settings
from django.core.asgi import get_asgi_application
from django.http import HttpResponse
from django.urls import path
from fastapi import FastAPI
from litestar import Litestar, get
from litestar.handlers import asgi as litestar_asgi
from starlette.applications import Starlette
from starlette.routing import Mount

from perdure import App
from perdure.http import http_app
from perdure.http.server import listen
from tests.engine.waiting import until
from tests.http.workflows import waiter

TOKEN = "a-token-of-many-characters"


def in_fastapi(app: App) -> Any:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with app:
            yield

    api = FastAPI(lifespan=lifespan)

    @api.get("/hello")
    async def hello() -> str:
        return "hello"

    api.mount("/perdure", http_app(app, token=TOKEN))
    return api


def in_starlette(app: App) -> Any:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with app:
            yield

    return Starlette(lifespan=lifespan, routes=[Mount("/perdure", http_app(app, token=TOKEN))])


def in_litestar(app: App) -> Any:
    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        async with app:
            yield

    @get("/hello", sync_to_thread=False)
    def hello() -> str:
        return "hello"

    mounted = litestar_asgi("/perdure", is_mount=True, copy_scope=True)(http_app(app, token=TOKEN))
    return Litestar([hello, mounted], lifespan=[lifespan], logging_config=None)


def hello(request: Any) -> HttpResponse:
    return HttpResponse("hello")


urlpatterns = [path("hello", hello)]


def in_django(app: App) -> Any:
    """Django has no lifespan and mounts nothing: a Starlette application with both in it does."""
    if not django_settings.configured:
        django_settings.configure(ROOT_URLCONF=__name__, SECRET_KEY="x", ALLOWED_HOSTS=["*"], DEBUG=False)
        django.setup()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with app:
            yield

    routes = [Mount("/perdure", http_app(app, token=TOKEN)), Mount("/", get_asgi_application())]
    return Starlette(lifespan=lifespan, routes=routes)


@asynccontextmanager
async def served(application: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Yield an HTTP client of an application on a real server."""
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(application, log_config=None))
    running = asyncio.create_task(server._serve([listener]))
    await until(lambda: server.started)
    try:
        async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as http:
            yield http
    finally:
        server.should_exit = True
        await running


@pytest.mark.parametrize("mount", [in_fastapi, in_starlette, in_litestar, in_django])
async def test_mounted_api_uses_the_app_that_the_host_opened(mount: Any, tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/http.db")
    async with served(mount(app)) as http:
        if mount is not in_starlette:
            assert "hello" in (await http.get("/hello")).text
        started = await http.post("/perdure/v1/workflows/http.waiter/runs", json={"id": "a/b"})
        assert started.headers["location"] == "/perdure/v1/runs/a%2Fb"
        assert (await http.get(started.headers["location"])).json()["id"] == "a/b"
        asking = asyncio.create_task(http.get("/perdure/v1/runs/a%2Fb/result?wait=30"))
        await http.post("/perdure/v1/events", json={"type": "http.go", "data": 1, "to": "a/b"})
        assert (await asking).json()["result"][0] == 1
        stream = await http.get("/perdure/v1/runs/a%2Fb/result", headers={"Accept": "text/event-stream"})
        assert stream.text.startswith("event: completed")
        missing = await http.get("/perdure/v1/nothing")
        assert "see /perdure/v1/openapi.json" in missing.json()["detail"]
        assert (missing.status_code, missing.json()["code"]) == (404, "http.not_found")
        assert (await http.get("/perdure/v1/runs", headers={"Authorization": ""})).status_code == 401
        description = (await http.get("/perdure/v1/openapi.json")).json()
        assert description["servers"] == [{"url": "/perdure"}]
        assert f"/v1/workflows/{waiter.name}/runs" in description["paths"]
        assert (await http.get("/perdure/readyz")).json()["ok"] is True
    assert not app.is_open


@pytest.mark.parametrize("mount", [in_starlette, in_litestar])
@pytest.mark.parametrize("path", ["//%41" * 9000, "/" * 20_000 + "%41" * 10_000, "/%2F" * 9000 + "/"])
async def test_path_with_thousands_of_slashes_does_not_keep_the_server_busy(
    mount: Any, path: str, tmp_path: Path
) -> None:
    async with served(mount(App(f"sqlite:///{tmp_path}/http.db"))) as http:
        began = time.process_time()
        assert (await http.get(f"/perdure{path}", headers={"Authorization": ""})).status_code == 404
        assert time.process_time() - began < 5
