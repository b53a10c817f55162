"""Wait for what must not be interrupted, such as a commit or a rollback."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def finish(work: Awaitable[T], hurry: Callable[[], object] | None = None) -> T:
    """Wait until the work has ended, even if the task is cancelled meanwhile, then re-raise the cancellation.

    `hurry` is called at each cancellation.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
            if hurry is not None:
                hurry()
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # the caller gets the cancellation
    raise cancelled
