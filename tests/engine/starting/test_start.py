"""Starting a run now or later."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import App, Retry, SerializationError, WorkflowStatus, activity, workflow
from tests.engine.orders import Receipt, order
from tests.engine.parcels import packed
from tests.support.storages import Database

SOON = timedelta(seconds=60)
ONCE = Retry(attempts=1)
seen: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()


@pytest.mark.call("run")
async def test_start_after_a_delay(database: Database) -> None:
    async with App(database.url):
        handle = await order.options(after=timedelta(seconds=0.3)).start("A-1", 2.0)
        assert (await handle.info()).status is WorkflowStatus.WAITING_FOR_TIMER
        assert await handle.result(SOON) == Receipt("A-1", 1.0)


@activity(retry=ONCE)
async def note(what: object) -> None:
    seen.append(what)


async def test_invalid_input_is_refused_by_start(memory: Database) -> None:
    async with App(memory.url) as app:
        with pytest.raises(SerializationError):
            await packed.start(object())  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await packed.start()  # type: ignore[call-arg]
        assert await app.runs().count() == 0


@workflow(name="start.echo")
async def echo(value: int) -> int:
    await note(value)
    return value


@pytest.mark.call("run")
async def test_start_at_a_time(database: Database) -> None:
    async with App(database.url):
        at = datetime.now(UTC) + timedelta(seconds=0.5)
        handle = await echo.options(at=at).start(1)
        assert (await handle.info()).status is WorkflowStatus.WAITING_FOR_TIMER
        assert seen == []
        assert await handle.result(SOON) == 1
        assert datetime.now(UTC) >= at - timedelta(seconds=0.1)
        assert await (await echo.options(at=datetime.now(UTC) - timedelta(days=1)).start(2)).result(SOON) == 2
