"""Invalid settings and arguments are refused at the call."""

import asyncio
import inspect
import math
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import App, Client, EngineError, receive, sleep, subscribe, timeout, wait_event, workflow
from perdure.errors import ConfigurationError
from tests.support.storages import Database

WRONG: dict[str, list[object]] = {
    "max_runs": [0, -1, 1.5, True, None],
    "max_activities": [0, -1, "many"],
    "max_threads": [0, -1],
    "max_cached_runs": [-1, None],
    "lease": [timedelta(0), timedelta(seconds=-1), timedelta(days=1000), 0, "15", True],
    "drain_timeout": [timedelta(seconds=-1), -1, None],
    "transaction_timeout": [timedelta(0), timedelta(seconds=-1), math.nan],
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_settings_are_refused_by_the_constructor(name: str) -> None:
    for value in WRONG[name]:
        given: dict[str, Any] = {name: value}
        with pytest.raises((TypeError, ValueError), match=rf"App\({name}=\) must be .*, not "):
            App("sqlite:///:memory:", **given)


def test_smallest_valid_settings_are_accepted() -> None:
    App(
        "sqlite:///:memory:", max_runs=1, max_activities=1, max_threads=1, max_cached_runs=0, drain_timeout=timedelta(0)
    )


WAITS: dict[str, Callable[[float], Any]] = {
    "sleep": sleep,
    "timeout": lambda span: timeout(span).__aenter__(),
    "wait_event": lambda span: wait_event("settings.never", timeout=span),
    "receive": lambda span: receive("settings.never", timeout=span),
}


@workflow(name="settings.waits")
async def waits(kind: str) -> str:
    await subscribe("settings.never")
    try:
        await WAITS[kind](math.nan)
    except ValueError as error:
        return str(error)
    return "slept"


@pytest.mark.parametrize("kind", WAITS)
async def test_nan_is_refused_as_a_duration(database: Database, kind: str) -> None:
    """Otherwise `sleep(nan)` would return at once."""
    async with App(database.url):
        assert "not nan" in await (await waits.start(kind)).result(20)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://",
        "postgresql://host",
        "postgresql://user@host:5432/",
        "postgres://?host=h",
        "mysql://",
        "mysql://h",
    ],
)
async def test_url_without_a_database_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the App would migrate whatever database is the default of the driver."""
    for name in ("PGDATABASE", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match="names no database"):
        await Client(url).__aenter__()


def test_database_can_be_named_in_several_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.database.backends.postgres.url import parse

    monkeypatch.delenv("PGDATABASE", raising=False)
    for url in ("postgresql:///orders", "postgresql://?dbname=orders", "postgresql://h?service=orders"):
        parse(url)
    monkeypatch.setenv("PGDATABASE", "orders")
    parse("postgresql://")


@workflow(name="settings.background")
async def background(name: str) -> str:
    return f"hello {name}"


async def add_task(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """As Starlette's BackgroundTasks do: what is not recognised is called in a thread, and its coroutine dropped."""
    if asyncio.iscoroutinefunction(function):
        await function(*args, **kwargs)
    else:
        await asyncio.to_thread(function, *args, **kwargs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of asyncio.iscoroutinefunction, which some still ask
async def test_start_is_recognised_as_a_coroutine_function(database: Database) -> None:
    """Otherwise `BackgroundTasks.add_task(wf.start, ...)` would call it in a thread, and start nothing."""
    if sys.version_info >= (3, 12):
        assert inspect.iscoroutinefunction(background.start)
    async with App(database.url) as app:
        await add_task(background.options(id="background").start, "ann")
        assert await app.get("background").result(20) == "hello ann"


@workflow(name="settings.timers")
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


@pytest.mark.parametrize("url", ["oracle://x", "sqlite://x.db", "", "orders.db"])
async def test_invalid_url_is_refused_when_the_app_opens(url: str) -> None:
    for opened in (App, Client):
        with pytest.raises(ConfigurationError, match="URL"):
            async with opened(url):
                pass
    with pytest.raises(EngineError, match="no App or Client is open"):  # nothing was left half open
        await timers.start()
