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
    sleep,
    wait_event,
    workflow,
)
from perdure.model.records import HistoryEvent, HistoryEventType, WorkflowInstance
from perdure.storage.stores import SQLStorage
from tests.engine.gates import approved, entered, gated, gates, note, seen, two_gates
from tests.engine.gates import forget as forget_gates
from tests.engine.versions import version
from tests.engine.waiting import row_of, stuck_runs, until, waiting
from tests.support.storages import Database

SOON = timedelta(seconds=30)
SHORT = timedelta(seconds=1)
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


@pytest.mark.guarantee(9)
@pytest.mark.call("versions")
async def test_run_of_changed_code_is_retried_until_compatible_code_is_deployed(shared: Database) -> None:
    async with App(shared.url, workflows=[_version(changing_before)]) as app:
        await _version(changing_before).options(id="a").start()
        await waiting(app, "a")
    async with App(shared.url, workflows=[_version(changing_after), approved], lease=SHORT) as app:
        await app.send_event("go", "went on")

        async def is_stuck() -> bool:
            return await _stuck(app) == ["a"]

        await until(is_stuck)
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
        assert await app.get("a").result(SOON) == "went on"
        assert await _stuck(app) == []


@pytest.mark.guarantee(9)
async def test_tries_without_progress_are_counted_and_max_tries_fails_the_run(database: Database) -> None:
    async with App(database.url, workflows=[_version(changing_after, max_tries=2)], lease=SHORT) as app:
        await app._storage.create_instance(WorkflowInstance("a", "no_progress.changing", owner_service="perdure"))
        await app._storage.append_history(_event("a", 7))
        with pytest.raises(WorkflowFailedError, match="7:step"):
            await app.get("a").result(SOON)
        assert (await app.get("a").info()).status is WorkflowStatus.FAILED


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


async def _before() -> str:
    await sleep(1.1)
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

        async def tried_twice() -> bool:
            return "#2" in ((await row_of(app, "a")).locked_by or "")

        await until(tried_twice)
        assert [each.id for each in await stuck_runs(app)] == ["a"]
    assert seen == []
    async with App(shared.url, workflows=[old], lease=SHORT) as app:
        assert await app.get("a").result(SOON) == "old"
