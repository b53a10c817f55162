"""The bare drivers: a transaction that stores many steps at once, as a group commit does."""

import time

from benchmarks.engine.measures import Figures
from benchmarks.storage import data
from benchmarks.storage.databases import sides

BATCH = 100


async def steps(url: str, size: int) -> Figures:
    """Store so many steps in perdure's tables, 100 a commit, each fenced by the lease of a run of its own."""
    async with sides(url) as (storage, raw):
        await data.fill(storage, BATCH)
        await data.reset(storage, "leased")
        batches = [[data.step(run, number) for run in range(BATCH)] for number in range(max(1, size // BATCH))]
        before = time.perf_counter()
        for batch in batches:
            if not await raw.batch(batch):
                raise SystemExit("a batch of steps was not stored")
        return {"value": len(batches) * BATCH / (time.perf_counter() - before)}
