"""Cancelling, retrying and deleting all runs of a query."""

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from perdure import App, Client, EngineError, WorkflowCancelledError, WorkflowFailedError, WorkflowStatus
from perdure.errors import RunExistsError, RunNotFoundError, WorkflowNotCancellableError
from perdure.model.records import WorkflowInstance
from perdure.storage.stores import SQLStorage
from tests.engine.api.workflows import Order, child, looped, simple
from tests.engine.waiting import waiting
from tests.support.storages import Database, storage_of

SOON = 60
DAY = timedelta(days=1)


async def fill(storage: SQLStorage, count: int, **fields: Any) -> None:
    start = datetime.now(UTC) - DAY
    for first in range(0, count, 1000):
        rows = [
            WorkflowInstance(
                f"i-{n:05}",
                "api.simple",
                b'{"text": "%d"}' % (n % 10),
                started_at=start + timedelta(milliseconds=n),
                **fields,
            )
            for n in range(first, min(first + 1000, count))
        ]
        assert set(await storage.create_instances(rows)) == {None}


@pytest.mark.call("run")
async def test_all_runs_of_a_query_are_cancelled(database: Database) -> None:
    async with App(database.url) as app:
        for n in range(3):
            await simple.options(id=f"w{n}").start("wait")
            await waiting(app, f"w{n}")
        await (await simple.options(id="x").start("x")).result(SOON)
        query = app.runs(workflow=simple)
        dry = await query.cancel("all of them", dry_run=True)
        assert (dry.done, dry.skipped, dry.failed, dry.dry_run) == (3, 1, {}, True)
        assert await app.runs(status="waiting_for_message").count() == 3
        done = await query.cancel("all of them")
        assert (done.done, done.skipped, done.failed, done.dry_run) == (3, 1, {}, False)
        for n in range(3):
            with pytest.raises(WorkflowCancelledError, match="all of them"):
                await app.get(f"w{n}").result(SOON)


async def test_runs_of_a_query_are_cancelled_without_a_reason(memory: Database) -> None:
    async with App(memory.url) as app:
        handle = await simple.options(id="a").start("wait")
        await waiting(app, "a")
        assert (await app.runs(workflow=simple).cancel()).done == 1
        with pytest.raises(WorkflowCancelledError, match=r"run 'a' \(api\.simple\) was cancelled$"):
            await handle.result(SOON)


@pytest.mark.call("run")
async def test_all_runs_of_a_query_are_retried(database: Database) -> None:
    async with App(database.url) as app:
        for n in range(3):
            with pytest.raises(WorkflowFailedError):
                await (await simple.options(id=f"bad-{n}").start("bad")).result(SOON)
        query = app.runs(workflow=simple, started_before=await app._storage.now())
        assert (await query.retry(dry_run=True)).done == 3
        assert (await query.retry()).done == 3
        for n in range(3):
            with pytest.raises(WorkflowFailedError):
                await app.get(f"bad-{n}~r1").result(SOON)
        again = app.runs(workflow=simple, status="failed")
        assert (await again.retry(dry_run=True)).done == 3
        found = await again.retry()
        assert (found.done, found.skipped) == (3, 3)  # only the last attempt at each run
        for n in range(3):
            with pytest.raises(WorkflowFailedError):
                await app.get(f"bad-{n}~r2").result(SOON)
            with pytest.raises(RunNotFoundError):
                await app.get(f"bad-{n}~r3").info()


async def test_runs_that_two_clients_retry_at_once_are_retried_once(database: Database) -> None:
    async with App(database.url, workflows=[simple]) as app:
        for n in range(3):
            with pytest.raises(WorkflowFailedError):
                await (await simple.options(id=f"bad-{n}").start("bad")).result(SOON)
        before = await app._storage.now()
    async with Client(database.url) as one, Client(database.url) as other:
        queries = [client.runs(workflow=simple, started_before=before) for client in (one, other)]
        found = await asyncio.gather(*(query.retry() for query in queries))
        assert (sum(each.done for each in found), sum(each.skipped for each in found)) == (3, 3)
        assert await one.runs(workflow=simple).count() == 6


@pytest.mark.call("run")
async def test_all_ended_runs_of_a_query_are_deleted_with_their_histories(database: Database) -> None:
    async with App(database.url) as app:
        await fill(storage_of(app), 250, status=WorkflowStatus.COMPLETED)
        await (await child.options(id="o").start(Order("o", Decimal(1)))).result(SOON)
        await simple.options(id="waits").start("wait")
        dry = await app.runs().delete(dry_run=True)
        assert (dry.done, dry.skipped) == (251, 1)
        assert await app.runs().count() == 252
        assert await app._storage.get_history_count("o") == 1
        done = await app.runs().delete()
        assert (done.done, done.skipped, done.failed) == (251, 1, {})
        assert [run.id async for run in app.runs()] == ["waits"]
        assert await app._storage.get_history_count("o") == 0


async def test_bulk_delete_reports_each_failure_with_its_reason(database: Database) -> None:
    async with App(database.url, workflows=[]) as client:
        storage = client._storage
        await storage.create_instance(WorkflowInstance("a~1", "api.looped", status=WorkflowStatus.RECURRED))
        await storage.create_instance(WorkflowInstance("a", "api.looped", continued_from="a~1"))
        done = await client.runs(workflow=looped).delete()
        assert (done.done, done.skipped) == (0, 1)
        assert "continues from it" in done.failed["a~1"]


async def test_runs_of_another_framework_cannot_be_cancelled_or_retried(database: Database) -> None:
    async with App(database.url, workflows=[]) as app:
        for id, status in (("theirs", WorkflowStatus.RUNNING), ("failed", WorkflowStatus.FAILED)):
            await app._storage.create_instance(
                WorkflowInstance(id, "api.simple", b'{"text": "x"}', status=status), source_code=""
            )
        await app._storage.db().execute("UPDATE workflow_instances SET framework = 'python'")
        for change in (app.cancel("theirs"), app.retry("failed")):
            with pytest.raises(EngineError, match="belongs to the framework 'python'"):
                await change
        with pytest.raises(RunExistsError):
            await simple.options(id="theirs").start("x")
        assert (await app.get("theirs").info()).status is WorkflowStatus.RUNNING
        assert [run async for run in app.runs()] == []


async def test_cancelling_an_ended_run_is_refused(database: Database) -> None:
    async with App(database.url) as app:
        await (await simple.options(id="x").start("x")).result(SOON)
        with pytest.raises(WorkflowNotCancellableError):
            await app.cancel("x")
