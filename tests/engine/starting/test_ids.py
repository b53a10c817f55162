"""Run ids: the same id is the same run."""

import asyncio
import time
import uuid
from datetime import timedelta
from typing import Any

import pytest

from perdure import App, Retention, Retry, activity, activity_info, errors, workflow
from perdure.engine import starting
from perdure.errors import LimitError, RunExistsError
from perdure.storage.stores import shift_clock
from tests.engine.orders import Receipt, calls, order
from tests.support.storages import Database, storage_of

SOON = timedelta(seconds=60)
ONCE = Retry(attempts=1)
seen: list[Any] = []
DAY = timedelta(days=1)
done: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    calls.clear()
    seen.clear()
    done.clear()


@pytest.mark.call("run")
@pytest.mark.behaviour("same id twice")
async def test_same_id_returns_the_same_run(database: Database) -> None:
    async with App(database.url):
        first = await order.options(id="same").start("A-1", 9.0)
        await first.result(SOON)
        again = await order.options(id="same").start("A-1", amount=9.0)
        assert await again.result(SOON) == Receipt("A-1", 4.5)
        assert calls == ["charge A-1"]
        with pytest.raises(RunExistsError):
            await order.options(id="same").start("A-2", 9.0)
        with pytest.raises(RunExistsError):
            await order.options(id="same", if_exists="error").start("A-1", 9.0)


@activity(retry=ONCE)
async def note(what: object) -> None:
    seen.append(what)


@activity(timeout=timedelta(seconds=0.05), retry=Retry(attempts=2, initial=timedelta(milliseconds=1)))
async def slow() -> None:
    seen.append(activity_info().attempt)
    await asyncio.Event().wait()


@workflow(name="ids.slow")
async def too_slow() -> str:
    try:
        await slow()
    except TimeoutError:
        return "too slow"
    return "in time"


@workflow(name="ids.echo")
async def echo(value: int) -> int:
    await note(value)
    return value


async def test_valid_ids_are_accepted_and_invalid_ones_refused(memory: Database) -> None:
    async with App(memory.url):
        for good in ("a", "order/A-1", "ä" * 200):
            assert await (await echo.options(id=good).start(1)).result(SOON) == 1
        for bad in ("", " a", "a\n", "a" * 201):
            with pytest.raises(LimitError, match="run id"):
                await echo.options(id=bad).start(1)
        ids = [(await echo.start(1)).id for _ in range(3)]
        assert sorted(ids, key=lambda id: id[:13]) == ids
        assert len(set(ids)) == 3


@pytest.mark.behaviour("same id twice")
async def test_same_id_with_another_workflow_is_refused(memory: Database) -> None:
    async with App(memory.url):
        await echo.options(id="same").start(1)
        with pytest.raises(RunExistsError):
            await too_slow.options(id="same").start()


@activity(retry=ONCE)
async def write(what: str) -> str:
    done.append(what)
    return what


@workflow(name="ids.noter")
async def noter(what: str) -> str:
    return await write(what)


@pytest.mark.behaviour("same id twice")
def test_generated_ids_sort_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(1_700_000_000_000_000_000, 1_700_000_001_000_000_000, 1_000_000))
    monkeypatch.setattr(time, "time_ns", lambda: next(moments))
    ids = [starting.new_id() for _ in range(1000)]
    assert sorted(ids) == ids
    assert len(set(ids)) == 1000
    found = [uuid.UUID(id) for id in ids]
    assert {(each.version, each.variant) for each in found} == {(7, uuid.RFC_4122)}
    assert found[0].int >> 80 == 1_700_000_000_000


@pytest.mark.behaviour("same id twice")
async def test_id_is_free_after_retention_removed_the_run(database: Database) -> None:
    async with App(database.url) as app:
        assert await (await noter.options(id="same").start("first")).result(SOON) == "first"
        with pytest.raises(errors.RunExistsError):
            await noter.options(id="same").start("second")
        shift_clock(storage_of(app), 2 * DAY)
        assert (await app.sweep(Retention(finished=DAY))).finished == 1
        shift_clock(storage_of(app), timedelta(0))
        assert await (await noter.options(id="same").start("second")).result(SOON) == "second"
