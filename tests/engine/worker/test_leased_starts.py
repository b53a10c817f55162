"""Runs that are leased in the commit that creates them."""

import asyncio
from contextlib import suppress
from typing import Any

from perdure import App, Client, WorkflowStatus, activity, workflow
from tests.engine.waiting import row_of, until
from tests.storages import Database

done: list[str] = []


@activity
async def note(word: str) -> str:
    done.append(word)
    return word


@workflow(name="leased_starts.notes")
async def notes(word: str) -> str:
    return await note(word)


async def test_a_run_that_is_created_while_its_app_closes_is_released(shared: Database) -> None:
    """Otherwise no worker could execute it until the lease of the closed app expires."""
    done.clear()
    asked = asyncio.Event()
    async with App(shared.url) as app:
        create = app._storage.create_instances

        async def late(*args: Any, **kwargs: Any) -> Any:
            answers = await create(*args, **kwargs)
            asked.set()
            with suppress(TimeoutError):
                await until(lambda: not app._is_open, seconds=2)  # an app that does not wait for the answer closes
            return answers

        app._storage.create_instances = late  # type: ignore[method-assign]
        starting = asyncio.create_task(notes.options(id="a").start("hello"))
        await asked.wait()
    assert (await starting).id == "a"
    assert not done
    async with Client(shared.url) as client:
        row = await row_of(client, "a")
        assert (row.status, row.locked_by) == (WorkflowStatus.RUNNING, None)
    async with App(shared.url) as app:
        assert await app.get("a").result(20) == "hello"
