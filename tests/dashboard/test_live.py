"""Streams: what a page is told, how often it is computed, and how a stream ends."""

import asyncio
from typing import Any

import httpx
import pytest

from perdure import App
from perdure.dashboard.live import Live
from tests.dashboard import shop
from tests.dashboard.browser import served
from tests.engine.waiting import until

SSE = {"Accept": "text/event-stream"}


async def test_stream_tells_of_a_change_and_ends_with_the_server(app: App) -> None:
    await shop.delivery.options(id="d-1").start("A-1")
    seen: list[str] = []
    async with httpx.AsyncClient(timeout=60) as http:

        async def listen(url: str) -> None:
            async with http.stream("GET", f"{url}/runs/d-1", headers=SSE) as response:
                assert response.headers["content-type"].startswith("text/event-stream")
                async for line in response.aiter_lines():
                    if line.startswith("event: "):
                        seen.append(line.removeprefix("event: "))

        async with served(app) as url:
            listening = asyncio.create_task(listen(url))
            await until(lambda: seen == ["ready"])
            shop.gate.set()
            await until(lambda: "change" in seen)
        await asyncio.wait_for(listening, 30)


async def test_stream_of_a_missing_run_says_so(app: App) -> None:
    async with served(app) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        response = await http.get("/runs/nope", headers=SSE)
    assert "event: problem" in response.text
    assert "nope" in response.text


class Request:
    """As much of a request as a stream needs."""

    async def is_disconnected(self) -> bool:
        return False


async def test_viewers_of_one_page_share_what_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.dashboard.live.EVERY_SEC", 0.05)
    live, computed = Live(), 0

    async def compute() -> object:
        nonlocal computed
        computed += 1
        return computed

    request: Any = Request()
    streams = [live.events(request, "/runs", compute) for _ in range(10)]
    first = [await anext(each) for each in streams]
    assert computed == 1
    assert len(set(first)) == 1
    following = await asyncio.gather(*(anext(each) for each in streams))
    assert all(each.startswith(b"event: change") for each in following)
    assert computed <= 3
    live.stop()
    for each in streams:
        async for _ in each:
            pass


async def test_stream_without_changes_tells_the_page_to_read_its_times_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.dashboard.live.EVERY_SEC", 0.02)
    monkeypatch.setattr("perdure.dashboard.live.TICK_SEC", 0.05)

    async def compute() -> object:
        return 1

    live, request = Live(), Request()
    stream = live.events(request, "/", compute)  # type: ignore[arg-type]
    assert b"event: ready" in await anext(stream)
    assert [(await anext(stream)).split(b"\n")[0] for _ in range(2)] == [b"event: tick"] * 2
    await stream.aclose()  # type: ignore[attr-defined]


async def test_no_more_streams_than_the_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.dashboard.live.STREAMS_MAX", 1)

    async def compute() -> object:
        return 1

    live, request = Live(), Request()
    first = live.events(request, "/", compute)  # type: ignore[arg-type]
    await anext(first)
    second = [each async for each in live.events(request, "/", compute)]  # type: ignore[arg-type]
    assert second == [b"retry: 30000\n\n"]
    await first.aclose()  # type: ignore[attr-defined]
