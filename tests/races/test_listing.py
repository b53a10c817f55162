"""Races between a listing and runs that change their status."""

import asyncio

from perdure.model.records import ListInstancesOptions, WorkflowInstance
from perdure.storage.stores import SQLStorage

ROUNDS = 60


async def test_run_that_changes_its_status_is_listed_exactly_once(storage: SQLStorage, peer: SQLStorage) -> None:
    await storage.create_instance(WorkflowInstance("i-1", "wf"))
    done = asyncio.Event()

    async def change() -> None:
        while not done.is_set():
            for status in ("waiting_for_timer", "running", "completed", "running"):
                await peer.db().execute(f"UPDATE workflow_instances SET status = '{status}'")

    changing = asyncio.create_task(change())
    try:
        for _ in range(ROUNDS):
            page = await storage.list_instances(ListInstancesOptions(workflow_name="wf", framework="perdure"))
            assert [row.instance_id for row in page.instances] == ["i-1"]
    finally:
        done.set()
        await changing
