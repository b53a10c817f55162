"""The worker's estimate of the database's clock."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import cast

from perdure.engine.worker.clock import DatabaseClock
from perdure.storage.contract import Storage

YEARS = timedelta(days=1000)


class Slow:
    """A database in another time, whose answers take a while."""

    async def now(self) -> datetime:
        await asyncio.sleep(0.01)
        answer = self.real_time()
        await asyncio.sleep(0.05)
        return answer

    def real_time(self) -> datetime:
        return datetime.now(UTC) - YEARS


async def test_the_estimate_is_never_ahead_of_the_database() -> None:
    storage = Slow()
    clock = DatabaseClock(cast(Storage, storage))
    await clock.set()
    behind = storage.real_time() - clock.now()
    assert timedelta(seconds=0.04) < behind < timedelta(seconds=10)


async def test_until_the_database_answers_the_local_clock_is_the_estimate() -> None:
    assert abs(DatabaseClock(cast(Storage, Slow())).now() - datetime.now(UTC)) < timedelta(seconds=10)
