"""Messages and events over HTTP."""

import httpx
import pytest

from perdure import App
from tests.engine.waiting import waiting
from tests.http.conftest import connected
from tests.http.workflows import listener, shipping, waiter


async def test_event_resumes_a_waiting_run(everywhere: App) -> None:
    async with connected(everywhere) as http:
        run = await waiter.start()
        await waiting(everywhere, run.id)
        body = {"type": "http.go", "data": {"n": 1}, "id": "1", "source": "shop", "subject": "s"}
        assert (await http.post("/v1/events", json=body)).json() == {"stored": 1}
        assert await run.result(30) == [{"n": 1}, "1", "shop", "s", None, {}]


async def test_event_reaches_one_run(http: httpx.AsyncClient, app: App) -> None:
    run = await waiter.start()
    assert (await http.post("/v1/events", json={"type": "http.go", "to": run.id})).status_code == 202
    assert (await run.result(30))[0] is None
    unknown = await http.post("/v1/events", json={"type": "http.go", "to": "nobody"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "engine.run_not_found")


async def test_headers_of_an_event_travel_to_the_run_that_it_starts(everywhere: App) -> None:
    async with connected(everywhere) as http:
        body = {"type": "http.ordered", "data": {"sku": "pencil", "price": "1"}, "headers": {"tenant": "acme"}}
        assert (await http.post("/v1/events", json=body)).status_code == 202
        (run,) = [each async for each in everywhere.runs(workflow=shipping)]
        assert (await everywhere.info(run.id)).headers == {"tenant": "acme"}


async def test_headers_of_a_start_are_those_of_the_run(http: httpx.AsyncClient, app: App) -> None:
    body = {"id": "with-headers", "headers": {"tenant": "acme"}}
    assert (await http.post("/v1/workflows/http.waiter/runs", json=body)).status_code == 202
    assert (await http.get("/v1/runs/with-headers")).json()["headers"] == {"tenant": "acme"}


async def test_event_starts_a_run_and_wrong_data_is_refused(everywhere: App) -> None:
    async with connected(everywhere) as http:
        body = {"type": "http.ordered", "data": {"sku": "pencil", "price": "1"}, "id": "1"}
        for _ in range(2):
            assert (await http.post("/v1/events", json=body)).status_code == 202
        refused = await http.post("/v1/events", json={**body, "id": "2", "data": {"sku": 1}})
        assert (refused.status_code, refused.json()["code"]) == (422, "engine.event_data")
        (run,) = [each async for each in everywhere.runs(workflow=shipping)]
        assert await everywhere.get(run.id).result(30) == "pencil"


async def test_message_reaches_the_subscribers_of_a_channel(everywhere: App) -> None:
    async with connected(everywhere) as http:
        runs = [await listener.start() for _ in range(2)]
        await waiting(everywhere, *[run.id for run in runs])
        body = {"data": [1, "ä"], "metadata": {"k": "v"}}
        assert (await http.post("/v1/channels/http.news/messages", json=body)).status_code == 202
        assert [await run.result(30) for run in runs] == [[[1, "ä"], {"k": "v"}]] * 2


async def test_message_reaches_one_run(http: httpx.AsyncClient, app: App) -> None:
    runs = [await listener.start("direct") for _ in range(2)]
    await waiting(app, *[run.id for run in runs])
    answer = await http.post(f"/v1/runs/{runs[1].id}/messages", json={"channel": "http.news", "data": 1})
    assert answer.status_code == 202
    assert await runs[1].result(30) == [1, {}]
    assert (await http.post("/v1/runs/nobody/messages", json={"channel": "c", "data": 1})).status_code == 404
    body = {"channel": "http.news", "data": 2}
    assert (await http.post(f"/v1/runs/{runs[1].id}/messages", json=body)).status_code == 202  # it has ended
    stored = await app._storage.get_pending_channel_messages(f"http.news:{runs[1].id}")
    assert [message.data for message in stored] == [b"1"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/events", {}),
        ("/v1/events", {"type": ""}),
        ("/v1/events", {"type": "~x"}),
        ("/v1/events", {"type": "x\u0000"}),
        ("/v1/events", {"type": "x" * 256}),
        ("/v1/events", {"type": "x", "to": 1}),
        ("/v1/events", {"type": "x", "typ": 1}),
        ("/v1/events", {"type": "x", "source": " x"}),
        ("/v1/events", {"type": "x", "headers": {"a": 1}}),
        ("/v1/events", {"type": "x", "headers": {"a": "\u0000"}}),
        ("/v1/events", {"type": "x", "headers": {str(n): "" for n in range(33)}}),
        ("/v1/workflows/http.waiter/runs", {"headers": {"a": "\u0000"}}),
        ("/v1/channels/c/messages", {}),
        ("/v1/channels/~c/messages", {"data": 1}),
        ("/v1/channels/c/messages", {"data": 1, "metadata": []}),
        ("/v1/runs/x/messages", {"data": 1}),
    ],
)
async def test_wrong_messages_are_refused(http: httpx.AsyncClient, path: str, body: object) -> None:
    answer = await http.post(path, json=body)
    assert answer.status_code == 422, answer.text
