"""Runs of every kind of end, and their histories."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from perdure import App, RunHandle, WorkflowFailedError, WorkflowStatus
from perdure.errors import WorkflowCancelledError
from perdure.testing import History, history_of
from tests.engine.waiting import until
from tests.support.storages import Database
from tests.testing.orders import Order, counter, failures, order

ANN = "ann@example.org"


async def waiting(app: App, id: str, **more: bool) -> RunHandle[str]:
    """Start an order and return its handle once it waits for its event."""
    failures.clear()
    run = await order.options(id=id).start(Order(id, ANN, **more))
    await until(lambda: _has(run, WorkflowStatus.WAITING_FOR_EVENT, WorkflowStatus.WAITING_FOR_MESSAGE))
    return run


async def _has(run: RunHandle[str], *statuses: WorkflowStatus) -> bool:
    return (await run.info()).status in statuses


async def _waiting(app: App, id: str) -> str:
    return (await waiting(app, id)).id


async def _completed(app: App, id: str) -> str:
    run = await waiting(app, id, flaky=True)
    await app.send_event("kit.packed", {"order": id, "by": "Ann"})
    await run.result(30)
    return id


async def _failed(app: App, id: str) -> str:
    """Fail, with the compensation of the first step."""
    run = await order.options(id=id).start(Order(id, ANN, refused=True))
    with suppress(WorkflowFailedError):
        await run.result(30)
    return id


async def _cancelled(app: App, id: str) -> str:
    run = await waiting(app, id)
    await run.cancel(f"{ANN} changed her mind")
    with suppress(WorkflowCancelledError):
        await run.result(30)
    return id


async def _recurred(app: App, id: str) -> str:
    run = await counter.options(id=id).start(2)
    await run.result(30)
    return f"{id}~1"


@dataclass(frozen=True)
class Story:
    """How to make a run, and what its replay leads to."""

    run: Callable[[App, str], Awaitable[str]]
    outcome: str
    status: WorkflowStatus


STORIES = {
    "completed": Story(_completed, "completed", WorkflowStatus.COMPLETED),
    "failed": Story(_failed, "failed", WorkflowStatus.FAILED),
    "cancelled": Story(_cancelled, "open", WorkflowStatus.CANCELLED),
    "recurred": Story(_recurred, "recurred", WorkflowStatus.RECURRED),
    "waiting": Story(_waiting, "open", WorkflowStatus.WAITING_FOR_EVENT),
}


async def told(database: Database, name: str, id: str = "order-1") -> History:
    """Return the history of a run that is made now."""
    async with App(database.url) as app:
        return await history_of(await STORIES[name].run(app, id))
