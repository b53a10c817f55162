"""CloudEvents over HTTP, in every mode, made by the official SDK of either version."""

import asyncio
import base64
import json
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from perdure import App, OutboxEvent
from perdure.brokers import cloudevents
from tests.engine.waiting import waiting
from tests.http.conftest import connected
from tests.http.workflows import headers_of, shipping, waiter

STRUCTURED = {"content-type": "application/cloudevents+json"}
BATCH = {"content-type": "application/cloudevents-batch+json"}
EVENT = {"specversion": "1.0", "id": "1", "source": "https://shop/ä b", "type": "http.go", "subject": "s"}


def made(mode: str, attributes: Mapping[str, str], data: object) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of an event that the SDK makes."""
    try:
        binding = import_module("cloudevents.core.bindings.http")
        event = import_module("cloudevents.core.v1.event").CloudEvent(dict(attributes), data)
        message = getattr(binding, f"to_{mode}_event")(event)
        return dict(message.headers), message.body
    except ImportError:
        event = import_module("cloudevents.http").CloudEvent(dict(attributes), data)
        headers, body = getattr(import_module("cloudevents.conversion"), f"to_{mode}")(event)
        return headers, body


@pytest.mark.parametrize("mode", ["structured", "binary"])
async def test_event_of_the_sdk_resumes_a_waiting_run(everywhere: App, mode: str) -> None:
    async with connected(everywhere) as http:
        run = await waiter.start()
        await waiting(everywhere, run.id)
        about = {"type": "http.go", "source": "https://shop/1", "id": "1", "subject": "s", "trace": "t"}
        headers, body = made(mode, {**about, "datacontenttype": "application/json"}, {"n": 1})
        answer = await http.post("/v1/cloudevents", headers=headers, content=body)
        assert (answer.status_code, answer.json()) == (202, {"stored": 1})
        data, id, source, subject, time, extensions = await run.result(30)
        assert (data, id, source, subject) == ({"n": 1}, "1", "https://shop/1", "s")
        assert time is not None
        assert extensions == {"trace": "t"}


async def test_attributes_and_data_are_kept(http: httpx.AsyncClient, app: App) -> None:
    async def received(headers: Mapping[str, str], body: str | bytes) -> Any:
        run = await waiter.start()
        answer = await http.post(f"/v1/cloudevents?to={run.id}", headers=headers, content=body)
        assert answer.status_code == 202, answer.text
        return await run.result(30)

    about = ["1", "https://shop/ä b", "s", None]
    whole = {**EVENT, "data": [1.5, None], "dataschema": "https://schema", "count": 3}
    assert await received(STRUCTURED, json.dumps(whole)) == [
        [1.5, None],
        *about,
        {"dataschema": "https://schema", "count": 3},
    ]
    assert await received(STRUCTURED, json.dumps(EVENT)) == [None, *about, {}]
    text = base64.b64encode(b"\x00\x01").decode()
    assert await received(STRUCTURED, json.dumps({**EVENT, "data_base64": text, "datacontenttype": "x/y"})) == [
        text,
        *about,
        {},
    ]
    encoded = base64.b64encode(b'{"a": 1}').decode()
    assert (await received(STRUCTURED, json.dumps({**EVENT, "data_base64": encoded})))[0] == {"a": 1}
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "https://shop/%C3%A4%20b", "ce-type": "http.go"}
    headers |= {"ce-subject": "s", "ce-time": "2026-01-31T12:00:00Z", "CE-Trace": "t"}
    about = ["1", "https://shop/ä b", "s", "2026-01-31T12:00:00Z"]
    assert await received({**headers, "content-type": "application/json; charset=utf-8"}, '{"a": 1}') == [
        {"a": 1},
        *about,
        {"trace": "t"},
    ]
    quoted = headers | {"ce-id": '"a \\"b\\" %25"', "ce-source": '"https://shop/%C3%A4 b"', "ce-subject": '"s"'}
    assert await received(quoted, "1") == [1, 'a "b" %', *about[1:], {"trace": "t"}]
    assert (await received({**headers, "content-type": "text/plain"}, "a: ä"))[0] == "a: ä"
    assert (await received({**headers, "content-type": "image/png"}, b"\x00\x01"))[0] == text
    assert (await received(headers, b""))[0] is None


async def test_duplicates_are_stored_once(everywhere: App) -> None:
    async with connected(everywhere) as http:
        for source in ("a", "a", "b"):
            event = {**EVENT, "type": "http.ordered", "source": source, "data": {"sku": "x", "price": "1"}}
            assert (await http.post("/v1/cloudevents", headers=STRUCTURED, json=event)).status_code == 202
        assert len(await everywhere._storage.get_pending_channel_messages("http.ordered")) == 2
        runs = [run async for run in everywhere.runs(workflow=shipping)]
        assert len(runs) == 2
        for run in runs:
            await everywhere.get(run.id).result(30)


async def test_same_id_with_other_data_changes_nothing(everywhere: App) -> None:
    async with connected(everywhere) as http:
        event = {**EVENT, "type": "http.ordered", "data": {"sku": "first", "price": "1"}}
        other = {**event, "data": {"sku": "second", "price": "2"}}
        assert (await http.post("/v1/cloudevents", headers=BATCH, json=[event, other])).json() == {"stored": 2}
        assert (await http.post("/v1/cloudevents", headers=STRUCTURED, json=other)).status_code == 202
        (message,) = await everywhere._storage.get_pending_channel_messages("http.ordered")
        assert json.loads(message.data or b"") == event["data"]
        (run,) = [run async for run in everywhere.runs(workflow=shipping)]
        assert await everywhere.get(run.id).result(30) == "first"


async def test_batches_at_the_same_time_store_each_event_once(everywhere: App) -> None:
    types = ("http.ordered", "http.recorded", "http.other")
    line = {"sku": "x", "price": "1"}
    events = [{**EVENT, "type": type, "id": str(n), "data": line} for type in types for n in range(3)]
    async with connected(everywhere) as http:
        batches = [[*events[n:], *events[:n]] for n in range(len(events))]
        sent = [http.post("/v1/cloudevents", headers=BATCH, json=batch) for batch in batches]
        assert {answer.status_code for answer in await asyncio.gather(*sent)} == {202}
        for type in types:
            assert len(await everywhere._storage.get_pending_channel_messages(type)) == 3
        runs = [run async for run in everywhere.runs()]
        assert Counter(run.workflow for run in runs) == {"http.shipping": 3, "http.recorded": 3}
        for run in runs:
            await everywhere.get(run.id).result(30)


async def test_batch_is_stored_as_a_whole_or_not_at_all(everywhere: App) -> None:
    async with connected(everywhere) as http:
        order = {**EVENT, "type": "http.ordered", "data": {"sku": "x", "price": "1"}}
        good = [{**order, "id": "1"}, {**EVENT, "id": "2"}, {**order, "id": "3"}, {**order, "id": "1"}]
        bad: list[tuple[int, dict[str, Any]]] = [
            (422, {**order, "id": "4", "data": {"sku": 1}}),
            (422, {**order, "source": ""}),
            (404, {**EVENT, "perdurerun": "nobody"}),
            (422, {**order, "type": "~reserved"}),
        ]
        for status, event in bad:
            answer = await http.post("/v1/cloudevents", headers=BATCH, json=[*good, event])
            assert answer.status_code == status, answer.text
            assert await everywhere._storage.get_pending_channel_messages("http.ordered") == []
            assert await everywhere.runs().count() == 0
        for _ in range(2):
            answer = await http.post("/v1/cloudevents", headers=BATCH, json=good)
            assert (answer.status_code, answer.json()) == (202, {"stored": 4})
        assert len(await everywhere._storage.get_pending_channel_messages("http.ordered")) == 2
        assert await everywhere.runs().count() == 2
        assert (await http.post("/v1/cloudevents", headers=BATCH, json=[])).json() == {"stored": 0}
        async for run in everywhere.runs():
            await everywhere.get(run.id).result(30)


@pytest.mark.parametrize("mode", ["structured", "binary"])
async def test_headers_of_a_webhook_reach_the_run(http: httpx.AsyncClient, app: App, mode: str) -> None:
    given = {"traceparent": "00-a-b-01", "tracestate": "shop=a%20b", "tenant": 'Café "5 %"'}
    event = OutboxEvent("1", "http.headers", "shop", b"1", headers=json.dumps(given).encode())
    body, headers = cloudevents.message(event, mode, "ce-")
    quoted = {name: quote(value) if name.startswith("ce-") else value for name, value in headers.items()}
    run = await headers_of.start()
    answer = await http.post(f"/v1/cloudevents?to={run.id}", headers=quoted, content=body)
    assert answer.status_code == 202, answer.text
    extensions = {"traceparent": "00-a-b-01", "tracestate": "shop=a%20b"}
    assert await run.result(30) == [given, extensions]


@pytest.mark.parametrize("about", [{"perdureheaders": "{"}, {"perdureheaders": 5}, {"traceparent": "a\nb"}])
async def test_invalid_headers_are_dropped_and_the_event_is_not(
    http: httpx.AsyncClient, app: App, about: dict[str, object]
) -> None:
    run = await headers_of.start()
    event = {**EVENT, "type": "http.headers", **about}
    answer = await http.post(f"/v1/cloudevents?to={run.id}", headers=STRUCTURED, json=event)
    assert answer.status_code == 202, answer.text
    assert (await run.result(30))[0] == {}


async def test_attribute_names_the_only_receiver(http: httpx.AsyncClient, app: App) -> None:
    runs = [await waiter.start() for _ in range(2)]
    await waiting(app, *[run.id for run in runs])
    event = {**EVENT, "perdurerun": runs[0].id}
    assert (await http.post("/v1/cloudevents", headers=STRUCTURED, json=event)).status_code == 202
    await runs[0].result(30)
    assert (await runs[1].info()).finished_at is None
    other = await http.post(f"/v1/cloudevents?to={runs[1].id}", headers=STRUCTURED, json=event)
    assert other.status_code == 422


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (415, {"content-type": "application/json"}, json.dumps(EVENT)),
        (415, {"content-type": "application/cloudevents+xml"}, "<event/>"),
        (415, {"content-type": "application/cloudevents+xml", "ce-specversion": "1.0"}, "<event/>"),
        (415, {}, ""),
        (400, STRUCTURED, "{"),
        (400, STRUCTURED, b"\xff"),
        (422, STRUCTURED, "[]"),
        (422, STRUCTURED, "{}"),
        (422, STRUCTURED, "[" * 200 + "]" * 200),
        (422, STRUCTURED, json.dumps({**EVENT, "id": ""})),
        (422, STRUCTURED, json.dumps({**EVENT, "id": 1})),
        (422, STRUCTURED, json.dumps({**EVENT, "id": "x" * 300})),
        (422, STRUCTURED, json.dumps({**EVENT, "specversion": "0.3"})),
        (422, STRUCTURED, json.dumps({**EVENT, "specversion": "2.0"})),
        (422, STRUCTURED, json.dumps({**EVENT, "time": "yesterday"})),
        (422, STRUCTURED, json.dumps({**EVENT, "time": "2026-01-31T12:00:00"})),
        (422, STRUCTURED, json.dumps({**EVENT, "time": 5})),
        (422, STRUCTURED, json.dumps({**EVENT, "Extension": "x"})),
        (422, STRUCTURED, json.dumps({**EVENT, "extension": {}})),
        (422, STRUCTURED, json.dumps({**EVENT, "data": 1, "data_base64": "AA=="})),
        (422, STRUCTURED, json.dumps({**EVENT, "data_base64": "no base64"})),
        (422, STRUCTURED, json.dumps({**EVENT, "data_base64": 1})),
        (422, BATCH, "{}"),
        (422, BATCH, "[1]"),
        (413, BATCH, json.dumps([{}] * 1001)),
        (422, {"ce-specversion": "1.0"}, "{}"),
        (400, {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t"}, "{"),
        (
            400,
            {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t", "content-type": "text/x"},
            b"\xff",
        ),
        (422, {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "%00"}, ""),
        (422, {"ce-specversion": "1.0", "ce-id": "%C0%A0", "ce-source": "s", "ce-type": "t"}, ""),
        (422, {"ce-specversion": "1.0", "ce-id": '""', "ce-source": "s", "ce-type": "t"}, ""),
    ],
)
async def test_invalid_events_are_refused(
    http: httpx.AsyncClient, status: int, headers: dict[str, str], body: str | bytes
) -> None:
    answer = await http.post("/v1/cloudevents", headers=headers, content=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


async def test_run_that_takes_the_event_is_listed_and_can_be_started(http: httpx.AsyncClient, app: App) -> None:
    event = EVENT | {"type": "http.recorded", "data": {"sku": "lamp", "price": "1.5"}}
    assert (await http.post("/v1/cloudevents", headers=STRUCTURED, content=json.dumps(event))).status_code == 202
    (run,) = (await http.get("/v1/runs?workflow=http.recorded")).json()["runs"]
    assert run["input"]["event"]["data"]["sku"] == "lamp"
    assert (await http.get(f"/v1/runs/{run['id']}")).json()["input"] == run["input"]
    started = await http.post("/v1/workflows/http.recorded/runs", json={"id": "again", "input": run["input"]})
    assert started.status_code == 202, started.text
    assert await app.get("again").result(30) == "1"
