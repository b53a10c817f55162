"""Listening for notifications of the storage."""

import asyncio
import logging
from collections.abc import Callable

from perdure.engine.worker.supervision import Supervised
from perdure.errors import StorageError
from perdure.model.records import WakeUp
from perdure.storage.contract import Storage

log = logging.getLogger("perdure.engine")

AGAIN_SEC = 1.0  # pause after the notifications ended


async def listen(
    storage: Storage,
    task: Supervised,
    heard: Callable[[WakeUp], None],
    unavailable: Callable[[BaseException], None] = lambda error: None,
) -> None:
    """Call `heard` with each notification, and `unavailable` with each database error; never return."""
    while True:
        try:
            async for hint in storage.wakeups():
                task.succeeded()
                heard(hint)
        except StorageError as error:
            log.debug("listening for notifications failed, retrying in a second: %s", error)
            unavailable(error)
        await asyncio.sleep(AGAIN_SEC)
