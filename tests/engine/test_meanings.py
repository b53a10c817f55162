"""What people ask about: a test for each answer that is shown nowhere else; docs/guarantees.md has the map."""

import asyncio
import gc
import sqlite3
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import asyncmy.connection
import asyncpg.connection
import pytest

from perdure import (
    ActivityError,
    App,
    Client,
    EngineError,
    Retention,
    Retry,
    RunEvicted,
    WorkflowCancelledError,
    WorkflowStatus,
    activity,
    connection,
    errors,
    recur,
    sleep,
    wait_event,
    workflow,
)
from perdure.engine import starting
from perdure.engine.execution import driven
from perdure.storage.stores import shift_clock
from tests.engine.waiting import row_of, status_of, until, waiting
from tests.storages import Database, storage_of

SOON = timedelta(seconds=20)
DAY = timedelta(days=1)
ONCE = Retry(attempts=1)
done: list[str] = []
gates: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def forget() -> None:
    done.clear()
    gates.clear()


@activity(retry=ONCE)
async def note(what: str) -> str:
    done.append(what)
    return what


@workflow(name="meanings.noter")
async def noter(what: str) -> str:
    return await note(what)


# Same id twice.


def test_meaning_same_id_twice_generated_ids_are_time_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(1_700_000_000_000_000_000, 1_700_000_001_000_000_000, 1_000_000))
    monkeypatch.setattr(time, "time_ns", lambda: next(moments))
    ids = [starting.new_id() for _ in range(1000)]
    assert sorted(ids) == ids
    assert len(set(ids)) == 1000


async def test_meaning_same_id_twice_after_retention_the_id_is_free(database: Database) -> None:
    async with App(database.url) as app:
        assert await (await noter.options(id="same").start("first")).result(SOON) == "first"
        with pytest.raises(errors.RunExistsError):
            await noter.options(id="same").start("second")
        shift_clock(storage_of(app), 2 * DAY)
        assert (await app.sweep(Retention(finished=DAY))).finished == 1
        shift_clock(storage_of(app), timedelta(0))
        assert await (await noter.options(id="same").start("second")).result(SOON) == "second"


# Errors.


@activity(retry=ONCE)
async def fail_privately() -> None:
    class PrivateError(Exception):
        """No other process could make it."""

    raise PrivateError("nobody knows me")


@workflow(name="meanings.private")
async def private() -> list[str]:
    try:
        await fail_privately()
    except ActivityError as error:
        return [error.error_type, str(error), error.stack_trace]
    return []


async def test_meaning_errors_of_other_classes_are_activity_errors_with_type_message_and_trace(
    database: Database,
) -> None:
    async with App(database.url):
        kind, message, trace = await (await private.start()).result(SOON)
        assert "PrivateError" in kind
        assert "nobody knows me" in message
        assert "in fail_privately" in trace


def test_meaning_errors_are_one_tree() -> None:
    named = """NonDeterminismError ActivityError WorkflowFailedError WorkflowCancelledError RunNotFoundError
    NotDurableError OutsideWorkflowError TransactionTooLongError"""
    for name in named.split():
        assert issubclass(getattr(errors, name), EngineError)
    assert issubclass(EngineError, errors.PerdureError)
    assert not issubclass(RunEvicted, Exception)


# Cancel.


@workflow(name="meanings.waiter")
async def waiter() -> None:
    await asyncio.gather(sleep(DAY), wait_event("meanings.never", timeout=DAY))


async def test_meaning_cancel_is_one_commit_that_ends_all_waits(database: Database) -> None:
    async with App(database.url) as app:
        handle = await waiter.start()
        await waiting(app, handle.id)
    async with App(database.url, workflows=[]) as client:
        if database.backend == "memory":  # it went with the app: here the run is new, and has no waits
            handle = await waiter.start()
        before = await row_of(client, handle.id)
        await client.cancel(handle.id, "enough")
        after = await row_of(client, handle.id)
        assert after.status is WorkflowStatus.COMPENSATING
        assert after.lock_token > before.lock_token
        assert await client._storage.get_waits([handle.id]) == []
        cancelled = [event async for event in client.history(handle.id) if event.kind == "WorkflowCancelled"]
        assert cancelled[0].data["reason"] == "enough"


@activity(retry=ONCE)
async def tidy(cleans_up: bool) -> None:
    done.append("begin")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        while not cleans_up:
            with suppress(asyncio.CancelledError):
                await gates.setdefault("forever", asyncio.Event()).wait()
                cleans_up = True
        await asyncio.sleep(0.05)
        done.append("clean up")
        raise


@tidy.compensation
async def untidy(cleans_up: bool, *, result: None) -> None:
    done.append("undo")


@workflow(name="meanings.tidier")
async def tidier(cleans_up: bool) -> None:
    await tidy(cleans_up)
    await note("a new step")


async def test_meaning_cancel_reaches_another_worker_and_its_activity_may_clean_up(shared: Database) -> None:
    async with App(shared.url):
        handle = await tidier.start(True)
        await until(lambda: done == ["begin"])
        async with Client(shared.url) as other:
            asked = asyncio.get_running_loop().time()
            await other.cancel(handle.id)
            await until(lambda: "clean up" in done)
            assert asyncio.get_running_loop().time() - asked < 5
            with pytest.raises(WorkflowCancelledError):
                await other.get(handle.id).result(SOON)
        assert done == ["begin", "clean up", "undo"]


async def test_meaning_cancel_does_not_wait_for_ever_for_an_activity(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert driven.STUBBORN_SEC == 10
    monkeypatch.setattr(driven, "STUBBORN_SEC", 0.1)
    async with App(database.url):
        handle = await tidier.start(False)
        await until(lambda: done == ["begin"])
        await handle.cancel()
        with pytest.raises(WorkflowCancelledError):
            await handle.result(SOON)
        assert done == ["begin", "undo"]
        gates["forever"].set()
        await until(lambda: done[-1] == "clean up")


@activity
async def calm() -> None: ...


@calm.compensation
async def stubborn_undo(*, result: None) -> None:
    done.append("undo")
    while not gates["forever"].is_set():
        with suppress(asyncio.CancelledError):
            await gates["forever"].wait()


@workflow(name="meanings.stubborn")
async def stubborn() -> None:
    await calm()
    raise ValueError("undo it")


async def test_meaning_cancel_of_an_undo_does_not_hold_up_the_shutdown(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driven, "STUBBORN_SEC", 0.1)
    gates["forever"] = asyncio.Event()
    async with asyncio.timeout(20):
        async with App(database.url, drain_timeout=timedelta(seconds=0.1)):
            await stubborn.start()
            await until(lambda: done == ["undo"])
    gates["forever"].set()


@activity(retry=ONCE)
def fail_late() -> None:
    done.append("begin")
    assert thread_gate.wait(20)
    raise ValueError("too late for anybody")


thread_gate = threading.Event()


@workflow(name="meanings.late")
async def late() -> None:
    await fail_late()


async def test_meaning_cancel_what_a_thread_raises_after_it_is_no_complaint(database: Database) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    thread_gate.clear()
    async with App(database.url):
        handle = await late.start()
        await until(lambda: done == ["begin"])
        await handle.cancel()
        thread_gate.set()
        with pytest.raises(WorkflowCancelledError):
            await handle.result(SOON)
    gc.collect()
    assert complaints == []


# Children.


@activity(retry=ONCE)
async def grow(what: str) -> None:
    done.append(what)


@grow.compensation
async def shrink(what: str, *, result: None) -> None:
    done.append(f"undo {what}")


@workflow(name="meanings.child")
async def child(generation: int) -> None:
    await grow(f"child {generation}")
    await sleep(DAY)


@activity
async def grown() -> None:
    await until(lambda: done == ["child 1"])


@workflow(name="meanings.recurring")
async def recurring(generation: int) -> str:
    if generation == 1:
        asyncio.get_running_loop().create_task(_raise_child(generation))
        await grown()
        recur(2)
    return "end"


async def _raise_child(generation: int) -> None:
    await child(generation)


async def test_meaning_children_of_a_generation_end_with_it(database: Database) -> None:
    async with App(database.url) as app:
        assert await (await recurring.start(1)).result(SOON) == "end"
        (left,) = [run async for run in app.runs(workflow="meanings.child")]
        assert left.status is WorkflowStatus.CANCELLED
        assert done == ["child 1", "undo child 1"]


# Connection.


@activity(transactional=True, retry=ONCE)
async def look_at_it() -> str:
    native = connection()
    kinds = (sqlite3.Connection, asyncpg.connection.Connection, asyncmy.connection.Connection)
    return type(native).__name__ if isinstance(native, kinds) else "something else"


@workflow(name="meanings.native")
async def native() -> str:
    return await look_at_it()


async def test_meaning_connection_is_the_native_one(database: Database) -> None:
    async with App(database.url):
        assert await (await native.start()).result(SOON) != "something else"


async def test_meaning_retry_of_a_run_that_is_under_way_or_went_well_is_refused(database: Database) -> None:
    async with App(database.url) as app:
        asleep, well = await waiter.start(), await noter.start("well")
        await well.result(SOON)
        await status_of(asleep, await waiting(app, asleep.id))
        for handle in (asleep, well):
            with pytest.raises(EngineError, match="only failed and cancelled runs can"):
                await app.retry(handle.id)
