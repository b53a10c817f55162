"""Waiting for background tasks while a worker stops."""

import asyncio
from collections.abc import Collection
from typing import Any


async def end_tasks(tasks: "Collection[asyncio.Task[Any]]", seconds: float | None = None) -> None:
    """Cancel tasks and wait until they have ended, or the time is over."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)


async def wait_unless(hurried: asyncio.Event, tasks: "Collection[asyncio.Task[Any]]", seconds: float) -> None:
    """Wait until all tasks have ended, the time is over, or the event is set. No task is cancelled."""
    hurry = asyncio.create_task(hurried.wait())
    # The owner of each task handles its error; here only its end counts.
    ended = asyncio.gather(*(asyncio.shield(task) for task in tasks), return_exceptions=True)
    either: list[asyncio.Future[Any]] = [hurry, ended]
    try:
        await asyncio.wait(either, timeout=seconds, return_when="FIRST_COMPLETED")
    finally:
        hurry.cancel()
