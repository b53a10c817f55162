"""Limits and errors of requests, before any value of them is used."""

import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import httpx
import pytest

from perdure import App, Client
from perdure.error_pages import page_address
from perdure.errors import CommitUnknownError, DatabaseUnavailableError, PerdureError
from perdure.http import http_app, problems
from tests.http.conftest import LOCAL, connected
from tests.http.workflows import nothing

JSON = {"content-type": "application/json"}
START = f"/v1/workflows/{nothing.name}/runs"


async def test_long_bodies_are_refused_before_they_are_read(app: App) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b'{"id": "'
        while True:
            yield b"x" * 1000

    async with connected(app, max_body=10_000) as http:
        for content in (b" " * 10_001, endless()):
            answer = await http.post(START, content=content, headers=JSON)
            assert (answer.status_code, answer.json()["code"]) == (413, "http.too_large")
        assert (await http.post(START, content=b"{}" + b" " * 9_998, headers=JSON)).status_code == 202
        stated = await http.post(START, content=b"{}", headers={**JSON, "content-length": "10001"})
        assert stated.status_code == 413
        endless_number = await http.post(START, content=b"{}", headers={**JSON, "content-length": "9" * 5000})
        assert endless_number.status_code == 413
        unstated = await http.post(START, content=b"{}", headers={**JSON, "content-length": "-1"})
        assert unstated.status_code == 400


@pytest.mark.parametrize(
    ("status", "content", "headers"),
    [
        (400, b"{", JSON),
        (400, b"\xff{}", JSON),
        (400, b'{"input": {"a": \xff}}', JSON),
        (400, b"nan", JSON),
        (422, b"[]", JSON),
        (422, b"null", JSON),
        (415, b"{}", {"content-type": "text/plain"}),
        (415, b"{}", {"content-type": "application/x-www-form-urlencoded"}),
        (415, b"{}", {}),
        (415, b"{}", {**JSON, "content-encoding": "gzip"}),
        (202, b"{}", {"content-type": "Application/JSON; charset=utf-8"}),
        (202, b"{}", {"content-type": "application/vnd.x+json"}),
        (202, b"", {}),
    ],
)
async def test_malformed_bodies_are_refused(
    http: httpx.AsyncClient, status: int, content: bytes, headers: dict[str, str]
) -> None:
    answer = await http.post(START, content=content, headers=headers)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize("text", ["[" * 50_000, '{"a":' * 50_000, "[" * 101 + "]" * 101])
async def test_deep_bodies_are_refused(http: httpx.AsyncClient, text: str) -> None:
    for content in (text, '{"input": {"a": ' + text, '{"type": "x", "data": ' + text):
        for path in (START, "/v1/events"):
            answer = await http.post(path, content=content, headers=JSON)
            assert answer.status_code == 422, answer.text


async def test_brackets_in_texts_do_not_count_as_depth(http: httpx.AsyncClient) -> None:
    data = {"type": "x", "data": ['\\"[[[' * 1000, "]" * 5, "{" * 1000]}
    assert (await http.post("/v1/events", json=data)).status_code == 202
    nested = "[" * 90 + "]" * 90
    assert (
        await http.post("/v1/events", content=f'{{"type": "x", "data": {nested}}}', headers=JSON)
    ).status_code == 202


async def test_depth_of_a_long_body_is_found_quickly(app: App) -> None:
    async with connected(app, max_body=8_000_000) as http:
        began = time.process_time()
        for content in (b'"' * 4_000_000, b'"\\' * 2_000_000, b"[]" * 2_000_000):
            assert (await http.post("/v1/events", content=content, headers=JSON)).status_code in (400, 422)
        assert time.process_time() - began < 20


async def test_unknown_paths_and_methods_are_problems(http: httpx.AsyncClient) -> None:
    missing = await http.get("/v2/runs")
    assert (missing.status_code, missing.json()["code"]) == (404, "http.not_found")
    assert missing.headers["content-type"] == "application/problem+json"
    assert missing.json()["type"] == page_address("http.not_found")
    wrong = await http.put("/v1/runs")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "http.method_not_allowed")
    assert "GET" in wrong.headers["allow"]
    assert (await http.get("/v1/runs/")).status_code == 404
    assert "there is nothing at /v1/no%3Fthing%1B: " in (await http.get("/v1/no%3Fthing%1B")).json()["detail"]
    assert (await http.head("/v1/runs")).status_code == 200


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DatabaseUnavailableError("db.internal is gone"), 503),
        (CommitUnknownError("db.internal is lost"), 503),
        (TimeoutError("late"), 504),
    ],
)
async def test_unavailable_database_is_a_problem_to_be_retried(
    app: App, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    async def fail(self: Client, id: str) -> object:
        raise error

    monkeypatch.setattr(Client, "info", fail)
    async with connected(app) as http:
        answer = await http.get("/v1/runs/x")
    assert answer.status_code == status
    assert "db.internal" not in answer.text
    assert answer.headers.get("retry-after") == ("1" if status == 503 else None)


async def test_unexpected_error_is_logged_and_not_shown(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(self: Client, id: str) -> object:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(Client, "info", fail)
    async with connected(app) as http:
        answer = await http.get("/v1/runs/x")
    assert (answer.status_code, answer.json()["code"]) == (500, "http.internal")
    assert "secret" not in answer.text
    assert "GET /v1/runs/x failed with an unexpected error: ZeroDivisionError: secret" in caplog.text


async def test_client_that_is_not_open_is_a_problem() -> None:
    app = App("sqlite:///:memory:")
    transport = httpx.ASGITransport(http_app(app))
    async with httpx.AsyncClient(transport=transport, base_url=LOCAL) as http:
        answer = await http.get("/v1/runs")
        assert (answer.status_code, answer.json()["code"]) == (503, "engine.closed")
        assert "lifespan" in answer.json()["detail"]
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).status_code == 503
        async with app:
            assert (await http.get("/readyz")).json()["ok"] is True
            assert (await http.get("/v1/runs")).status_code == 200
        assert (await http.get("/v1/runs")).status_code == 503


async def test_unready_app_fails_its_probe(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> list[str]:
        raise DatabaseUnavailableError("gone")

    monkeypatch.setattr(app._opened, "pending_migrations", fail)
    async with connected(app, "http://10.0.0.1") as http:
        answer = await http.get("/readyz")
        assert (answer.status_code, answer.json()["database"]) == (503, False)


def _subclasses(kind: type[PerdureError]) -> list[type[PerdureError]]:
    return [each for found in kind.__subclasses__() for each in (found, *_subclasses(found))]


def test_every_error_has_a_status() -> None:
    for kind in _subclasses(PerdureError):
        error = Exception.__new__(kind)
        assert 400 <= problems.problem_of(error).status < 600
        assert json.loads(bytes(problems.problem_of(error).response().body))["code"] == kind.code


@pytest.mark.parametrize("missing", ["starlette", "cloudevents"])
def test_missing_package_is_named_with_the_extra(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; import perdure; import perdure.http"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f'ImportError: perdure.http needs the package {missing}: pip install "perdure[http]"' in done.stderr


def test_missing_server_is_named_with_the_extra() -> None:
    program = "import sys; sys.modules['uvicorn'] = None; import asyncio, perdure, perdure.http\n"
    program += "asyncio.run(perdure.http.serve(perdure.App('sqlite:///:memory:'), port=0))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert 'ImportError: serve() needs the package uvicorn: pip install "perdure[http]"' in done.stderr


def test_core_does_not_import_the_http_api() -> None:
    program = (
        "import sys, perdure; print([name for name in ('starlette', 'uvicorn', 'cloudevents') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
