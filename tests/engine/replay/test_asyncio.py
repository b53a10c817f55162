"""A body runs on its own event loop: timers are durable, and calls that cannot be replayed are refused."""

import asyncio
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from perdure import App, NotDurableError, NotDurableWarning, WorkflowStatus, wait_event, workflow
from tests.conftest import BackendDatabase
from tests.engine.waiting import move_clock, waiting
from tests.support.storages import Database

SOON = timedelta(seconds=60)


@pytest.fixture
async def sqlite(backend_database: BackendDatabase) -> AsyncIterator[Database]:
    """A database that two apps can open."""
    async with backend_database("sqlite") as database:
        yield database


async def _socket() -> None:
    await asyncio.open_connection("127.0.0.1", 1)


async def _server() -> None:
    await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)


async def _lookup() -> None:
    await asyncio.get_running_loop().getaddrinfo("localhost", 80)


async def _reader() -> None:
    left, right = socket.socketpair()
    with left, right:
        asyncio.get_running_loop().add_reader(left, lambda: None)


async def _process() -> None:
    await asyncio.create_subprocess_exec("true", stdout=subprocess.DEVNULL)


async def _thread() -> None:
    await asyncio.to_thread(lambda: None)


async def _executor() -> None:
    await asyncio.get_running_loop().run_in_executor(None, lambda: None)


async def _from_a_thread() -> None:
    asyncio.get_running_loop().call_soon_threadsafe(lambda: None)


FORBIDDEN = {each.__name__: each for each in (_socket, _server, _lookup, _reader, _process, _thread, _executor)}


FORBIDDEN[_from_a_thread.__name__] = _from_a_thread


@workflow(name="asyncio.forbidden")
async def forbidden(which: str) -> str:
    try:
        await FORBIDDEN[which]()
    except NotDurableError as error:
        return str(error)
    return "allowed"


@pytest.mark.behaviour("event loop of the body")
@pytest.mark.parametrize("which", FORBIDDEN)
async def test_calls_that_cannot_be_replayed_are_refused_and_name_the_alternative(memory: Database, which: str) -> None:
    async with App(memory.url):
        said = await (await forbidden.start(which)).result(SOON)
    assert "could not be replayed" in said
    assert "activity" in said or "event" in said


@pytest.mark.behaviour("event loop of the body")
def test_calls_that_the_loop_cannot_intercept_are_found_in_the_source() -> None:
    with pytest.warns(NotDurableWarning, match=r"time.time.*perdure.now\(\)"):

        @workflow(name="asyncio.clock")
        async def clock() -> float:
            return time.time()

    with pytest.raises(NotDurableError, match=r"perdure.now\(\)"):

        @workflow(name="asyncio.strict_clock", strict=True)
        async def strict_clock() -> datetime:
            return datetime.now(UTC)


@workflow(name="asyncio.timers")
async def timers() -> list[str]:
    found: list[str] = []
    loop, called = asyncio.get_running_loop(), asyncio.Event()
    await asyncio.sleep(0.01)
    found.append("slept")
    try:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
    except TimeoutError:
        found.append("timeout")
    try:
        await asyncio.wait_for(wait_event("never"), 0.01)
    except TimeoutError:
        found.append("wait_for")
    loop.call_later(0.01, called.set)
    await called.wait()
    found.append("call_later")
    return found


@workflow(name="asyncio.long_timer")
async def long_timer() -> str:
    await asyncio.sleep(3600)
    return "slept"


@pytest.mark.behaviour("event loop of the body")
async def test_timers_of_asyncio_are_durable(database: Database) -> None:
    async with App(database.url):
        handle = await timers.start()
        assert await handle.result(SOON) == ["slept", "timeout", "wait_for", "call_later"]
        kinds = [event.kind async for event in handle.history()]
    assert kinds == ["TimerExpired"] * 4


@pytest.mark.behaviour("event loop of the body")
async def test_long_asyncio_sleep_survives_the_app(sqlite: Database) -> None:
    async with App(sqlite.url) as app:
        await long_timer.options(id="a").start()
        assert await waiting(app, "a") is WorkflowStatus.WAITING_FOR_TIMER
        due = (await app.get("a").info()).waiting_for
    async with App(sqlite.url) as app:
        assert (await app.get("a").info()).waiting_for == due  # it did not start again
        await move_clock(app, timedelta(hours=1))
        assert await app.get("a").result(SOON) == "slept"
