"""The loads with Edda, on PostgreSQL or SQLite.

    .peers/edda/bin/python -m benchmarks.peers.edda ten-step sqlite:///bench.db 4000

Its documentation recommends at least 20 pooled connections and 40 more at peaks for production; SQLite has no such
setting. Edda asks for uvloop when it starts, but for the loops that are made afterwards: here the loop is one already.
`start()` returns when the run has ended or waits, so the result is read afterwards.

On SQLite it does not manage many runs at once. With two, errors appear in its log; with four, runs fail because a step
is recorded twice; with 100, because the database is locked, and a lock timeout of two minutes does not help. So there
its runs are executed one after the other, for as many callers as in the other measurements.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from edda import EddaApp, WorkflowContext, activity, workflow

from benchmarks.peers.loads import IN_FLIGHT, Figures, Start, main


@activity
async def add(context: WorkflowContext, number: int) -> int:
    return number + 1


@workflow
async def one_step(context: WorkflowContext, number: int) -> int:
    return int(await add(context, number))


@workflow
async def ten_steps(context: WorkflowContext, number: int) -> int:
    for _ in range(10):
        number = await add(context, number)
    return number


@asynccontextmanager
async def system(url: str) -> AsyncIterator[tuple[Start, Start]]:
    url = url.replace("postgresql://", "postgresql+asyncpg://", 1)
    app = EddaApp(service_name="bench", db_url=url, pool_size=20, max_overflow=40)
    await app.initialize()
    turn = asyncio.Semaphore(1 if url.startswith("sqlite") else IN_FLIGHT)

    async def start(workflow: Any, number: int) -> int:
        async with turn:
            instance = await app.storage.get_instance(await workflow.start(number=number))
        return int(instance["output_data"]["result"])

    async def start_one(number: int) -> int:
        return await start(one_step, number)

    async def start_ten(number: int) -> int:
        return await start(ten_steps, number)

    try:
        yield start_one, start_ten
    finally:
        await app.shutdown()


def on_uvloop(load: Coroutine[Any, Any, Figures]) -> Figures:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(load)


if __name__ == "__main__":
    main(system, on_uvloop)
