"""Functions that wait for a condition, and fail if it does not become true."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

from perdure import App, Client, RunHandle, RunInfo, WorkflowStatus
from perdure.model.records import WorkflowInstance
from perdure.storage.stores import shift_clock
from tests.support.storages import storage_of


async def until(check: Callable[[], Awaitable[bool] | bool], seconds: float = 60) -> None:
    """Wait for something that is to happen, here or in the database."""
    async with asyncio.timeout(seconds):
        while True:
            answer = check()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.005)


async def row_of(runs: Client | RunHandle[Any], id: str | None = None) -> WorkflowInstance:
    """The row of a run, by its handle, or by its id."""
    client, run = (runs._runs, runs.id) if isinstance(runs, RunHandle) else (runs, id)
    assert isinstance(client, Client)
    found = await client._storage.get_instance(run or "")
    assert found is not None, run
    return found


async def stuck_runs(app: Client) -> list[RunInfo]:
    """The runs that make no progress."""
    return [run async for run in app.runs(stuck=True)]


async def status_of(handle: RunHandle[Any], wanted: WorkflowStatus) -> None:
    """Until a run has this state."""

    async def is_there() -> bool:
        return (await handle.info()).status is wanted

    await until(is_there)


async def waiting(app: Client, *ids: str) -> WorkflowStatus:
    """Wait until their worker gives up these runs; return the state of the last."""

    async def is_waiting(id: str) -> bool:
        return (await row_of(app, id)).status is not WorkflowStatus.RUNNING

    for id in ids:
        await until(partial(is_waiting, id))
    return (await row_of(app, ids[-1])).status


async def move_clock(app: App, span: timedelta) -> None:
    """Set the database's clock so far ahead of the real one, and have the worker look at it."""
    shift_clock(storage_of(app), span)
    await app._worker.work_loop.publish()
    app._worker.wake()
