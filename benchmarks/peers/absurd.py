"""The loads with Absurd, on PostgreSQL.

    .peers/absurd/bin/python -m benchmarks.peers.absurd ten-step postgresql://… 4000

A client or worker of its Python SDK has one connection, on which statements wait for each other. So that this is not
what is measured, there are ten workers that execute ten tasks each, and ten clients: enough for 100 runs in flight.
The intervals are the defaults, which the documentation names, too: a worker without work looks for tasks every
250 ms, and a client looks for a result after 50 ms and then less and less often.
"""

import asyncio
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from absurd_sdk import AsyncAbsurd

from benchmarks.peers.loads import IN_FLIGHT, Start, main

WORKERS = CLIENTS = 10


async def one_step(number: int, context: Any) -> int:
    return await _add(context, number)


async def ten_steps(number: int, context: Any) -> int:
    for _ in range(10):
        number = await _add(context, number)
    return number


async def _add(context: Any, number: int) -> int:
    async def add() -> int:
        return number + 1

    return int(await context.step("add", add))


@asynccontextmanager
async def system(url: str) -> AsyncIterator[tuple[Start, Start]]:
    await asyncio.to_thread(_create_tables, url)
    clients, workers = [_registered(url) for _ in range(CLIENTS)], [_registered(url) for _ in range(WORKERS)]
    await clients[0].create_queue()
    serving = [
        asyncio.create_task(worker.start_worker(worker_id=str(number), concurrency=IN_FLIGHT // WORKERS))
        for number, worker in enumerate(workers)
    ]
    turns = itertools.cycle(clients)

    async def start(task: str, number: int) -> int:
        client = next(turns)
        spawned = await client.spawn(task, number)
        return int((await client.await_task_result(spawned["task_id"])).result)

    async def start_one(number: int) -> int:
        return await start("one_step", number)

    async def start_ten(number: int) -> int:
        return await start("ten_steps", number)

    try:
        yield start_one, start_ten
    finally:
        for worker in workers:
            worker.stop_worker()
        await asyncio.gather(*serving)
        for each in (*workers, *clients):
            await each.close()


def _create_tables(url: str) -> None:
    absurdctl = Path(sys.prefix) / "bin" / "absurdctl"  # it has the schema of its own version with it
    subprocess.run([absurdctl, "init", "-d", url], check=True, stdout=subprocess.DEVNULL)


def _registered(url: str) -> Any:
    app = AsyncAbsurd(url)
    app.register_task("one_step")(one_step)
    app.register_task("ten_steps")(ten_steps)
    return app


if __name__ == "__main__":
    main(system)
