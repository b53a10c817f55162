"""The loads with DBOS, on PostgreSQL or SQLite.

    .peers/dbos/bin/python -m benchmarks.peers.dbos ten-step sqlite:///bench.db 4000

The settings are DBOS's defaults, and its documentation names no others for production: a pool of 20 connections,
LISTEN/NOTIFY on PostgreSQL, and as many threads as there are blocking calls. On SQLite it leaves the journal and
`synchronous` as SQLite has them, which syncs every commit. Runs are started as tasks of this process rather than put
into a queue: workers look into a queue only every second by default.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dbos import DBOS

from benchmarks.peers.loads import Start, main


@DBOS.step()
async def add(number: int) -> int:
    return number + 1


@DBOS.workflow()
async def one_step(number: int) -> int:
    return int(await add(number))


@DBOS.workflow()
async def ten_steps(number: int) -> int:
    for _ in range(10):
        number = await add(number)
    return number


@asynccontextmanager
async def system(url: str) -> AsyncIterator[tuple[Start, Start]]:
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()

    async def start_one(number: int) -> int:
        return int(await (await DBOS.start_workflow_async(one_step, number)).get_result())

    async def start_ten(number: int) -> int:
        return int(await (await DBOS.start_workflow_async(ten_steps, number)).get_result())

    try:
        yield start_one, start_ten
    finally:
        DBOS.destroy()


if __name__ == "__main__":
    main(system)
