"""A run that `max_tries` ends is rolled back like any failed run."""

import asyncio
from datetime import timedelta

import pytest

from perdure import App, Retry, WorkflowFailedError, WorkflowStatus, activity, sleep, wait_event, workflow
from perdure.engine.replay.definitions import COMPENSATIONS
from perdure.hooks import CompensationCompleted, HookEvent, RunFailed, RunStuck
from tests.engine.versions import version
from tests.engine.waiting import move_clock, stuck_runs, until, waiting
from tests.support.storages import Database

SOON = timedelta(seconds=60)
SHORT = timedelta(seconds=1)
BACK_OFF = timedelta(minutes=1)  # longer than that of the first tries
NAME = "max_tries.order"
done: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    done.clear()


@activity(name="max_tries.reserve")
async def reserve(item: str) -> str:
    done.append(f"reserved {item}")
    return item


@reserve.compensation(retry=Retry(attempts=1))
async def release(item: str, *, result: str) -> None:
    done.append(f"released {result}")


@activity
async def other() -> None: ...


@workflow(name="max_tries.child")
async def child() -> None:
    await sleep(3600)


async def before() -> None:
    await reserve("parcel")
    await asyncio.gather(child(), wait_event("go"))


async def after() -> None:
    await other()


async def _start_and_resume(url: str) -> None:
    """A run with a reservation and a child, which is woken for code that does not fit its history."""
    old = version(before, NAME)
    async with App(url, workflows=[old, child]) as app:
        await old.options(id="order-1").start()
        await waiting(app, "order-1")
        await app.send_event("go", None)


@pytest.mark.guarantee(9)
async def test_max_tries_runs_compensations_and_ends_children(shared: Database) -> None:
    await _start_and_resume(shared.url)
    events: list[HookEvent] = []
    served = [version(after, NAME, max_tries=1), child]
    async with App(shared.url, workflows=served, lease=SHORT, hooks=[events.append]) as app:
        with pytest.raises(WorkflowFailedError, match=r"1:max_tries\.reserve"):
            await app.get("order-1").result(SOON)
        assert (await app.get("order-1").info()).status is WorkflowStatus.FAILED
        assert [each.status async for each in app.runs(workflow="max_tries.child")] == [WorkflowStatus.CANCELLED]
        assert await stuck_runs(app) == []
    assert done == ["reserved parcel", "released parcel"]
    kinds = [type(event) for event in events if event.run_id == "order-1"]
    assert kinds == [CompensationCompleted, RunFailed]


async def test_max_tries_leaves_a_rollback_that_cannot_run_stuck(
    shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _start_and_resume(shared.url)
    events: list[HookEvent] = []
    monkeypatch.delitem(COMPENSATIONS, "max_tries.reserve")
    served = [version(after, NAME, max_tries=1), child]
    async with App(shared.url, workflows=served, lease=SHORT, hooks=[events.append]) as app:
        await until(lambda: RunStuck in map(type, events))
        await move_clock(app, BACK_OFF)
        await until(lambda: sum(isinstance(event, RunStuck) for event in events) >= 2)
        (found,) = await stuck_runs(app)
        assert (found.id, found.status) == ("order-1", WorkflowStatus.COMPENSATING)
        assert found.stuck is not None
        assert "reserve" in found.stuck.reason
    assert not [event for event in events if isinstance(event, RunFailed)]
    monkeypatch.undo()
    async with App(shared.url, workflows=served, lease=SHORT) as app:
        await move_clock(app, 2 * BACK_OFF)
        with pytest.raises(WorkflowFailedError, match=r"1:max_tries\.reserve"):
            await app.get("order-1").result(SOON)
    assert done[-1] == "released parcel"
