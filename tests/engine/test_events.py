"""What a run sees of events: which of them fit, since when, and for how long."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from perdure import App, activity, subscribe, wait_event, workflow
from tests.engine.waiting import until, waiting
from tests.support.storages import Database

SOON = timedelta(seconds=20)
DAY = timedelta(days=1)
done: list[str] = []
gates: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def forget() -> None:
    done.clear()
    gates.clear()


@activity
async def pause(what: str) -> None:
    done.append(what)
    await gates.setdefault(what, asyncio.Event()).wait()


@workflow(name="events.matcher")
async def matcher(value: Any) -> str:
    event = await wait_event("events.typed", where={"a.b": value}, timeout=DAY)
    return str(event.data["name"])


EVENTS = {"text": "1", "true": True, "null": None, "other": 2, "number": 1.0, "missing": ...}
EVENTS |= {"list": [True], "numbers": [1], "object": {"c": [0]}, "lie": {"c": [False]}}


@pytest.mark.parametrize(
    ("value", "found"),
    [(1, "number"), ("1", "text"), (True, "true"), (None, "null"), ([1.0], "numbers"), ({"c": [False]}, "lie")],
)
async def test_meaning_events_where_is_typed_equality_and_the_rest_is_passed_over(
    database: Database, value: object, found: str
) -> None:
    async with App(database.url) as app:
        handle = await matcher.start(value)
        await waiting(app, handle.id)
        await app.send_event("events.typed", {"name": "missing", "a": {}})
        for name, each in EVENTS.items():
            if each is not ... and name != found:
                await app.send_event("events.typed", {"name": name, "a": {"b": each}})
        await app.send_event("events.typed", {"name": found, "a": {"b": EVENTS[found]}})
        assert await handle.result(SOON) == found


@workflow(name="events.impatient")
async def impatient() -> str:
    with suppress(TimeoutError):
        await wait_event("events.other", where={"right": True}, timeout=1.2)
        return "came"
    return "gave up"


async def test_meaning_events_passed_over_do_not_begin_the_timeout_anew(database: Database) -> None:
    async with App(database.url) as app:
        handle = await impatient.start()
        over = asyncio.create_task(handle.result(SOON))
        while not over.done():
            await app.send_event("events.other", {"right": False}, to=handle.id)
            await asyncio.wait([over], timeout=0.1)
        assert await over == "gave up"


@workflow(name="events.listener")
async def listener(how: str) -> list[object]:
    if how == "subscribed":
        await subscribe("events.happened")
    else:
        with suppress(TimeoutError):
            await wait_event("events.happened", timeout=0)
    await pause("between")
    return [(await wait_event("events.happened")).data for _ in range(2)]


@pytest.mark.parametrize("how", ["subscribed", "waited"])
async def test_meaning_events_are_seen_from_the_first_subscription_or_wait_on(database: Database, how: str) -> None:
    async with App(database.url) as app:
        await app.send_event("events.happened", "before")
        handle = await listener.start(how)
        await until(lambda: done == ["between"])
        await app.send_event("events.happened", "between")
        gates["between"].set()
        await app.send_event("events.happened", "after")
        assert await handle.result(SOON) == ["between", "after"]


@activity
async def work_a_little() -> None:
    await asyncio.sleep(0.05)


@workflow(name="events.twins")
async def twins() -> list[str]:
    async def impatient() -> str:
        try:
            await wait_event("events.never", timeout=1.1)
        except TimeoutError:
            return "late"
        return "in time"

    *found, _ = await asyncio.gather(impatient(), impatient(), work_a_little())
    return [str(each) for each in found]


async def test_two_waits_for_one_event_are_both_too_late(database: Database) -> None:
    """Of two that wait for one channel the first is in its row: the other one's time is up all the same, as its own."""
    async with App(database.url):
        assert await (await twins.start()).result(SOON) == ["late", "late"]
