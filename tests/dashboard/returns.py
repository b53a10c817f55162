"""A workflow with all kinds of blocks, whose diagram the tests of the dashboard and the screenshots show."""

import asyncio
from contextlib import suppress
from datetime import timedelta

from perdure import App, Retry, WorkflowFailedError, activity, sleep, wait_event, workflow
from tests.dashboard import shop
from tests.engine.waiting import waiting

ONCE = Retry(attempts=1)


class DamagedError(Exception):
    """The goods are broken."""


@activity(name="returns.inspect", retry=ONCE)
async def inspect(order_id: str) -> str:
    if order_id.startswith("broken"):
        raise DamagedError(f"goods of {order_id} are damaged")
    return "as new"


@activity(name="returns.refund", retry=ONCE)
async def refund(order_id: str, amount: float) -> float:
    return amount


@activity(name="returns.notify", retry=ONCE)
async def notify(order_id: str, text: str) -> None: ...


async def restock(order_id: str, items: int) -> None:
    """Put the goods back; its steps are not in the source of the workflow."""
    for item in range(items):
        await shop.pack(order_id, item)


@workflow(name="shop.return")
async def give_back(order_id: str, amount: float, items: int = 3) -> str:
    await shop.reserve(order_id, items)
    try:
        state = await inspect(order_id)
    except DamagedError:
        await notify(order_id, "damaged")
        raise
    if amount > 100:
        await wait_event("return.approved", where={"order": order_id}, timeout=timedelta(days=3))
        await refund(order_id, amount)
    elif state == "as new":
        await refund(order_id, amount)
    else:
        return "refused"
    await restock(order_id, items)
    for item in range(items):
        await shop.pack(order_id, item)
        await sleep(0.001)
    await asyncio.gather(notify(order_id, "refunded"), shop.charge(order_id, 1.0))
    return "refunded"


async def fill(app: App) -> None:
    """Execute a return to its end, one that waits, and one that fails."""
    await give_back.options(id="return-1")("A-1", 20.0)
    await give_back.options(id="return-2").start("A-2", 200.0)
    await waiting(app, "return-2")
    with suppress(WorkflowFailedError):
        await give_back.options(id="return-3")("broken-3", 5.0)
