"""Many runs at once, and long histories."""

import asyncio
import os
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from perdure import App, Client, activity, sleep, wait_event, workflow
from perdure.hooks import Hook, RunCompleted
from tests.engine.waiting import stuck_runs, until, waiting
from tests.support.storages import Database

SOON = timedelta(seconds=60)
seen: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()


@activity
async def double(number: int) -> int:
    seen.append(number)
    return number * 2


@workflow(name="many_runs.small")
async def small(number: int) -> int:
    return await double(await double(number))


@workflow(name="many_runs.steps")
async def steps(count: int) -> int:
    total = 0
    for number in range(count):
        total += await double(number)
    await wait_event("go")
    return total


@workflow(name="many_runs.sleeper")
async def sleeper(seconds: float) -> str:
    await sleep(seconds)
    return "awake"


async def test_one_app_executes_1000_runs_at_once(database: Database) -> None:
    async with App(database.url):
        handles = await asyncio.gather(*(small.start(number) for number in range(1000)))
        assert await asyncio.gather(*(handle.result(SOON) for handle in handles)) == [4 * n for n in range(1000)]
    assert len(seen) == 2000


async def test_two_apps_share_200_runs(shared: Database) -> None:
    done: Counter[int] = Counter()

    def counting(app: int) -> Hook:
        return lambda event: done.update([app] if isinstance(event, RunCompleted) else [])

    async with Client(shared.url):
        handles = await asyncio.gather(*(small.start(number) for number in range(200)))
    options: dict[str, Any] = {"workflows": [small], "max_runs": 20}
    async with App(shared.url, hooks=[counting(1)], **options), App(shared.url, hooks=[counting(2)], **options) as app:
        found = await asyncio.gather(*(app.get(handle.id).result(SOON) for handle in handles))
    assert found == [4 * number for number in range(200)]
    assert len(seen) == 400
    assert done.total() == 200
    assert min(done[1], done[2]) > 0


async def test_long_history_replays(shared: Database) -> None:
    """PERDURE_TEST_STEPS=10000 is the long form."""
    count = int(os.environ.get("PERDURE_TEST_STEPS", "1500"))
    async with App(shared.url, max_cached_runs=0) as app:
        handle = await steps.start(count)
        await until(lambda: len(seen) == count, 100)
        await waiting(app, handle.id)
        await app.send_event("go", None)
        assert await handle.result(SOON) == count * (count - 1)
    assert len(seen) == count


async def test_many_sleeping_runs_all_wake(shared: Database) -> None:
    """All asleep at once, and all due at once. PERDURE_TEST_SLEEPERS=10000 is the long form."""
    count = int(os.environ.get("PERDURE_TEST_SLEEPERS", "1200" if shared.backend == "sqlite" else "400"))
    async with App(shared.url) as app:
        handles = await asyncio.gather(*(sleeper.start(3600) for _ in range(count)))
        sql = app._storage.db()

        async def all_asleep() -> bool:
            asleep = "SELECT count(*) FROM workflow_instances WHERE status = 'waiting_for_timer'"
            return bool((await sql.fetch(asleep))[0][0] == count)

        await until(all_asleep, 100)
        await sql.execute("UPDATE workflow_timer_subscriptions SET expires_at = created_at")  # the hour has passed
        app._worker.wake()
        found = await asyncio.gather(*(handle.result(SOON * 4) for handle in handles))
        assert found == ["awake"] * count
        assert not await stuck_runs(app)
