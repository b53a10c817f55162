# mypy: ignore-errors
# ruff: noqa: ASYNC110, ASYNC210, E722, RUF006
"""Mistakes in the bodies of workflows."""

import asyncio
import datetime
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid

from perdure import App, Retry, activity, receive, recur, set_state, sleep, subscribe, wait_event, workflow
from tests.engine.waiting import waiting
from tests.mistakes.catalogue import changed, mistake, watch


@mistake("time.sleep()")
def _():
    @workflow
    async def ship():
        time.sleep(60)


@mistake("datetime.now()")
def _():
    @workflow
    async def ship():
        return datetime.datetime.now()


@mistake("random.choice()")
def _():
    @workflow
    async def ship():
        return random.choice(["air", "sea"])


@mistake("uuid.uuid4()")
def _():
    @workflow
    async def ship():
        return uuid.uuid4()


@mistake("urlopen()")
def _():
    @workflow
    async def ship():
        return urllib.request.urlopen("https://example.com")


@mistake("open()")
def _():
    @workflow
    async def ship():
        return open("orders.csv").read()


@mistake("socket.socket()")
def _():
    @workflow
    async def ship():
        return socket.socket()


@mistake("subprocess.run()")
def _():
    @workflow
    async def ship():
        return subprocess.run(["ls"])


@mistake("a thread")
def _():
    @workflow
    async def ship():
        threading.Thread(target=print).start()


@mistake("asyncio.open_connection()")
async def _(url):
    @workflow
    async def ship():
        await asyncio.open_connection("127.0.0.1", 1)

    async with App(url):
        await ship()


@mistake("asyncio.to_thread()")
async def _(url):
    @workflow
    async def ship():
        await asyncio.to_thread(print)

    async with App(url):
        await ship()


@mistake("a loop that polls")
async def _(url):
    @workflow
    async def ship():
        while True:
            await asyncio.sleep(0)

    async with App(url):
        await watch(await ship.start())


@mistake("an await of something that nothing completes")
async def _(url):
    @workflow
    async def ship():
        await asyncio.Event().wait()

    async with App(url):
        await watch(await ship.start())


@mistake("a lock that is not released")
async def _(url):
    @workflow
    async def ship():
        lock = asyncio.Lock()
        await lock.acquire()
        async with lock:
            ...

    async with App(url):
        await watch(await ship.start())


@mistake("a lock of the module, shared by two runs")
async def _(url):
    lock = asyncio.Lock()

    @workflow
    async def ship():
        async with lock:
            await sleep(0.2)

    async with App(url):
        first, second = await ship.start(), await ship.start()
        await watch(first)
        await watch(second)


@mistake("a future of the program's own loop")
async def _(url):
    future = asyncio.get_running_loop().create_future()

    @workflow
    async def ship():
        await future

    async with App(url):
        await watch(await ship.start())


@mistake("an activity removed while runs are under way")
async def _(url, shop):
    async def old():
        await shop.charge("A-1", 9.5)
        await wait_event("packed")

    async def new():
        await wait_event("packed")

    await changed(url, old, new)


@mistake("an argument changed while runs are under way")
async def _(url, shop):
    async def old():
        await shop.charge("A-1", 9.5)
        await wait_event("packed")

    async def new():
        await shop.charge("A-1", 10.5)
        await wait_event("packed")

    await changed(url, old, new)


@mistake("another order of steps on replay")
async def _(url, shop):
    items = ["pen", "ink"]

    @workflow
    async def ship():
        for item in items:
            await shop.charge(item, 1)
        items.reverse()
        await wait_event("packed")

    async with App(url, max_cached_runs=0) as app:
        run = await ship.start()
        await waiting(app, run.id)
        await app.send_event("packed", 1, to=run.id)
        await watch(run)


@mistake("sys.exit()")
async def _(url):
    @workflow
    async def ship():
        sys.exit("no stock")

    async with App(url):
        await ship()


@mistake("sys.exit() in an activity")
async def _(url):
    @activity(retry=Retry(attempts=1))
    def pack():
        sys.exit("no stock")

    @workflow
    async def ship():
        await pack()

    async with App(url):
        await ship()


@mistake("an exception that is no Exception")
async def _(url):
    class OutOfStock(BaseException): ...

    @workflow
    async def ship():
        raise OutOfStock("no pens")

    async with App(url):
        await ship()


@mistake("a bare except around the whole body")
async def _(url):
    @workflow
    async def ship():
        while True:
            try:
                await sleep(60)
            except:
                continue

    async with App(url) as app:
        run = await ship.start()
        await waiting(app, run.id)


@mistake("CancelledError is swallowed in a timeout")
async def _(url):
    @workflow
    async def ship():
        async with asyncio.timeout(0.1):
            try:
                await sleep(60)
            except asyncio.CancelledError:
                await wait_event("never")

    async with App(url):
        await watch(await ship.options(timeout=0.5).start())


@mistake("a task that is not awaited and fails")
async def _(url):
    async def pack():
        raise ValueError("no box")

    @workflow
    async def ship():
        asyncio.create_task(pack())
        await sleep(0.01)

    async with App(url):
        await ship()


@mistake("a result of 9 MB")
async def _(url):
    @workflow
    async def ship():
        return "A" * 9_000_000

    async with App(url):
        await watch(await ship.start())


@mistake("a result of an activity of 9 MB")
async def _(url):
    @activity
    def load():
        return "A" * 9_000_000

    @workflow
    async def ship():
        return len(await load())

    async with App(url):
        await watch(await ship.start())


@mistake("set_state() of an object")
async def _(url):
    @workflow
    async def ship():
        set_state(object())

    async with App(url):
        await ship()


@mistake("wait_event() with a path that is none")
async def _(url):
    @workflow
    async def ship():
        await wait_event("paid", where={"order..id": 1})

    async with App(url):
        await ship()


@mistake("wait_event() with an object to match")
async def _(url):
    @workflow
    async def ship():
        await wait_event("paid", where={"order": object()})

    async with App(url):
        await ship()


@mistake("wait_event() with a text as where=")
async def _(url):
    @workflow
    async def ship():
        await wait_event("paid", where="order.id")

    async with App(url):
        await ship()


@mistake("wait_event() with a text as timeout=")
async def _(url):
    @workflow
    async def ship():
        await wait_event("paid", timeout="1h")

    async with App(url):
        await ship()


@mistake("wait_event() whose timeout is not caught")
async def _(url):
    @workflow
    async def ship():
        await wait_event("paid", timeout=0)

    async with App(url):
        await ship()


@mistake("an event whose data is not of the type that was asked for")
async def _(url):
    @workflow
    async def ship():
        await wait_event("paid", data=int)

    async with App(url) as app:
        run = await ship.start()
        await app.send_event("paid", "a lot", to=run.id)
        await run.result()


@mistake("receive() without subscribe()")
async def _(url):
    @workflow
    async def ship():
        await receive("orders")

    async with App(url):
        await ship()


@mistake("subscribe() with an unknown mode")
async def _(url):
    @workflow
    async def ship():
        await subscribe("orders", "everything")

    async with App(url):
        await ship()


@mistake("sleep() with a text")
async def _(url):
    @workflow
    async def ship():
        await sleep("1h")

    async with App(url):
        await ship()


@mistake("recur() with arguments of another workflow")
async def _(url):
    @workflow
    async def ship(order_id: str):
        recur(order_id, 9.5)

    async with App(url):
        await ship("A-1")


@mistake("recur() with a text for a number")
async def _(url):
    @workflow
    async def ship(count: int):
        recur("many")

    async with App(url):
        await watch(await ship.start(1))


@mistake("25,001 steps at once")
async def _(url, shop):
    @workflow
    async def ship():
        await asyncio.gather(*(shop.charge("A-1", number) for number in range(25_001)))

    async with App(url):
        await ship()
