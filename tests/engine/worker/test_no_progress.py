"""A run that ends a try without progress is retried with back-off, and its tries are counted."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    App,
    Client,
    Workflow,
    WorkflowFailedError,
    WorkflowStatus,
    activity,
    activity_info,
    send_event,
    sleep,
    wait_event,
    workflow,
)
from perdure.errors import StorageError
from perdure.hooks import RunStuck
from perdure.model.records import HistoryEvent, HistoryEventType, WorkflowInstance
from perdure.storage.stores import SQLStorage
from tests.engine.gates import approved, entered, gated, gates, note, seen, two_gates
from tests.engine.gates import forget as forget_gates
from tests.engine.versions import version
from tests.engine.waiting import move_clock, row_of, stuck_runs, until, waiting
from tests.support.storages import Database

SOON = timedelta(seconds=60)
SHORT = timedelta(seconds=1)
BACK_OFF = timedelta(minutes=1)  # longer than that of the first tries
gates_storage: list[SQLStorage] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    forget_gates()


async def rows(app: Client, id: str) -> list[str]:
    return [event.step async for event in app.history(id)]


@activity
async def look_back() -> int:
    """How much of this run another connection sees."""
    storage: SQLStorage = gates_storage[0]
    return await storage.get_history_count(activity_info().workflow_id)


@workflow(name="no_progress.looking_back")
async def looking_back() -> list[int]:
    found = [await look_back()]
    found += await asyncio.gather(look_back(), look_back())
    found += [await look_back() for _ in range(3)]
    return found


def _event(id: str, number: int) -> HistoryEvent:
    return HistoryEvent(id, f"{number}:step", HistoryEventType.ACTIVITY_COMPLETED, b"1")


async def changing_before() -> str:
    await note("before")
    return str((await wait_event("go")).data)


async def changing_after() -> str:
    await gated("another step")
    return str((await wait_event("go")).data)


def _version(function: Callable[[], Any], max_tries: int | None = None) -> Workflow[..., Any]:
    made: Workflow[..., Any] = version(function, "no_progress.changing", max_tries)
    return made


async def _stuck(app: App) -> list[str]:
    return [each.id for each in await stuck_runs(app)]


async def _is_stuck(app: App) -> bool:
    return await _stuck(app) == ["a"]


@pytest.mark.guarantee(9)
@pytest.mark.call("versions")
async def test_run_of_changed_code_is_retried_until_compatible_code_is_deployed(shared: Database) -> None:
    async with App(shared.url, workflows=[_version(changing_before)]) as app:
        await _version(changing_before).options(id="a").start()
        await waiting(app, "a")
    async with App(shared.url, workflows=[_version(changing_after), approved], lease=SHORT) as app:
        await app.send_event("go", "went on")
        await until(lambda: _is_stuck(app))
        row = await row_of(app, "a")
        assert row.status is WorkflowStatus.RUNNING
        assert row.locked_by == "~put-off#1"
        why = (await app.get("a").info()).stuck
        assert why is not None
        assert why.reason.startswith("NonDeterminismError: run 'a' (no_progress.changing): the history")
        other = await approved.start("others go on")
        await waiting(app, other.id)
        await app.send_event("go", "too", to=other.id)
        assert await other.result(SOON) == "others go on too after"
        assert await rows(app, "a") == ["1:note", "2:wait_event"]
    assert not entered("another step")()
    async with App(shared.url, workflows=[_version(changing_before)], lease=SHORT) as app:
        await move_clock(app, BACK_OFF)
        assert await app.get("a").result(SOON) == "went on"
        assert await _stuck(app) == []


@pytest.mark.guarantee(9)
async def test_tries_without_progress_are_counted_and_max_tries_fails_the_run(database: Database) -> None:
    async with App(database.url, workflows=[_version(changing_after, max_tries=2)], lease=SHORT) as app:
        await app._storage.create_instance(WorkflowInstance("a", "no_progress.changing", owner_service="perdure"))
        await app._storage.append_history(_event("a", 7))
        await until(lambda: _is_stuck(app))
        await move_clock(app, BACK_OFF)
        with pytest.raises(WorkflowFailedError, match="7:step"):
            await app.get("a").result(SOON)
        assert (await app.get("a").info()).status is WorkflowStatus.FAILED


async def test_error_after_a_lost_lease_does_not_count_as_a_try(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rows of the next worker may be unexpected for the last one, which says nothing about the code."""
    events: list[object] = []
    async with App(database.url, workflows=[_version(changing_after)], hooks=[events.append]) as app:
        storage = app._storage
        read = storage.get_history_paginated

        async def read_too_late(id: str, *arguments: Any, **options: Any) -> Any:
            await storage.release_lock(id, (await row_of(app, id)).locked_by or "")
            assert await storage.try_acquire_lock(id, "next#0", 60) is not None
            return await read(id, *arguments, **options)

        monkeypatch.setattr(storage, "get_history_paginated", read_too_late)
        await storage.create_instance(WorkflowInstance("a", "no_progress.changing", owner_service="perdure"))
        await storage.append_history(_event("a", 7))
        await until(lambda: "lost its lease on run a" in caplog.text)
        monkeypatch.undo()
        assert (await row_of(app, "a")).locked_by == "next#0"
    assert not [event for event in events if isinstance(event, RunStuck)]


@pytest.mark.guarantee(9)
async def test_run_with_an_unreadable_row_is_stuck(database: Database) -> None:
    async with App(database.url, workflows=[looking_back, approved], lease=SHORT) as app:
        await app._storage.create_instance(WorkflowInstance("bad", looking_back.name, owner_service="perdure"))
        bad = HistoryEvent("bad", "1:look_back", HistoryEventType.ACTIVITY_COMPLETED, b'"not a number"')
        await app._storage.append_history(bad)
        good = await approved.options(id="good").start("good")

        async def is_stuck() -> bool:
            return await _stuck(app) == ["bad"]

        await until(is_stuck)
        await waiting(app, "good")
        await app.send_event("go", "on", to="good")
        assert await good.result(SOON) == "good on after"
        assert (await app.get("bad").info()).status is WorkflowStatus.RUNNING


@pytest.mark.guarantee(9)
async def test_death_of_a_worker_counts_as_a_try(database: Database) -> None:
    gates["two"].set()
    async with App(database.url, lease=SHORT, workflows=[two_gates], worker_id="me") as app:
        instance = WorkflowInstance("a", two_gates.name, b'{"first":"one","second":"two"}', owner_service="perdure")
        await app._storage.create_instance(instance, worker_id="dead#1", timeout_sec=0.2)
        await until(entered("one"))
        assert (await row_of(app, "a")).locked_by == "me#2"
        gates["one"].set()
        assert await app.get("a").result(SOON) == ["one", "two"]


@pytest.mark.guarantee(9)
async def test_try_that_is_handed_over_on_shutdown_keeps_the_count_of_tries(database: Database) -> None:
    storage = await database.storage()
    instance = WorkflowInstance("a", two_gates.name, b'{"first":"one","second":"two"}', owner_service="perdure")
    lease = await storage.create_instance(instance, worker_id="before", timeout_sec=10)
    assert lease is not None
    await storage.back_off(lease, 2, "EngineError: deadlock", 0.001)
    async with App(database.url, workflows=[two_gates], drain_timeout=0) as app:
        await until(entered("one"))
        (before,) = await stuck_runs(app)
    async with App(database.url, workflows=[approved]) as app:
        (after,) = await stuck_runs(app)
        assert after.stuck is not None
        assert before.stuck is not None
        assert after.stuck.reason == "EngineError: deadlock"
        assert after.stuck.since == before.stuck.since
        assert (await row_of(app, "a")).locked_by == "~put-off#2"


async def _before() -> str:
    await sleep(3600)
    return await note("old")


async def _after() -> str:
    await note("new")
    return await note("newer")


@pytest.mark.pitfall(47)
async def test_changed_code_never_resumes_an_old_run(shared: Database) -> None:
    """Neither by a timer, nor by a lease that ran out, nor by looking again."""
    old, new = (version(function, "no_progress.versions") for function in (_before, _after))
    async with App(shared.url, workflows=[old]) as app:
        await old.options(id="a").start()
        await waiting(app, "a")
    async with App(shared.url, workflows=[new], lease=SHORT) as app:
        await move_clock(app, timedelta(hours=1))

        async def tried(count: int) -> bool:
            return f"~put-off#{count}" == (await row_of(app, "a")).locked_by

        await until(lambda: tried(1))
        await move_clock(app, timedelta(hours=2))
        await until(lambda: tried(2))
        assert [each.id for each in await stuck_runs(app)] == ["a"]
    assert seen == []
    async with App(shared.url, workflows=[old], lease=SHORT) as app:
        await move_clock(app, timedelta(hours=3))
        assert await app.get("a").result(SOON) == "old"


@activity(transactional=True)
async def stored(number: int) -> int:
    return number


async def faltering() -> int:
    seen.append("a try")
    for number in range(3):
        await stored(number)
        if number == len(seen) - 1:
            await send_event("tried", {})  # it cannot be stored
    return len(seen)


async def test_result_of_a_transactional_activity_is_progress(
    memory: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = version(faltering, "no_progress.faltering", 2)
    async with App(memory.url, workflows=[made], lease=SHORT) as app:
        monkeypatch.setattr(app._storage, "publish_to_channel", _refuse)
        assert await (await made.start()).result(SOON) == 4


async def _refuse(*_: object, **__: object) -> None:
    raise StorageError("it is not stored")


async def noting() -> None:
    await note("not stored")


async def test_result_that_is_not_stored_is_no_progress(memory: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the run would execute its activity every second, for ever."""
    made = version(noting, "no_progress.noting", 2)
    async with App(memory.url, workflows=[made], lease=SHORT) as app:
        monkeypatch.setattr(app._storage, "append_and_complete", _refuse)  # of the step and the end that follows it
        with pytest.raises(WorkflowFailedError, match="it is not stored"):
            await (await made.start()).result(SOON)
        assert seen == ["not stored", "not stored"]
