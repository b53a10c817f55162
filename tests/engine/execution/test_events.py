"""Which events a run sees: those that match, from which time on, and for how long."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import App, Event, Message, activity, receive, send_event, set_state, subscribe, wait_event, workflow
from tests.engine.waiting import until, waiting
from tests.support.storages import Database

SOON = timedelta(seconds=60)
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


@pytest.mark.behaviour("events")
@pytest.mark.parametrize(
    ("value", "found"),
    [(1, "number"), ("1", "text"), (True, "true"), (None, "null"), ([1.0], "numbers"), ({"c": [False]}, "lie")],
)
async def test_where_compares_values_with_their_types_and_skips_other_events(
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


@pytest.mark.behaviour("events")
async def test_skipped_events_do_not_reset_the_timeout(database: Database) -> None:
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


@pytest.mark.behaviour("events")
@pytest.mark.parametrize("how", ["subscribed", "waited"])
async def test_run_sees_events_from_its_first_subscription_or_wait_on(database: Database, how: str) -> None:
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


async def test_two_waits_for_one_event_both_time_out(database: Database) -> None:
    """Of two that wait for one channel the first is in its row: the other one's time is up all the same, as its own."""
    async with App(database.url):
        assert await (await twins.start()).result(SOON) == ["late", "late"]


@workflow(name="events.approval")
async def approval(order_id: str) -> str:
    event = await wait_event("decided", where={"order.id": order_id}, timeout=timedelta(minutes=5))
    return str(event.data["verdict"])


@workflow(name="events.gives_up")
async def gives_up() -> str:
    try:
        await wait_event("never", timeout=timedelta(seconds=1.2))
    except TimeoutError:
        return "gave up"
    return "came"


@pytest.mark.call("events")
async def test_wait_event_returns_the_event_that_matches_where(database: Database) -> None:
    async with App(database.url) as app:
        handle = await approval.start("A-1")
        await waiting(app, handle.id)
        await app.send_event("decided", {"order": {"id": "B-2"}, "verdict": "no"})
        await app.send_event("decided", {"order": {"id": "A-1"}, "verdict": "yes"})
        assert await handle.result(SOON) == "yes"


@pytest.mark.behaviour("events")
async def test_event_to_one_run_is_kept_until_the_run_takes_it(database: Database) -> None:
    async with App(database.url) as app:
        handle = await approval.options(id="approval-1", after=timedelta(milliseconds=300)).start("A-1")
        await app.send_event("decided", {"order": {"id": "A-1"}, "verdict": "kept"}, to="approval-1")
        assert await handle.result(SOON) == "kept"


@pytest.mark.call("events")
@pytest.mark.behaviour("background tasks")
async def test_wait_event_raises_after_its_timeout(database: Database) -> None:
    async with App(database.url):
        assert await (await gives_up.start()).result(SOON) == "gave up"


@workflow(name="events.asker")
async def asker() -> list[object]:
    event = await wait_event("events.answered", data=dict[str, datetime])
    again = await wait_event("events.answered", timeout=DAY)
    attributes = [event.type, event.data["at"], event.id, event.source, event.subject]
    return [*attributes, again.data, again.source, again.subject]


@workflow(name="events.answerer")
async def answerer(to: str) -> None:
    data = {"at": datetime(2026, 1, 2, tzinfo=UTC)}
    for _ in range(2):  # an event with an id is stored once
        await send_event("events.answered", data, to=to, id="e-1", source="/desk", subject="lamp")


@pytest.mark.call("events")
async def test_event_has_the_data_and_attributes_that_a_body_or_app_sent(database: Database) -> None:
    async with App(database.url) as app:
        handle = await asker.options(id="asker").start()
        await (await answerer.start("asker")).result(SOON)
        await app.send_event("events.answered", "from outside", to="asker")
        assert await handle.result(SOON) == [
            "events.answered",
            "2026-01-02T00:00:00Z",
            "e-1",
            "/desk",
            "lamp",
            "from outside",
            "",  # the defaults
            None,
        ]


@activity
async def forward(event: Event[str]) -> Event[str]:
    return event


@workflow(name="events.reader")
async def reader(event: Event[str], message: Message[int]) -> list[object]:
    return [event.data, dict(event.headers), message.data]


@workflow(name="events.forwarder")
async def forwarder() -> Event[str]:
    await subscribe("events.numbers")
    message = await receive("events.numbers")
    event = await forward(await wait_event("events.forwarded", data=str))
    set_state([event, message])
    assert await reader(event, message) == ["lamp", dict(event.headers), 7]
    return event


async def test_event_and_message_can_be_arguments_states_and_results(database: Database) -> None:
    async with App(database.url) as app:
        handle = await forwarder.options(id="f").start()
        await waiting(app, "f")
        await app.publish("events.numbers", 7)
        await until(lambda: _waits_for_an_event(app))
        await app.send_event("events.forwarded", "lamp", to="f")
        event = await handle.result(SOON)
        assert (event.data, dict(event.headers)) == ("lamp", {})


async def _waits_for_an_event(app: App) -> bool:
    return [wait.name for wait in (await app.info("f")).waiting_for] == ["events.forwarded"]
