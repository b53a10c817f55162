"""How soon a worker looks for work: at once for the work of its own process, with pauses for notifications."""

import asyncio
from copy import copy

import pytest

from perdure import App, activity, send_event, wait_event, workflow
from perdure.engine.execution.run import Run
from perdure.engine.worker import work_loop
from perdure.model.records import ResumableWorkflow, WakeUp
from perdure.storage.wakeups import MESSAGE, RESUMABLE
from tests.engine.gates import forget, gated, gates
from tests.engine.waiting import until, waiting
from tests.support.storages import Database

NEVER_SEC = 3600.0


@pytest.fixture(autouse=True)
def close_gates() -> None:
    forget()


@activity(name="waking.echo")
async def echo(what: str) -> str:
    return what


@workflow(name="waking.waits")
async def waits() -> str:
    return await echo((await wait_event("go")).data)


@workflow(name="waking.parent")
async def parent(what: str) -> str:
    return await child(what)


@workflow(name="waking.child")
async def child(what: str) -> str:
    return await echo(what)


@workflow(name="waking.waits_behind_a_gate")
async def waits_behind_a_gate() -> str:
    return await gated("gate")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers ignore notifications for an hour after each look."""
    monkeypatch.setattr(work_loop, "CALM_MIN_SEC", NEVER_SEC)
    monkeypatch.setattr(work_loop, "CALM_SEC", NEVER_SEC)


@pytest.mark.usefixtures("patient")
async def test_event_of_the_same_process_is_delivered_without_a_pause(database: Database) -> None:
    async with App(database.url) as app:
        for number in range(3):
            handle = await waits.options(id=f"r-{number}").start()
            await waiting(app, handle.id)
            await send_event("go", "on", to=handle.id)
            assert await asyncio.wait_for(handle.result(), 60) == "on"


@pytest.mark.usefixtures("patient")
async def test_end_of_a_child_resumes_its_parent_without_a_pause(database: Database) -> None:
    async with App(database.url):
        assert await asyncio.wait_for((await parent.start("done")).result(), 60) == "done"


@pytest.mark.usefixtures("patient")
async def test_run_that_was_started_without_a_free_slot_follows_without_a_pause(database: Database) -> None:
    async with App(database.url, max_runs=1) as app:
        first = await waits_behind_a_gate.start()
        await until(lambda: bool(app._worker.executor.tasks))
        second = await parent.start("done")
        gates["gate"].set()
        assert await asyncio.wait_for(first.result(), 60) == "gate"
        assert await asyncio.wait_for(second.result(), 60) == "done"


@pytest.mark.usefixtures("patient")
async def test_work_whose_time_is_known_does_not_wait_for_the_pause(database: Database) -> None:
    async with App(database.url) as app:
        later = await child.options(after=0.2).start("done")
        app._worker.wake()  # a look finds out when the run is due
        assert await asyncio.wait_for(later.result(), 60) == "done"


async def test_many_hints_within_a_short_time_reach_each_run_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with App(database.url) as app:
        handle = await waits_behind_a_gate.start()
        await until(lambda: bool(app._worker.executor.tasks))
        executor, loop = app._worker.executor, asyncio.get_running_loop()
        monkeypatch.setattr("perdure.engine.worker.executor.HINT_SEC", NEVER_SEC)
        hints: list[str] = []
        monkeypatch.setattr(Run, "hint", lambda run: hints.append(run.id))
        if executor._hinting is not None:
            executor._hinting.cancel()
        executor._hinting, executor._hinted_at = None, loop.time() - 2 * NEVER_SEC
        for _ in range(100):
            executor.hint()
        await until(lambda: bool(hints))
        executor.hint()
        await asyncio.sleep(0)
        assert hints == [handle.id]
        gates["gate"].set()
        await handle.result()


async def test_notification_that_names_a_run_spares_the_search_for_it(memory: Database) -> None:
    async with App(memory.url) as app:
        listener, host = app._worker.listener, app._worker.host
        host.take_woken()
        listener._heard(WakeUp(RESUMABLE, {"instance_id": "r-1", "workflow_name": waits.name}))
        assert host.take_woken() == [ResumableWorkflow("r-1", waits.name)]
        listener._heard(WakeUp(MESSAGE, {"channel": "go", "instance_id": "r-1", "workflow_name": waits.name}))
        listener._heard(WakeUp("scan", {"instance_id": "r-1", "workflow_name": waits.name}))
        assert host.take_woken() == []


@pytest.mark.usefixtures("patient")
async def test_notifications_wait_for_the_pause_and_work_of_this_process_does_not(memory: Database) -> None:
    async with App(memory.url) as app:
        loop, host = copy(app._worker.work_loop), copy(app._worker.host)
        loop._host = host
        host.work, host.own_work = asyncio.Event(), asyncio.Event()  # the worker itself would clear its own
        rest = asyncio.create_task(loop._rest(0.0, NEVER_SEC))
        for _ in range(20):
            host.hint()
            await asyncio.sleep(0)
        assert not rest.done()
        host.wake()
        await asyncio.wait_for(rest, 30)
