# mypy: ignore-errors
"""Mistakes with runs, events, queries and hooks."""

import asyncio
from contextlib import suppress
from datetime import datetime, timedelta

from perdure import App, Client, Retry, WorkflowFailedError, activity, publish, send_event, workflow
from tests.mistakes.catalogue import mistake, watch


@mistake("send_event() to a run that does not exist")
async def _(url):
    async with Client(url) as client:
        await client.send_event("paid", 9.5, to="order-1")


@mistake("send_event() with data that is not JSON")
async def _(url):
    async with Client(url) as client:
        await client.send_event("paid", object())


@mistake("send_event() where no App is open")
async def _():
    await send_event("paid", 9.5)


@mistake("send_event() with an empty type")
async def _(url):
    async with Client(url) as client:
        await client.send_event("", 9.5)


@mistake("publish() to a reserved channel")
async def _(url):
    async with Client(url):
        await publish("~orders", 1)


@mistake("send_to() to a run that does not exist")
async def _(url):
    async with Client(url) as client:
        await client.send_to("order-1", "orders", 1)


@mistake("result() of a run that does not exist")
async def _(url):
    async with Client(url) as client:
        await client.get("order-1").result()


@mistake("info() of a run that does not exist")
async def _(url):
    async with Client(url) as client:
        await client.get("order-1").info()


@mistake("steps() of a run that does not exist")
async def _(url):
    async with Client(url) as client:
        await client.get("order-1").steps()


@mistake("state() of a run that does not exist")
async def _(url):
    async with Client(url) as client:
        await client.get("order-1").state()


@mistake("history() of a run that does not exist")
async def _(url):
    async with Client(url) as client:
        async for _ in client.get("order-1").history():
            ...


@mistake("await on history()")
async def _(url):
    async with Client(url) as client:
        await client.get("order-1").history()


@mistake("await on a query")
async def _(url):
    async with Client(url) as client:
        await client.runs()


@mistake("for instead of async for")
async def _(url):
    async with Client(url) as client:
        for _ in client.runs():
            ...


@mistake("cancel() of a run that does not exist")
async def _(url):
    async with Client(url) as client:
        await client.get("order-1").cancel()


@mistake("cancel() of a run that has ended")
async def _(url, shop):
    async with App(url):
        run = await shop.order.options(id="order-1").start("A-1")
        await run.result()
        await run.cancel()


@mistake("retry() of a run that does not exist")
async def _(url):
    async with Client(url) as client:
        await client.retry("order-1")


@mistake("retry() of a run that has not ended")
async def _(url, shop):
    async with Client(url) as client:
        run = await shop.order.options(id="order-1").start("A-1")
        await client.retry(run.id)


@mistake("retry() from a step that does not exist")
async def _(url):
    @workflow
    async def ship():
        raise ValueError("no box")

    async with App(url) as app:
        run = await ship.options(id="order-1").start()
        with suppress(WorkflowFailedError):
            await run.result()
        await app.retry(run.id, from_step="3:charge")


@mistake("get() of something that is no id")
async def _(url):
    async with Client(url) as client:
        await client.get(17).info()


@mistake("result() with a negative timeout")
async def _(url):
    async with Client(url) as client:
        await client.get("order-1").result(timeout=-1)


@mistake("result() that does not come in time")
async def _(url, shop):
    async with Client(url):
        run = await shop.order.options(id="order-1").start("A-1")
        await run.result(timeout=0.1)


@mistake("result() of a run that no worker serves")
async def _(url, shop, impatient):
    async with Client(url):
        run = await shop.order.options(id="order-1").start("A-1")
        await run.result(timeout=1)


@mistake("result() of a run that failed")
async def _(url):
    @activity(retry=Retry(attempts=2, initial=0))
    def pack():
        raise ValueError("no box")

    @workflow
    async def ship():
        await pack()

    async with App(url):
        run = await ship.options(id="order-1").start()
        await run.result()


@mistake("result() of a run that was cancelled")
async def _(url, shop):
    async with App(url):
        run = await shop.order.options(id="order-1", after=60).start("A-1")
        await run.cancel("out of stock")
        await run.result()


@mistake("a run that takes longer than its timeout")
async def _(url):
    @workflow
    async def ship():
        await asyncio.sleep(60)

    async with App(url):
        run = await ship.options(id="order-1", timeout=0.1).start()
        await run.result()


@mistake("a query for an unknown status")
async def _(url):
    async with Client(url) as client:
        client.runs(status="done")


@mistake("a query for a function that is no workflow")
async def _(url):
    async def ship(): ...

    async with Client(url) as client:
        await client.runs(workflow=ship).count()


@mistake("an unknown filter of a query")
async def _(url):
    async with Client(url) as client:
        client.runs(workflows="ship")


@mistake("a query with a time without a zone")
async def _(url):
    async with Client(url) as client:
        client.runs(started_after=datetime(2030, 1, 1))


@mistake("a query with a timedelta as a time")
async def _(url):
    async with Client(url) as client:
        client.runs(started_after=timedelta(hours=1))


@mistake("a query for values of the input without a bound")
async def _(url):
    async with Client(url) as client:
        client.runs(where={"order_id": "A-1"})


@mistake("a query for a path that is none")
async def _(url):
    async with Client(url) as client:
        await client.runs(workflow="order", where={"order id": "A-1"}).count()


@mistake("a query for a list in the input")
async def _(url):
    async with Client(url) as client:
        await client.runs(workflow="order", where={"items": ["pen"]}).count()


@mistake("a page token that is none")
async def _(url):
    async with Client(url) as client:
        await client.runs().page(10, "2")


@mistake("a page token of stuck runs that is none")
async def _(url):
    async with Client(url) as client:
        await client.runs(stuck=True).page(10, "2")


@mistake("a page of 0 runs")
async def _(url):
    async with Client(url) as client:
        await client.runs().page(0)


@mistake("a count with a negative limit")
async def _(url):
    async with Client(url) as client:
        await client.runs().count(limit=-1)


@mistake("a hook that raises")
async def _(url, shop):
    def notify(event):
        raise ConnectionError("no route to the chat")

    async with App(url, hooks=[notify]):
        run = await shop.order.options(id="order-1").start("A-1")
        await run.result()


@mistake("a hook that takes two arguments")
async def _(url, shop):
    def notify(run, event): ...

    async with App(url, hooks=[notify]):
        run = await shop.order.options(id="order-1").start("A-1")
        await run.result()


@mistake("an exception class that is defined in a function, caught by its class")
async def _(url):
    class CardDeclined(Exception): ...

    @activity(retry=Retry(attempts=1))
    def pay():
        raise CardDeclined("expired")

    @workflow
    async def ship():
        try:
            await pay()
        except CardDeclined:
            return "declined"

    async with App(url):
        await watch(await ship.options(id="order-1").start())
