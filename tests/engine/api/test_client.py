"""A Client starts and reads runs, and executes none."""

from datetime import timedelta

import pytest

from perdure import (
    App,
    Client,
    Retry,
    RunNotFoundError,
    WorkflowCancelledError,
    WorkflowFailedError,
    WorkflowStatus,
    activity,
    set_state,
    wait_event,
    workflow,
)
from perdure.model.records import HistoryEvent, HistoryEventType, WorkflowInstance
from tests.engine.orders import Receipt, order
from tests.engine.waiting import row_of
from tests.support.storages import Database

SOON = timedelta(seconds=60)
DAY = timedelta(days=1)
MEMORY = "sqlite:///:memory:"
done: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    done.clear()


@activity(retry=Retry(attempts=1))
async def shout(what: str) -> str:
    done.append(what)
    if what == "bad":
        raise ValueError(what)
    return what.upper()


@workflow(name="client.shouter")
async def shouter(what: str) -> str:
    set_state({"about to shout": what})
    return await shout(what)


@pytest.mark.call("run")
async def test_client_starts_cancels_and_retries_runs_without_executing_them(shared: Database) -> None:
    async with Client(shared.url) as client:
        good, bad = await shouter.options(id="good").start("good"), await shouter.start("bad")
        later = await shouter.options(after=DAY).start("later")
        assert (await good.info()).status is WorkflowStatus.RUNNING
        assert (await row_of(good)).locked_by is None
        assert [event async for event in good.history()] == []
        with pytest.raises(TimeoutError):
            await good.result(0.05)
        await later.cancel("not needed")
        assert (await later.info()).status is WorkflowStatus.COMPENSATING  # the worker that takes it will roll it back
        assert done == []
        async with App(shared.url, workflows=[shouter]):
            assert await client.get("good").result(SOON) == "GOOD"
            assert await good.state() == {"about to shout": "good"}
            with pytest.raises(WorkflowCancelledError):
                await later.result(SOON)
            with pytest.raises(WorkflowFailedError):
                await bad.result(SOON)
            assert (await client.retry(bad.id)).id == f"{bad.id}~r1"
            assert len([run async for run in client.runs(workflow="client.shouter")]) == 4


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (WorkflowStatus.CANCELLED, HistoryEventType.WORKFLOW_CANCELLED, WorkflowCancelledError),
        (WorkflowStatus.FAILED, HistoryEventType.WORKFLOW_FAILED, WorkflowFailedError),
    ],
)
async def test_result_of_a_run_whose_end_has_no_readable_reason(
    shared: Database, status: WorkflowStatus, kind: HistoryEventType, error: type[Exception]
) -> None:
    """Another framework may have ended it."""
    async with Client(shared.url) as client:
        lease = await client._storage.create_instance(WorkflowInstance("old", "wf"), worker_id="w", timeout_sec=30)
        assert lease is not None
        await client._storage.append_history(HistoryEvent("old", "end", kind, None, b"\x00", "binary"), lease=lease)
        await client._storage.update_instance_status("old", status, lease=lease)
        with pytest.raises(error, match="'old'"):
            await client.get("old").result(SOON)


@workflow(name="client.told")
async def told() -> list[object]:
    event = await wait_event("client.news")
    return [event.data, event.id, event.source, event.subject]


async def test_client_sends_an_event_with_its_attributes(shared: Database) -> None:
    async with App(shared.url, workflows=[told]) as app, Client(shared.url) as client:
        run = await told.start()
        await client.send_event("client.news", "on", to=run.id, id="e-1", source="/desk", subject="lamp")
        assert await app.get(run.id).result(SOON) == ["on", "e-1", "/desk", "lamp"]


async def test_outer_app_is_current_again_when_the_inner_one_closes() -> None:
    async with App(MEMORY, workflows=[]), App(MEMORY, workflows=[]) as outer:
        async with App(MEMORY, workflows=[]):
            inner = await shouter.start("inside")
        handle = await shouter.start("outside")
        assert await outer.runs().count() == 1
        assert (await outer.get(handle.id).info()).id == handle.id
        with pytest.raises(RunNotFoundError):
            await outer.get(inner.id).info()


async def test_app_executes_a_run_that_a_client_started(database: Database) -> None:
    if database.backend == "memory":
        async with App(database.url) as app:
            handle = await order.start("A-1", 2.0)
            assert await app.get(handle.id).result(SOON) == {"order_id": "A-1", "amount": 1.0}
        return
    async with App(database.url, workflows=[order]), Client(database.url):
        handle = await order.start("A-1", 2.0)
        assert await handle.result(SOON) == Receipt("A-1", 1.0)
