"""Waiting for the ends of runs that other processes execute."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from perdure.engine.worker.results import Results
from perdure.engine.worker.supervision import Supervisor
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.tools import new
from tests.engine.waiting import until
from tests.support.storages import Database


@pytest.fixture
async def storage(memory: Database) -> SQLStorage:
    storage = await memory.storage()
    for name in ("a", "b"):
        await new(storage, name)
    return storage


@pytest.fixture
async def results(storage: SQLStorage) -> AsyncIterator[Results]:
    results = Results(storage, Supervisor(), alone=False)
    yield results
    await results.close()


async def test_watch_is_over_when_all_runs_have_ended(storage: SQLStorage, results: Results) -> None:
    over, left = await results.watch(["a", "b", "absent"])
    assert [row.instance_id for row in left] == ["a", "b"]
    await storage.update_instance_output("a", b"1")
    await results.ended("a")
    assert not over.done()
    await storage.update_instance_output("b", b"1")  # nobody tells it: it asks
    async with asyncio.timeout(20):
        await over


async def test_watch_that_is_cancelled_asks_no_more(results: Results) -> None:
    over, _ = await results.watch(["a"])
    assert results._asker is not None
    over.cancel()
    await until(lambda: results._asker is None)


async def test_watch_may_be_cancelled_just_before_its_run_ends(results: Results) -> None:
    """A future calls its callbacks later, so the watch is still there when the run ends."""
    over, _ = await results.watch(["a"])
    over.cancel()
    await results.ended("a")
    assert over.cancelled()
