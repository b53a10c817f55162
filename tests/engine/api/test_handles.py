"""Handles: the result, the typed info and the history of a run."""

import asyncio
from dataclasses import is_dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from perdure import (
    App,
    RunHandle,
    RunNotFoundError,
    StepKind,
    StepStatus,
    WaitKind,
    WorkflowCancelledError,
    WorkflowFailedError,
    WorkflowStatus,
    activity,
    recur,
    set_state,
    workflow,
)
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.engine.worker import stuck
from tests.engine.api.workflows import Order, child, looped, simple, whole
from tests.engine.orders import Receipt, order
from tests.engine.parcels import PARCEL, packed
from tests.engine.waiting import until, waiting
from tests.support.storages import Database

SOON = 60
DAY = timedelta(days=1)


async def waits_for(handle: RunHandle[Any], name: str) -> None:
    """Until a run waits for this alone."""

    async def is_there() -> bool:
        return [each.name for each in (await handle.info()).waiting_for] == [name]

    await until(is_there)


@pytest.mark.call("run")
async def test_info_returns_everything_about_a_run_in_typed_values(database: Database) -> None:
    order = Order("o-1", Decimal("9.50"))
    async with App(database.url, worker_id="me") as app:
        handle = await whole.options(id="a", timeout=DAY).start(order)
        await waits_for(handle, "api.news")
        info = await handle.info()
        assert (info.id, info.workflow) == ("a", "api.whole")
        assert info.status is WorkflowStatus.WAITING_FOR_TIMER  # of its deadline
        assert info.input == {"order": order}
        assert (info.result, info.error, info.state) == (None, None, {"phase": "begun"})
        assert (info.finished_at, info.worker, info.lease_expires_at, info.stuck) == (None, None, None, None)
        assert info.deadline is not None
        assert abs(info.deadline - info.started_at - DAY) < timedelta(seconds=5)
        (only,) = info.waiting_for
        assert (only.kind, only.name, only.until) == (WaitKind.CHANNEL, "api.news", None)
        assert info.children == ("a/4",)
        below = await app.get("a/4").info()
        assert (below.parent, below.result, below.status) == ("a", Decimal("9.50"), WorkflowStatus.COMPLETED)
        await app.publish("api.news", "hello")
        await waits_for(handle, "api.go")
        (only,) = (await handle.info()).waiting_for
        assert only.kind is WaitKind.EVENT
        assert only.until is not None
        assert only.until > info.started_at + timedelta(hours=23)
        await app.send_event("api.go", "0.50", to="a")
        assert await handle.result(SOON) == Decimal("10.00")
        info = await handle.info()
        assert (info.result, info.status, info.waiting_for) == (Decimal("10.00"), WorkflowStatus.COMPLETED, ())
        assert info.finished_at is not None
        assert info.started_at <= info.updated_at == info.finished_at
        with pytest.raises(AttributeError):
            info.id = "b"  # type: ignore[misc]


async def test_info_of_an_unknown_workflow_is_plain_json(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async with App(database.url):
        handle = await child.options(id="a").start(Order("o", Decimal(3)))
        await handle.result(SOON)
        monkeypatch.delitem(WORKFLOWS, "api.child")
        info = await handle.info()
        assert (info.input, info.result) == ({"order": {"id": "o", "price": "3"}}, "3")


async def test_info_and_queries_return_the_error_of_a_run(database: Database) -> None:
    async with App(database.url) as app:
        bad = await simple.options(id="bad").start("bad")
        with pytest.raises(WorkflowFailedError):
            await bad.result(SOON)
        error = (await bad.info()).error
        assert error is not None
        assert (error.type, error.message) == ("builtins.ValueError", "it is bad")
        assert "in simple" in error.traceback
        await (waits := await simple.options(id="waits").start("wait")).cancel("enough")
        with pytest.raises(WorkflowCancelledError):
            await waits.result(SOON)
        error = (await waits.info()).error
        assert error is not None
        assert (error.type, error.message) == ("perdure.errors.WorkflowCancelledError", "enough")
        found = {run.id: run.error async for run in app.runs(workflow=simple)}
        assert found["bad"] == (await bad.info()).error
        assert found["waits"] == error


async def test_info_of_a_recurred_run_names_the_previous_run(database: Database) -> None:
    async with App(database.url) as app:
        assert await (await looped.options(id="a").start(2)).result(SOON) == "over"
        info = await app.get("a").info()
        assert (info.previous, info.input) == ("a~2", {"left": 0})
        assert (await app.get("a~2").info()).status is WorkflowStatus.RECURRED


async def test_earlier_execution_of_a_recurred_run_keeps_its_steps_and_state(database: Database) -> None:
    @workflow(name="api.recurring")
    async def recurring(left: int) -> str:
        set_state(left)
        shown = await simple(str(left))
        return recur(left - 1) if left else shown

    async with App(database.url) as app:
        assert await (await recurring.options(id="a").start(1)).result(SOON) == "0"
        earlier = app.get("a~1")
        info = await earlier.info()
        assert (info.status, info.state, await earlier.state()) == (WorkflowStatus.RECURRED, 1, 1)
        (step,) = [each for each in await earlier.steps() if each.kind is StepKind.CHILD]
        assert (step.name, step.status, step.result, info.children) == (
            *("api.simple", StepStatus.COMPLETED, "1"),
            (step.child,),
        )
        assert [entry.id async for entry in earlier.history()] != []


async def test_info_of_an_executing_run_names_its_worker(database: Database) -> None:
    begun, over = asyncio.Event(), asyncio.Event()

    @activity
    async def long() -> None:
        begun.set()
        await over.wait()

    @workflow(name="api.long")
    async def held() -> None:
        await long()

    async with App(database.url, worker_id="me") as app:
        handle = await held.start()
        await begun.wait()
        info = await handle.info()
        assert (info.worker, info.status, info.attempts) == ("me", WorkflowStatus.RUNNING, 0)
        assert info.lease_expires_at is not None
        over.set()
        await handle.result(SOON)
        assert (await handle.info()).worker is None
        assert (await app.health()).oldest_due_sec is None


async def test_info_of_a_delayed_run_shows_that_it_waits_for_its_start(database: Database) -> None:
    async with App(database.url, workflows=[]):
        (only,) = (await (await simple.options(after=DAY).start("x")).info()).waiting_for
        assert (only.kind, only.name) == (WaitKind.START, "start")


async def test_result_takes_seconds_or_a_timedelta(database: Database) -> None:
    async with App(database.url, workflows=[]):
        handle = await simple.options(after=DAY).start("x")
        for span in (0.01, timedelta(milliseconds=10)):
            with pytest.raises(TimeoutError):
                await handle.result(timeout=span)


async def test_every_method_of_a_handle_raises_for_an_unknown_run(database: Database) -> None:
    async with App(database.url) as app:
        handle = app.get("nobody")
        for ask in (handle.result, handle.info, handle.steps, handle.cancel):
            with pytest.raises(RunNotFoundError, match="run 'nobody' does not exist"):
                await ask()


async def test_history_entries_are_decoded(database: Database) -> None:
    async with App(database.url):
        handle = await child.start(Order("o", Decimal(2)))
        await handle.result(SOON)
        (entry,) = [entry async for entry in handle.history()]
        assert (entry.step, entry.kind, entry.data) == ("1:price_of", "ActivityCompleted", "2")
        assert entry.at is not None
        assert is_dataclass(entry)


async def test_result_warns_once_if_no_live_worker_serves_the_workflow(
    database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stuck, "WARN_SEC", 0.05)

    def warnings() -> list[str]:
        return [text for text in caplog.messages if "no live worker serves its workflow" in text]

    async with App(database.url, workflows=[child]) as app:
        handle = await simple.options(id="x").start("x")
        with pytest.raises(TimeoutError):
            await handle.result(0.5)
        (text,) = warnings()
        assert text.startswith("run x (api.simple) has not ended after 0.05 s")
        served = await child.options(after=DAY).start(Order("o", Decimal(1)))
        with pytest.raises(TimeoutError):
            await served.result(0.3)
        assert len(warnings()) == 1
        assert app.worker_id


@pytest.mark.call("run")
async def test_handle_returns_result_status_and_history(database: Database) -> None:
    async with App(database.url):
        handle = await order.options(id="order-A-1").start("A-1", 9.0)
        assert await handle.result(SOON) == Receipt("A-1", 4.5)
        assert (await handle.info()).status is WorkflowStatus.COMPLETED
        assert [event.step async for event in handle.history()] == ["1:charge", "2:halve"]


@pytest.mark.call("run")
async def test_result_raises_after_its_timeout(memory: Database) -> None:
    async with App(memory.url) as app:
        handle = await packed.start(PARCEL)
        with pytest.raises(TimeoutError):
            await handle.result(0.05)
        await waiting(app, handle.id)
        await app.send_event("go", None)
        await handle.result(SOON)


async def test_result_info_and_steps_raise_for_an_unknown_run(memory: Database) -> None:
    async with App(memory.url) as app:
        for ask in (app.get("nobody").result, app.get("nobody").info, app.get("nobody").steps):
            with pytest.raises(RunNotFoundError, match="nobody"):
                await ask()
