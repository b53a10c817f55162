"""Waiting for what a test expects; it fails if that does not come."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

from perdure import App, Client, Handle, WorkflowStatus
from perdure.storage.stores import shift_clock
from tests.storages import rooms


async def until(check: Callable[[], Awaitable[bool] | bool], seconds: float = 20) -> None:
    """Wait for something that is to happen, here or in the database."""
    async with asyncio.timeout(seconds):
        while True:
            answer = check()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.005)


async def status_of(handle: Handle[Any], wanted: WorkflowStatus) -> None:
    """Until a run has this state."""

    async def is_there() -> bool:
        return await handle.status() is wanted

    await until(is_there)


async def waiting(app: Client, *ids: str) -> WorkflowStatus:
    """Until these runs are given up by their worker; gives the state of the last."""

    async def is_waiting(id: str) -> bool:
        return (await app.describe(id)).status is not WorkflowStatus.RUNNING

    for id in ids:
        await until(partial(is_waiting, id))
    return (await app.describe(ids[-1])).status


async def move_clock(app: App, span: timedelta) -> None:
    """Set the database's clock so far ahead of the real one, and have the worker look at it."""
    shift_clock(rooms(app), span)
    await app._worker._set_clock()
    app._worker.wake()
