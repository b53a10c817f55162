"""Which runs can be retried."""

import asyncio
from datetime import timedelta

import pytest

from perdure import App, EngineError, Retry, activity, sleep, wait_event, workflow
from tests.engine.waiting import status_of, waiting
from tests.support.storages import Database

SOON = timedelta(seconds=60)
DAY = timedelta(days=1)
ONCE = Retry(attempts=1)
done: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    done.clear()


@activity(retry=ONCE)
async def note(what: str) -> str:
    done.append(what)
    return what


@workflow(name="retry.noter")
async def noter(what: str) -> str:
    return await note(what)


@workflow(name="retry.waiter")
async def waiter() -> None:
    await asyncio.gather(sleep(DAY), wait_event("retry.never", timeout=DAY))


@pytest.mark.behaviour("retry")
async def test_retrying_an_unfinished_or_completed_run_is_refused(database: Database) -> None:
    async with App(database.url) as app:
        asleep, well = await waiter.start(), await noter.start("well")
        await well.result(SOON)
        await status_of(asleep, await waiting(app, asleep.id))
        for handle in (asleep, well):
            with pytest.raises(EngineError, match="only failed and cancelled runs can"):
                await app.retry(handle.id)
