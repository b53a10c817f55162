"""The HTTP API on a real server: streams, long polls, disconnects, chunked bodies, and how the server stops."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from perdure import App
from perdure.errors import ConfigurationError, DatabaseUnavailableError
from perdure.http import http_app, serve
from perdure.http.server import Server, listen
from tests.engine.waiting import until, waiting
from tests.http.workflows import order, waiter

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def served(app: App, **settings: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Server]]:
    """Yield an HTTP client of a server in this process, and the server."""
    server = Server(http_app(app, **settings), listen("127.0.0.1", 0))
    url = server.url
    running = asyncio.create_task(server.run(app))
    try:
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            yield http, server
    finally:
        server.stop()
        async with asyncio.timeout(30):
            await running


async def events_of(response: httpx.Response) -> list[tuple[str, Any]]:
    """Return the server-sent events of a response, with their data."""
    found, name = [], ""
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            found.append((name, json.loads(line.removeprefix("data: "))))
    return found


async def test_run_is_started_and_awaited(app: App) -> None:
    async with served(app) as (http, _):
        body = {"id": "A-1", "input": {"id": "A-1", "lines": [{"sku": "x", "price": "2.50"}]}}
        await http.post(f"/v1/workflows/{order.name}/runs", json=body)
        assert (await http.get("/v1/runs/A-1/result?wait=30")).json()["result"] == "2.50"
        assert "server" not in (await http.get("/healthz")).headers


async def test_result_is_streamed(app: App) -> None:
    run = await waiter.start()
    await waiting(app, run.id)
    async with served(app) as (http, _):
        accept = {"Accept": "text/event-stream"}
        async with http.stream("GET", f"/v1/runs/{run.id}/result", headers=accept) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            await until(lambda: run.id in app._results._waiting)
            await app.send_event("http.go", 1)
            (first, status), (last, end) = await events_of(response)
        assert (first, status["status"]) == ("status", "waiting_for_message")
        assert (last, end["result"][0]) == ("completed", 1)
        assert (await http.get("/v1/runs/nobody/result", headers=accept)).status_code == 404
        ended = await http.get(f"/v1/runs/{run.id}/result", headers=accept)
        assert ended.text.startswith("event: completed\ndata: {")


async def end_of_stream(app: App, error: Exception) -> tuple[str, Any]:
    """Stream the result of a run, for which waiting then fails; return the last event and its data."""
    run = await waiter.start()
    await waiting(app, run.id)
    async with served(app) as (http, _):
        accept = {"Accept": "text/event-stream"}
        async with http.stream("GET", f"/v1/runs/{run.id}/result", headers=accept) as response:
            await until(lambda: run.id in app._results._waiting)
            for future in app._results._waiting[run.id]:
                future.set_exception(error)
            (_, last) = await events_of(response)
    return last


async def test_error_in_a_stream_is_an_event(app: App) -> None:
    last, problem = await end_of_stream(app, DatabaseUnavailableError("gone"))
    assert (last, problem["code"]) == ("error", "storage.unavailable")


async def test_unexpected_error_in_a_stream_is_an_event_and_logged(app: App, caplog: pytest.LogCaptureFixture) -> None:
    last, problem = await end_of_stream(app, ZeroDivisionError("secret"))
    assert (last, problem["code"]) == ("error", "http.internal")
    assert "secret" not in problem["detail"]
    assert "ZeroDivisionError: secret" in caplog.text


async def test_stream_ends_after_its_time(app: App) -> None:
    run = await waiter.start()
    await waiting(app, run.id)
    async with served(app, max_wait=0.1) as (http, _):
        answer = await http.get(f"/v1/runs/{run.id}/result", headers={"Accept": "text/event-stream"})
        assert answer.text.startswith("event: status\n")
        assert "event: completed" not in answer.text


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_client_that_leaves_ends_its_wait(app: App, accept: str) -> None:
    run = await waiter.start()
    await waiting(app, run.id)
    async with served(app) as (http, _):
        asking = asyncio.create_task(http.get(f"/v1/runs/{run.id}/result?wait=60", headers={"Accept": accept}))
        await until(lambda: run.id in app._results._waiting)
        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: run.id not in app._results._waiting)


async def test_stream_ends_on_a_server_that_drops_what_is_sent_to_a_client_that_left(app: App) -> None:
    run = await waiter.start()
    await waiting(app, run.id)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET",
        "path": f"/v1/runs/{run.id}/result",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"accept", b"text/event-stream")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        await until(lambda: run.id in app._results._waiting)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(30):
        await http_app(app)(scope, receive, send)
    assert [message.get("body", b"")[:13] for message in sent] == [b"", b"event: status", b""]


async def test_chunked_body_over_the_limit_is_refused(app: App) -> None:
    async with served(app, max_body=10_000) as (http, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", http.base_url.port)
        writer.write(b"POST /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(11):  # no end: the answer comes before it
            writer.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        await writer.drain()
        async with asyncio.timeout(30):
            assert (await reader.readline()).split()[1] == b"413"
            await reader.read()  # the server closes the connection
        writer.close()
        assert (await http.get("/healthz")).status_code == 200


async def test_client_that_leaves_in_the_middle_of_its_body_harms_nothing(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(app) as (http, _):
        _, writer = await asyncio.open_connection("127.0.0.1", http.base_url.port)
        writer.write(b"POST /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await http.get("/healthz")).status_code == 200
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_server_stops_while_requests_wait(app: App, accept: str) -> None:
    run = await waiter.start()
    await waiting(app, run.id)
    async with served(app) as (http, server):
        path = f"/v1/runs/{run.id}/result?wait=60"
        asking = [asyncio.create_task(http.get(path, headers={"Accept": accept})) for _ in range(3)]
        await until(lambda: len(app._results._waiting.get(run.id, [])) == 3)
        server.stop()
        async with asyncio.timeout(30):
            answers = await asyncio.gather(*asking)
        assert {answer.status_code for answer in answers} == {202 if accept == "application/json" else 200}


async def test_another_uvicorn_stops_after_the_longest_wait(app: App) -> None:
    run = await waiter.start()
    await waiting(app, run.id)
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(http_app(app, max_wait=0.3), log_config=None))
    running = asyncio.create_task(server._serve([listener]))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        accept = {"Accept": "text/event-stream"}
        asking = asyncio.create_task(http.get(f"/v1/runs/{run.id}/result", headers=accept))
        await until(lambda: run.id in app._results._waiting)
        server.should_exit = True
        async with asyncio.timeout(30):
            await running
            assert (await asking).status_code == 200
    assert app.is_open  # its lifespan did not open the app, so it does not close it


async def test_lifespan_opens_and_closes_the_app(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/http.db")
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(http_app(app), log_config=None))
    running = asyncio.create_task(server._serve([listener]))
    await until(lambda: server.started)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        assert (await http.get("/readyz")).json()["ok"] is True
    server.should_exit = True
    await running
    assert not app.is_open


def test_address_in_use_is_refused() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(ConfigurationError, match="choose another address"):
        listen("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("port", [-1, 65536, 99999])
def test_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(ConfigurationError, match="from 0 to 65535"):
        listen("127.0.0.1", port).close()


def test_responses_are_sent_without_delay() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # on which asyncio's use of TCP_NODELAY depends


async def test_failing_background_task_ends_the_server(app: App) -> None:
    server = Server(http_app(app), listen("127.0.0.1", 0))
    running = asyncio.create_task(server.run(app))
    app._supervisor._give_up("it keeps failing")
    with pytest.raises(Exception, match="it keeps failing"):
        await running


async def test_cancelled_server_closes_the_app(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/http.db")
    serving = asyncio.create_task(serve(app, port=_free_port()))
    await until(lambda: app.is_open)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert not app.is_open


PROGRAM = """
import asyncio, logging, sys
from perdure import App, wait_event, workflow
from perdure.http import serve

logging.basicConfig(level=logging.INFO)


@workflow
async def waiter() -> None:
    await wait_event("never")


asyncio.run(serve(App(sys.argv[1]), port=int(sys.argv[2])))
print("closed")
"""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_server_and_closes_the_app(tmp_path: Path, number: signal.Signals) -> None:
    port = _free_port()
    command = [sys.executable, "-W", "error", "-c", PROGRAM, f"sqlite:///{tmp_path}/http.db", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "the HTTP API listens on" in line:
                break
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            retried(http)
            run = http.post("/v1/workflows/waiter/runs").json()["id"]
            with http.stream("GET", f"/v1/runs/{run}/result", headers={"Accept": "text/event-stream"}) as stream:
                next(stream.iter_text())
                os.kill(process.pid, number)
                said, errors = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "closed\n"), errors
    assert "stopped" in errors


BUSY = """
import asyncio, logging, sys
from perdure import App, activity, workflow
from perdure.http import serve

logging.basicConfig(level=logging.INFO)


@activity
async def long() -> None:
    print("began", file=sys.stderr, flush=True)
    await asyncio.sleep(600)


@workflow
async def busy() -> None:
    await long()


asyncio.run(serve(App(sys.argv[1], drain_timeout=600), port=int(sys.argv[2])))
print("closed")
"""


def test_second_signal_ends_the_draining(tmp_path: Path) -> None:
    port = _free_port()
    command = [sys.executable, "-W", "error", "-c", BUSY, f"sqlite:///{tmp_path}/http.db", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stderr is not None
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            for line in process.stderr:
                if "the HTTP API listens on" in line:
                    retried(http)
                    http.post("/v1/workflows/busy/runs")
                elif line == "began\n":
                    process.send_signal(signal.SIGTERM)
                elif line.rstrip().endswith("stopped") and "the HTTP API" in line:
                    process.send_signal(signal.SIGTERM)
                    break
        said, errors = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "closed\n"), errors


def retried(http: httpx.Client) -> None:
    """Send a first request, until the server accepts connections."""
    for _ in range(500):
        try:
            assert http.get("/healthz").status_code == 200
            return
        except httpx.ConnectError:
            continue
    raise AssertionError("the server does not answer")
