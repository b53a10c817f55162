"""Serving until a signal: what the process of an App or Relay does."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

SIGNALS = signal.SIGTERM, signal.SIGINT


async def serve_until_signal(
    served: AbstractAsyncContextManager[Any], failure: Callable[[], Awaitable[None]], hurry: Callable[[], None]
) -> None:
    """Open something until SIGTERM or SIGINT; a second signal calls `hurry`. Raise what `failure` raises meanwhile."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop_or_hurry() -> None:
        if stop.is_set():
            hurry()
        stop.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, stop_or_hurry)
    try:
        async with served:
            await _wait_until(stop, failure)
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def _wait_until(stop: asyncio.Event, failure: Callable[[], Awaitable[None]]) -> None:
    stopped, broken = asyncio.create_task(stop.wait()), asyncio.ensure_future(failure())
    try:
        await asyncio.wait([stopped, broken], return_when="FIRST_COMPLETED")
        if broken.done():
            broken.result()
    finally:
        stopped.cancel()
        broken.cancel()
