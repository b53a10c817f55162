# mypy: ignore-errors
"""Mistakes in calls of workflows and activities."""

import asyncio
import sqlite3
from contextlib import closing

from perdure import (
    App,
    Retry,
    SyncClient,
    activity,
    activity_info,
    connection,
    now,
    random,
    receive,
    set_state,
    sleep,
    wait_event,
    workflow,
)
from tests.mistakes.catalogue import mistake, watch


@mistake("an activity that is not awaited")
async def _(url, shop):
    @workflow
    async def ship(order_id: str):
        shop.charge(order_id, 9.5)

    async with App(url):
        await ship("A-1")


@mistake("a sleep that is not awaited")
async def _(url):
    @workflow
    async def ship():
        sleep(60)

    async with App(url):
        await ship()


@mistake("start() that is not awaited")
async def _(url, shop):
    async with App(url):
        shop.order.start("A-1")


@mistake("result() of a start() that is not awaited")
async def _(url, shop):
    async with App(url):
        await shop.order.start("A-1").result()


@mistake("a workflow called where no App is open")
async def _(shop):
    await shop.order("A-1")


@mistake("a workflow called in a task where no App is open")
async def _(shop):
    task = asyncio.create_task(shop.order("A-1"))
    await asyncio.wait([task])


@mistake("a workflow started where no App is open")
async def _(shop):
    await shop.order.start("A-1")


@mistake("a workflow called in an activity")
async def _(url, shop):
    @activity(retry=Retry(attempts=1))
    async def delegate(order_id: str):
        await shop.order(order_id)

    @workflow
    async def ship(order_id: str):
        await delegate(order_id)

    async with App(url):
        await ship("A-1")


@mistake("a missing argument")
async def _(url, shop):
    async with App(url):
        await shop.order.start()


@mistake("an unknown keyword")
async def _(url, shop):
    async with App(url):
        await shop.order("A-1", price=3)


@mistake("a missing argument of an activity")
async def _(url, shop):
    @workflow
    async def ship(order_id: str):
        return await shop.charge(order_id)

    async with App(url):
        await ship("A-1")


@mistake("a text for a number, to an activity")
async def _(url, shop):
    @workflow
    async def ship(order_id: str):
        return await shop.charge(order_id, "a lot")

    async with App(url):
        await ship("A-1")


@mistake("an argument that is not JSON")
async def _(url, shop):
    @workflow
    async def ship(box):
        return None

    async with App(url):
        await ship.start(object())


@mistake("nan as an argument")
async def _(url, shop):
    async with App(url):
        await shop.order.start("A-1", float("nan"))


@mistake("the result of an activity is not JSON")
async def _(url):
    @activity
    def pack():
        return object()

    @workflow
    async def ship():
        return await pack()

    async with App(url):
        await ship()


@mistake("the result of an activity is not what its hint says")
async def _(url):
    @activity
    def count() -> int:
        return "many"

    @workflow
    async def ship():
        return await count()

    async with App(url):
        await ship()


@mistake("the result of a workflow is not JSON")
async def _(url):
    @workflow
    async def ship():
        return object()

    async with App(url):
        await ship()


@mistake("an unknown option of an activity")
def _(shop):
    shop.charge.options(retries=3)


@mistake("a negative timeout as an option of an activity")
def _(shop):
    shop.charge.options(timeout=-1)


@mistake("an empty name as an option of an activity")
def _(shop):
    shop.charge.options(name="")


@mistake("options without a call")
async def _(url, shop):
    @workflow
    async def ship(order_id: str):
        return await shop.charge.options(timeout=10)

    async with App(url):
        await ship("A-1")


@mistake("options for a child")
async def _(url, shop):
    @workflow
    async def ship(order_id: str):
        return await shop.order.options(id="order-1")(order_id)

    async with App(url):
        await ship("A-1")


@mistake("a handle used in a body")
async def _(url, shop):
    @workflow
    async def ship(order_id: str):
        run = await shop.order.start(order_id)
        return await run.result()

    async with App(url):
        await ship("A-1")


@mistake("the App used in a body")
async def _(url):
    @workflow
    async def ship():
        await app.send_event("shipped", 1)

    async with App(url) as app:
        await ship()


@mistake("start_sync() without a SyncClient")
def _(shop):
    shop.order.start_sync("A-1")


@mistake("start_sync() with two SyncClients")
def _(shop, url):
    with closing(SyncClient(url)), closing(SyncClient(url)):
        shop.order.start_sync("A-1")


@mistake("a SyncClient in a coroutine beside an App")
async def _(shop, url):
    async with App(url):
        with SyncClient(url):
            shop.order.start_sync("A-1").result()


@mistake("the handle of start_sync() in a coroutine beside an App")
async def _(shop, url, tmp_path):
    with closing(sqlite3.connect(tmp_path / "shop.db")) as mine:
        async with App(url):
            mine.execute("BEGIN")
            run = shop.order.options(in_transaction=mine).start_sync("A-1")
            mine.commit()
            run.result()


@mistake("a SyncClient in a body")
async def _(url):
    with closing(SyncClient(url)) as client:

        @workflow
        async def ship():
            client.send_event("shipped", 1)

        async with App(url):
            await ship()


@mistake("an activity started with a SyncClient")
def _(shop, url):
    with closing(SyncClient(url)) as client:
        client.start(shop.charge, "A-1")


@mistake("sleep() outside a workflow")
async def _():
    await sleep(1)


@mistake("now() outside a workflow")
def _():
    now()


@mistake("random() at the top of a module")
def _():
    random()


@mistake("wait_event() in an activity")
async def _(url):
    @activity(retry=Retry(attempts=1))
    async def wait():
        await wait_event("paid")

    @workflow
    async def ship():
        await wait()

    async with App(url):
        await ship()


@mistake("set_state() in an activity that is a plain function")
async def _(url):
    @activity(retry=Retry(attempts=1))
    def show():
        set_state("packing")

    @workflow
    async def ship():
        await show()

    async with App(url):
        await ship()


@mistake("receive() outside a workflow")
async def _():
    await receive("orders")


@mistake("activity_info() outside an activity")
def _():
    activity_info()


@mistake("connection() in an activity that is not transactional")
async def _(url):
    @activity(retry=Retry(attempts=1))
    async def store():
        await connection().execute("SELECT 1")

    @workflow
    async def ship():
        await store()

    async with App(url):
        await ship()


@mistake("an activity called from a thread that a body started")
async def _(url, shop):
    @workflow
    async def ship():
        await asyncio.to_thread(shop.charge, "A-1", 9.5)

    async with App(url):
        await ship()


@mistake("a call that is awaited twice")
async def _(url, shop):
    @workflow
    async def ship():
        payment = shop.charge("A-1", 9.5)
        await payment
        await payment

    async with App(url):
        await watch(await ship.start())
