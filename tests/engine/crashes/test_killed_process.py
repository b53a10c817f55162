"""A process that is killed loses nothing that was acknowledged."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Client, activity, activity_info, workflow
from tests.support.storages import Database

ROOT = Path(__file__).parents[3]
SOON = timedelta(seconds=60)
SHORT = timedelta(seconds=1)
seen: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()


async def rows(app: Client, id: str) -> list[str]:
    return [event.step async for event in app.history(id)]


@activity
async def note(what: str) -> str:
    seen.append(what)
    return what


@activity
async def fatal() -> int:
    if os.environ.get("PERDURE_TEST_DIES"):
        os.kill(os.getpid(), signal.SIGKILL)
    seen.append("survived")
    return activity_info().attempt


@workflow(name="killed_process.fatal")
async def crashing() -> str:
    await note("before")
    return f"{await fatal()} {await note('after')}"


async def _crash(url: str) -> None:
    async with App(url, lease=SHORT):
        await (await crashing.options(id="a").start()).result()


@pytest.mark.guarantee(3)
@pytest.mark.behaviour("background tasks")
async def test_killed_process_loses_nothing_and_delays_its_runs_by_a_lease(shared: Database) -> None:
    crash = "from tests.engine.crashes.test_killed_process import _crash"
    code = f"import asyncio; {crash}; asyncio.run(_crash({shared.url!r}))"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, cwd=ROOT, env={**os.environ, "PERDURE_TEST_DIES": "1"}, stderr=subprocess.DEVNULL
    )
    async with App(shared.url, lease=SHORT) as app:
        assert await child.wait() == -signal.SIGKILL
        died = time.monotonic()
        assert await app.get("a").result(SOON) == "1 after"
        assert time.monotonic() - died < 8  # the lease of a second, on a loaded machine; workers look every 10 s
        assert await rows(app, "a") == ["1:note", "2:fatal", "3:note"]
    assert seen == ["survived", "after"]
