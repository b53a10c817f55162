"""A worker that stops releases the runs that it was just leasing."""

import asyncio
from contextlib import suppress
from typing import Any

from perdure import App, Client, WorkflowStatus, activity, workflow
from tests.engine.waiting import row_of, until
from tests.support.storages import Database

done: list[str] = []


@activity
async def note(word: str) -> str:
    done.append(word)
    return word


@workflow(name="stopping.notes")
async def notes(word: str) -> str:
    return await note(word)


class Late:
    """An operation of a storage whose answer comes only when its app is closed, or after a while."""

    def __init__(self, app: App, name: str) -> None:
        self._app = app
        self._call = getattr(app._storage, name)
        self.asked = asyncio.Event()
        setattr(app._storage, name, self)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        answer = await self._call(*args, **kwargs)
        self.asked.set()
        with suppress(TimeoutError):
            await until(lambda: not self._app._is_open, seconds=1)
        return answer


async def is_released(shared: Database) -> None:
    """No code was executed, and the run can be leased at once."""
    assert not done
    async with Client(shared.url) as client:
        row = await row_of(client, "a")
        assert (row.status, row.locked_by) == (WorkflowStatus.RUNNING, None)
    async with App(shared.url) as app:
        assert await app.get("a").result(20) == "hello"


async def test_a_run_that_is_created_while_its_app_closes_is_released(shared: Database) -> None:
    done.clear()
    async with App(shared.url) as app:
        late = Late(app, "create_instances")
        starting = asyncio.create_task(notes.options(id="a").start("hello"))
        await late.asked.wait()
    assert (await starting).id == "a"
    await is_released(shared)


async def test_a_run_that_is_leased_while_its_app_closes_is_released(shared: Database) -> None:
    done.clear()
    async with App(shared.url) as app:
        late = Late(app, "claim_instances")
        async with Client(shared.url):
            await notes.options(id="a").start("hello")
        app._worker.wake()
        await late.asked.wait()
    await is_released(shared)
