"""Run another process for the SQLite tests: `python -m tests.database.sqlite_process <what> <url> …`.

Each prints one line when it is ready and one with its figures; the times are of the monotonic clock, which all
processes of a machine share.
"""

import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable, Coroutine

from perdure.model.records import WorkflowInstance
from perdure.storage.stores import open_storage


async def hold(url: str) -> None:
    """Hold the gate until killed."""
    async with open_storage(url) as storage, storage.transaction():
        await storage.create_instance(WorkflowInstance("never", "wf"))
        print("ready", flush=True)
        await asyncio.Event().wait()


async def listen(url: str, seconds: str) -> None:
    """Note the time of every hint, and what listening costs."""
    async with open_storage(url) as storage:
        heard: list[float] = []
        hints = storage.wakeups()
        await anext(hints)
        print("ready", flush=True)
        before = resource.getrusage(resource.RUSAGE_SELF)

        async def note() -> None:
            async for _ in hints:
                heard.append(time.monotonic())

        task = asyncio.create_task(note())
        await asyncio.sleep(float(seconds))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        after = resource.getrusage(resource.RUSAGE_SELF)
        busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(json.dumps({"heard": heard, "cpu": busy / float(seconds)}), flush=True)


if __name__ == "__main__":
    tasks: dict[str, Callable[..., Coroutine[None, None, None]]] = {"hold": hold, "listen": listen}
    asyncio.run(tasks[sys.argv[1]](*sys.argv[2:]))
