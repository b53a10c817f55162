"""Actions on many runs: exactly the confirmed runs are changed, each exactly once, and the progress can be read."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from perdure import App, Client, WorkflowCancelledError, WorkflowStatus
from perdure import bulk as actions
from perdure.bulk import Selection, progress_of, serving, start
from perdure.bulk.workflow import bulk
from perdure.engine.api.client import storage_of
from perdure.errors import StorageError
from perdure.inspection import RunFilter
from tests.bulk.shop import broken, order
from tests.conftest import BackendDatabase
from tests.engine.waiting import status_of, until, waiting
from tests.support.databases import DATABASES


@pytest.fixture(params=DATABASES)
async def client(request: pytest.FixtureRequest, backend_database: BackendDatabase) -> AsyncIterator[Client]:
    """A client of each database in turn: nothing executes runs."""
    async with backend_database(request.param) as database, Client(database.url) as client:
        yield client


@pytest.fixture
async def file(backend_database: BackendDatabase) -> AsyncIterator[Client]:
    """A client of a SQLite file."""
    async with backend_database("sqlite") as database, Client(database.url) as client:
        yield client


async def all_of(client: Client, **filter: object) -> Selection:
    """Return all runs that match now."""
    return Selection.of(RunFilter(**filter), await storage_of(client).now())  # type: ignore[arg-type]


async def fail(client: Client, count: int) -> list[str]:
    """Start runs that fail, and return their ids."""
    ids = [f"b-{number}" for number in range(count)]
    async with App(client.url, workflows=[broken]):
        runs = [await broken.options(id=id).start(number) for number, id in enumerate(ids)]
        for run in runs:
            await status_of(run, WorkflowStatus.FAILED)
    return ids


async def test_confirmed_runs_are_cancelled_without_any_other_worker(client: Client) -> None:
    for number in range(60):
        await order.options(id=f"o-{number}").start(number)
    selection = await all_of(client, workflow="bulk.order", status="running")
    assert await actions.count(client, "cancel", selection) == 60
    await order.options(id="later").start(99)
    run = await start(client, "cancel", selection, "closing")
    async with serving(client):
        progress = await run.result(60)
    assert (progress.found, progress.done, progress.skipped, progress.failed) == (60, 60, 0, 0)
    info = await client.get("o-7").info()
    assert info.status is WorkflowStatus.COMPENSATING  # a worker of its workflow ends it
    assert info.error is not None
    assert info.error.message == "closing"
    assert (await client.get("later").info()).status is WorkflowStatus.RUNNING
    assert progress_of(await run.state()) == progress


async def test_failed_runs_are_retried_once_each(client: Client) -> None:
    ids = await fail(client, 30)
    selection = await all_of(client, status="failed")
    await fail_later(client)
    run = await start(client, "retry", selection)
    async with serving(client), serving(client):  # two workers
        assert (await run.result(60)).done == 30
    for id in ids:
        assert [await exists(client, f"{id}~r{number}") for number in (1, 2)] == [True, False]
    assert not await exists(client, "late~r1")  # it failed after the confirmation


async def test_run_that_has_been_retried_is_not_retried_again(client: Client) -> None:
    await fail(client, 3)
    async with serving(client):
        await client.retry("b-0")  # by a person
        async with App(client.url, workflows=[broken]):
            await status_of(client.get("b-0~r1"), WorkflowStatus.FAILED)
        selection = await all_of(client, status="failed")
        assert await actions.count(client, "retry", selection) == 3  # b-0~r1 instead of b-0
        assert sorted(await actions.sample(client, "retry", selection, 10)) == ["b-0~r1", "b-1", "b-2"]
        assert (await (await start(client, "retry", selection)).result(60)).done == 3
        again = await all_of(client, status="failed")
        assert await actions.count(client, "retry", again) == 0
        assert (await (await start(client, "retry", again)).result(60)).found == 0
    assert [await exists(client, f"b-0~r{number}") for number in (2, 3)] == [True, False]


async def test_runs_that_an_earlier_action_has_retried_are_skipped(client: Client) -> None:
    ids = await fail(client, 3)
    selection = replace(await all_of(client), ids=ids)
    async with serving(client):
        for done, skipped in ((3, 0), (0, 3)):  # the second was confirmed before the first was carried out
            progress = await (await start(client, "retry", selection)).result(60)
            assert (progress.done, progress.skipped, progress.failed) == (done, skipped, 0)
    assert [await exists(client, f"{id}~r2") for id in ids] == [False] * 3


async def fail_later(client: Client) -> None:
    """Let one more run fail that was there before the confirmation."""
    async with App(client.url, workflows=[broken]):
        await status_of(await broken.options(id="late").start(0), WorkflowStatus.FAILED)


async def exists(client: Client, id: str) -> bool:
    return await storage_of(client).get_instance(id) is not None


async def test_run_that_fails_after_the_confirmation_is_left_alone(file: Client) -> None:
    await broken.options(id="late").start(1)
    selection = await all_of(file, workflow="bulk.broken")  # it is running
    async with App(file.url, workflows=[broken]):
        await status_of(file.get("late"), WorkflowStatus.FAILED)
    run = await start(file, "retry", selection)
    async with serving(file):
        assert (await run.result(60)).found == 0


async def test_ended_runs_are_deleted_and_actions_are_kept(client: Client) -> None:
    await fail(client, 3)
    for number in (3, 0):
        run = await start(client, "delete", await all_of(client, started_after=await long_ago(client)))
        async with serving(client):
            progress = await run.result(60)
        assert (progress.found, progress.done) == (number, number)
    assert not await exists(client, "b-0")
    assert await client.runs(workflow="perdure.bulk").count() == 2


async def long_ago(client: Client) -> object:
    return await storage_of(client).now() - timedelta(days=1)


async def test_action_does_not_cancel_itself(file: Client) -> None:
    await order.options(id="o-1").start(1)
    for filter, done in (({"status": "running"}, 1), ({"workflow": "perdure.bulk", "status": "running"}, 0)):
        # The time of the confirmation is that of the action itself, which then matches, too.
        selection = replace(await all_of(file, **filter), at=await storage_of(file).now() + timedelta(hours=1))
        run = await start(file, "cancel", selection)
        async with serving(file):
            assert (await run.result(60)).done == done


async def test_run_that_has_ended_meanwhile_is_skipped(file: Client) -> None:
    async with App(file.url, workflows=[order]) as app:
        for number in range(3):
            await order.options(id=f"o-{number}").start(number)
        await waiting(app, "o-0", "o-1", "o-2")
        selection = Selection(await storage_of(file).now(), ids=["o-0", "o-1", "o-2", "nope"])
        await app.send_event("bulk.paid", {"number": 1})
        await app.get("o-1").result(60)
        run = await start(file, "cancel", selection)
        async with serving(file):
            progress = await run.result(60)
    assert (progress.found, progress.done, progress.skipped) == (4, 2, 2)


async def test_failures_are_listed_and_do_not_stop_the_others(file: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        await order.options(id=f"o-{number}").start(number)
    cancel = Client.cancel

    async def refuse(self: Client, instance_id: str, reason: str = "") -> None:
        if instance_id == "o-1":
            raise StorageError("the run is cursed")
        await cancel(self, instance_id, reason)

    monkeypatch.setattr(Client, "cancel", refuse)
    run = await start(file, "cancel", await all_of(file, workflow="bulk.order"))
    async with serving(file):
        progress = await run.result(60)
    assert (progress.done, progress.failed, progress.reasons) == (2, 1, {"o-1": "StorageError: the run is cursed"})


async def test_no_more_runs_are_changed_than_were_confirmed(file: Client) -> None:
    for number in range(5):
        await order.options(id=f"o-{number}").start(number)
    selection = Selection.of(RunFilter(workflow="bulk.order"), await storage_of(file).now(), most=2)
    run = await start(file, "cancel", selection)
    async with serving(file):
        assert (await run.result(60)).done == 2


async def test_same_id_starts_one_action(file: Client) -> None:
    selection = await all_of(file, workflow="bulk.order")
    first = await start(file, "cancel", selection, id="clicked")
    assert (await start(file, "cancel", selection, id="clicked")).id == first.id
    assert await file.runs(workflow="perdure.bulk").count() == 1


async def test_stuck_runs_are_selected(file: Client) -> None:
    await order.options(id="o-1").start(1)
    selection = Selection.of(RunFilter(stuck=True), await storage_of(file).now())
    assert await actions.count(file, "cancel", selection) == 0
    assert await actions.count(file, "retry", selection) == 0


async def test_pages_cover_all_runs(file: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.bulk.selection.PAGE", 7)
    monkeypatch.setattr("perdure.bulk.selection.read_page.__defaults__", (None, 7))
    for number in range(20):
        await order.options(id=f"o-{number}").start(number)
    run = await start(file, "cancel", await all_of(file, workflow="bulk.order"))
    async with serving(file):
        assert (await run.result(60)).done == 20
    assert [step.name for step in await run.steps()].count("perdure.bulk.select") == 3


async def test_action_that_a_process_has_left_is_resumed(file: Client) -> None:
    await start(file, "cancel", await all_of(file, workflow="bulk.order"), id="left")
    background = actions.Background()
    background.execute(file, "left")
    await background.close()  # at once
    await background.resume(file)
    assert (await file.get("left").result(60))["found"] == 0
    await background.close()


async def test_background_worker_ends_with_the_client(backend_database: BackendDatabase) -> None:
    background = actions.Background()
    async with backend_database("sqlite") as database:
        async with Client(database.url) as client, App(database.url, workflows=[bulk]) as app:
            await start(app, "cancel", await all_of(client, workflow="bulk.order"), id="paused")
            background.execute(client, "paused", "no such run")
            await app.get("paused").result(60)
        await until(lambda: not background._tasks)


async def test_cancelled_action_ends_its_worker(file: Client) -> None:
    background = actions.Background()
    run = await start(file, "cancel", await all_of(file, workflow="bulk.order"))
    await run.cancel("a mistake")
    background.execute(file, run.id)
    with pytest.raises(WorkflowCancelledError):
        await run.result(60)
    await until(lambda: not background._tasks)


async def test_error_of_the_background_worker_is_logged_when_it_closes(
    file: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entered = asyncio.Event()

    @asynccontextmanager
    async def broken_at_its_end(client: Client) -> AsyncIterator[None]:
        try:
            entered.set()
            yield
        finally:
            raise RuntimeError("the worker cannot drain")

    monkeypatch.setattr(sys.modules["perdure.bulk.serving"], "serving", broken_at_its_end)
    background = actions.Background()
    await start(file, "cancel", await all_of(file, workflow="bulk.order"), id="left")
    background.execute(file, "left")
    await entered.wait()
    await background.close()
    (record,) = [each for each in caplog.records if each.name == "perdure.bulk"]
    assert record.levelno == logging.ERROR
    assert "stopped executing left" in record.getMessage()
    assert "RuntimeError: the worker cannot drain" in record.getMessage()
    assert record.exc_info is not None
