"""Cancelling a run: its waits end at once, and its activities may clean up."""

import asyncio
import gc
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from perdure import App, Client, Retry, WorkflowCancelledError, WorkflowStatus, activity, sleep, wait_event, workflow
from perdure.engine.execution import interfaces
from tests.engine.waiting import move_clock, row_of, until, waiting
from tests.support.storages import Database

SOON = timedelta(seconds=60)
DAY = timedelta(days=1)
ONCE = Retry(attempts=1)
done: list[str] = []
gates: dict[str, asyncio.Event] = {}
thread_gate = threading.Event()


@pytest.fixture(autouse=True)
def forget() -> None:
    done.clear()
    gates.clear()


@activity(retry=ONCE)
async def note(what: str) -> str:
    done.append(what)
    return what


@workflow(name="cancel.waiter")
async def waiter() -> None:
    await asyncio.gather(sleep(DAY), wait_event("cancel.never", timeout=DAY))


@pytest.mark.behaviour("cancel")
async def test_cancel_ends_all_waits_in_one_commit(database: Database) -> None:
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


@workflow(name="cancel.tidier")
async def tidier(cleans_up: bool) -> None:
    await tidy(cleans_up)
    await note("a new step")


@pytest.mark.behaviour("cancel")
async def test_cancel_reaches_another_worker_whose_activity_may_clean_up(shared: Database) -> None:
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


@pytest.mark.behaviour("cancel")
async def test_cancel_does_not_wait_forever_for_an_activity(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert interfaces.STUBBORN_SEC == 10
    monkeypatch.setattr(interfaces, "STUBBORN_SEC", 0.1)
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


@workflow(name="cancel.stubborn")
async def stubborn() -> None:
    await calm()
    raise ValueError("undo it")


@pytest.mark.behaviour("cancel")
async def test_compensation_that_ignores_cancellation_does_not_delay_shutdown(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interfaces, "STUBBORN_SEC", 0.1)
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


@workflow(name="cancel.late")
async def late() -> None:
    await fail_late()


@pytest.mark.behaviour("cancel")
async def test_error_of_a_thread_after_cancel_is_not_reported(database: Database) -> None:
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


@activity(retry=ONCE)
async def hang() -> None:
    await asyncio.Event().wait()


@workflow(name="cancel.overdue")
async def overdue() -> None:
    await sleep(DAY)
    await hang()


async def test_timeout_of_a_run_does_not_start_anew_with_a_replay(database: Database) -> None:
    """Also while an activity executes, when the worker itself watches the time."""
    async with App(database.url, max_cached_runs=0) as app:
        handle = await overdue.options(timeout=2 * DAY).start()
        await waiting(app, handle.id)
        await move_clock(app, 2 * DAY - timedelta(seconds=1))
        with pytest.raises(WorkflowCancelledError, match="timeout exceeded"):
            await handle.result(SOON)
