"""Names and ids of users and of the engine are separate: no public name reaches an internal one or another run."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import (
    App,
    Client,
    Retention,
    Workflow,
    WorkflowFailedError,
    activity,
    join_group,
    publish,
    receive,
    recur,
    send_event,
    send_to,
    send_to_group,
    subscribe,
    wait_event,
    workflow,
)
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.errors import LimitError, RunExistsError
from perdure.model import names
from perdure.model.schedules import tick_id
from perdure.storage.stores import shift_clock
from tests.engine.waiting import until, waiting
from tests.support.storages import Database, storage_of

gates: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def forget() -> None:
    gates.clear()


@activity
async def work(name: str) -> str:
    await gates.setdefault(name, asyncio.Event()).wait()
    return name


@workflow(name="isolation.child")
async def child(name: str) -> str:
    return await work(name)


@workflow(name="isolation.parent")
async def parent(name: str) -> str:
    return await child(name)


# Public names.

PUBLIC: dict[str, Callable[[App, str], Awaitable[object]]] = {
    "app.publish": lambda app, name: app.publish(name, {}),
    "app.send_to": lambda app, name: app.send_to("P", name, {}),
    "app.send_event": lambda app, name: app.send_event(name, {}),
    "app.send_event to": lambda app, name: app.send_event(name, {}, to="P"),
    "publish": lambda app, name: publish(name, {}),
    "send_to": lambda app, name: send_to("P", name, {}),
    "send_event": lambda app, name: send_event(name, {}),
    "send_event to": lambda app, name: send_event(name, {}, to="P"),
}


@pytest.mark.parametrize("way", PUBLIC)
@pytest.mark.parametrize("name", ["~end/0/1", "~end/0/1:P", "~"])
async def test_reserved_names_are_refused_outside_a_body(memory: Database, way: str, name: str) -> None:
    """Otherwise such an event would count as a child's result."""
    async with App(memory.url) as app:
        with pytest.raises(LimitError, match="begins with '~', which is reserved"):
            await PUBLIC[way](app, name)


BODY: dict[str, Callable[[str], Awaitable[object]]] = {
    "publish": lambda name: publish(name, {}),
    "send_to": lambda name: send_to("P", name, {}),
    "send_event": lambda name: send_event(name, {}),
    "send_to_group": lambda name: send_to_group("isolation", name, {}),
    "group": lambda name: send_to_group(name, "isolation", {}),
    "join_group": lambda name: join_group(name),
    "subscribe": lambda name: subscribe(name),
    "wait_event": lambda name: wait_event(name, timeout=0.01),
}


@workflow(name="isolation.reserved")
async def reserved(way: str) -> str:
    try:
        await BODY[way]("~end/0/1")
    except LimitError as error:
        return str(error)
    return ""


async def test_reserved_names_are_refused_in_a_body(memory: Database) -> None:
    async with App(memory.url):
        for way in BODY:
            handle = await reserved.start(way)
            assert "begins with '~', which is reserved" in await handle.result(20), way


async def test_public_messages_cannot_forge_the_end_of_a_child(database: Database) -> None:
    async with App(database.url) as app:
        handle = await parent.options(id="P").start("right")
        await until(lambda: "right" in gates)
        forged = {"status": "completed", "output": "forged"}
        for send in PUBLIC.values():
            with suppress(LimitError):
                await send(app, "~end/0/1:P")
        with suppress(LimitError):
            await app.send_event("~end/0/1:P", forged)
        gates["right"].set()
        assert await handle.result(20) == "right"


@workflow(name="isolation.waiter")
async def waiter(kind: str) -> Any:
    return (await wait_event(kind)).data


@workflow(name="isolation.receiver")
async def receiver(channel: str, mode: str) -> list[Any]:
    await subscribe(channel, mode)
    message = await receive(channel)
    return [message.channel, message.data]


@pytest.mark.call("channels")
async def test_public_message_is_never_taken_for_a_message_to_a_single_run(database: Database) -> None:
    """`publish("approved:T")` must not count as an event sent to run T."""
    async with App(database.url) as app:
        handle = await waiter.options(id="T").start("approved")
        other = await receiver.options(id="R").start("orders", "direct")
        await waiting(app, "T", "R")
        await app.publish("approved:T", "published")
        await app.send_event("approved:T", "sent")
        await app.send_event("orders:R", "sent")
        await app.publish("orders:R", "published")
        await app.send_event("approved", "right", to="T")
        await app.send_to("R", "orders", "right")
        assert await handle.result(20) == "right"
        assert await other.result(20) == ["orders:R", "right"]


@workflow(name="isolation.collector")
async def collector() -> list[Any]:
    found: list[Any] = []
    await subscribe("order.paid")
    await subscribe("order.shipped")
    await wait_event("isolation.enough")
    for channel in ("order.paid", "order.shipped"):
        with suppress(TimeoutError):
            while True:
                found.append([channel, (await receive(channel, timeout=0)).data])
    return found


LONG = "x" * 255


@pytest.mark.pitfall(53)
@pytest.mark.parametrize("source", ["", "shop"])
@pytest.mark.parametrize("id", ["order-7", LONG])
async def test_same_event_id_with_another_type_or_receiver_is_another_event(
    database: Database, source: str, id: str
) -> None:
    """The second event must not be dropped as a duplicate."""
    async with App(database.url) as app:
        handle = await collector.options(id="C").start()
        others = [await waiter.options(id=each).start("order.paid") for each in ("A", "B")]
        await waiting(app, "C", "A", "B")
        for _ in range(2):  # the same again is stored once
            for to in ("A", "B"):
                await app.send_event("order.paid", to, to=to, id=id, source=source)
        assert [await each.result(20) for each in others] == ["A", "B"]
        for _ in range(2):
            for type in ("order.paid", "order.shipped"):
                await app.send_event(type, 1, id=id, source=source)
        await app.send_event("order.paid", 2, id=id, source=f"other{source}")
        await app.send_event("isolation.enough", None, to="C")
        expected = [["order.paid", 1], ["order.paid", 2], ["order.shipped", 1]]
        assert await handle.result(20) == expected


async def test_event_id_cannot_suppress_the_end_of_a_child(database: Database) -> None:
    """The message about the end of a child has an id and a source too, which are easy to guess."""
    async with App(database.url) as app:
        handle = await parent.options(id="P").start("right")
        await until(lambda: "right" in gates)
        await app.send_event("isolation.any", {}, id="P/1:end", source="perdure")
        gates["right"].set()
        assert await handle.result(20) == "right"


async def test_same_id_for_another_event_of_the_outbox_is_refused(memory: Database) -> None:
    """Consumers treat events with the same source and id as duplicates, whatever their types."""

    async def publisher(event: object) -> None:
        raise ConnectionError

    async with App(memory.url, publisher=publisher) as app:
        for _ in range(2):
            await app.send_event("order.paid", 1, id="order-7")
        with pytest.raises(LimitError, match=r"event id 'order-7' is already used in the outbox .* use another id"):
            await app.send_event("order.shipped", 1, id="order-7")
        await app.send_event("order.shipped", 1, id="order-8")


@pytest.mark.parametrize("name", ["com.example:paid", "urn:a:b", "50%:off", "a%3Ab", "a%b"])
async def test_colons_in_public_names_work(memory: Database, name: str) -> None:
    async with App(memory.url) as app:
        runs = [
            await waiter.options(id="T:1").start(name),
            await waiter.options(id="T").start(name),
            await receiver.options(id="R").start(name, "broadcast"),
            await receiver.options(id="R:1").start(name, "direct"),
        ]
        await waiting(app, "T:1", "T", "R", "R:1")
        await app.send_event(name, "first", to="T:1")
        await app.send_to("R:1", name, "second")
        assert await runs[0].result(20) == "first"
        await app.send_event(name, "third")
        answers = [await each.result(20) for each in runs[1:]]
        assert answers == ["third", [name, "third"], [f"{name}:R:1", "second"]]


@workflow(name="isolation.typed")
async def typed(kind: str) -> str:
    return (await wait_event(kind)).type


async def test_event_keeps_the_type_it_was_sent_with(memory: Database) -> None:
    async with App(memory.url) as app:
        handle = await typed.options(id="T").start("com.example:paid")
        await waiting(app, "T")
        await app.send_event("com.example:paid", 1)
        assert await handle.result(20) == "com.example:paid"


def test_stored_names_are_different_for_different_names() -> None:
    given = ["a", "a:b", "a%3Ab", "a%253Ab", "a%25b", "a%b", "a%:b", "%3A", ":", "%"]
    found = [names.stored(name) for name in given]
    assert len(set(found)) == len(given)
    assert not any(":" in name for name in found)
    assert [names.public(name) for name in found] == given
    assert names.direct("a", "b:c") != names.direct("a:b", "c")


@pytest.mark.parametrize("id", ["~", "~mine", "order~1", "order~r2", "order/1~c3"])
async def test_ids_with_the_form_of_generated_ids_are_refused(memory: Database, id: str) -> None:
    async with App(memory.url):
        with pytest.raises(LimitError, match="is reserved"):
            await child.options(id=id).start("a")


@pytest.mark.parametrize("id", ["order~", "order~rest", "a/1", "a:1", "a@b", "x~r", "x~1a"])
async def test_other_ids_are_accepted(memory: Database, id: str) -> None:
    async with App(memory.url):
        gates["a"] = asyncio.Event()
        gates["a"].set()
        assert await (await child.options(id=id).start("a")).result(20) == "a"


# Ids that are taken.


async def test_run_of_a_user_with_the_id_of_a_child_does_not_block_the_child(database: Database) -> None:
    """Otherwise the parent would be stuck forever."""
    async with App(database.url) as app:
        for name in ("mine", "theirs"):
            gates.setdefault(name, asyncio.Event()).set()
        assert await (await child.options(id="P/1").start("mine")).result(20) == "mine"
        handle = await parent.options(id="P").start("theirs")
        assert await handle.result(20) == "theirs"
        assert [row.data async for row in handle.history() if row.step == "1:child"] == ["P/1~c1"]
        assert await app.get("P/1").result(20) == "mine"
        assert await app.get("P/1~c1").result(20) == "theirs"


async def test_children_of_an_earlier_run_with_the_same_id_do_not_block_new_children(database: Database) -> None:
    """Retention may remove a parent before its child."""
    async with App(database.url) as app:
        for name in ("first", "second"):
            gates.setdefault(name, asyncio.Event()).set()
        assert await (await parent.options(id="P").start("first")).result(20) == "first"
        await app._storage.db().execute("DELETE FROM workflow_history WHERE instance_id = 'P'")
        await app._storage.db().execute("DELETE FROM workflow_instances WHERE instance_id = 'P'")
        assert await (await parent.options(id="P").start("second")).result(20) == "second"


@workflow(name="isolation.failing")
async def failing() -> None:
    raise ValueError("as it is")


async def test_id_of_a_retry_is_derived_from_the_id_of_its_run(database: Database) -> None:
    """The retry of `X~rest` must not be named `X~r1`, as if it retried `X`."""
    async with App(database.url) as app:
        for id, expected in (("X~rest", "X~rest~r1"), ("X", "X~r1")):
            with pytest.raises(WorkflowFailedError):
                await (await failing.options(id=id).start()).result(20)
            again = await app.retry(id)
            assert again.id == expected
            with pytest.raises(WorkflowFailedError):
                await again.result(20)
            assert (await app.retry(again.id)).id == expected[:-1] + "2"


@pytest.fixture
def yearly() -> Iterator[Workflow[[], str]]:
    @workflow(name="isolation.yearly", cron="0 0 1 1 *")
    async def tick() -> str:
        return "ticked"

    yield tick
    del WORKFLOWS["isolation.yearly"]


async def test_run_of_another_workflow_with_the_id_of_a_tick_does_not_block_the_tick(
    shared: Database, yearly: Workflow[[], str]
) -> None:
    assert yearly.schedule is not None
    id = tick_id(yearly.name, yearly.schedule.last_before(datetime.now(UTC)))
    async with Client(shared.url):
        await failing.options(id=id).start()
    async with App(shared.url, workflows=[yearly]) as app:

        async def is_there() -> bool:
            return await app.runs(workflow=yearly).first() is not None

        await until(is_there)
        assert await app.get(f"{id}~c1").result(20) == "ticked"
    async with App(shared.url, workflows=[yearly]) as app:  # starts no third one
        await app._worker.work_loop.cron.start_ticks()
        assert [run.id async for run in app.runs(workflow=yearly)] == [f"{id}~c1"]


@workflow(name="isolation.forever")
async def forever(number: int) -> None:
    if number < 3:
        recur(number + 1)
    await wait_event("isolation.never")


async def test_same_start_after_recur_returns_the_same_run(database: Database) -> None:
    """A program that starts its run at every boot must be able to do so after a `recur`."""
    async with App(database.url) as app:
        handle = await forever.options(id="F").start(1)
        await waiting(app, "F")
        for number in (1, 3):  # what it began with, and what it has now
            assert (await forever.options(id="F").start(number)).id == handle.id
        with pytest.raises(RunExistsError):
            await forever.options(id="F").start(7)
        with pytest.raises(RunExistsError):
            await forever.options(id="F", if_exists="error").start(1)
        shift_clock(storage_of(app), timedelta(days=2))
        await app.sweep(Retention(finished=timedelta(days=1)))
        shift_clock(storage_of(app), timedelta(0))
        assert (await forever.options(id="F").start(1)).id == handle.id  # when the first generation is gone
