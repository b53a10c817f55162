"""An App belongs to the event loop and the process that opened it. Using it elsewhere raises an error at once."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import App, Client, ClosedError, EngineError, NotDurableError, activity, send_event, workflow
from perdure.engine.api import current
from perdure.engine.worker.worker import Worker
from tests.support.storages import Database


@workflow(name="homes.greet")
async def greet(name: str) -> str:
    return f"hello {name}"


USES: dict[str, Callable[[App], Awaitable[Any]]] = {
    "start": lambda app: greet.start("a"),
    "send_event": lambda app: send_event("homes.event", 1),
    "app.send_event": lambda app: app.send_event("homes.event", 1),
    "app.publish": lambda app: app.publish("homes.channel", 1),
    "result": lambda app: app.get("known").result(),
    "info": lambda app: app.get("known").info(),
    "cancel": lambda app: app.cancel("known"),
    "runs": lambda app: app.runs().first(),
    "retry": lambda app: app.retry("known"),
}


@pytest.mark.parametrize("use", USES)
async def test_app_use_on_another_event_loop_is_refused(database: Database, use: str) -> None:
    """Otherwise the call would find the App by accident, and fail sometimes."""

    async def elsewhere(app: App) -> None:
        with pytest.raises(EngineError, match=r"on another event loop.*run_coroutine_threadsafe.*open a Client"):
            await USES[use](app)

    async with App(database.url) as app:
        await (await greet.options(id="known").start("a")).result(20)
        await asyncio.to_thread(asyncio.run, elsewhere(app))
        await (await greet.start("b")).result(20)


async def test_alternatives_named_by_the_event_loop_error_work(shared: Database) -> None:
    loop = asyncio.get_running_loop()

    async def with_a_client() -> str:
        async with Client(shared.url):
            return await (await greet.start("client")).result(20)

    def from_a_thread() -> str:
        handle = asyncio.run_coroutine_threadsafe(greet.start("thread"), loop).result(20)
        return asyncio.run_coroutine_threadsafe(handle.result(20), loop).result(20)

    async with App(shared.url):
        assert await asyncio.to_thread(from_a_thread) == "hello thread"
        assert await asyncio.to_thread(asyncio.run, with_a_client()) == "hello client"
        assert await (await greet.start("here")).result(20) == "hello here"


@activity
def in_a_thread() -> str:
    try:
        asyncio.run(start_there())
    except EngineError as error:
        return str(error)
    return ""


async def start_there() -> None:
    await greet.start("there")


@workflow(name="homes.plain")
async def plain() -> str:
    return await in_a_thread()


async def test_app_use_from_an_activity_with_its_own_event_loop_is_refused(database: Database) -> None:
    async with App(database.url):
        assert "opened on another event loop" in await (await plain.start()).result(20)


APPS: list[App] = []


@workflow(name="homes.body")
async def body() -> str:
    try:
        await APPS[-1].get("x").info()
    except NotDurableError as error:
        return str(error)
    return ""


async def test_app_use_in_a_body_is_refused(database: Database) -> None:
    async with App(database.url) as app:
        APPS[:] = [app]
        assert "in a workflow's body: use it in an activity" in await (await body.start()).result(20)


OWN = """
import asyncio, sys
from perdure import Client, workflow

@workflow
async def greet(name: str) -> str:
    return "hello " + name

async def own(url: str) -> None:
    async with Client(url):
        await greet.options(id="own").start("own")

asyncio.run(own(sys.argv[1]))
"""

# A child of a process with threads may do little but exec: a lock that one of them held stays locked in the child.
FORK = """
import asyncio, os, sys
from perdure import App, EngineError, workflow

@workflow
async def greet(name: str) -> str:
    return "hello " + name

async def use(text: str) -> None:
    try:
        await greet.start("x")
    except EngineError as error:
        os.write(1, (text + ": " + str(error) + chr(10)).encode())

async def main(url: str, own: str) -> None:
    async with App(url):
        await (await greet.start("before")).result(20)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                asyncio._set_running_loop(None)
                loop = asyncio.new_event_loop()
                loop.run_until_complete(asyncio.wait_for(use("fork"), 20))
                os.execv(sys.executable, [sys.executable, "-W", "ignore", "-c", own, url])
            finally:
                os._exit(status)
        async with asyncio.timeout(60):
            while not (gone := os.waitpid(child, os.WNOHANG))[0]:
                await asyncio.sleep(0.01)
        assert gone[1] == 0, gone
        print(await (await greet.start("after")).result(20), flush=True)
        print(await (await greet.options(id="own").start("own")).result(20), flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


async def test_app_use_after_a_fork_is_refused_and_leaves_the_parent_intact(shared: Database) -> None:
    """Otherwise the child would hang on SQLite, and break the parent's connections on servers."""
    program = [sys.executable, "-W", "ignore", "-c", FORK, str(shared.url), OWN]
    done = await asyncio.to_thread(subprocess.run, program, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    refused, *answers = done.stdout.splitlines()
    assert "forked from it" in refused
    assert "open an App or Client in each process" in refused
    assert answers == ["hello after", "hello own"]


async def test_app_is_open_while_its_worker_starts(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first activities that a worker resumes may start runs before `async with` has returned."""
    start, found = Worker.start, list[Client]()

    async def started(worker: Worker) -> None:
        app = current.current_app()
        assert await app.runs().count() == 0
        found.append(app)
        await start(worker)

    monkeypatch.setattr(Worker, "start", started)
    async with App(database.url) as app:
        assert found == [app]


async def test_app_whose_worker_cannot_start_is_not_open(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(worker: Worker) -> None:
        raise OSError("no threads left")

    app = App(database.url)
    with monkeypatch.context() as broken:
        broken.setattr(Worker, "start", fails)
        with pytest.raises(OSError, match="no threads left"):
            await app.__aenter__()
    assert not current.is_open()
    with pytest.raises(ClosedError):
        await app.runs().count()
    async with app:
        assert await app.runs().count() == 0
