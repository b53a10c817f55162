"""Races between a listing or a count and runs that change their status."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from perdure.model.records import ListInstancesOptions, WorkflowInstance
from perdure.storage.stores import SQLStorage

ROUNDS = 60
OF_WORKFLOW = ListInstancesOptions(workflow_name="wf", framework="perdure")
OF_ANY_FRAMEWORK = ListInstancesOptions(workflow_name="wf", framework=None)


@asynccontextmanager
async def changing_status(peer: SQLStorage) -> AsyncIterator[None]:
    """Change the status of all runs again and again, on another connection."""
    done = asyncio.Event()

    async def change() -> None:
        while not done.is_set():
            for status in ("waiting_for_timer", "running", "completed", "running"):
                await peer.db().execute(f"UPDATE workflow_instances SET status = '{status}'")

    changing = asyncio.create_task(change())
    try:
        yield
    finally:
        done.set()
        await changing


async def test_run_that_changes_its_status_is_listed_exactly_once(storage: SQLStorage, peer: SQLStorage) -> None:
    await storage.create_instance(WorkflowInstance("i-1", "wf"))
    async with changing_status(peer):
        for _ in range(ROUNDS):
            page = await storage.list_instances(OF_WORKFLOW)
            assert [row.instance_id for row in page.instances] == ["i-1"]


async def test_run_that_changes_its_status_is_counted_exactly_once(storage: SQLStorage, peer: SQLStorage) -> None:
    await storage.create_instance(WorkflowInstance("i-1", "wf"))
    async with changing_status(peer):
        counts = {await storage.count_instances(OF_WORKFLOW) for _ in range(ROUNDS)}
        counts |= {await storage.count_instances(OF_ANY_FRAMEWORK) for _ in range(ROUNDS)}
    assert counts == {1}
